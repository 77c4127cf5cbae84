"""A model server and a judge process for the tests of the annotator; `python labelling.py PORT` is a server alone."""

import json
import math
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from model_server import ModelServer

from rewards.llm.annotation import worker
from rewards.llm.judges.base import Answers, TextJudge, make_judge

ROOT = Path(__file__).resolve().parent.parent
WORTH = {"good": 1.0, "bad": 0.0, "odd": math.nan}
WORDS = {"good": "helpful", "bad": "harmful", "odd": "unsure"}


def think(text, images):
    """A model that judges captions by their first word, pairs by that of the second."""
    captions = re.findall(r'"(good|bad|odd) \d+"', text)
    if "better" in text.rsplit("JSON schema", 1)[-1]:
        return json.dumps({"reason": "second", "better": "second" if captions[1] == "good" else "first"})
    return json.dumps({"reason": "it says so", "label": WORDS[captions[0]]})


def worker_pid(annotator):
    """The process of an annotator's judge; None without one."""
    return getattr(getattr(annotator._asker, "_worker", None), "pid", None)


class Moody(TextJudge):
    """A judge that somebody wrote in haste: good texts are good, others raise, die, talk or forget an answer."""

    name = "moody"

    def __init__(self, goal=""):
        self.goal = goal

    def label(self, texts):
        if texts == ["raise"]:
            raise TypeError("no such text")
        if texts == ["die"]:
            os._exit(3)
        print("what a library prints")
        return Answers.of([1.0] * len(texts) if texts != ["forget"] else [])


class JudgeThread:
    """A `JudgeProcess` that answers here: starting a process takes most of the time of a test of something else."""

    pid = None

    def __init__(self, job, inbox):
        self._inbox = inbox
        self._pool = ThreadPoolExecutor(job["concurrency"])
        try:
            self._judge = make_judge(job["judge"], job["kind"], **job["options"])
        except ValueError as error:
            self._hand_over({"refused": str(error)})
        else:
            judge = self._judge
            self._hand_over({"identity": judge.identity, "local": judge.local, "notes": judge.notes()})

    def _hand_over(self, message):
        self._inbox.put((self, json.loads(json.dumps(message))))

    def send(self, message):
        self._pool.submit(worker._reply, self._judge, json.loads(json.dumps(message)), self._hand_over)

    def kill(self):
        self._inbox.put((self, None))

    def end(self):
        self._pool.shutdown(cancel_futures=True)
        return "ended"


def serving():
    """A fixture: a server."""
    with ModelServer(think) as running:
        yield running


def asking():
    """A fixture: annotators that ask a server at this address with short patience; closed at the end."""
    from rewards.llm.annotation.annotator import Annotator

    made = []

    def annotator(url, judge_options=None, **options):
        quick = {"model": "tiny", "url": url, "goal": "good ones", "attempts": 1, "timeout": 5.0, "backoff": 0.001}
        made.append(Annotator("openai", {**quick, **(judge_options or {})}, **{"probe": 0.05, **options}))
        return made[-1]

    yield annotator
    for one in made:
        one.close()


def asking_in_a_thread(monkeypatch):
    """The same with judges that answer in a thread of the test."""
    monkeypatch.setattr("rewards.llm.annotation.asking.JudgeProcess", JudgeThread)
    yield from asking()


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


def serve(port):
    """A server in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, __file__, str(port)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process):
    """What `kill -9` does to a server."""
    process.kill()
    process.communicate()


if __name__ == "__main__":
    with ModelServer(think, int(sys.argv[1])):
        print("ready", flush=True)
        sys.stdin.read()
