"""The judge over HTTP, asked about bright and dark pictures, by a server that really looks at them."""

import json
import sqlite3
import threading
import time

import numpy as np
import pytest
from model_server import ModelServer, breaks_off, hangs, says, status
from rollouts import blank

from rewards.llm.store import read_rows
from rewards.preference.judges import make_segment_judge
from rewards.preference.vlm import VLM


def looks(text, images):
    """First describes brightness; when asked to decide, repeats it as JSON."""
    if images:
        one, two = (image.mean() for image in images)
        verdict = 0 if one > two + 1 else 1 if two > one + 1 else -1
        return f"Image 1 has brightness {one:.0f}, image 2 has brightness {two:.0f}: verdict {verdict}."
    return json.dumps({"answer": int(text.split("verdict ")[1].split(".")[0])})


@pytest.fixture
def server():
    with ModelServer(looks) as running:
        yield running


def judge(server, **options):
    given = {"timeout": 5.0, "concurrency": 1, "attempts": 2, "backoff": 0.001, **options}
    return VLM("tiny", server.url, goal="to make it bright", **given)


def segments(*last):
    """A segment of two steps for each brightness in `last`, which its last frame shows; the first step shows noise."""
    frame = np.random.default_rng(0).integers(0, 255, (2, len(last), 4, 4, 3), dtype=np.uint8)
    frame[1] = np.array(last)[:, None, None, None]
    return blank(2, len(last), frame=frame)


FIRST, SECOND = segments(10, 200, 30, 90), segments(20, 100, 230, 90)


def test_the_second_is_better_where_its_last_picture_is_nearer_to_the_goal(server):
    asking = judge(server)
    np.testing.assert_array_equal(asking.compare(FIRST, SECOND), np.array([1, 0, 1, np.nan], np.float32))
    np.testing.assert_array_equal(asking.compare(SECOND, FIRST), np.array([0, 1, 0, np.nan], np.float32))
    assert asking.counts == {"answered": 3, "unsure": 0, "failed": 0, "paused": 0, "known": 3, "same": 2}
    assert len(server.seen) == 6  # two stages for each of three pairs, in whichever order they are put


def test_both_questions_name_the_goal_and_the_second_hears_what_was_said_in_the_first(server):
    judge(server).compare(segments(10), segments(20))
    look, decide = (body["messages"][0]["content"] for _, body in server.seen)
    assert "to make it bright" in look[-1]["text"] and "to make it bright" in decide
    assert "brightness 10" in decide and "brightness 20" in decide
    assert server.seen[1][1]["response_format"]["json_schema"]["schema"]["properties"]["answer"]["enum"] == [0, 1, -1]


def test_either_segment_is_shown_first_about_as_often_whatever_the_model_prefers():
    with ModelServer(lambda text, images: "so" if images else '{"answer": 0}') as server:  # always image 1
        answers = judge(server).compare(segments(*range(40)), segments(*range(40, 80)))
    assert 0.3 < answers.mean() < 0.7


def test_unsure_is_nan_and_not_asked_again(server):
    asking = judge(server)
    for _ in range(2):
        assert np.isnan(asking.compare(segments(50), segments(51)))[0]
    assert asking.counts["unsure"] == 1 and asking.counts["known"] == 1


def test_the_same_pair_in_one_batch_is_asked_once(server):
    assert judge(server).compare(segments(10, 10, 20), segments(20, 20, 10)).tolist() == [1, 1, 0]
    assert len(server.seen) == 2


def test_answers_are_read_from_the_file_by_the_next_run_unless_something_else_is_asked(server, tmp_path):
    path = tmp_path / "labels" / "vlm.sqlite"
    expected = judge(server, answers=str(path)).compare(FIRST, SECOND)
    asked = len(server.seen)
    again = judge(server, answers=str(path))
    np.testing.assert_array_equal(again.compare(FIRST, SECOND), expected)
    assert len(server.seen) == asked and again.counts["known"] == 3
    other = VLM("tiny", server.url, goal="to make it dark", answers=str(path))
    other.compare(FIRST, SECOND)
    assert len(server.seen) == 2 * asked
    [said, *_] = read_rows(path, lambda row: json.loads(row["raw"])["said"], "no answer")
    assert said.startswith("Image 1 has brightness")


@pytest.mark.parametrize("words", ["", "[1]", '{"answer": 7}', '{"answer": true}', "[" * 50_000])
def test_a_kept_answer_that_makes_no_sense_is_asked_for_again_and_replaced(server, tmp_path, words):
    path = str(tmp_path / "vlm.sqlite")
    expected = judge(server, answers=path).compare(FIRST, SECOND)
    with sqlite3.connect(path) as other:
        other.execute("UPDATE labels SET raw = ?", (words,))
    for known in (0, 3):
        again = judge(server, answers=path)
        np.testing.assert_array_equal(again.compare(FIRST, SECOND), expected)
        assert again.counts["known"] == known


def test_answers_travel_in_the_state(server):
    asking, fresh = judge(server), judge(server)
    expected = asking.compare(FIRST, SECOND)
    fresh.load_state_dict(json.loads(json.dumps(asking.state_dict())))
    np.testing.assert_array_equal(fresh.compare(FIRST, SECOND), expected)
    assert len(server.seen) == 6 and fresh.counts["answered"] == 3


def test_no_more_questions_are_in_flight_than_concurrency_allows(monkeypatch):
    lock, running = threading.Lock(), [0, 0]  # now, at most

    def answer(chat, parts, schema=None, reply=None):
        with lock:
            running[:] = running[0] + 1, max(running[1], running[0] + 1)
        time.sleep(0.02)
        with lock:
            running[0] -= 1
        return {"answer": 0} if schema else "so"

    monkeypatch.setattr("rewards.llm.client.Chat.ask", answer)
    asking = VLM("tiny", goal="to make it bright", concurrency=3)
    asking.compare(segments(*range(0, 90, 10)), segments(*range(100, 190, 10)))
    assert 2 <= running[1] <= 3


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (status(500), r"answered 500"),
        (status(200, "<html>"), r"web page"),
        (breaks_off, r"broke off: RemoteProtocolError"),
        (hangs(1.0), r"did not answer in time"),
        (says(""), None),  # the second stage hears nothing, and its answer does not fit
    ],
    ids=["500", "html", "cut", "hangs", "empty"],
)
def test_what_fails_is_nan_and_one_sentence_and_the_next_pair_is_asked(server, plan, words):
    # Short only where that is tried: a busy processor answers late.
    asking = judge(server, timeout=0.5 if "in time" in str(words) else 5.0, attempts=1)
    server.plan = [plan] if words else [says("verdict none"), says('{"answer": 7}')]
    answers = asking.compare(segments(10, 10), segments(20, 40))
    assert np.isnan(answers[0]) and answers[1] == 1
    assert asking.counts["failed"] == 1 and asking.counts["answered"] == 1
    note = asking.notes()[1]
    assert note.startswith("1 pairs got no answer; the last error: ")
    assert (words or "no JSON in the answer fits") in note and "\n" not in note


def test_a_failed_pair_is_asked_again_the_next_time(server):
    asking = judge(server, attempts=1)
    server.plan = [status(500)]
    assert np.isnan(asking.compare(segments(10), segments(20)))[0]
    assert asking.compare(segments(10), segments(20))[0] == 1


def test_an_absent_server_is_left_alone_after_some_failures_and_asked_again_after_a_pause(server, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("rewards.llm.client.time.monotonic", lambda: now[0])
    url, asking = server.url, judge(server, failures=3, pause=60.0, attempts=1)
    asking.url = "http://127.0.0.1:9/v1"
    pairs = segments(*range(10)), segments(*range(100, 110))
    assert np.isnan(asking.compare(*pairs)).all()
    assert asking.counts["failed"] == 3 and asking.counts["paused"] == 7
    asking.url = url
    now[0] += 59.0
    assert np.isnan(asking.compare(*pairs)).all() and server.seen == []
    now[0] += 2.0
    assert (asking.compare(*pairs) == 1).all()


def test_it_is_in_the_table_of_judges_and_says_whose_opinion_it_is(server):
    made = make_segment_judge("vlm", goal="to make it bright", model="tiny", url=server.url, seed=3)
    assert made.requires == {"frame"} and made.frame_size == 224
    assert made.notes() == [f"preferences are those of tiny at {server.url}, asked for: to make it bright"]


def test_what_it_cannot_use_is_refused(server):
    with pytest.raises(ValueError, match=r"goal is empty"):
        VLM("tiny", goal=" ")
    with pytest.raises(ValueError, match=r"the judge vlm reads frames, and these have none; use frame_size=224"):
        judge(server).compare(FIRST.replace(frame=None), SECOND)
