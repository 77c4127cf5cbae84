import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from benchmarks import results
from runners.train import main
from tests.faults import Fault, Found, evaluations, phases, releases, storage
from tests.faults import __main__ as command
from tests.faults.child import Child, run

ROOT = Path(__file__).resolve().parents[2]


def _row_of(module, name):
    return next(row for row in module.FAULTS if row.name == name)


def _found(name):
    return _row_of(storage, name)


@pytest.mark.parametrize("name", ["killed-in-save", "flush-order", "cut-file", "flipped-bit"])
def test_a_promise_about_checkpoints_is_kept(name, tmp_path):
    found = _found(name).run(tmp_path, True)
    assert found.failed == 0, found.words
    assert found.trials == {"killed-in-save": 10, "flush-order": 2, "cut-file": 12, "flipped-bit": 200}[name]


def test_a_kill_that_loses_a_checkpoint_would_be_noticed(tmp_path, monkeypatch):
    from runners.run import checkpoint

    def in_place(folder, state, step):
        (folder / "step_000000000001").mkdir(parents=True, exist_ok=True)
        (folder / "step_000000000001" / checkpoint.MANIFEST).write_text("{")

    monkeypatch.setattr(checkpoint, "save", in_place)
    found = _found("killed-in-save").run(tmp_path, True)
    assert found.failed >= 9 and found.figures["kills_lost"] == found.failed


@pytest.mark.nightly
def test_a_run_that_is_killed_in_any_phase_is_continued_to_the_same_end(tmp_path):
    found = _row_of(phases, "phases").run(tmp_path, True)
    assert found.failed == 0, found.words
    assert found.figures == {"phases_tried": 16, "phases_resumed": 16}


@pytest.mark.nightly
def test_a_signal_in_the_last_rollout_or_in_an_evaluation_loses_no_evaluation(tmp_path):
    found = _row_of(evaluations, "evaluations").run(tmp_path, True)
    assert found.failed == 0, found.words
    assert found.figures == {"evaluations_struck": 2, "evaluations_lost": 0}


def test_runs_of_earlier_releases_are_continued(tmp_path):
    found = _row_of(releases, "releases").run(tmp_path, True)
    assert (found.failed, found.figures) == (0, {"resumed_releases": 3}), found.words


def test_a_changed_default_is_named_where_it_keeps_a_run_from_going_on(tmp_path, capsys):
    shutil.copytree(releases.FOLDER / "0.3.0", tmp_path / "run")
    assert main([*releases.COMMAND, f"run_dir={tmp_path / 'run'}", "eval_every=32"]) == 2
    words = "(it differs in reward.rnd.episodic=True); give another run_dir, or the values of that run to continue it"
    assert words in capsys.readouterr().err


@pytest.mark.nightly
def test_a_run_that_is_killed_while_its_workers_are_set_up_is_begun_by_the_same_command(tmp_path):
    found = _row_of(phases, "killed-with-workers").run(tmp_path, True)
    assert found.failed == 0, found.words


def test_a_kill_after_which_numbers_differ_would_be_noticed(tmp_path, monkeypatch):
    def first_run_only(phase, number, argv):
        os.kill(os.getpid(), number)

    monkeypatch.setattr(phases, "struck", first_run_only)
    monkeypatch.setattr(phases, "main", lambda argv: 1)
    whole = tmp_path / "whole"
    assert phases.trial("ppo", "save", "SIGKILL", whole, tmp_path / "trial").startswith(
        "the second command ended with code 1"
    )
    assert phases.trial("ppo", "save", "SIGTERM", whole, tmp_path / "trial").startswith(
        "it ended with code -15 instead of 143"
    )


def test_every_fault_has_a_name_of_its_own_and_says_what_is_promised():
    table = command.faults()
    assert {"killed-in-save", "terminated", "strangers", "leaks", "soak", "two-runs"} <= set(table)
    for name, row in table.items():
        assert name == row.name == name.lower() and " " not in name
        assert row.fault and row.promise, name


def test_the_page_of_faults_is_made_of_their_results():
    rows = results.read_rows(ROOT / "assets" / "results" / "faults.csv")
    assert (ROOT / "docs" / "faults.md").read_text() == command.page(command.faults(), rows)


def test_every_fault_that_was_asked_for_is_a_row_of_the_table():
    table, asked = command.faults(), results.read_rows(command.ASKED)
    letters = [*(f"A{number}" for number in range(1, 8)), *(f"B{number}" for number in range(8, 12))]
    assert [row["number"] for row in asked] == [*map(str, range(1, 51)), *letters]
    assert {name for row in asked for name in row["shown by"].split()} <= set(table)
    assert all(row["shown by"] for row in asked)


def test_every_file_with_a_list_of_faults_is_a_group():
    files = Path(command.__file__).parent.glob("*.py")
    assert {path.stem for path in files if "\nFAULTS = [" in path.read_text()} == set(command.GROUPS)


def _row(name, action):
    return Fault(name, "a fault", "A promise.", action)


def _crash(folder, quick):
    raise KeyError("the door")


def test_a_row_that_crashes_dies_or_hangs_is_a_broken_promise_and_not_the_end():
    assert command.bring_about(_row("kept", lambda folder, quick: Found(3, 0, {"a": 1.0}, "well")), True, 20) == (
        3, 0, {"a": 1.0}, "well",
    )  # fmt: skip
    crashed = command.bring_about(_row("crash", _crash), True, 20)
    assert (crashed.failed, crashed.words.startswith("it crashed: KeyError: 'the door' (test_faults.py:")) == (1, True)
    died = command.bring_about(_row("dies", lambda folder, quick: os._exit(9)), True, 20)
    assert died == (1, 1, {}, "its process ended with code 9")
    hung = command.bring_about(_row("hangs", lambda folder, quick: time.sleep(60)), True, 0.5)
    assert hung == (1, 1, {}, "it hung and was killed after 0.5 s")


def test_rows_and_headlines_are_written_and_a_later_run_replaces_its_own_rows(tmp_path):
    table = {name: _row(name, None) for name in ("a-b", "c")}
    command.write(tmp_path, table, {"c": Found(200, 1, {"kills_lost": 1, "inside": 7.5}, "x, y")}, "one")
    command.write(tmp_path, table, {"a-b": Found(2, 0, {"slow_s": 0.25}, "z")}, "two")
    command.write(tmp_path, table, {"c": Found(200, 0, {"kills_lost": 0, "inside": 8}, "x, y")}, "three")
    rows = results.read_rows(tmp_path / "faults.csv")
    assert [(row["name"], row["trials"], row["failed"], row["words"], row["figures"]) for row in rows] == [
        ("a-b", "2", "0", "z", "slow_s=0.25"),
        ("c", "200", "0", "x, y", "kills_lost=0 inside=8"),
    ]
    figures = json.loads((tmp_path / "faults.json").read_text())["figures"]
    assert figures == {
        "a_b_slow_s": 0.25, "c_inside": 8.0, "kills_lost": 0.0, "faults": 2.0, "faults_failed": 0.0,
        "fault_trials": 202.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["killed-in-sav"], "fault=killed-in-sav is unknown; did you mean killed-in-save?"),
        (["quik=true"], "key=quik is unknown; did you mean quick?"),
        (["quick=perhaps"], "quick=perhaps is neither true nor false"),
        (["limit=long"], "limit=long is no number of seconds; give one above 0"),
    ],
)
def test_a_wrong_word_is_one_sentence(argv, sentence, capsys):
    assert command.main(argv) == 2
    assert capsys.readouterr().err == f"error: {sentence}\n"


def test_the_command_ends_with_0_only_if_every_promise_was_kept(tmp_path, capsys, monkeypatch):
    rows = {
        "good": _row("good", lambda folder, quick: Found(1, 0, {}, "as promised")),
        "bad": _row("bad", lambda folder, quick: Found(4, 2, {}, "not so")),
    }
    monkeypatch.setattr(command, "faults", lambda: rows)
    assert command.main(["good", "quick=true"]) == 0
    assert command.main([f"out={tmp_path}"]) == 1
    printed = capsys.readouterr().out
    assert "BROKEN in 2 (4 trials" in printed and "2 faults, 1 promises broken: bad" in printed
    assert [row["name"] for row in results.read_rows(tmp_path / "faults.csv")] == ["good", "bad"]


def test_a_child_tells_its_code_its_signal_and_its_words(tmp_path):
    assert run(lambda: print("hello") or 7, tmp_path / "out") == (7, "hello\n")
    code, printed = run(lambda: [][0], tmp_path / "out")
    assert code == 1 and "IndexError" in printed
    with Child(lambda: print("ready") or time.sleep(60) or 0, tmp_path / "out") as child:
        while "ready" not in (tmp_path / "out").read_text():  # a signal that comes sooner meets our own handlers
            time.sleep(0.01)
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait(20) == -signal.SIGTERM
    with Child(lambda: time.sleep(60) or 0, tmp_path / "out") as child:
        assert child.wait(0.2) is None
    assert not Path(f"/proc/{child.pid}").exists()
