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

# How long a node has for proving that it fits; a first Python process on a busy node is slow.
NODE_CHECK_S = 120.0
# How long a cluster may take to answer at all.
CLUSTER_ANSWER_S = 5.0


def load() -> Any:
    """Ray, which sends no statistics."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Otherwise Ray prints pages about a node that is lost, and errors of rollouts that an ending run drops.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    # In a cluster that is started here actors would get a far smaller share of the cores than the learner.
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    return ray


def connect(ray: Any, address: str, key: str, otherwise: str) -> None:
    """Join the cluster at `auto`, `local` or host:port, a value of `key`; a UsageError if none answers or starts.

    `otherwise` is what to give where Ray does not start at all.
    """
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    with ExitStack() as restored:
        # Ray puts a handler of its own in the place of ours, which would end a run without saving.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                restored.callback(signal.signal, number, signal.getsignal(number))
        if address != "local":
            named = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
            try:
                with local_only() if _on_loopback(ray, named) else nullcontext():
                    ray.init(address=address, **quiet)
                return
            except (OSError, ValueError, RuntimeError) as error:
                # Where no address is given and no cluster answers, there is none, and one is started below.
                if named or not isinstance(error, ConnectionError):
                    raise UsageError(
                        f"no Ray cluster answers at {named or 'the address that Ray keeps'} ({first_line(error)}); "
                        f"start one with `ray start --head`, or give {key}=local"
                    ) from None
        try:
            with local_only():
                ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        except Exception as error:
            # It is a plain Exception if a busy machine takes longer than Ray waits.
            raise UsageError(f"Ray does not start ({first_line(error)}); try again, or {otherwise}") from None


def _on_loopback(ray: Any, address: str) -> bool:
    """Whether a cluster listens on 127.0.0.1 alone, where Ray looks for none; an OSError if nothing answers soon."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or "://" in host:
        return False
    socket.create_connection((host, int(port)), timeout=CLUSTER_ANSWER_S).close()
    if host not in ("127.0.0.1", "localhost"):
        return False
    try:
        socket.create_connection((ray.util.get_node_ip_address(), int(port)), timeout=CLUSTER_ANSWER_S).close()
    except OSError:
        return True
    return False


@contextmanager
def local_only() -> Iterator[None]:
    """A cluster that is started meanwhile listens on 127.0.0.1 alone; on Linux Ray does not offer this otherwise."""
    from ray._private import ray_constants

    # Versions of Ray differ in whether they define it.
    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def misfit(ray: Any, look: Callable[..., str], *arguments: Any) -> str:
    """What `look(*arguments)` says on the first node that takes work and is not content; else empty."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(look)
    # All nodes are asked at once, then their answers are awaited.
    refs = []
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU"):
            strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            refs.append((node["NodeName"], task.options(scheduling_strategy=strategy).remote(*arguments)))
    for name, ref in refs:
        try:
            sentence = ray.get(ref, timeout=NODE_CHECK_S)
        except ray.exceptions.RayError as error:
            return f"the node {name} cannot run lodestar-rl ({first_line(error)}); install it there as here"
        if sentence:
            return sentence
    return ""


def other_versions_sentence(expected: dict[str, str]) -> str:
    """One sentence if this node has other libraries; else empty."""
    here = versions()
    other = []
    for name, version in expected.items():
        if here[name] != version:
            other.append(f"{name} {here[name]} instead of {version}")
    if not other:
        return ""
    return f"the node {socket.gethostname()} has {', '.join(other)}; install the same there"


def first_line(error: Exception) -> str:
    """What an error says first, or its name."""
    line = str(error).strip().split("\n")[0]
    return " ".join(line.split()) or type(error).__name__
