"""A judge's server, asked what the judges of a run would ask: about a caption, about pictures, for log-probabilities.

Each question has the words, the schema, the max_tokens and the timeout of its judge, but is asked once, not four times.
The key is never printed.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from rewards.llm.client import NO_THINKING, SCHEMA_OPTION, Chat, Endpoint, JudgeError, Reply
from rewards.llm.judges.base import Answers
from rewards.llm.judges.openai import TextModel
from rewards.llm.judges.prompts import sections
from rewards.llm.judges.windows import WindowGrade
from runners.doctor import Finding

# Until a server has listed its models.
LIST_MODELS_TIMEOUT_S = 3.0
PICTURE_SIDE = 224
# What to do about a judge.
START_SERVER = "start the server, or see that the address ends with its version, as in http://localhost:8000/v1"
WAIT_FOR_MODEL = "wait until the model is loaded, and ask again"
SMALLER_MODEL = "on a CPU give a smaller model, or judge_options with timeout: 120 and concurrency: 1"
NO_THOUGHTS = (
    "take an Instruct model, or switch thinking off where the server is started; raise max_tokens if it is cut"
)
LARGER_CONTEXT = "a larger context: llama.cpp divides -c by -np, so that each question gets its share"
ASKED_CAPTIONS = ("picked up the yellow key", "bumped into a wall")
ASKED_GOAL = "the picture is green"


def judge(url: str, model: str) -> Iterator[Finding]:
    """What the server at `url` is fit for; nothing is sent if there is none."""
    key = "(OPENAI_API_KEY is not set)"
    if os.environ.get("OPENAI_API_KEY"):
        key = "(OPENAI_API_KEY is set)"
    if not url:
        words = f"not asked {key}; judge=http://localhost:8000/v1 asks a server"
        yield Finding.of("judge", words, required=False)
        return
    try:
        model = model or _first_model(url)
        captions = _captions(url, model, key)
    except (JudgeError, ValueError) as error:
        yield Finding.broken("judge", f"{error} {key}", _fix(str(error)), required=False)
        return
    yield captions
    yield _log_probabilities(url, model)
    yield _pictures(url, model)


def _captions(url: str, model: str, key: str) -> Finding:
    """Two captions to label: a server that keeps the words they share answers the second one faster."""
    with closing(TextModel(model, url, family="minigrid", attempts=1, answer="json")) as asked:
        first, seconds = _time_answer(asked, ASKED_CAPTIONS[0])
        second, seconds_after = _time_answer(asked, ASKED_CAPTIONS[1])
        chat = asked.chat
    if second.failed[0]:
        raise JudgeError(second.failure)
    labels = f"{first.value[0]:g}, {second.value[0]:g}"
    schema = "refused the JSON schema, so answers are checked here only"
    if chat.takes[SCHEMA_OPTION]:
        schema = "took the JSON schema"
    request = "took" if any(map(chat.takes.get, NO_THINKING)) else "refused"
    words = (
        f"{model} at {url} labelled a caption in {seconds:.1f} s and the next in {seconds_after:.1f} s ({labels}); "
        f"it {schema}, and {request} the request not to think first {key}"
    )
    return Finding.of("judge", words, required=False)


def _time_answer(asked: TextModel | WindowGrade, item: str) -> tuple[Answers, float]:
    """The answer about one item and the seconds it took; JudgeError without any."""
    begin = time.perf_counter()
    answers = asked.label([item])
    if answers.failed[0]:
        raise JudgeError(answers.failure)
    return answers, time.perf_counter() - begin


def _log_probabilities(url: str, model: str) -> Finding:
    """Whether the candidates of the first token come with an answer, which judges of one token read."""
    name = "judge, tokens"
    reply = Reply()
    question = f"The task is: {ASKED_GOAL}. {sections('windows')['token']}"
    with closing(Chat(Endpoint(model, url, attempts=1, timeout=30.0))) as chat:
        try:
            chat.ask([question], None, reply, logprobs=True, top_logprobs=20, max_tokens=1)
        except JudgeError as error:
            return Finding(name, "optional", f"no log-probabilities: {error}", _fix(str(error)), False)
    if not reply.candidates:
        words = "an answer came without log-probabilities, so captions are labelled by JSON"
        return Finding(name, "optional", words, "take vLLM or llama.cpp; judge=token needs them", False)
    listed = ", ".join(repr(token) for token, _ in reply.candidates[:3])
    return Finding.of(name, f"log-probabilities of {len(reply.candidates)} tokens ({listed} ...)", required=False)


def _pictures(url: str, model: str) -> Finding:
    """Whether the model reads images, which the judges vlm, token, progress and score send."""
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        for number, level in enumerate((0, 200)):
            picture = np.zeros((PICTURE_SIDE, PICTURE_SIDE, 3), np.uint8)
            picture[:, :, 1] = level
            np.save(Path(folder) / f"{number}.npy", picture)
        with closing(WindowGrade(model, url, goal=ASKED_GOAL, folder=folder, attempts=1)) as asked:
            try:
                answers, seconds = _time_answer(asked, "0 1")
            except JudgeError as error:
                words = f"no answer about pictures, which the judges vlm, token, progress and score need: {error}"
                return Finding("judge, pictures", "optional", words, _fix(str(error)), False)
    words = f"two pictures graded in {seconds:.1f} s ({answers.value[0]:g}; 1 is right)"
    return Finding.of("judge, pictures", words, required=False)


def _fix(failure: str) -> str:
    """What to do about a failure, by its words, which are our client's."""
    fixes = {
        "still loading its model": WAIT_FOR_MODEL,
        "did not answer in time": SMALLER_MODEL,
        "did not answer:": NO_THOUGHTS,
        "when max_tokens ended": NO_THOUGHTS,
        "takes no images": "nothing, for captions; else a vision model (llama.cpp: with its --mmproj)",
        "context size": LARGER_CONTEXT,
        "context length": LARGER_CONTEXT,
        "no JSON in the answer fits": "a larger model, or a server that takes a JSON schema",
    }
    return next((fix for words, fix in fixes.items() if words in failure), START_SERVER)


def _first_model(url: str) -> str:
    """The first model that a server names; its list is part of the same interface."""
    import httpx2

    key = os.environ.get("OPENAI_API_KEY", "").strip()
    headers = {}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    try:
        answer = httpx2.get(f"{url.rstrip('/')}/models", headers=headers, timeout=LIST_MODELS_TIMEOUT_S)
        if answer.status_code == 503 and "loading" in answer.text.lower():
            raise JudgeError(f"{url} is still loading its model (status 503)")
        return str(answer.json()["data"][0]["id"])
    except httpx2.HTTPError as error:
        raise ValueError(f"{url} cannot be reached: {type(error).__name__}") from None
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"{url} names no models (status {answer.status_code}); give model=") from None
