"""What is printed of a sweep: progress read from folders, the time left, and the summary."""

import io
import json
import sys

import pytest

from runners.report.job_log import Entry
from runners.run.output import clock
from runners.sweep import display as display_module
from runners.sweep.display import Display, RunProgress, progress, summary
from runners.sweep.job import Job


class Terminal(io.StringIO):
    def isatty(self):
        return True


def _run(folder, step=0, total=1000, rows=""):
    folder.mkdir(parents=True)
    (folder / "status.json").write_text(json.dumps({"state": "running", "step": step, "total": total}))
    (folder / "metrics.csv").write_bytes(f"step,rollout/ep_rew_mean,time/fps\r\n{rows}".encode())


def _jobs(tmp_path, *names):
    return [Job(name, (), tmp_path / name) for name in names]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("", RunProgress(100, 1000)),
        ("200,1.5,90\r\n400,2.5,95\r\n", RunProgress(400, 1000, 2.5, 95.0, "training")),
        ("200,1.5,90\r\n400,2", RunProgress(200, 1000, 1.5, 90.0, "training")),  # a line that is being written
        ("200,,90\r\n", RunProgress(200, 1000, None, 90.0, "training")),
        ("200,1.5,90\r\n" * 5000, RunProgress(200, 1000, 1.5, 90.0, "training")),
    ],
)
def test_progress_is_the_last_whole_line_of_the_metrics(tmp_path, rows, expected):
    _run(tmp_path / "a", step=100, rows=rows)
    assert progress(tmp_path / "a") == expected


def test_a_folder_without_a_run_has_no_progress(tmp_path):
    assert progress(tmp_path / "none") == RunProgress() and RunProgress().share == 0.0


@pytest.fixture
def now(monkeypatch):
    """The seconds of the clock, in a list."""
    seconds = [0.0]
    monkeypatch.setattr(display_module, "monotonic", lambda: seconds[0])
    return seconds


def test_the_time_left_is_what_the_work_of_this_command_says(tmp_path, capsys, now):
    jobs = _jobs(tmp_path, "x/s0", "x/s1", "x/s2", "x/s3")
    entries = {"x/s0": Entry("finished"), "x/s1": Entry("running")}
    with Display(jobs) as display:
        display.every_s = 30
        display.tick(entries, [])  # one of four was there already
        _run(tmp_path / "x/s1", rows="500,1,1\r\n")
        now[0] = 20.0
        display.tick(entries, [jobs[1]])
        assert capsys.readouterr().out == ""  # not yet time for a line
        now[0] = 40.0
        display.tick(entries, [jobs[1]])
        # Half a job in 40 s: two and a half jobs are left.
        assert capsys.readouterr().out == "2 waiting, 1 running, 1 finished of 4; 3:20 left; training\n"


def test_a_line_says_what_the_running_jobs_do(tmp_path, capsys):
    jobs = _jobs(tmp_path, "x/s0", "x/s1", "x/s2")
    for job in jobs[:2]:
        _run(job.folder, step=1000, rows="1000,1,1\r\n")
        status = {"state": "running", "step": 1000, "total": 1000, "doing": "evaluating"}
        (job.folder / "status.json").write_text(json.dumps(status))
    display = Display(jobs)
    display.every_s = 0.0
    display.tick({}, jobs)
    assert capsys.readouterr().out.rstrip().endswith("; 2 evaluating, setting up")


def test_an_attempt_that_ends_is_one_line(tmp_path, capsys):
    [job] = _jobs(tmp_path, "x/s0")
    display = Display([job])
    display.attempt_ended(job, Entry("waiting", 1, code=6, seconds=3.0, error="the environment failed"))
    job.folder.mkdir(parents=True)
    (job.folder / "result.json").write_text(json.dumps({"this run": {"task_return": 12.5}}))
    display.attempt_ended(job, Entry("finished", 2, code=0, seconds=7.25))
    assert capsys.readouterr().out.splitlines() == [
        "again     x/s0  3.0 s  the environment failed",
        "finished  x/s0  7.2 s  task return 12.5",
    ]


def test_a_terminal_sees_the_running_jobs(tmp_path, monkeypatch, now):
    jobs = _jobs(tmp_path, "x/s0", "x/s1")
    _run(tmp_path / "x/s0", rows="500,7.5,321\r\n")
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    with Display(jobs) as display:
        now[0] = 1.0
        display.tick({"x/s0": Entry("running")}, jobs[:1])
        display.message("[bold]a sentence")
    text = stream.getvalue()
    assert "500 of 1,000" in text and "321" in text and "7.5" in text and "[bold]a sentence" in text


def test_the_summary_has_a_line_a_cell_and_lists_what_failed_and_how_to_continue(tmp_path):
    jobs = _jobs(tmp_path, "A/ppo-task/s0", "A/ppo-task/s1", "A/ppo-task+rnd/s0", "A/ppo-task+rnd/s1")
    for job, value in zip(jobs, (10.0, 20.0, 5.0, 0.0)):
        job.folder.mkdir(parents=True)
        (job.folder / "result.json").write_text(json.dumps({"this run": {"task_return": value}}))
    states = ("finished", "finished", "finished", "failed")
    entries = {job.name: Entry(state) for job, state in zip(jobs, states)}
    entries[jobs[3].name] = Entry("failed", 3, code=6, error="the door")
    assert summary(jobs, entries, 75.0).splitlines() == [
        "",
        "cell            finished  failed  task return",
        "A/ppo-task           2/2       0           15",
        "A/ppo-task+rnd       1/2       1            5",
        "",
        "3 of 4 jobs finished; this command took 1:15",
        f"failed: A/ppo-task+rnd/s1: the door (see {jobs[3].folder / 'log.txt'})",
        "resume=errored tries what failed again",
    ]
    stopped = summary(jobs[:1], {jobs[0].name: Entry("stopped")}, 1.0)
    assert stopped.endswith("1 stopped or waiting: the same command continues")


def test_the_summary_has_the_mode_of_policies_that_were_judged_by_sampled_actions(tmp_path):
    jobs = _jobs(tmp_path, "A/ppo-task/s0", "A/dqn-task/s0")
    for job, modes in zip(jobs, ({"this run, mode": {"task_return": 0.0}}, {})):
        job.folder.mkdir(parents=True)
        (job.folder / "result.json").write_text(json.dumps({"this run": {"task_return": 0.96}, **modes}))
    lines = summary(jobs, {job.name: Entry("finished") for job in jobs}, 1.0).splitlines()
    assert lines[1:4] == [
        "cell        finished  failed  task return  by its mode",
        "A/ppo-task       1/1       0         0.96            0",
        "A/dqn-task       1/1       0         0.96            -",
    ]


@pytest.mark.parametrize(("seconds", "words"), [(7.4, "0:07"), (750, "12:30"), (11100, "3:05:00")])
def test_seconds_as_a_clock(seconds, words):
    assert clock(seconds) == words
