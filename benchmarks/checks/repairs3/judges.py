"""Judges behind servers: what a run says of its labels, and what the client says of models that cannot answer.

Every server here is a real one on this machine that speaks HTTP and behaves as servers of the field do.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from rewards.llm.client import Chat, Endpoint, JudgeError
from rewards.llm.judges.openai import TextModel
from rewards.preference.answers import KeptAnswers
from runners.doctor.judge import judge as ask_as_doctor
from runners.train import main as train

SECONDS = 2.0  # of the slow server for an answer, one question after the other, as llama.cpp with one slot
STEPS, SILENT_STEPS = 30_000, 5_000
DOOR = ["env=MiniGrid-DoorKey-5x5-v0", "env.captions=full", "reward=oni", "n_envs=4"]
DOOR += ["control=none", "video=false", "num_threads=1", "eval_episodes=2"]

Answer = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]  # a request's body -> status and body


def measure() -> dict[str, float]:
    """The figures of this part."""
    return {**labelled_run(), **silent_run(), **named_failures(), **error_answers(), **last_lines()}


@contextlib.contextmanager
def served(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a server that answers like this, and the bodies that it gets."""
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            status, content = answer(body)
            data = json.dumps(content).encode()
            # A client that has lost its patience is gone.
            with contextlib.suppress(OSError):
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1", bodies
        server.shutdown()


def completion(content: str, finish_reason: str = "stop", **message: str) -> dict[str, Any]:
    """A chat completion with this message."""
    return {"choices": [{"finish_reason": finish_reason, "message": {"content": content, **message}}]}


def label(word: str) -> dict[str, Any]:
    """A completion that labels a caption."""
    return completion(json.dumps({"reason": "so", "label": word}))


def run_beside(url: str, steps: int) -> tuple[dict[str, Any], str]:
    """What result.json says of the judge of a short run, and what the run printed."""
    options = f'{{model: tiny, url: "{url}"}}'
    with tempfile.TemporaryDirectory() as folder:
        printed = io.StringIO()
        place = Path(folder) / "run"
        with contextlib.redirect_stdout(printed):
            code = train([*DOOR, "reward.oni.judge=openai", f"reward.oni.judge_options={options}", f"run_dir={place}"])
        if code:
            raise RuntimeError(f"the run ended with {code}:\n{printed.getvalue()}")
        scores = json.loads((place / "result.json").read_text())
    return scores["this run"]["judges"]["oni"], printed.getvalue()


def labelled_run() -> dict[str, float]:
    """A server that needs two seconds for an answer, one question after the other."""
    turn = threading.Lock()

    def slowly(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with turn:
            time.sleep(SECONDS)
        return 200, label("helpful")

    with served(slowly) as (url, _):
        use, _ = run_beside(url, STEPS)
    return {
        "oni_asked": use["asked"],
        "oni_answered_share": use["answered_share"],
        "oni_captions_labelled_share": use["captions_labelled_share"],
        "oni_rewarded_share": use["rewarded"],
    }


def silent_run() -> dict[str, float]:
    """A server that never answers within a run."""
    ended = threading.Event()

    def never(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        ended.wait(600)
        return 200, label("helpful")

    with served(never) as (url, _):
        use, printed = run_beside(url, SILENT_STEPS)
        ended.set()
    marked = "this run*" in printed and "oni had no label of its judge" in printed
    return {"oni_silent_labels": use["labels"], "oni_silent_marked": float(marked)}


def failure_of(answer: Answer, *pictures: np.ndarray) -> tuple[str, int]:
    """The sentence of a question that fails, and how many requests it took."""
    with served(answer) as (url, bodies):
        chat = Chat(Endpoint("tiny", url, attempts=2, backoff=0.01))
        try:
            words = str(chat.ask(["What is this?", *pictures]))
        except JudgeError as error:
            words = str(error)
        chat.close()
    return words, len(bodies)


def named_failures() -> dict[str, float]:
    """Whether sentences name a model that thinks, one that is being loaded, and one without images."""
    thoughts = completion("", "length", reasoning_content="Let me see what this caption says.")
    with served(lambda body: (200, thoughts)) as (url, bodies):
        judge = TextModel("tiny", url, family="minigrid", attempts=1)
        answers = judge.label(["picked up the yellow key"])
        judge.close()
        (found,) = ask_as_doctor(url, "tiny")
    by_judge = "thought and did not answer" in answers.failure and bool(answers.failed.all())
    by_doctor = "thought and did not answer" in found.found and found.state == "warning"
    asked_not_to = all(body["reasoning_effort"] == "none" for body in bodies)

    loading = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
    words_loading, _ = failure_of(lambda body: (503, loading))
    no_images = {"error": {"code": 500, "message": "image input is not supported - hint: provide the mmproj"}}
    words_images, requests = failure_of(lambda body: (500, no_images), np.zeros((8, 8, 3), np.uint8))
    return {
        "thinking_named": float(by_judge and by_doctor),
        "thinking_asked_not_to": float(asked_not_to),
        "loading_named": float("is still loading its model" in words_loading),
        "no_images_named": float("takes no images" in words_images),
        "no_images_requests": float(requests),
    }


def error_answers() -> dict[str, float]:
    """Of completions that a server sends beside an error, how many became a label."""
    good = label("helpful")
    choice = good["choices"][0]
    broken = [
        {**good, "error": {"code": 502, "message": "upstream died"}},
        {"choices": [{**choice, "error": {"message": "upstream died"}}]},
        {"choices": [{**choice, "finish_reason": "error"}]},
    ]
    labels = 0
    for answer in broken:
        with served(lambda body, answer=answer: (200, answer)) as (url, _):  # type: ignore[misc]
            judge = TextModel("tiny", url, family="minigrid", attempts=1)
            labels += int((~judge.label(["picked up the yellow key"]).failed).sum())
            judge.close()
    return {"error_answers": float(len(broken)), "error_labels": float(labels)}


def last_lines() -> dict[str, float]:
    """Of a person's answers whose line lacks its newline, how many the next answer cut off."""
    whole = [
        {"first": "a", "second": "b", "label": 1.0},
        {"first": "a", "second": "b", "label": None},
        {"text": "a", "other": "b", "value": 0.5},
    ]
    lost = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, row in enumerate(whole):
            path = Path(folder) / f"{number}.jsonl"
            path.write_text(json.dumps(row))
            KeptAnswers(str(path)).append(("c", "d"), 0.0)
            lost += ("a", "b") not in KeptAnswers(str(path)).labels
    return {"last_lines": float(len(whole)), "last_lines_lost": float(lost)}
