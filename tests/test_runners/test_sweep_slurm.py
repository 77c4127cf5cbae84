"""Jobs through submitit: under its local executor, and under a SLURM of a few lines."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pretend_slurm
import pytest
from waiting_jobs import PATIENCE_S, checkpoints, commands, job, until

from runners.sweep.config import make_launcher

pytest.importorskip("submitit")
from runners.sweep.slurm import Slurm


def outcomes(launcher, number: int) -> dict:
    found = {}
    end = time.monotonic() + PATIENCE_S
    while len(found) < number and time.monotonic() < end:
        found |= {job.name: outcome for job, outcome in launcher.wait(1.0)}
    return found


@pytest.fixture
def launcher():
    launcher = Slurm(executor="local")
    yield launcher
    launcher.close()


@pytest.mark.nightly
def test_a_job_finishes_one_fails_and_one_is_cancelled(launcher, tmp_path):
    good = job(tmp_path, "CartPole-v1/good", "total_timesteps=128")
    wrong = job(tmp_path, "CartPole-v1/wrong", "total_timesteps=128", "agent.learning_rat=1")
    endless = job(tmp_path, "CartPole-v1/endless", "total_timesteps=1e8")
    assert [launcher.submit(j) for j in (good, wrong, endless)] == ["local"] * 3
    launcher.wait(0.0)
    ids = json.loads((tmp_path / "submitit" / "local" / "jobs.json").read_text())
    assert set(ids) == {good.name, wrong.name, endless.name}
    until(lambda: checkpoints(endless))
    launcher.cancel(endless.name)
    found = outcomes(launcher, 3)
    assert {name: outcome.code for name, outcome in found.items()} == {good.name: 0, wrong.name: 2, endless.name: 143}
    assert good.finished and found[good.name].error == ""
    assert "learning_rate" in (wrong.folder / "log.txt").read_text()
    assert found[good.name].where.startswith(f"local {ids[good.name]} ")
    assert json.loads((endless.folder / "status.json").read_text())["state"] == "stopped"


@pytest.mark.nightly
def test_a_sweep_that_was_killed_adopts_the_jobs_that_still_run(tmp_path):
    one = job(tmp_path, "a/b", "total_timesteps=900")
    script = f"""
import time
from pathlib import Path
from runners.sweep.job import Job
from runners.sweep.slurm import Slurm

launcher = Slurm(executor="local")
launcher.submit(Job("a/b", {one.argv!r}, Path({str(one.folder)!r})))
launcher.wait(0.0)
time.sleep(1000)
"""
    sweep = subprocess.Popen([sys.executable, "-c", script])
    until(lambda: checkpoints(one))
    sweep.kill()
    sweep.wait()
    ids = (tmp_path / "submitit" / "local" / "jobs.json").read_text()
    launcher = Slurm(executor="local")
    assert launcher.submit(one) == f"local {json.loads(ids)['a/b']}"
    assert outcomes(launcher, 1)["a/b"].code == 0
    assert commands(one) == 1
    assert (tmp_path / "submitit" / "local" / "jobs.json").read_text() == ids
    launcher.close()


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """The folder of a pretended SLURM, whose commands are on the PATH."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    pretend_slurm.install(folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr("runners.sweep.slurm.RESULT_DELAY_S", 1.0)
    return folder


@pytest.mark.nightly
def test_under_slurm_a_preempted_job_continues_under_its_id_and_a_lost_one_is_reported(slurm, tmp_path):
    first, lost = job(tmp_path, "first", "total_timesteps=900"), job(tmp_path, "lost", "total_timesteps=1e8")
    launcher = Slurm(partition="fast", account="us", minutes=30, memory_gb=1.5, notice_s=60, setup=["true"])
    launcher.submit(first)
    launcher.submit(lost)
    launcher.wait(0.0)
    (script,) = [Path(path.read_text()).read_text() for path in slurm.glob("*.submitted")]
    flags = {"--array=0-1%2", "--partition=fast", "--account=us", "--time=30", "--mem=1536MB", "--signal=USR2@60"}
    assert {line.removeprefix("#SBATCH ") for line in script.splitlines()} >= flags
    until((slurm / "1_1.pid").exists)
    os.kill(int((slurm / "1_1.pid").read_text()), signal.SIGKILL)
    assert outcomes(launcher, 1)["lost"].code is None

    until(lambda: checkpoints(first))
    os.kill(int((slurm / "1_0.pid").read_text()), signal.SIGUSR2)
    after = Slurm()  # as if the sweep had been killed and started again
    assert after.submit(first) == "slurm 1_0"
    found = outcomes(after, 1)["first"]
    assert found.code == 0 and found.where.startswith("slurm 1_0 ") and commands(first) == 2
    assert "continues at step" in (first.folder / "log.txt").read_text()
    assert [path.name for path in slurm.glob("*.submitted")] == ["1.submitted"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"minutes": 0}, r"launcher\.minutes=0 is out of range; give a number at least 1"),
        ({"cpus": 1.5}, r"launcher\.cpus=1\.5 is not a whole number"),
        ({"gpus": -1}, r"launcher\.gpus=-1 is out of range; give a number at least 0"),
        ({"slots": 0}, r"slots=0 is out of range; give a number at least 1"),
        ({"memory_gb": 0}, r"launcher\.memory_gb=0.0 is out of range; give a number above 0"),
        ({"executor": "slrum"}, r"launcher\.executor='slrum' is unknown; give one of slurm, local"),
        ({}, r"sbatch or srun is not on the PATH; start the sweep on a login node, or give launcher=local"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options, sentence, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=sentence):
        make_launcher("slurm", options)
