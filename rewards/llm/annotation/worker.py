"""A judge in a process of its own, `python -m rewards.llm.annotation.worker`, and the line to it.

One JSON object a line. To the process: first the job, then questions; from it: first a greeting, then answers, each as
soon as it is there. A question is some texts or pairs that go to the judge together.

    {"kind": "texts", "judge": "openai", "class": "module:Class", "options": {...}, "concurrency": 8, "parent": 4242}
    {"identity": "...", "local": false, "notes": [...]}       or {"refused": "why the judge refuses its options"}
    {"id": 7, "items": ["You kill the newt!"]}
    {"id": 7, "value": [1.0], "failed": [false], "failure": "", "tokens": 312, "raw": ["..."], "seconds": 0.8}

It imports from the same folders, inherits the environment with an API key, and ends with its standard input or parent.
"""

import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np

from rewards.llm.judges.base import JUDGES, Answers, TextJudge, make_judge
from rewards.llm.store import MAX_STORED_NUMBER, Item


def ask_judge(judge: TextJudge, items: Sequence[Item]) -> Answers:
    """A judge's answers about texts, or about pairs of them; a value outside [0, 1] is no answer."""
    texts: Any = items
    if isinstance(items[0], str):
        answers = judge.label(texts)
    else:
        first, second = zip(*texts)
        answers = judge.compare(first, second)
    is_outside = (answers.value < 0) | (answers.value > 1)
    if is_outside.any():
        answers.value = np.where(is_outside, np.float32(np.nan), answers.value)
        answers.failed = answers.failed | is_outside
        answers.failure = answers.failure or "the judge gave a value outside [0, 1]"
    answers.tokens = int(min(max(answers.tokens, 0), MAX_STORED_NUMBER))
    return answers


class JudgeProcess:
    """The trainer's end. Its inbox gets (this, message) for each line, and (this, None) when the process is gone."""

    def __init__(self, job: dict[str, Any], inbox: queue.SimpleQueue[Any]) -> None:
        path = os.pathsep.join(map(os.path.abspath, sys.path))
        # One thread for numerics, unless set otherwise: the cores are the trainer's.
        env = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path}
        command = [sys.executable, "-P", "-m", "rewards.llm.annotation.worker"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self.pid = self._process.pid
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in = self._process.stdin
        self._out = self._process.stdout
        self._inbox = inbox
        self._listener = threading.Thread(target=self._listen, name="annotator-listener", daemon=True)
        self._listener.start()
        self.send({**job, "class": JUDGES[job["kind"]][job["judge"]], "parent": os.getpid()})

    def send(self, message: dict[str, Any]) -> None:
        """Write a line; if the process is gone, the inbox gets to know."""
        with suppress(OSError):
            self._in.write(json.dumps(message).encode() + b"\n")
            self._in.flush()

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> str:
        """End it, release everything, and return how it had ended, as half a sentence."""
        self._process.kill()
        code = self._process.wait()
        self._listener.join()
        for pipe in (self._in, self._out):
            # There may be something that could not be written any more.
            with suppress(OSError):
                pipe.close()
        if code < 0:
            return f"was killed by signal {-code}"
        return f"ended with exit code {code}"

    def _listen(self) -> None:
        try:
            for line in self._out:
                self._inbox.put((self, json.loads(line)))
        except ValueError:
            # The last line was torn.
            self.kill()
        self._inbox.put((self, None))


def _writer() -> Callable[[dict[str, Any]], None]:
    """What writes messages to standard output; what libraries print there goes to standard error from now on."""
    file = os.fdopen(os.dup(1), "w", encoding="ascii")
    lock = threading.Lock()
    os.dup2(2, 1)

    def write(message: dict[str, Any]) -> None:
        with lock:
            try:
                print(json.dumps(message), file=file, flush=True)
            except OSError:
                os._exit(0)

    return write


def main() -> None:
    """Be the judge until standard input ends."""
    # Signals to the whole process group are meant for the parent, which may still want to save its state.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    write = _writer()
    first_line = sys.stdin.buffer.readline()
    if not first_line:
        return
    job = json.loads(first_line)
    threading.Thread(target=_watch, args=(job["parent"],), daemon=True).start()
    try:
        # The judge may have been added to the trainer's table.
        JUDGES[job["kind"]][job["judge"]] = job["class"]
        judge = make_judge(job["judge"], job["kind"], **job["options"])
        write({"identity": judge.identity, "local": judge.local, "notes": judge.notes()})
    except Exception as error:
        sentence = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        write({"refused": sentence})
        return
    pool = ThreadPoolExecutor(1 if judge.local else job["concurrency"])
    for line in sys.stdin.buffer:
        pool.submit(_reply, judge, json.loads(line), write)
    # At once, though threads may still wait for a server.
    os._exit(0)


def _reply(judge: TextJudge, question: dict[str, Any], write: Callable[[dict[str, Any]], None]) -> None:
    items: list[Item] = [item if isinstance(item, str) else tuple(item) for item in question["items"]]
    count = len(items)
    start = time.monotonic()
    # No judge should raise, but third parties write some.
    try:
        answers = ask_judge(judge, items)
        answers.raw = list(map(str, answers.raw))
        if answers.value.shape != (count,) or answers.failed.shape != (count,):
            raise ValueError(f"{answers.value.shape} answers to {count} questions")
    except Exception as error:
        answers = Answers.failures(count, f"the judge raised {type(error).__name__}: {error}")
        answers.raw = [answers.failure] * count
    reply = {
        **vars(answers),
        # JSON has no NaN.
        "value": [None if math.isnan(value) else value for value in answers.value.tolist()],
        "failed": answers.failed.tolist(),
    }
    write({"id": question["id"], **reply, "seconds": time.monotonic() - start})


def _watch(parent: int) -> None:
    """Another process may hold the parent's end of the pipe open after it: check for the parent itself as well."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(0)


if __name__ == "__main__":
    main()
