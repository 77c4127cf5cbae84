"""How a sweep counts the ways in which an attempt can end; the attempts are played by a launcher that runs nothing."""

import json
import os
import threading
import time

import pytest
from filelock import FileLock

from runners.run.child import Outcome
from runners.run.exits import HELD
from runners.sweep import drive as loop
from runners.sweep.drive import drive
from runners.sweep.job import Job, JobLog
from runners.sweep.local import Local

DONE = "done"
TINY = ("env=CartPole-v1", "reward=task", "preset=debug", "total_timesteps=64", "eval_episodes=0", "video=false")


class Played:
    """Attempts end at once with the given codes, the last one again and again; `DONE` is a run that finishes."""

    slots = 1

    def __init__(self, *codes):
        self.codes, self.running, self.started = [*codes], [], 0

    def submit(self, job):
        self.running.append(job)
        self.started += 1
        return "here"

    def wait(self, timeout):
        ended, self.running = self.running, []
        return [(job, self._end(job)) for job in ended]

    def _end(self, job):
        code = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        if code == DONE:
            job.folder.mkdir(parents=True, exist_ok=True)
            (job.folder / "status.json").write_text(json.dumps({"state": "finished"}))
            code = 0
        return Outcome(code, 1.0, "here")

    def cancel(self, name):
        pass

    def close(self):
        pass


def vanishes(argv, folder):
    """A job whose environment ends the process as if all were well."""
    os._exit(0)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(loop, "STATUS_DELAY_S", 0.2)
    monkeypatch.setattr(loop, "TICK_S", 0.01)


def _driven(tmp_path, launcher, **options):
    log = JobLog(tmp_path)
    try:
        return drive([Job("a", (), tmp_path / "jobs" / "a")], log, launcher, **options)["a"]
    finally:
        log.close()


@pytest.mark.parametrize(
    ("codes", "state", "starts"),
    [
        pytest.param([DONE], "finished", 1, id="finished"),
        pytest.param([1], "failed", 3, id="crashes"),
        pytest.param([2], "failed", 1, id="usage"),
        pytest.param([4], "failed", 1, id="numerical"),
        pytest.param([1, 1, DONE], "finished", 3, id="crashes-twice"),
        pytest.param([HELD] * 5 + [DONE], "finished", 6, id="held"),
        pytest.param([None] * 5 + [DONE], "finished", 6, id="machine-lost"),
        pytest.param([1, None, HELD, 1, None, HELD, DONE], "finished", 7, id="all-of-it"),
        pytest.param([None], "failed", loop.MAX_MACHINE_LOSSES, id="brings-its-machine-down"),
        pytest.param([143], "stopped", 1, id="asked"),
    ],
)
def test_an_attempt_that_is_not_the_jobs_own_fault_is_no_crash(tmp_path, codes, state, starts):
    launcher = Played(*codes)
    entry = _driven(tmp_path, launcher)
    assert (entry.state, entry.attempts, launcher.started) == (state, starts, starts)


def test_what_ends_with_0_and_has_not_finished_is_a_crash(tmp_path):
    entry = _driven(tmp_path, Played(0), attempts=2)
    assert (entry.state, entry.attempts, entry.code) == ("failed", 2, 0)
    assert entry.error == "its process ended with exit code 0 before the run was finished; something in it calls exit"
    assert _driven(tmp_path, Played(0, DONE), resume="errored").state == "finished"


@pytest.mark.usefixtures("light_forkserver")
def test_a_process_that_vanishes_with_0_is_not_finished(tmp_path):
    launcher = Local(1, work=vanishes)
    entry = _driven(tmp_path, launcher, attempts=2)
    launcher.close()
    assert (entry.state, entry.attempts) == ("failed", 2)


@pytest.mark.nightly
def test_a_job_whose_folder_is_taken_after_we_looked_waits_for_it(tmp_path, monkeypatch):
    folder = tmp_path / "jobs" / "a"
    folder.mkdir(parents=True)
    lock = FileLock(folder / ".lock", thread_local=False)
    lock.acquire()
    looked = []
    look = loop.at_work
    monkeypatch.setattr(loop, "at_work", lambda folder: look(folder) if looked else looked.append(folder) or "")
    ended = threading.Event()

    def orphan():
        while not (folder / "log.txt").exists() or "is in use by" not in (folder / "log.txt").read_text():
            assert not ended.is_set()
            time.sleep(0.02)
        lock.release()

    threading.Thread(target=orphan, daemon=True).start()
    launcher, log = Local(1), JobLog(tmp_path)
    try:
        entry = drive([Job("a", (*TINY, f"run_dir={folder}"), folder)], log, launcher, attempts=1)["a"]
    finally:
        ended.set()
        launcher.close()
        log.close()
    assert (entry.state, entry.attempts, entry.code) == ("finished", 2, 0)
