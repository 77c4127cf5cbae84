"""The process of a judge: stopped, killed, refused, forgotten; and what is left when the trainer is gone."""

import gc
import json
import math
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from labelling import ROOT, asking, asking_in_a_thread, collect, gone, right, serving, texts, until, worker_pid
from model_server import hangs

from rewards.llm.annotation.annotator import Annotator
from rewards.llm.annotation.asking import TICK, Asker
from rewards.llm.annotation.worker import JudgeProcess
from rewards.llm.client import Breaker
from rewards.llm.judges import base as judge

server, ask, ask_here = pytest.fixture(serving), pytest.fixture(asking), pytest.fixture(asking_in_a_thread)


def test_training_continues_while_the_process_of_the_judge_is_stopped(server, ask):
    annotator = ask(server.url)
    annotator.offer(texts(3), 0)
    got = collect(annotator, 3)
    os.kill(worker_pid(annotator), signal.SIGSTOP)
    for now in range(1, 101):
        annotator.offer(texts(1, begin=now + 2), now)
        assert annotator.take(now) == []
    os.kill(worker_pid(annotator), signal.SIGCONT)
    got |= collect(annotator, 100)
    assert len(got) == 103 and right(got)


def test_a_killed_process_of_the_judge_is_replaced_and_its_texts_are_asked_again(server, ask, capfd):
    server.plan = [hangs(30)] * 8
    annotator = ask(server.url, {"timeout": 20.0})
    annotator.offer(texts(20), 0)
    until(lambda: len(server.seen) == 8)
    first = worker_pid(annotator)
    os.kill(first, signal.SIGKILL)
    assert right(collect(annotator, 20))
    assert worker_pid(annotator) != first and annotator.metrics()["restarts"] == 1
    assert capfd.readouterr().err == (
        "annotator: the process of the judge was killed by signal 9; it is started again now\n"
    )


def test_the_judge_says_how_many_questions_its_server_takes_at_once(server, ask_here):
    annotator = ask_here(server.url, {"concurrency": 1}, concurrency=8)
    annotator.offer(texts(6), 0)
    assert right(collect(annotator, 6)) and server.most == 1


def test_without_anything_to_do_it_waits_for_news_instead_of_turning_round():
    waits, asker = [], Asker.__new__(Asker)
    asker.breaker, asker._worker, asker._ready, asker._restart = Breaker(), None, False, math.inf

    def get(timeout):
        waits.append(timeout)
        raise queue.Empty

    asker._inbox = SimpleNamespace(get=get)
    asker._run_once()
    asker.breaker.open, asker.breaker.until = True, time.monotonic() + 1e-9  # an outage: a probe is due
    asker._run_once()
    asker.breaker.until = time.monotonic() + TICK / 2
    asker._run_once()
    assert waits[:2] == [TICK, TICK] and 0 < waits[2] <= TICK / 2


def test_a_process_that_dies_all_the_time_is_not_started_for_ever(ask):
    annotator = ask("http://127.0.0.1:9/v1")
    annotator.offer(texts(3), 0)
    dead = set()
    for _ in range(6):
        pid = until(lambda: worker_pid(annotator) not in {None, *dead} and worker_pid(annotator))
        os.kill(pid, signal.SIGKILL)
        dead.add(pid)
    until(lambda: len(annotator.events) == 6)
    assert [event[-3:] for event in list(annotator.events)[:5]] == ["now"] * 5
    assert re.search(r"it is started again in (5\d\d|600) s$", annotator.events[-1])
    assert annotator.offer(texts(3, 50), 1) == 3, "training goes on"
    assert worker_pid(annotator) is None and annotator.metrics()["queued"] == 6


PARENT = """
import os, sys, time
from rewards.llm.annotation.annotator import Annotator
annotator = Annotator("openai", {{"model": "tiny", "url": {url!r}, "goal": "g"}})
annotator.offer(["good 1"], 0)
while not annotator.take(0):
    time.sleep(0.01)
print(annotator._asker._worker.pid, flush=True)
if {fork}:
    pid = os.fork()
    if pid:
        print(pid, flush=True)
time.sleep(120)
"""


@pytest.mark.nightly
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
    worker = worker_pid(annotator)
    del annotator
    gc.collect()
    assert gone(worker)


def test_a_hundred_questions_that_hang_leave_no_thread_behind(server, ask):
    before = threading.active_count()
    server.plan = [hangs(0.2)] * 100
    annotator = ask(server.url, {"timeout": 0.05}, concurrency=8, probe=0.001)
    annotator.offer(texts(110), 0)
    got = {}
    until(lambda: got.update(annotator.take(0)) or annotator.metrics()["failed"] >= 100)
    assert right(got)
    assert len(os.listdir(f"/proc/{worker_pid(annotator)}/task")) <= 8 + 3
    annotator.close()
    until(lambda: server.busy == 0)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("annotator")] == []
    assert threading.active_count() <= before + 1, "what the server itself may still be closing"


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


def test_options_that_cannot_reach_a_process_are_refused(ask):
    with pytest.raises(ValueError, match=r"judge_options are no JSON"):
        ask("http://127.0.0.1:9/v1", {"body": {"top_p": object()}})


def test_a_judge_that_is_local_works_in_its_process_too(server, ask):
    annotator = Annotator("rules", {"family": "nethack"})
    annotator.offer(["You kill the newt!", "It's solid stone."], 0)
    got = collect(annotator, 2)
    annotator.close()
    assert got == {"You kill the newt!": 1.0, "It's solid stone.": 0.0}


def test_a_judge_that_raises_or_dies_costs_its_own_texts_alone(monkeypatch, capfd):
    monkeypatch.setitem(judge.JUDGES["texts"], "moody", "labelling:Moody")
    annotator = Annotator("moody", concurrency=1, probe=0.05)
    annotator.offer(["good 1", "raise", "forget", "die", "good 2"], 0)
    assert collect(annotator, 2) == {"good 1": 1.0, "good 2": 1.0}
    until(lambda: annotator.metrics()["dropped"] == 3)
    metrics = annotator.metrics()
    annotator.close()
    assert (metrics["failed"], metrics["restarts"], metrics["answered"]) == (9, 3, 2)
    assert annotator.events.count("the process of the judge ended with exit code 3; it is started again now") == 3
    said = capfd.readouterr()
    assert said.out == "" and "what a library prints" in said.err


def test_how_a_process_ended_is_told_apart():
    inbox = queue.SimpleQueue()
    refused = JudgeProcess({"kind": "texts", "judge": "rules", "options": {"mood": 1}, "concurrency": 1}, inbox)
    assert "mood" in inbox.get(timeout=60)[1]["refused"] and inbox.get(timeout=60)[1] is None
    refused._process.wait(60)
    assert refused.end() == "ended with exit code 0"
    living = JudgeProcess({"kind": "texts", "judge": "rules", "options": {}, "concurrency": 1}, inbox)
    assert living.end() == "was killed by signal 9"


def test_a_judge_unknown_to_the_table_is_refused_at_once():
    with pytest.raises(ValueError, match=r"there is no judge 'moody'"):
        Annotator("moody")
