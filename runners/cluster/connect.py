"""Joining a Ray cluster, or starting one on this machine alone; and whether its nodes are as this one."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from runners.run.checkpoint import versions
from runners.run.config import UsageError

CHECK_S = 120.0  # how long the nodes have for proving that they fit; a first Python process on a busy node is slow
ANSWER_S = 5.0  # how long a cluster may take to answer at all


def load() -> Any:
    """Ray, which sends no statistics."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")  # else Ray prints pages about a node that is lost
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of rollouts that a run which ends no longer wants
    os.environ.setdefault("RAY_worker_niceness", "0")  # of a cluster started here; else the learner comes first, by far
    import ray

    return ray


def connect(ray: Any, address: str, key: str, otherwise: str) -> None:
    """Join the cluster at `auto`, `local` or host:port, a value of `key`; a UsageError if none answers or starts.

    `otherwise` is what to give where Ray does not start at all.
    """
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    with ExitStack() as after:
        # Ray puts a handler of its own in the place of ours, which would end a run without saving
        for number in (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ():
            after.callback(signal.signal, number, signal.getsignal(number))
        if address != "local":
            named = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
            try:
                with local_only() if _on_loopback(ray, named) else nullcontext():
                    ray.init(address=address, **quiet)
                return
            except (OSError, ValueError, RuntimeError) as error:
                if named or not isinstance(error, ConnectionError):  # else there is none, and one is started here
                    raise UsageError(
                        f"no Ray cluster answers at {named or 'the address that Ray keeps'} ({first_line(error)}); "
                        f"start one with `ray start --head`, or give {key}=local"
                    ) from None
        try:
            with local_only():
                ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        except Exception as error:  # a plain Exception if a busy machine takes longer than Ray waits
            raise UsageError(f"Ray does not start ({first_line(error)}); try again, or {otherwise}") from None


def _on_loopback(ray: Any, address: str) -> bool:
    """Whether a cluster listens on 127.0.0.1 alone, where Ray looks for none; an OSError if nothing answers soon."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or "://" in host:
        return False
    socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
    if host not in ("127.0.0.1", "localhost"):
        return False
    try:
        socket.create_connection((ray.util.get_node_ip_address(), int(port)), timeout=ANSWER_S).close()
    except OSError:
        return True
    return False


@contextmanager
def local_only() -> Iterator[None]:
    """A cluster that is started meanwhile listens on 127.0.0.1 alone; on Linux Ray does not offer this otherwise."""
    from ray._private import ray_constants

    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def misfit(ray: Any, look: Callable[..., str], *arguments: Any) -> str:
    """What `look(*arguments)` says on the first node that takes work and is not content; else empty."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    task = ray.remote(num_cpus=0, max_retries=0)(look)
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    there = [task.options(scheduling_strategy=On(node["NodeID"], soft=False)) for node in nodes]
    for node, ref in zip(nodes, [one.remote(*arguments) for one in there]):
        try:
            sentence = ray.get(ref, timeout=CHECK_S)
        except ray.exceptions.RayError as error:
            name = node["NodeName"]
            return f"the node {name} cannot run lodestar-rl ({first_line(error)}); install it there as here"
        if sentence:
            return sentence
    return ""


def differs(expected: dict[str, str]) -> str:
    """One sentence if this node has other libraries; else empty."""
    found = versions()
    other = [f"{name} {found[name]} instead of {wanted}" for name, wanted in expected.items() if found[name] != wanted]
    return f"the node {socket.gethostname()} has {', '.join(other)}; install the same there" if other else ""


def first_line(error: Exception) -> str:
    """What an error says first, or its name."""
    return " ".join(str(error).strip().split("\n")[0].split()) or type(error).__name__
