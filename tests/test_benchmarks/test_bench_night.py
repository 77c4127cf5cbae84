"""The check of a sweep that is killed counts what it says it counts."""

import json

import pytest

from runners.report.job_log import JOB_LOG_NAME
from runners.sweep.job import JobLog
from tests.faults import night

SMALL = ["env=CartPole-v1", "reward=task", "seed=range(3)", "preset=debug", "eval_episodes=0", "video=false", "slots=1"]


def test_a_job_that_starts_after_it_finished_is_counted(tmp_path):
    log = JobLog(tmp_path)
    for job, states in {
        "a": ["running", "finished"],
        "b": ["running", "lost", "running", "finished", "running"],
    }.items():
        for state in states:
            log.write(job, state)
    log.close()
    assert night.runs_after_success(tmp_path) == {"b": 1}
    assert night.finished(log.entries) == 1


def test_runs_with_other_returns_are_counted(tmp_path):
    for sweep, runs in {"one": {"a": [1.0, 2.0], "b": [3.0]}, "other": {"a": [1.0, 2.5], "b": [3.0], "c": []}}.items():
        for name, returns in runs.items():
            (tmp_path / sweep / "jobs" / name).mkdir(parents=True)
            result = {"this run": {"returns": returns}}
            (tmp_path / sweep / "jobs" / name / "result.json").write_text(json.dumps(result))
    assert night.differing(tmp_path / "one", tmp_path / "other") == 2


@pytest.mark.nightly
def test_a_sweep_killed_twice_ends_with_every_job_finished_once(tmp_path):
    found = night.sweep_with(tmp_path, "local", SMALL, [(1, night.kill_sweep), (2, night.kill_sweep)])
    assert (found["jobs"], found["finished"], found["again"], found["blows"]) == (3, 3, 0, 2)
    assert found["sweeps_killed"] == 2 and found["attempts"] >= 3
    assert (tmp_path / "sweeps" / "local" / JOB_LOG_NAME).exists()
