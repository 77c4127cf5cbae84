"""The annotator by the clock on the wall: a judge in a process of its own, a real server, and all that may break."""

import gc
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from model_server import Flood, ModelServer, breaks_off, drips, hangs, says, status

from rewards.language.annotator import Annotator

ROOT = Path(__file__).resolve().parents[2]
WORTH = {"good": 1.0, "bad": 0.0, "odd": math.nan}
WORDS = {"good": "helpful", "bad": "harmful", "odd": "unsure"}


def think(text, images):
    """A model that judges captions by their first word, pairs by that of the second."""
    captions = re.findall(r'"(good|bad|odd) \d+"', text)
    if "better" in text.rsplit("JSON schema", 1)[-1]:
        return json.dumps({"reason": "second", "better": "second" if captions[1] == "good" else "first"})
    return json.dumps({"reason": "it says so", "label": WORDS[captions[0]]})


@pytest.fixture
def server():
    with ModelServer(think) as running:
        yield running


@pytest.fixture
def ask():
    """Annotators that ask a server at this address with short patience; closed at the end."""
    made = []

    def annotator(url, judge_options=None, **options):
        quick = {"model": "tiny", "url": url, "goal": "good ones", "attempts": 1, "timeout": 5.0, "backoff": 0.001}
        made.append(Annotator("openai", {**quick, **(judge_options or {})}, **{"probe": 0.05, **options}))
        return made[-1]

    yield annotator
    for one in made:
        one.close()


def texts(count, begin=0):
    return [f"{('good', 'bad', 'odd')[i % 3]} {i}" for i in range(begin, begin + count)]


def until(condition):
    """Wait for something that must come."""
    deadline = time.monotonic() + 60
    while not (result := condition()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)
    return result


def collect(annotator, count):
    """The first `count` labels that come, none twice."""
    got = {}

    def enough():
        for item, value in annotator.take(0):
            assert item not in got
            got[item] = value
        return len(got) >= count

    until(enough)
    return got


def right(got):
    """No text has another label than its own."""
    return all(str(value) == str(WORTH[text.split()[0]]) for text, value in got.items())


def gone(pid):
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_labels_come_from_a_server_while_nobody_waits(server, ask):
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


def test_pairs_are_compared_by_the_server(server, ask):
    annotator = ask(server.url, pairs=True)
    pairs = [("good 1", "bad 2"), ("bad 3", "good 4")]
    annotator.offer(pairs, 0)
    assert collect(annotator, 2) == {pairs[0]: 0.0, pairs[1]: 1.0}


def test_the_newest_text_is_asked_first(server, ask):
    annotator = ask(server.url, concurrency=1)
    annotator.offer(texts(9), 0)
    collect(annotator, 9)
    asked = [re.findall(r'"\w+ (\d)"', body["messages"][0]["content"])[0] for _, body in server.seen]
    assert asked == list("876543210")


FAULTS = {
    "429": status(429, "slow down", Retry_After="0"),
    "500": status(500, "out of memory"),
    "hangs": hangs(0.6),
    "drips": drips(0.6),
    "breaks off": breaks_off,
    "web page": status(200, "<html>Welcome to nginx</html>"),
    "garbage": status(200, "\x00\xff{{{"),
    "talk": says("I would say that this is helpful, or harmful."),
    "a word of its own": says('{"reason": "so", "label": "very helpful"}'),
    "100 MB": Flood(),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_goes_wrong_is_no_label_and_loses_no_text(server, ask, fault, capfd):
    server.plan = [FAULTS[fault]] * 7
    annotator = ask(server.url, {"timeout": 0.3 if fault in ("hangs", "drips") else 5.0}, concurrency=2)
    annotator.offer(texts(12), 0)
    got = collect(annotator, 12)
    assert right(got) and sorted(got) == sorted(texts(12))
    metrics = annotator.metrics()
    assert (metrics["failed"], metrics["dropped"], metrics["breaker"]) == (7, 0, 0)
    said = capfd.readouterr().err.splitlines()
    assert re.fullmatch(r"annotator: .*; trying again in 0\.05 s", said[0]), said
    assert re.fullmatch(r"annotator: the judge answers again, \d+ texts wait", said[1]), said
    assert list(annotator.events) == [line.removeprefix("annotator: ") for line in said]


def test_training_goes_on_while_the_server_hangs(server, ask):
    server.plan = [hangs(30)] * 8
    annotator = ask(server.url, {"timeout": 20.0}, concurrency=8, queue=100)
    annotator.offer(texts(20), 0)
    until(lambda: len(server.seen) == 8)
    for now in range(1, 1001):
        annotator.offer(texts(3, begin=3 * now), now)
        assert annotator.take(now) == []
    metrics = annotator.metrics()
    assert (metrics["asked"], metrics["answered"], metrics["queued"], len(server.seen)) == (8, 0, 100, 8)


def test_training_goes_on_while_the_process_of_the_judge_is_stopped(server, ask):
    annotator = ask(server.url)
    annotator.offer(texts(3), 0)
    got = collect(annotator, 3)
    os.kill(annotator.worker_pid, signal.SIGSTOP)
    for now in range(1, 301):
        annotator.offer(texts(1, begin=now + 2), now)
        assert annotator.take(now) == []
    os.kill(annotator.worker_pid, signal.SIGCONT)
    got |= collect(annotator, 300)
    assert len(got) == 303 and right(got)


SERVER = """
import sys
sys.path[:0] = [{tests!r}, {here!r}]
from model_server import ModelServer
from test_annotator_faults import think
with ModelServer(think, {port}) as server:
    print("ready", flush=True)
    sys.stdin.read()
"""


def serve(port):
    """A server in a process of its own."""
    script = SERVER.format(tests=str(ROOT / "tests"), here=str(Path(__file__).parent), port=port)
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_server_killed_in_the_middle_and_started_again_loses_nothing(ask):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    annotator = ask(f"http://127.0.0.1:{port}/v1", {"connect": 1.0}, concurrency=4)
    got = {}
    for begin in (0, 100):
        process = serve(port)
        try:
            annotator.offer(texts(100, begin), 0)
            got |= collect(annotator, 50)
        finally:
            process.kill()
            process.communicate()
        until(lambda: annotator.metrics()["breaker"])
    process = serve(port)
    try:
        got |= collect(annotator, 200 - len(got))
    finally:
        process.kill()
        process.communicate()
    assert right(got) and sorted(got) == sorted(texts(200))
    assert annotator.metrics()["dropped"] == 0 and annotator.metrics()["restarts"] == 0


def test_a_killed_process_of_the_judge_is_replaced_and_its_texts_are_asked_again(server, ask, capfd):
    server.plan = [hangs(30)] * 8
    annotator = ask(server.url, {"timeout": 20.0})
    annotator.offer(texts(20), 0)
    until(lambda: len(server.seen) == 8)
    first = annotator.worker_pid
    os.kill(first, signal.SIGKILL)
    assert right(collect(annotator, 20))
    assert annotator.worker_pid != first and annotator.metrics()["restarts"] == 1
    assert capfd.readouterr().err == (
        "annotator: the process of the judge was killed by signal 9; it is started again now\n"
    )


def test_a_process_that_dies_all_the_time_is_not_started_for_ever(ask):
    annotator = ask("http://127.0.0.1:9/v1")
    annotator.offer(texts(3), 0)
    dead = set()
    for _ in range(6):
        pid = until(lambda: annotator.worker_pid not in {None, *dead} and annotator.worker_pid)
        os.kill(pid, signal.SIGKILL)
        dead.add(pid)
    until(lambda: len(annotator.events) == 6)
    assert [event[-3:] for event in list(annotator.events)[:5]] == ["now"] * 5
    assert re.search(r"it is started again in (5\d\d|600) s$", annotator.events[-1])
    assert annotator.offer(texts(3, 50), 1) == 3, "training goes on"
    assert annotator.worker_pid is None and annotator.metrics()["queued"] == 6


PARENT = """
import os, sys, time
from rewards.language.annotator import Annotator
annotator = Annotator("openai", {{"model": "tiny", "url": {url!r}, "goal": "g"}})
annotator.offer(["good 1"], 0)
while not annotator.take(0):
    time.sleep(0.01)
print(annotator.worker_pid, flush=True)
if {fork}:
    pid = os.fork()
    if pid:
        print(pid, flush=True)
time.sleep(120)
"""


@pytest.mark.parametrize("fork", [False, True], ids=["alone", "with a child that inherits its pipes"])
def test_no_process_outlives_a_killed_trainer(server, fork):
    script = PARENT.format(url=server.url, fork=fork)
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    child = int(parent.stdout.readline()) if fork else None
    assert not gone(worker)
    parent.kill()
    parent.wait()
    try:
        until(lambda: gone(worker))
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_a_program_that_ends_leaves_nothing_behind(server):
    script = PARENT.format(url=server.url, fork=False).replace("time.sleep(120)", "")
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and ran.stderr == ""
    assert gone(int(ran.stdout))


def test_an_annotator_that_is_forgotten_ends_its_process(server, ask):
    annotator = Annotator("openai", {"model": "tiny", "url": server.url, "goal": "g"})
    annotator.offer(texts(1), 0)
    collect(annotator, 1)
    worker = annotator.worker_pid
    del annotator
    gc.collect()
    assert gone(worker)


def test_a_hundred_questions_that_hang_leave_no_thread_behind(server, ask):
    before = threading.active_count()
    server.plan = [hangs(0.2)] * 100
    annotator = ask(server.url, {"timeout": 0.05}, concurrency=8, probe=0.001)
    annotator.offer(texts(110), 0)
    assert right(collect(annotator, 110)) and annotator.metrics()["failed"] == 100
    assert len(os.listdir(f"/proc/{annotator.worker_pid}/task")) <= 8 + 3
    annotator.close()
    until(lambda: server.busy == 0)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("annotator")] == []
    assert threading.active_count() <= before + 1, "what the server itself may still be closing"


def test_not_one_question_more_than_the_budget(server, ask, capfd):
    server.plan = [status(500)] * 3
    annotator = ask(server.url, concurrency=8, budget=5)
    annotator.offer(texts(40), 0)
    got = collect(annotator, 5)
    until(lambda: "spent" in " ".join(annotator.events))
    annotator.offer(texts(40, 40), 1)
    annotator.close()
    assert right(got) and len(server.seen) == 8, "five answers and three failures"
    assert "annotator: the budget of 5 labels is spent, nothing is asked any more\n" in capfd.readouterr().err


def test_cached_answers_need_no_server_and_no_budget(server, ask, tmp_path):
    cache = str(tmp_path / "labels.sqlite")
    first = ask(server.url, cache=cache)
    first.offer(texts(30), 0)
    collect(first, 30)
    first.close()
    server.plan = [status(500)] * 1000
    second = ask(server.url, cache=cache, budget=2, rate=1)
    second.offer(texts(33), 0)
    got = collect(second, 30)
    assert right(got) and sorted(got) == sorted(texts(30))
    metrics = second.metrics()
    assert (metrics["cached"], metrics["answered"], metrics["queued"], metrics["unsure"]) == (30, 0, 3, 10)
    other = ask(server.url, {"goal": "bad ones"}, cache=cache)
    other.offer(texts(3), 0)
    until(lambda: other.metrics()["failed"])
    assert other.metrics()["cached"] == 0, "another goal, another question"


def test_a_broken_cache_does_not_stop_the_labels(server, ask, tmp_path, capfd):
    (tmp_path / "labels.sqlite").write_bytes(b"broken " * 1000)
    annotator = ask(server.url, cache=str(tmp_path / "labels.sqlite"))
    annotator.offer(texts(3), 0)
    assert right(collect(annotator, 3))
    assert "it was moved to" in capfd.readouterr().err and (tmp_path / "labels.sqlite.bad").exists()


def test_a_resumed_run_asks_for_what_was_on_its_way(server, ask):
    server.plan = [hangs(30)] * 2
    first = ask(server.url, {"timeout": 20.0}, concurrency=2)
    first.offer(texts(9), 0)
    until(lambda: len(server.seen) == 2)
    state = json.loads(json.dumps(first.state_dict()))
    first.close()
    second = ask(server.url)
    second.load_state_dict(state)
    assert second.metrics()["queued"] == 9
    got = collect(second, 9)
    assert right(got) and sorted(got) == sorted(texts(9))


def test_the_transcript_of_a_run_with_a_server_is_replayed_without(server, ask, tmp_path):
    file = str(tmp_path / "transcript.jsonl")
    annotator = ask(server.url, transcript=file)
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
    command = Path(f"/proc/{annotator.worker_pid}/cmdline").read_text()
    annotator.close()
    assert {headers["Authorization"] for headers, _ in server.seen} == {f"Bearer {key}"}
    told = capfd.readouterr()
    shown = [state, command, repr(annotator), *annotator.notes(), told.out, told.err]
    assert len(annotator.events) == 2 and not any(key in text for text in shown)
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"good 0" in written and key.encode() not in written


def test_what_the_judge_refuses_is_raised_where_training_sees_it(ask):
    annotator = ask("no address")
    with pytest.raises(ValueError, match=r"url='no address' is no web address"):
        annotator.offer(texts(1), 0)
        collect(annotator, 1)


def test_options_that_no_process_can_be_told_are_refused(ask):
    with pytest.raises(ValueError, match=r"judge_options cannot be written as JSON"):
        ask("http://127.0.0.1:9/v1", {"body": {"top_p": object()}})


def test_a_judge_that_is_local_works_in_its_process_too(server, ask):
    annotator = Annotator("rules", {"world": "nethack"})
    annotator.offer(["You kill the newt!", "It's solid stone."], 0)
    got = collect(annotator, 2)
    annotator.close()
    assert got == {"You kill the newt!": 1.0, "It's solid stone.": 0.0}
