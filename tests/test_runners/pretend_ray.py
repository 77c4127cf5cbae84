"""Ray without processes: actors in this one, whose calls run at once; to lose them on purpose."""

import asyncio
import pickle
from contextlib import closing
from types import SimpleNamespace

from envs.make import make
from runners.cluster.fleet import Fleet
from runners.cluster.servers import Servers
from runners.run.build import build


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


class Handle:
    def __init__(self, ray, made):
        self.ray, self.made, self.lost = ray, made, False

    def __getattr__(self, name):
        def remote(*arguments):
            return self.ray.call(self, name, arguments)

        def two(*arguments):
            reply = remote(*arguments)
            return [
                Reply(None if reply.error else pickle.dumps(pickle.loads(reply.value)[i]), reply.error) for i in (0, 1)
            ]

        return SimpleNamespace(remote=remote, options=lambda num_returns: SimpleNamespace(remote=two))


class PretendRay:
    """`lose(method, count)`: the actor that is asked for the so-manieth call of a method dies of it."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, cpus=2):
        self.cpus, self.calls, self.fatal = cpus, {}, set()

    def lose(self, method, count):
        self.fatal.add((method, count))

    def remote(self, **options):
        return lambda kind: SimpleNamespace(remote=lambda: Handle(self, kind()))

    def call(self, handle, name, arguments):
        self.calls[name] = self.calls.get(name, 0) + 1
        if (name, self.calls[name]) in self.fatal:
            handle.lost = True
        if handle.lost:
            return Reply(error=RayError("the actor died"))
        try:
            values = [self.get(value) if isinstance(value, Reply) else value for value in arguments]
            result = getattr(handle.made, name)(*values)
            return Reply(pickle.dumps(asyncio.run(result) if asyncio.iscoroutine(result) else result))
        except Exception as error:
            return Reply(error=RayTaskError(error))

    def get(self, ref):
        if ref.error is not None:
            raise ref.error
        return pickle.loads(ref.value)

    def put(self, value):
        return Reply(pickle.dumps(value))

    def wait(self, refs, num_returns, timeout):
        return refs[-1:], refs[:-1]  # the last one asked is the first to answer

    def kill(self, handle):
        handle.lost = True

    def cluster_resources(self):
        return {"CPU": float(self.cpus)}


class Reply:
    def __init__(self, value=None, error=None):
        self.value, self.error = value, error


def build_run(config, ray=None):
    """Parts of a run, on pretended actors if it is to be on a cluster."""
    if config.cluster == "none":
        return build(config)
    ray = ray or PretendRay()

    def make_vector(config, driver, n, mix, crashes):
        with closing(make(config.env)) as env:
            spaces = env.observation_space, env.action_space
        servers = Servers(ray, config, spaces, "cpu") if config.servers else None
        return Fleet(ray, config, n, mix, env, servers)

    return build(config, make_vector=make_vector)
