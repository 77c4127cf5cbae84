"""The ledger remembers every event, whatever line was torn, and lets one sweep in at a time."""

import json
import multiprocessing
import os

import pytest

from runners.run.config import UsageError
from runners.sweep.job_log import Entry, Ledger, events, replay


def test_a_ledger_replays_to_what_it_was(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.expect(["a", "b", "c"])
    ledger.write("a", "running", attempts=1, where="host:1")
    ledger.write("a", "finished", code=0, seconds=2.5)
    ledger.write("b", "running", attempts=1, where="host:2")
    ledger.write("b", "failed", code=4, error="the reward is not finite")
    expected = {
        "a": Entry("finished", 1, "host:1", 0, 2.5, ""),
        "b": Entry("failed", 1, "host:2", 4, 0.0, "the reward is not finite"),
        "c": Entry("waiting"),
    }
    assert ledger.entries == expected == replay(tmp_path / "ledger.jsonl")
    ledger.close()
    assert Ledger(tmp_path).entries == expected


def test_a_torn_last_line_is_left_out_and_the_next_event_is_whole(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.write("a", "running", attempts=1)
    ledger.close()
    path = tmp_path / "ledger.jsonl"
    for cut in range(1, 12):
        whole = path.read_bytes()
        path.write_bytes(whole + b'{"time": "2026-01-01", "job": "a", "state": "finished"}'[:-cut])
        ledger = Ledger(tmp_path)
        assert ledger.entries["a"].state == "running"
        ledger.write("b", "waiting")
        ledger.close()
        assert replay(path) == {"a": Entry("running", 1), "b": Entry("waiting")}


def test_events_carry_the_time_and_lines_that_are_no_events_are_left_out(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text('[1]\nnull\n{"job": "a", "state": "exploded"}\n{"job": 3, "state": "failed"}\n\x00\n')
    assert replay(path) == {}
    ledger = Ledger(tmp_path)
    ledger.write("a", "waiting")
    assert events(path)[-1]["job"] == "a" and events(path)[-1]["time"][:2] == "20"


def test_a_second_sweep_is_refused_and_told_who_is_at_work(tmp_path):
    Ledger(tmp_path)  # the lock is the object's
    ledger = Ledger(tmp_path)
    with pytest.raises(
        UsageError, match=rf"is in use by a sweep \(.*:{os.getpid()}\); wait for it, or give another name="
    ):
        Ledger(tmp_path)
    ledger.close()
    Ledger(tmp_path).close()


def test_a_killed_sweep_leaves_no_lock(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=lambda: Ledger(tmp_path) and os.kill(os.getpid(), 9))
    process.start()
    process.join()
    assert process.exitcode == -9
    Ledger(tmp_path).close()


def test_a_full_disk_costs_a_sentence_and_no_entry(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert ledger.write("a", "finished").state == "finished"
    assert "No space left" in ledger.error
    monkeypatch.undo()
    ledger.write("b", "waiting")
    assert ledger.error == "" and ledger.entries.keys() == {"a", "b"}
    assert all(json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines() if line)
