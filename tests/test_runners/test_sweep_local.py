"""Jobs as local processes: how they end is reported, they get cores and GPUs of their own, none is left behind."""

import json
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest

from runners.run.config import UsageError
from runners.sweep import local
from runners.sweep.job import Job
from runners.sweep.local import Local

LONG = 120.0  # seconds in which anything ends on the busiest machine
pytestmark = pytest.mark.usefixtures("light_forkserver")


def ends(argv, folder):
    """A job that ends as its arguments ask."""
    if argv[0] == "kill":
        os.kill(os.getpid(), int(argv[1]))
    return int(argv[0])


def writes(argv, folder):
    """A job that writes down what it was given, and sleeps as long as its argument asks."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
    found = {name: os.environ.get(name) for name in names}
    found |= {"cores": sorted(os.sched_getaffinity(0)), "torch": "torch" in sys.modules, "session": os.getsid(0)}
    found["threads"] = len(os.listdir("/proc/self/task"))
    found["cuda"] = found["torch"] and sys.modules["torch"].cuda.is_initialized()
    began = time.monotonic()
    time.sleep(float(argv[0]))
    (folder / "given.json").write_text(json.dumps({**found, "began": began, "ended": time.monotonic()}))
    return 0


def stays(argv, folder):
    """A job that goes with code 7 when it is asked to, or does not."""
    folder.mkdir(parents=True, exist_ok=True)

    def leave(number, frame):
        (folder / "asked").write_text("")
        if argv[0] != "stubborn":
            os._exit(7)

    signal.signal(signal.SIGTERM, leave)
    (folder / "pid").write_text(str(os.getpid()))
    while True:
        time.sleep(0.05)


def sweeps(folder):
    """A sweep that is killed while its job is at work; what it forks from has nothing to import."""
    local.WARM = "json"
    launcher = Local(1, work=stays)
    launcher.submit(Job("a", ("obedient",), folder))
    while True:
        launcher.wait(1.0)


def _all(launcher, jobs):
    for job in jobs:
        launcher.submit(job)
    found, deadline = {}, time.monotonic() + LONG
    while len(found) < len(jobs):
        assert time.monotonic() < deadline
        found |= {job.name: outcome for job, outcome in launcher.wait(1.0)}
    return found


def _await(path):
    deadline = time.monotonic() + LONG
    while not (path.exists() and path.stat().st_size >= (path.name == "pid")):
        assert time.monotonic() < deadline, path
        time.sleep(0.02)


def test_the_exit_code_of_a_job_and_the_signal_that_ended_it_are_reported(tmp_path):
    argvs = {"fine": ("0",), "numerical": ("4",), "killed": ("kill", "9"), "crashed": ("kill", "11")}
    launcher = Local(2, work=ends)
    found = _all(launcher, [Job(name, argv, tmp_path / name) for name, argv in argvs.items()])
    assert {name: one.code for name, one in found.items()} == {"fine": 0, "numerical": 4, "killed": -9, "crashed": -11}
    assert all(one.seconds > 0 and int(one.where.split(":")[1]) > 0 for one in found.values())
    launcher.close()


@pytest.mark.nightly
def test_jobs_have_torch_imported_one_thread_and_cores_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "WARM", "runners.sweep.warm")
    forkserver._forkserver._stop()  # another test's, which has other things imported
    cores = sorted(os.sched_getaffinity(0))
    launcher = Local(len(cores), work=writes)
    names = [str(number) for number in range(len(cores))]
    _all(launcher, [Job(name, ("0.5",), tmp_path / name) for name in names])
    given = [json.loads((tmp_path / name / "given.json").read_text()) for name in names]
    assert sorted(one["cores"] for one in given) == [[core] for core in cores]
    assert all(one["torch"] and one["OMP_NUM_THREADS"] == "1" for one in given)
    assert all(one["cuda"] is False and one["threads"] == 2 for one in given)  # the second one watches the sweep
    assert len({one["session"] for one in given} | {os.getsid(0)}) == len(cores) + 1
    launcher.close()


def test_with_more_slots_than_cores_no_job_is_tied_to_one(tmp_path):
    launcher = Local(len(os.sched_getaffinity(0)) + 1, work=writes)
    _all(launcher, [Job("a", ("0",), tmp_path / "a")])
    assert json.loads((tmp_path / "a" / "given.json").read_text())["cores"] == sorted(os.sched_getaffinity(0))
    launcher.close()


def test_jobs_share_gpus_and_wait_for_a_free_share(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "devices", lambda: ["3", "GPU-b"])
    launcher = Local(8, work=writes)
    jobs = [Job(str(number), ("0.4",), tmp_path / str(number), gpus=0.5) for number in range(6)]
    jobs.append(Job("both", ("0.1",), tmp_path / "both", gpus=2))
    _all(launcher, jobs)
    given = {job.name: json.loads((job.folder / "given.json").read_text()) for job in jobs}
    assert given.pop("both")["CUDA_VISIBLE_DEVICES"] in ("3,GPU-b", "GPU-b,3")
    for one in given.values():
        beside = [o for o in given.values() if o["began"] <= one["began"] < o["ended"]]
        devices = [o["CUDA_VISIBLE_DEVICES"] for o in beside]
        assert {*devices} <= {"3", "GPU-b"} and max(map(devices.count, devices)) <= 2
    with pytest.raises(UsageError, match=r"gpus=3 a job, but this machine has 2"):
        launcher.submit(Job("three", ("0",), tmp_path / "three", gpus=3))
    launcher.close()


def test_a_machine_without_gpus_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "devices", list)
    launcher = Local(1, work=ends)
    with pytest.raises(UsageError, match=r"gpus=0.5 a job, but this machine has 0; give less, or 0"):
        launcher.submit(Job("a", ("0",), tmp_path, gpus=0.5))
    launcher.close()


@pytest.mark.nightly
def test_the_gpus_that_another_process_counts_are_those_of_torch(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    import torch

    assert local.devices() == [str(number) for number in range(torch.cuda.device_count())]


def test_a_cancelled_job_is_asked_to_go_and_the_others_stay(tmp_path):
    launcher = Local(2, work=stays)
    for name in ("a", "b"):
        launcher.submit(Job(name, ("obedient",), tmp_path / name))
    _await(tmp_path / "a" / "pid"), _await(tmp_path / "b" / "pid")
    launcher.cancel("a")
    [(job, outcome)] = launcher.wait(LONG)
    assert (job.name, outcome.code) == ("a", 7) and not (tmp_path / "b" / "asked").exists()
    launcher.close()
    assert [(job.name, outcome.code) for job, outcome in launcher.wait(0)] == [("b", 7)]


def test_close_kills_a_job_that_does_not_go(tmp_path):
    launcher = Local(1, work=stays, grace=0.5)
    launcher.submit(Job("a", ("stubborn",), tmp_path))
    _await(tmp_path / "pid")
    launcher.close()
    assert (tmp_path / "asked").exists()
    assert [outcome.code for _, outcome in launcher.wait(0)] == [-signal.SIGKILL]


def test_a_job_whose_sweep_is_killed_is_asked_to_go(tmp_path):
    sweep = multiprocessing.get_context("spawn").Process(target=sweeps, args=(tmp_path,))
    sweep.start()
    _await(tmp_path / "pid")
    pid = int((tmp_path / "pid").read_text())
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.join()
    _await(tmp_path / "asked")
    deadline = time.monotonic() + LONG
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("slots", [0, -1])
def test_slots_out_of_range_are_refused(slots):
    with pytest.raises(ValueError, match=rf"slots={slots} is out of range; give a number at least 1"):
        Local(slots)
