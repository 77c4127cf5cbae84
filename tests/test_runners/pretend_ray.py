"""Ray without processes: actors in this one, whose calls run at once; to lose them on purpose."""

import pickle
from types import SimpleNamespace


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
        return SimpleNamespace(remote=lambda *arguments: self.ray.call(self, name, arguments))


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
        values = [value.value if isinstance(value, Put) else value for value in arguments]
        try:
            return Reply(pickle.dumps(getattr(handle.made, name)(*values)))
        except Exception as error:
            return Reply(error=RayTaskError(error))

    def get(self, ref):
        if ref.error is not None:
            raise ref.error
        return pickle.loads(ref.value)

    def put(self, value):
        return Put(pickle.loads(pickle.dumps(value)))

    def wait(self, refs, num_returns, timeout):
        return refs[-1:], refs[:-1]  # the last one asked is the first to answer

    def kill(self, handle):
        handle.lost = True

    def cluster_resources(self):
        return {"CPU": float(self.cpus)}


class Put:
    def __init__(self, value):
        self.value = value


class Reply:
    def __init__(self, value=None, error=None):
        self.value, self.error = value, error
