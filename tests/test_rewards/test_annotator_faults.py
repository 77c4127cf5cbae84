"""The annotator by the clock on the wall against a real server, well, ill and dead: no label is wrong or lost."""

import json
import re
import socket
import time
from pathlib import Path

import pytest
from labelling import (
    asking,
    asking_in_a_thread,
    collect,
    kill,
    right,
    serve,
    serving,
    texts,
    think,
    until,
    worker_pid,
)
from model_server import Flood, ModelServer, breaks_off, drips, hangs, says, status

from rewards.llm.annotation.annotator import Annotator

server, ask, ask_here = pytest.fixture(serving), pytest.fixture(asking), pytest.fixture(asking_in_a_thread)


def test_labels_come_from_a_server_without_waiting(server, ask):
    annotator = ask(server.url, concurrency=4)
    assert annotator.metrics()["asked"] == 0 and not server.seen
    assert annotator.offer(texts(30), 0) == 30
    assert annotator.offer(texts(30), 0) == 0, "nothing waits twice, nor is it asked twice"
    got = collect(annotator, 30)
    assert right(got) and len(server.seen) == 30 and 1 <= server.most <= 4
    metrics = annotator.metrics()
    assert (metrics["asked"], metrics["answered"], metrics["unsure"], metrics["failed"]) == (30, 30, 10, 0)
    assert metrics["latency"] > 0 and metrics["breaker"] == 0
    assert annotator.notes() == [f"labels are those of tiny at {server.url}, asked for: good ones"]


def test_pairs_are_compared_by_the_server(server, ask_here):
    annotator = ask_here(server.url, pairs=True)
    pairs = [("good 1", "bad 2"), ("bad 3", "good 4")]
    annotator.offer(pairs, 0)
    assert collect(annotator, 2) == {pairs[0]: 0.0, pairs[1]: 1.0}


def test_the_newest_text_is_asked_first(server, ask_here):
    annotator = ask_here(server.url, concurrency=1)
    annotator.offer(texts(9), 0)
    collect(annotator, 9)
    asked = [re.findall(r'"\w+ (\d)"', body["messages"][0]["content"])[0] for _, body in server.seen]
    assert asked == list("876543210")


FAULTS = {
    "429": status(429, "slow down", Retry_After="0"),
    "500": status(500, "out of memory"),
    "hangs": hangs(1.6),
    "drips": drips(1.6),
    "breaks off": breaks_off,
    "web page": status(200, "<html>Welcome to nginx</html>"),
    "garbage": status(200, "\x00\xff{{{"),
    "talk": says("I would say that this is helpful, or harmful."),
    "a word of its own": says('{"reason": "so", "label": "very helpful"}'),
    "100 MB": Flood(),
}


@pytest.fixture(scope="module")
def patient():
    """One server and one annotator for all faults."""
    with ModelServer(think) as running:
        options = {"model": "tiny", "url": running.url, "goal": "g", "attempts": 1, "timeout": 0.8}
        annotator = Annotator("openai", options, concurrency=2, probe=0.05)
        yield running, annotator
        annotator.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_goes_wrong_is_no_label_and_loses_no_text(patient, fault, capfd):
    running, annotator = patient
    before, begin = annotator.metrics(), 100 * list(FAULTS).index(fault)
    annotator.events.clear()
    running.plan = [FAULTS[fault]] * 7
    annotator.offer(texts(12, begin), 0)
    got = collect(annotator, 12)
    assert right(got) and sorted(got) == sorted(texts(12, begin))
    metrics = annotator.metrics()
    assert metrics["failed"] - before["failed"] >= 7 and metrics["answered"] - before["answered"] == 12
    assert metrics["dropped"] == metrics["breaker"] == 0
    said = capfd.readouterr().err.splitlines()
    assert re.fullmatch(r"annotator: .*; trying again in 0\.05 s", said[0]), said
    assert re.fullmatch(r"annotator: the judge answers again, \d+ texts wait", said[1]), said
    assert [f"annotator: {event}" for event in annotator.events] == said


def test_a_text_that_has_no_usable_answer_is_given_up_after_three_tries(server, ask_here):
    server.think = lambda text, images: think(text, images) if '"good' in text else "no comment"
    annotator = ask_here(server.url, concurrency=1)
    annotator.offer(["bad 1", "good 2", "bad 3"], 0)
    assert collect(annotator, 1) == {"good 2": 1.0}
    until(lambda: annotator.metrics()["dropped"] == 2)
    assert annotator.metrics()["failed"] == 6 and len(server.seen) == 7
    assert annotator.offer(["bad 1", "bad 3"], 1) == 0, "the same text would fail again"


def test_training_continues_while_the_server_hangs(server, ask):
    server.plan = [hangs(30)] * 8
    annotator = ask(server.url, {"timeout": 20.0}, concurrency=8, queue=100)
    annotator.offer(texts(20), 0)
    until(lambda: len(server.seen) == 8)
    for now in range(1, 1001):
        annotator.offer(texts(3, begin=3 * now), now)
        assert annotator.take(now) == []
    metrics = annotator.metrics()
    assert (metrics["asked"], metrics["answered"], metrics["queued"], len(server.seen)) == (8, 0, 100, 8)


def test_a_server_killed_in_the_middle_and_started_again_loses_nothing(ask_here):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    annotator = ask_here(f"http://127.0.0.1:{port}/v1", {"connect": 1.0}, concurrency=4)
    got = {}
    for begin in (0, 50):
        process = serve(port)
        try:
            annotator.offer(texts(50, begin), 0)
            got |= collect(annotator, 25)
        finally:
            kill(process)
        until(lambda: annotator.metrics()["breaker"])
    process = serve(port)
    try:
        got |= collect(annotator, 100 - len(got))
    finally:
        kill(process)
    assert right(got) and sorted(got) == sorted(texts(100))
    assert annotator.metrics()["dropped"] == 0 and annotator.metrics()["restarts"] == 0


def test_not_one_question_more_than_the_budget(server, ask_here, capfd):
    server.plan = [status(500)] * 3
    annotator = ask_here(server.url, concurrency=8, budget=5)
    annotator.offer(texts(40), 0)
    got = collect(annotator, 5)
    until(lambda: "spent" in " ".join(annotator.events))
    annotator.offer(texts(40, 40), 1)
    annotator.close()
    assert right(got) and len(server.seen) == 8, "five answers and three failures"
    assert "annotator: the budget of 5 labels is spent, nothing is asked any more\n" in capfd.readouterr().err


def test_cached_answers_need_no_server_and_no_budget(server, ask_here, tmp_path):
    cache = str(tmp_path / "labels.sqlite")
    first = ask_here(server.url, cache=cache)
    first.offer(texts(30), 0)
    collect(first, 30)
    first.close()
    server.plan = [status(500)] * 1000
    second = ask_here(server.url, cache=cache, budget=2, rate=1)
    second.offer(texts(33), 0)
    got = collect(second, 30)
    assert right(got) and sorted(got) == sorted(texts(30))
    metrics = second.metrics()
    assert (metrics["cached"], metrics["answered"], metrics["queued"], metrics["unsure"]) == (30, 0, 3, 10)
    other = ask_here(server.url, {"goal": "bad ones"}, cache=cache)
    other.offer(texts(3), 0)
    until(lambda: other.metrics()["failed"])
    assert other.metrics()["cached"] == 0, "another goal, another question"


def test_a_broken_cache_does_not_stop_the_labels(server, ask_here, tmp_path, capfd):
    (tmp_path / "labels.sqlite").write_bytes(b"broken " * 1000)
    annotator = ask_here(server.url, cache=str(tmp_path / "labels.sqlite"))
    annotator.offer(texts(3), 0)
    assert right(collect(annotator, 3))
    assert "it was moved to" in capfd.readouterr().err and (tmp_path / "labels.sqlite.bad").exists()


def test_the_transcript_of_a_run_with_a_server_is_replayed_without(server, ask_here, tmp_path):
    file = str(tmp_path / "transcript.jsonl")
    annotator = ask_here(server.url, transcript=file)
    heard, now = [], 0
    while len(heard) < 12:
        now += 1
        if now <= 12:
            annotator.offer(texts(1, now), now)
        heard += [(now, text, str(value)) for text, value in annotator.take(now)]
        time.sleep(0.01)
    asked = len(server.seen)
    replay = Annotator("openai", {}, clock="transcript", transcript=file)
    replayed = [(step, text, str(value)) for step in range(now + 1) for text, value in replay.take(step)]
    assert replayed == heard and len(server.seen) == asked
    identities = {json.loads(line)["judge"] for line in Path(file).read_text().splitlines()}
    assert len(identities) == 1 and identities.pop().startswith("openai tiny")


def test_nothing_that_a_server_says_stops_the_labels(server, ask_here, tmp_path):
    def absurd(tokens, content='{"reason": "\\ud800", "label": "helpful"}', **headers):
        said = {"choices": [{"message": {"content": content}}], "usage": {"total_tokens": tokens}}
        return lambda handler: handler.send(200, json.dumps(said), **headers)

    twice = '{"reason": "", "label": "helpful"} {"reason": "", "label": "harmful"}'
    server.plan = [absurd(10**30), absurd(-5), absurd(float("inf")), absurd(1, twice)]
    server.plan += [status(429, "later", Retry_After="Mon, 22 Nov 9999999999999999999 17:00:00 GMT")]
    annotator = ask_here(server.url, concurrency=1, cache=str(tmp_path / "labels.sqlite"))
    annotator.offer([f"good {i}" for i in range(9)], 0)
    assert set(collect(annotator, 9).values()) == {1.0}
    metrics = annotator.metrics()
    assert (metrics["failed"], metrics["tokens"], metrics["restarts"]) == (2, 1, 0)


def test_a_cache_that_is_deleted_while_the_run_continues_loses_no_label(server, ask_here, tmp_path, capfd):
    cache = tmp_path / "labels.sqlite"
    annotator = ask_here(server.url, cache=str(cache))
    annotator.offer(texts(9), 0)
    collect(annotator, 9)
    cache.unlink()
    annotator.offer(texts(9, 100), 0)
    collect(annotator, 9)
    annotator.close()
    assert f"the file of answers {cache} was removed or replaced while it was in use" in capfd.readouterr().err
    again = ask_here(server.url, cache=str(cache))
    again.offer(texts(9) + texts(9, 100), 0)
    assert right(collect(again, 18)) and again.metrics()["cached"] == 18


def test_the_key_reaches_the_server_and_nothing_else(server, ask, tmp_path, monkeypatch, capfd):
    key = "sk-very-secret-0123456789"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    server.plan = [status(500, f"wrong key {key}")] * 6 + [says(f'{{"reason": "{key}", "label": "helpful"}}')]
    annotator = ask(
        server.url, concurrency=1, cache=str(tmp_path / "labels.sqlite"), transcript=str(tmp_path / "transcript.jsonl")
    )
    annotator.offer(texts(4), 0)
    collect(annotator, 4)
    state = json.dumps(annotator.state_dict())
    command = Path(f"/proc/{worker_pid(annotator)}/cmdline").read_text()
    annotator.close()
    assert {headers["Authorization"] for headers, _ in server.seen} == {f"Bearer {key}"}
    printed = capfd.readouterr()
    texts_ = [state, command, repr(annotator), *annotator.notes(), printed.out, printed.err]
    assert len(annotator.events) == 2 and not any(key in text for text in texts_)
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"good 0" in written and key.encode() not in written


def test_what_a_judge_on_a_server_refuses_is_refused_before_its_process_starts(ask_here):
    with pytest.raises(ValueError, match=r"url='no address' is no web address"):
        ask_here("no address")


def test_what_the_judge_refuses_is_raised_where_training_sees_it():
    annotator = Annotator("rules", {"family": "nowhere"}, clock="wall")
    with pytest.raises(ValueError, match=r"family='nowhere'"):
        annotator.offer(texts(1), 0)
        collect(annotator, 1)
    annotator.close()
