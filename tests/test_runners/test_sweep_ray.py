"""Jobs on a real Ray cluster of several node processes, one of which is lost."""

import json
import signal
import threading
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from waiting_jobs import PATIENCE_S, checkpoints, commands, job, until

from runners.report.job_log import JOB_LOG_NAME
from runners.run.config import UsageError
from runners.sweep import ray as ray_launcher
from runners.sweep.drive import drive
from runners.sweep.job import Job, JobLog
from runners.sweep.ray import Ray
from tests.faults.ray_nodes import nodes

pytestmark = [
    pytest.mark.nightly,  # a Ray cluster takes half a minute to start
    pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed"),
]


def children(pid: int) -> list[int]:
    return [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]


def node_of(job: Job, pids: list[int]) -> int:
    """The node whose worker started the job's process."""
    process = json.loads((job.folder / "status.json").read_text())["pid"]
    (node,) = [pid for pid in pids if any(process in children(worker) for worker in children(pid))]
    return node


@pytest.fixture(scope="module")
def cluster():
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(nodes(2))
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
            pytest.skip("Ray gives a node 30 s to come up, and this machine is too busy for that")
        yield cluster


def test_a_job_whose_node_is_lost_goes_on_elsewhere_and_nothing_else_runs_twice(cluster, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    launcher = Ray(cluster.address)
    assert launcher.slots == 2 and signal.getsignal(signal.SIGTERM) is before
    long = job(tmp_path, "long", "total_timesteps=900")
    jobs = [long, job(tmp_path, "short", "total_timesteps=128")]

    def lose() -> None:
        until(lambda: checkpoints(long))
        cluster.kill(node_of(long, cluster.pids))

    loser = threading.Thread(target=lose)
    loser.start()
    log = JobLog(tmp_path)
    entries = drive(jobs, log, launcher)
    loser.join()
    launcher.close()
    log.close()
    assert {name: (entry.state, entry.attempts) for name, entry in entries.items()} == {
        "long": ("finished", 2),
        "short": ("finished", 1),
    }
    assert [commands(job) for job in jobs] == [2, 1]
    assert "continues at step" in (long.folder / "log.txt").read_text()
    assert '"error": "its node was lost (' in (tmp_path / JOB_LOG_NAME).read_text()


def test_a_wrong_job_fails_with_its_code_and_a_cancelled_one_saves(cluster, tmp_path):
    launcher = Ray(cluster.address, slots=3)
    endless, wrong = job(tmp_path, "endless", "total_timesteps=1e8"), job(tmp_path, "wrong", "agent.learning_rat=1")
    queued = job(tmp_path, "queued", "total_timesteps=1e8")
    launcher.submit(wrong)
    (ended,) = launcher.wait(PATIENCE_S)
    assert ended[0] is wrong and ended[1].code == 2
    launcher.submit(endless)
    until(lambda: checkpoints(endless))
    launcher.submit(queued)
    launcher.cancel("queued")
    ((first, outcome),) = launcher.wait(PATIENCE_S)
    assert (first, outcome.code) == (queued, 143)
    launcher.close()
    ((last, outcome),) = launcher.wait(0.0)
    assert (last, outcome.code) == (endless, 143)
    assert json.loads((endless.folder / "status.json").read_text())["state"] == "stopped"
    assert [path.name for path in tmp_path.glob("jobs/.*")] == []


def test_a_job_for_a_gpu_that_no_node_has_is_refused(cluster, tmp_path):
    launcher = Ray(cluster.address)
    with pytest.raises(UsageError, match=r"gpus=0\.5 is more than the cluster has \(0\); give gpus=0, or add a node"):
        launcher.submit(replace(job(tmp_path, "a"), gpus=0.5))
    launcher.close()


def test_a_node_with_other_libraries_is_refused_by_name(cluster, tmp_path, monkeypatch):
    launcher = Ray(cluster.address)
    expected = {**ray_launcher.versions(), "numpy": "0.1"}
    monkeypatch.setattr(ray_launcher, "versions", lambda: expected)
    with pytest.raises(UsageError, match=r"the node \S+ has numpy 2\S+ instead of 0\.1; install the same there"):
        launcher.submit(job(tmp_path, "a", "total_timesteps=128"))
    launcher.close()


def test_a_node_that_does_not_share_the_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_launcher, "TOKEN_DELAY_S", 0.0)
    words = ray_launcher._explain_misfit((tmp_path / "token", "abc"), ray_launcher.versions())
    assert f"does not see {tmp_path}; give root= a folder that all nodes share" in words


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"address": "nowhere"},
            r"launcher\.address=nowhere is no address of a cluster; give auto, local or host:port",
        ),
        (
            {"address": "127.0.0.1:9"},
            r"no Ray cluster answers at 127\.0\.0\.1:9 \(.*refused\); start one with `ray start",
        ),
        ({"slots": 0}, r"slots=0 is out of range; give a number at least 1"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Ray(**options)
