"""A sweep ends with every job finished, whoever was killed meanwhile, and never runs one again."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest

from runners.report.job_log import replay
from runners.sweep.__main__ import Cost, cost_table, main
from runners.sweep.job import JobLog
from runners.sweep.local import warm_up

HERE = Path(__file__).parent
LONG = 200.0  # seconds in which anything ends on the busiest machine
PPO = ["n_envs=2", "agent.n_steps=32", "agent.batch_size=32", "agent.n_epochs=1", "eval_episodes=0", "video=false"]
QUICK = [*PPO, "total_timesteps=128", "checkpoint_every=64", "log_every=64", "device=cpu", "report=false"]
SLOW = "benchmarks.speed.sweep:Waits-v0"  # 10 ms a step, unless the folder says otherwise


def _argv(root, *argv):
    return [*QUICK, f"root={root}", "name=s", *argv]


def _entries(root):
    return replay(root / "sweeps" / "s")


def _folder(root, job):
    return root / "sweeps" / "s" / "jobs" / job


def _starts(root, job):
    return len((_folder(root, job) / "command.txt").read_text().splitlines())


def _until(condition):
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _start(argv):
    """A sweep in a process of its own, which shares what our jobs are forked from: that takes long to import."""
    warm_up()

    def sweep():
        forkserver.ensure_running = forkserver._forkserver.ensure_running = lambda: None
        os._exit(main(argv))

    process = multiprocessing.get_context("fork").Process(target=sweep)
    process.start()
    return process


def _checkpoints(folder):
    return [path for path in folder.glob("checkpoints/step_*") if path.is_dir() and ".tmp" not in path.name]


def test_a_sweep_runs_every_job_once_and_the_second_time_none(tmp_path, capfd):
    argv = _argv(tmp_path, "env=CartPole-v1", "reward=task,count", "seed=0", "eval_episodes=1")
    assert main(argv) == 0
    entries = _entries(tmp_path)
    assert {name: (entry.state, entry.attempts, entry.code) for name, entry in entries.items()} == {
        "CartPole-v1/ppo-task/s0": ("finished", 1, 0),
        "CartPole-v1/ppo-task+count/s0": ("finished", 1, 0),
    }
    for job in entries:
        status = json.loads((_folder(tmp_path, job) / "status.json").read_text())
        assert (status["state"], status["step"]) == ("finished", 128)
        assert "the task's own scores over 1 episodes" in (_folder(tmp_path, job) / "log.txt").read_text()
    page = json.loads((tmp_path / "sweeps/s/sweep.json").read_text())
    assert page["jobs"] == list(entries) and "torch" in page["versions"]
    assert page["command"].startswith("python -m runners.sweep") and "reward=task,count" in page["command"]
    out = capfd.readouterr().out
    assert "sweep: 2 jobs in" in out and "2 of 2 jobs finished" in out and out.count("finished  CartPole") == 2
    assert main(argv) == 0
    assert _entries(tmp_path) == entries and all(_starts(tmp_path, job) == 1 for job in entries)
    assert main([*argv, "resume=never"]) == 2
    assert "resume=never, but" in capfd.readouterr().err


def test_a_job_that_fails_does_not_stop_the_others_and_is_not_tried_again_unasked(tmp_path, capfd, monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    argv = _argv(tmp_path, "env=faulty_worlds:Raises-v0,CartPole-v1", "total_timesteps=256", "attempts=1", "slots=1")
    raises, cartpole = "faulty_worlds-Raises-v0/ppo-task/s0", "CartPole-v1/ppo-task/s0"
    assert main(argv) == 1
    entries = _entries(tmp_path)
    assert (entries[raises].state, entries[raises].attempts, entries[raises].code) == ("failed", 1, 6)
    assert "KeyError: 'the door'" in entries[raises].error
    assert entries[cartpole].state == "finished"
    out = capfd.readouterr().out
    assert f"failed: {raises}: the environment failed" in out
    assert str(_folder(tmp_path, raises) / "log.txt") in out
    assert main(argv) == 1
    assert _entries(tmp_path) == entries


@pytest.mark.nightly
def test_jobs_that_fail_are_tried_as_often_as_asked(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    worlds = "env=CartPole-v1,faulty_worlds:Raises-v0,faulty_worlds:NotANumber-v0"
    argv = _argv(tmp_path, worlds, "total_timesteps=256", "attempts=2", "checkpoint_every=0")
    raises, not_a_number = (f"faulty_worlds-{name}-v0/ppo-task/s0" for name in ("Raises", "NotANumber"))
    assert main(argv) == 1
    entries = _entries(tmp_path)
    assert [entries[name].state for name in ("CartPole-v1/ppo-task/s0", raises, not_a_number)] == [
        *("finished", "failed", "failed")
    ]
    assert (entries[raises].attempts, entries[raises].code) == (2, 6)
    assert "KeyError: 'the door'" in entries[raises].error
    assert (entries[not_a_number].attempts, entries[not_a_number].code) == (1, 4)
    assert main([*argv, "resume=errored", "attempts=1"]) == 1
    again = _entries(tmp_path)
    assert again[raises].attempts == 3 and again[not_a_number].attempts == 2
    assert again["CartPole-v1/ppo-task/s0"].attempts == 1


@pytest.mark.nightly
def test_a_run_that_is_killed_is_tried_again_and_continues_from_its_checkpoint(tmp_path):
    job = "benchmarks.speed.sweep-Waits-v0/ppo-task/s0"
    argv = _argv(tmp_path, f"env={SLOW}", "env.wait=0.02")
    sweep = _start(argv)
    _until(lambda: _checkpoints(_folder(tmp_path, job)))
    pid = json.loads((_folder(tmp_path, job) / "status.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    sweep.join(LONG)
    assert sweep.exitcode == 0
    entry = _entries(tmp_path)[job]
    assert (entry.state, entry.attempts, entry.code) == ("finished", 2, 0)
    assert "continues at step 64" in (_folder(tmp_path, job) / "log.txt").read_text()


@pytest.mark.nightly
def test_a_sweep_that_is_killed_continues_and_runs_nothing_twice(tmp_path):
    slow, quick = "benchmarks.speed.sweep-Waits-v0/ppo-task/s0", "CartPole-v1/ppo-task/s0"
    argv = _argv(tmp_path, f"env=CartPole-v1,{SLOW}", "env.wait=0.05", "slots=2")
    sweep = _start(argv)
    _until(lambda: _entries(tmp_path).get(quick) and _entries(tmp_path)[quick].state == "finished")
    _until(lambda: _checkpoints(_folder(tmp_path, slow)))
    sweep.kill()
    sweep.join()
    assert main(argv) == 0  # it waits for the run that noticed and is saving
    entries = _entries(tmp_path)
    assert {name: (entry.state, entry.attempts) for name, entry in entries.items()} == {
        quick: ("finished", 1),
        slow: ("finished", 2),
    }
    assert (_starts(tmp_path, quick), _starts(tmp_path, slow)) == (1, 2)
    log = (_folder(tmp_path, slow) / "log.txt").read_text()
    assert "the sweep is gone: this run saves and exits" in log and "continues at step" in log


@pytest.mark.nightly
def test_a_sweep_that_is_terminated_saves_its_runs(tmp_path):
    names = [f"benchmarks.speed.sweep-Waits-v0/ppo-task/s{seed}" for seed in (0, 1)]
    sweep = _start(_argv(tmp_path, f"env={SLOW}", "env.wait=0.05", "seed=0,1", "slots=2"))
    _until(lambda: all(_checkpoints(_folder(tmp_path, name)) for name in names))
    sweep.terminate()
    sweep.join(LONG)
    assert sweep.exitcode == 143
    for name in names:
        assert _entries(tmp_path)[name].state == "stopped" and _entries(tmp_path)[name].code == 143
        assert json.loads((_folder(tmp_path, name) / "status.json").read_text())["state"] == "stopped"
        assert _checkpoints(_folder(tmp_path, name))


def test_a_second_sweep_in_the_same_folder_is_refused(tmp_path, capfd):
    log = JobLog(tmp_path / "sweeps" / "s")
    assert main(_argv(tmp_path, "env=CartPole-v1")) == 2
    assert f":{os.getpid()}); wait for it, or give another name=" in capfd.readouterr().err
    log.close()


def test_estimates_add_up_over_jobs_and_memory_over_those_that_run_at_once():
    cells = {"a": [None] * 3, "b": [None], "c": [None]}
    costs = {"a": Cost(60.0, 2e6, 5e8), "b": Cost(30.0, 1e6, 1.5e9), "c": Cost(error="it failed")}
    lines = cost_table(cells, costs, slots=2).splitlines()
    assert lines[1].split() == ["a", "3", "1:00", "2.0", "MB", "500.0", "MB"]
    assert lines[3].split() == ["c", "1", "it", "failed"]
    # 210 s of jobs, two at once, of which each may be the largest.
    assert lines[5] == "5 jobs, 2 at once: about 1:45, 7.0 MB of disk and 3.0 GB of memory"


@pytest.mark.nightly
def test_a_dry_run_prints_what_it_would_cost_and_leaves_nothing(tmp_path, capfd):
    assert main(_argv(tmp_path, "env=CartPole-v1", "agent.n_steps=32,64", "seed=0,1,2", "dry=true")) == 0
    out = capfd.readouterr().out
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line.startswith("CartPole")}
    assert {name: words[1] for name, words in lines.items()} == {
        "CartPole-v1/ppo-task/n_steps=32": "3",
        "CartPole-v1/ppo-task/n_steps=64": "3",
    }
    assert "6 jobs, " in out and "An estimate" in out
    # A process with torch in it takes a tenth of a GB at least.
    assert all(words[-1] == "GB" or float(words[-2]) > 100 for words in lines.values())
    assert not list((tmp_path / "sweeps").iterdir())


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("resume=fail", "resume='fail' is unknown; give one of unfinished, errored, never"),
        ("launcher=lokal", "launcher='lokal' is unknown; give one of local, ray, slurm"),
        ("slots=0", "slots=0 is out of range; give a number at least 1"),
        ("attempts=x", "attempts=x is not a whole number"),
        ("gpus=1.5", "gpus=1.5 is out of range; give a share, 0 to 1, or a whole number"),
        ("gpus=-1", "gpus=-1.0 is out of range; give a number at least 0"),
        ("name=../x", "name=../x is no name of a folder; give letters, digits, - and _"),
        ("dry=yes", "dry=yes is not true or false"),
        ("launcher.slot=1", "local's launcher option=launcher.slot is unknown; did you mean launcher.slots?"),
        ("reward=taks", "reward=taks is unknown; did you mean task?"),
    ],
)
def test_a_mistake_is_one_sentence_and_code_2(tmp_path, capfd, argument, words):
    assert main(_argv(tmp_path, "env=CartPole-v1", argument)) == 2
    assert capfd.readouterr().err.startswith(f"error: {words}")


def test_the_same_grid_has_the_same_name_and_another_has_another():
    grid = ["env=CartPole-v1", "reward=task,rnd", "seed=0,1"]
    name = main.parse(grid).name
    assert name == main.parse([*reversed(grid), "slots=3", "root=elsewhere"]).name
    assert name.startswith("CartPole-v1-task,rnd-") and name != main.parse([*grid, "total_timesteps=5"]).name


def test_help_is_there_in_a_second_and_imports_nothing_heavy():
    code = "import sys; from runners.sweep.__main__ import main; main(['--help']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HERE.parents[1])
    assert "resume=" in done.stdout and done.stdout.endswith("False\n")
