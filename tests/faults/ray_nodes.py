"""A Ray cluster of several nodes on one machine, to lose some of them on purpose."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

MEMORY = 80 * 2**20  # bytes of shared memory a node; jobs exchange a few numbers
# A lost node is noticed within seconds; Ray's own settings allow for slow networks.
HEALTH = {"health_check_initial_delay_ms": 2000, "health_check_period_ms": 1000, "health_check_timeout_ms": 5000}
HEALTH["gcs_rpc_server_reconnect_timeout_s"] = 10  # of who looks for the head; Ray's own is a minute


class Nodes:
    """A running cluster.

    Attributes:
        address: host:port for `runners.sweep.ray.Ray`.
    """

    def __init__(self, count: int, cpus: int) -> None:
        from ray.cluster_utils import Cluster

        self._temporary = tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True)
        common: dict[str, Any] = {
            "object_store_memory": MEMORY,
            "node_ip_address": "127.0.0.1",
            "include_dashboard": False,
        }
        head = {**common, "num_cpus": 0, "_system_config": HEALTH}
        with self._at_home():
            self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._common = {**common, "num_cpus": cpus}
        self.address: str = self._cluster.address
        self._raylets: dict[int, Any] = {}
        for _ in range(count):
            self.add()

    def add(self) -> int:
        """One more node; returns its raylet's pid."""
        node: Any = self._cluster.add_node(**self._common)
        raylet = node.all_processes["raylet"][0].process
        self._raylets[raylet.pid] = raylet
        return int(raylet.pid)

    @property
    def pids(self) -> list[int]:
        """Of the raylet, the process that makes a node, for every node that takes jobs."""
        return [*self._raylets]

    @property
    def working(self) -> dict[int, int]:
        """Of Ray's workers that have a job, the pid, and that of their raylet."""
        children = {
            int(child): pid
            for pid in self.pids
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        }
        return {
            child: pid
            for child, pid in children.items()
            if Path(f"/proc/{child}/cmdline").read_bytes().startswith(b"ray::_attempt")
        }

    def kill(self, pid: int) -> None:
        """Lose a node: SIGKILL to its raylet, upon which its workers go."""
        raylet = self._raylets.pop(pid)
        raylet.kill()
        raylet.wait()  # Ray's workers take a zombie for a living parent

    def kill_head(self) -> None:
        """Lose the head, by SIGKILL to all its processes."""
        self._cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)

    def close(self) -> None:
        """End the cluster."""
        with suppress(Exception), self._at_home():
            self._cluster.shutdown()
        self._temporary.cleanup()

    @contextmanager
    def _at_home(self) -> Iterator[None]:
        """Ray notes the newest cluster's address below its default folder, which may be missing or another's."""
        before = os.environ.get("RAY_TMPDIR")
        os.environ["RAY_TMPDIR"] = self._temporary.name
        try:
            yield
        finally:
            if before is None:
                del os.environ["RAY_TMPDIR"]
            else:
                os.environ["RAY_TMPDIR"] = before


@contextmanager
def nodes(count: int, cpus: int = 1) -> Iterator[Nodes]:
    """A cluster on this machine of a head, which takes no jobs, and `count` nodes with `cpus` CPUs each.

    Raises:
        Exception: Ray's own, if a node does not come up within the 30 s that Ray gives it, as on a very busy machine.
    """
    from runners.cluster.connect import load, local_only

    load()
    logging.getLogger("ray").setLevel(logging.ERROR)
    with local_only():
        cluster = Nodes(count, cpus)
        try:
            yield cluster
        finally:
            cluster.close()
