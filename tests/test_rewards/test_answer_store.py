"""The file of answers: what it keeps, and what happens when several processes or none can write."""

import functools
import json
import math
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from rewards.llm.judges.local import RecordedLabels
from rewards.llm.store import AnswerStore, Label, key_of, label_in, read_rows
from tests.faults.child import Child

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "deep" / "labels.sqlite"


def said(capsys):
    return capsys.readouterr().err.splitlines()


def test_answers_are_found_again_by_judge_and_text(file):
    cache = AnswerStore(file)
    cache.put("a", [Label("you win", 1.0), Label("you lose", 0.0), Label("who knows", math.nan)])
    cache.put("b", [Label("you win", 0.25)])
    cache.put("a", [Label(("one", "two"), 0.5)])
    cache.close()
    again = AnswerStore(file)
    found = again.get("a", ["you win", "you lose", "never met", "who knows", ("one", "two"), ("two", "one")])
    assert set(found) == {"you win", "you lose", "who knows", ("one", "two")}
    assert (found["you win"], found["you lose"], found["one", "two"]) == (1.0, 0.0, 0.5)
    assert math.isnan(found["who knows"]), "unsure is an answer"
    assert again.get("b", ["you win", "you lose"]) == {"you win": 0.25}
    assert len(again) == 5


def test_the_key_hangs_on_all_of_the_question():
    keys = {key_of("a", "b"), key_of("b", "a"), key_of("a", ("b", "")), key_of("a", ("", "b")), key_of("ab", "")}
    assert len(keys) == 5 and all(len(key) == 64 for key in keys)
    assert key_of("a", "b").startswith("3554d2b8a1e34099")  # as in the files written so far
    assert key_of("a", ("b", "c")).startswith("52fe8509acf606a7")


def test_the_first_of_two_answers_stays(file):
    cache = AnswerStore(file)
    cache.put("a", [Label("text", 1.0)])
    cache.put("a", [Label("text", 0.0)])
    assert cache.get("a", ["text"]) == {"text": 1.0}


def test_the_table_holds_where_an_answer_came_from(file):
    AnswerStore(file).put("model 7", [Label(("x", "y"), math.nan, "r" * 5000, 1.5, 42)])
    with sqlite3.connect(file) as connection:
        [row] = connection.execute("SELECT text, other, value, judge, length(raw), latency, tokens FROM labels")
        [(mode,)] = connection.execute("PRAGMA journal_mode")
    assert row == ("x", "y", None, "model 7", 2000, 1.5, 42) and mode == "wal"


def test_any_text_can_be_kept_and_many_at_once(file):
    cache = AnswerStore(file)
    odd = ["\ud800 half a character", "nul \0 inside", "' OR 1=1; --", "é" * 3000, "\x1b[31m"]
    texts = odd + [f"text {i}" for i in range(3000)]
    cache.put("a", [Label(text, i % 2) for i, text in enumerate(texts)])
    assert cache.get("a", texts) == {text: float(i % 2) for i, text in enumerate(texts)}


def write_answers(file, me):
    """What one of several processes writes: answers of all of them, and its own, which it reads again."""
    store = AnswerStore(str(file))
    for i in range(100):
        store.put("all", [Label(f"shared {i} {j}", 1.0) for j in range(5)])
        store.put("own", [Label(f"{me} {i} {j}", me / 4) for j in range(5)])
        assert len(store.get("own", [f"{me} {i} {j}" for j in range(5)])) == 5
    return 0


def test_four_processes_write_at_once_and_lose_nothing(file, tmp_path):
    writers = [Child(functools.partial(write_answers, file, me), tmp_path / f"{me}.txt") for me in range(4)]
    assert [writer.wait(120) for writer in writers] == [0] * 4, [writer.text() for writer in writers]
    with sqlite3.connect(file) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        counts = dict(connection.execute("SELECT judge, count(*) FROM labels GROUP BY judge"))
    assert counts == {"all": 500, "own": 2000}


def test_a_file_that_is_no_database_is_set_aside_and_begun_afresh(file, capsys):
    file.parent.mkdir()
    file.write_bytes(b"not a database, but long enough to look like one " * 100)
    cache = AnswerStore(file)
    cache.put("a", [Label("text", 1.0)])
    assert cache.get("a", ["text"]) == {"text": 1.0}
    assert Path(f"{file}.bad").read_bytes().startswith(b"not a database")
    assert said(capsys) == [
        f"the file of answers {file} is broken (file is not a database); it was moved to {file}.bad, another begun"
    ]


def test_torn_pages_are_noticed_when_they_are_read(file, capsys):
    cache = AnswerStore(file)
    cache.put("a", [Label(f"text {i}", 1.0) for i in range(2000)])
    cache.close()
    data = bytearray(file.read_bytes())
    data[3 * 4096 :] = b"\xa5" * (len(data) - 3 * 4096)
    file.write_bytes(data)
    cache = AnswerStore(file)
    assert cache.get("a", [f"text {i}" for i in range(2000)]) == {}
    cache.put("a", [Label("text 5", 0.0)])
    assert cache.get("a", ["text 5"]) == {"text 5": 0.0}
    [sentence] = said(capsys)
    assert "is broken" in sentence and Path(f"{file}.bad").exists()


def test_a_file_that_is_found_whole_when_it_is_opened_once_more_stays_where_it_is(file, capsys):
    cache = AnswerStore(file)
    cache.put("a", [Label("text", 1.0)])
    cache._connection.close()
    assert cache.get("a", ["text"]) == {"text": 1.0}
    assert said(capsys) == [] and not Path(f"{file}.bad").exists()


def test_a_store_that_cannot_be_opened_is_reported_once_and_keeps_nothing(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    cache = AnswerStore(tmp_path / "file" / "labels.sqlite")
    cache.put("a", [Label("text", 1.0)])
    assert cache.get("a", ["text"]) == {} and len(cache) == 0
    [sentence] = said(capsys)
    assert "cannot be used" in sentence and "continues without it" in sentence


def test_a_full_disk_is_reported_once_and_what_was_kept_is_still_read(file):
    script = (
        "import resource, sys\n"
        "from rewards.llm.store import Label, AnswerStore\n"
        "cache = AnswerStore(sys.argv[1])\n"
        "cache.put('a', [Label('early', 1.0)])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        "for i in range(20):\n"
        "    cache.put('a', [Label(f'{i} {j}', 0.0, 'r' * 1000) for j in range(20)])\n"
        "print(cache.get('a', ['early']))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, str(file)], cwd=ROOT, capture_output=True, text=True)
    assert ran.stdout == "{'early': 1.0}\n", ran.stderr
    [sentence] = ran.stderr.splitlines()
    assert "continues without it" in sentence
    with sqlite3.connect(file) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("whole", [True, False], ids=["with its log", "alone"])
def test_a_file_that_is_removed_while_it_is_open_is_written_anew_with_all_it_held(file, whole, capsys):
    first, second = AnswerStore(file), AnswerStore(file)  # two runs share it
    first.put("a", [Label("early", 1.0)])
    for path in file.parent.glob("labels.sqlite*") if whole else [file]:
        path.unlink()
    first.put("a", [Label("late", 0.0)])
    second.put("a", [Label("later", 0.5)])
    found = {"early": 1.0, "late": 0.0, "later": 0.5}
    for store in (first, second, AnswerStore(file)):
        assert store.get("a", list(found)) == found
        store.close()
    assert all("was removed or replaced while it was in use" in line for line in said(capsys))
    with sqlite3.connect(file) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_file_that_is_removed_after_the_last_answer_is_there_again_in_the_end(file, capsys):
    store = AnswerStore(file)
    store.put("a", [Label("early", 1.0)])
    shutil.rmtree(file.parent)
    store.close()
    assert AnswerStore(file).get("a", ["early"]) == {"early": 1.0} and len(said(capsys)) == 1


@pytest.mark.parametrize("value", [1e9, float("inf"), -1.0, "good", b"\xff"])
def test_a_shared_row_that_is_no_label_is_none_and_the_next_answer_replaces_it(file, value):
    store = AnswerStore(file)
    store.put("a", [Label("text", 1.0, "so"), Label("other", 0.0, "so"), Label("third", 0.5)])
    with sqlite3.connect(file) as other:
        other.execute("UPDATE labels SET value = ? WHERE text = 'text'", (value,))
        other.execute("UPDATE labels SET raw = ? WHERE text = 'other'", (b"\xff",))
        other.execute("UPDATE labels SET raw = CAST(X'ff20' AS TEXT) WHERE text = 'third'")
    assert store.get("a", ["text", "other", "third"]) == {"third": 0.5}
    assert store.words_of("a", ["text", "other", "third"]) == {"third": "\ufffd "}
    store.put("a", [Label("text", 0.0, "no"), Label("other", 0.5, "no"), Label("third", 1.0)])
    assert store.get("a", ["text", "other", "third"]) == {"text": 0.0, "other": 0.5, "third": 0.5}
    assert store.words_of("a", ["text", "other"]) == {"text": "no", "other": "no"}


def test_a_shared_text_of_other_bytes_is_read_as_far_as_it_goes(file):
    AnswerStore(file).put("a", [Label("text", 1.0)])
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE labels SET text = CAST(X'ff41' AS TEXT)")
    assert list(read_rows(file, label_in, "no label")) == [("\ufffdA", 1.0)]


def test_the_recorded_judge_reads_the_cache_while_it_is_open_and_lines_of_its_columns(file, tmp_path):
    cache = AnswerStore(file)
    cache.put("a", [Label("good", 1.0), Label("odd", math.nan), Label(("bad", "good"), 0.75)])
    rows = (
        {"text": "good", "value": 1.0},
        {"text": "odd", "value": None},
        {"text": "bad", "other": "good", "value": 0.75},
    )
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for path in (file, tmp_path / "labels.jsonl"):
        judge = RecordedLabels(str(path))
        assert judge.label(["good", "odd"]).value.tolist()[0] == 1.0
        assert math.isnan(judge.label(["odd"]).value[0]) and not judge.label(["odd"]).failed[0]
        assert judge.compare(["bad"], ["good"]).value.tolist() == [0.75]
        assert judge.label(["never met"]).failed.tolist() == [True]
