"""The log remembers every event, whatever line was torn, and lets one sweep in at a time."""

import json
import multiprocessing
import os

import pytest

from runners.report.job_log import JOB_LOG_NAME, Entry, events, replay
from runners.run.config import UsageError
from runners.sweep.job import JobLog


def test_a_log_replays_to_what_it_was(tmp_path):
    log = JobLog(tmp_path)
    log.expect(["a", "b", "c"])
    log.write("a", "running", attempts=1, where="host:1")
    log.write("a", "finished", code=0, seconds=2.5)
    log.write("b", "running", attempts=1, where="host:2")
    log.write("b", "failed", code=4, error="the reward is not finite")
    expected = {
        "a": Entry("finished", 1, "host:1", 0, 2.5, ""),
        "b": Entry("failed", 1, "host:2", 4, 0.0, "the reward is not finite"),
        "c": Entry("waiting"),
    }
    assert log.entries == expected == replay(tmp_path)
    log.close()
    assert JobLog(tmp_path).entries == expected


def test_a_torn_last_line_is_left_out_and_the_next_event_is_whole(tmp_path):
    log = JobLog(tmp_path)
    log.write("a", "running", attempts=1)
    log.close()
    path = tmp_path / JOB_LOG_NAME
    for cut in range(1, 12):
        whole = path.read_bytes()
        path.write_bytes(whole + b'{"time": "2026-01-01", "job": "a", "state": "finished"}'[:-cut])
        log = JobLog(tmp_path)
        assert log.entries["a"].state == "running"
        log.write("b", "waiting")
        log.close()
        assert replay(tmp_path) == {"a": Entry("running", 1), "b": Entry("waiting")}


def test_events_carry_the_time_and_lines_that_are_no_events_are_left_out(tmp_path):
    path = tmp_path / JOB_LOG_NAME
    path.write_text('[1]\nnull\n{"job": "a", "state": "exploded"}\n{"job": 3, "state": "failed"}\n\x00\n')
    assert replay(tmp_path) == {}
    log = JobLog(tmp_path)
    log.write("a", "waiting")
    assert events(tmp_path)[-1]["job"] == "a" and events(tmp_path)[-1]["time"][:2] == "20"


def test_a_second_sweep_is_refused_and_the_first_is_named(tmp_path):
    JobLog(tmp_path)  # the lock is the object's
    log = JobLog(tmp_path)
    with pytest.raises(
        UsageError, match=rf"is in use by a sweep \(.*:{os.getpid()}\); wait for it, or give another name="
    ):
        JobLog(tmp_path)
    log.close()
    JobLog(tmp_path).close()


def test_a_killed_sweep_leaves_no_lock(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=lambda: JobLog(tmp_path) and os.kill(os.getpid(), 9))
    process.start()
    process.join()
    assert process.exitcode == -9
    JobLog(tmp_path).close()


def test_a_full_disk_costs_a_sentence_and_no_entry(tmp_path, monkeypatch):
    log = JobLog(tmp_path)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert log.write("a", "finished").state == "finished"
    assert "No space left" in log.error
    monkeypatch.undo()
    log.write("b", "waiting")
    assert log.error == "" and log.entries.keys() == {"a", "b"}
    assert all(json.loads(line) for line in (tmp_path / JOB_LOG_NAME).read_text().splitlines() if line)
