"""One question to a language model over HTTP: text and images in, text or checked JSON out.

    chat = Chat(Endpoint("qwen2.5-vl-7b", "http://localhost:8000/v1"))
    chat.ask(["What does this show?", frame])                    -> text
    chat.ask(["Is the door open?", frame], schema=YES_OR_NO)     -> a dict that fits the schema

It uses OpenAI's chat completions, which vLLM, llama.cpp, Ollama, LM Studio and most providers serve too. A schema is
sent as `response_format`; a server that refuses it (400, 422) is asked without it from then on. The schema also stands
in the question, and the answer is checked on our side, since some servers accept a schema and ignore it.

Retried are: 429 (after the time the server names, up to a limit), 408, 5xx, a connection that fails or breaks.
Everything else fails at once. Every failure is a `JudgeError`, one sentence without the key.

When it fails: a server that sends its headers one byte at a time is stopped by the read timeout between two bytes only.
"""

from __future__ import annotations

import base64
import datetime
import email.utils
import io
import json
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2
import numpy as np
import tenacity

from envs.settings import Settings, setting
from rewards.llm.judges.base import Judge
from rewards.llm.store import AnswerStore, Label

CANDIDATES = 64  # places in an answer at which JSON is looked for
QUOTE = 200  # characters of a server's answer in an error
KEPT = 1_000_000  # characters of an answer
IN_A_ROW = 5  # failures that open a breaker
WINDOW, SHARE, LEAST = 30.0, 0.5, 10  # seconds, share of failures, answers below which a share means nothing

T = TypeVar("T")
R = TypeVar("R")


class JudgeError(RuntimeError):
    """A question that got no usable answer; the message is one sentence."""


class PausedError(JudgeError):
    """A question that was not sent, because the server failed too often just before."""


class _RetryError(JudgeError):
    def __init__(self, sentence: str, after: float = 0.0) -> None:
        super().__init__(sentence)
        self.after = after  # seconds the server asked us to wait


class _RefusedError(JudgeError):
    """The server understood the question and does not take it in this form."""


@dataclass(eq=False)
class Endpoint(Settings):
    """A model on a server. The key itself is read from the environment when a question is sent and is kept nowhere."""

    model: str = setting(help="its name on the server")
    url: str = setting("http://localhost:8000/v1", "the API's root, with its version")
    key: str = setting("OPENAI_API_KEY", "environment variable with the API key; unset for a server without one")
    connect: float = setting(5.0, "seconds until a connection must stand", above=0)
    timeout: float = setting(60.0, "seconds for one attempt from question to answer", above=0)
    attempts: int = setting(4, "how often a question is tried", low=1)
    backoff: float = setting(1.0, "seconds of the first wait, drawn from [0, backoff], doubled each time", low=0)
    longest: float = setting(30.0, "seconds that no wait exceeds, whatever the server asks for", low=0)
    max_bytes: int = setting(1_000_000, "size of an answer at which reading stops", low=1)
    max_tokens: int = setting(1024, "length of an answer, tokens", low=1)
    body: dict[str, Any] | None = setting(None, "more of the request's body; a None in it removes an entry")
    concurrency: int = setting(8, "questions asked at the same time", low=1, high=64)
    seed: int = setting(0, "of the waits between attempts")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model:
            raise ValueError(f"{self.prefix}model is empty; give the name that the server knows it by")
        host = ""
        with suppress(httpx2.InvalidURL):
            host = httpx2.URL(self.url).host if self.url.startswith(("http://", "https://")) else ""
        if not host:
            raise ValueError(
                f"{self.prefix}url={self.url!r} is no web address; give the API's root, such as "
                "http://localhost:8000/v1"
            )
        self.url = self.url.rstrip("/")

    @property
    def options(self) -> dict[str, Any]:
        """What the request's body holds beside model and messages."""
        whole = {"temperature": 0, "max_tokens": self.max_tokens, **(self.body or {})}
        return {name: value for name, value in whole.items() if value is not None}


@dataclass
class Reply:
    """What came back for one question."""

    text: str = ""  # the model's last answer, "" if there was none
    tokens: int = 0  # of question and answer, all attempts, as the server counts them; 0 if it does not


class Chat:
    """Asks the model of an endpoint; safe to use from several threads."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._structured = True  # whether the server takes a schema
        self._random = random.Random(endpoint.seed)
        self._client = httpx2.Client(timeout=httpx2.Timeout(endpoint.timeout, connect=endpoint.connect))

    def ask(
        self,
        parts: Iterable[str | np.ndarray],
        schema: dict[str, Any] | None = None,
        reply: Reply | None = None,
        **options: Any,
    ) -> Any:
        """Ask one question; returns the text of the answer, or what it decodes to with a schema.

        `parts` are texts and images, uint8 (H, W, 3), in the order in which they are read; a schema is JSON, with type,
        enum, properties, required, items, minimum and maximum; `reply` gets the model's text and its cost in any case;
        `options` belong to the request's body. Raises JudgeError without an answer, or one that fits the schema.
        """
        parts = list(parts)
        if schema is not None:
            parts.append(f"Answer with JSON only, in the form of this JSON schema: {json.dumps(schema)}")
        texts = [part for part in parts if isinstance(part, str)]  # without an image some servers take no list
        content = "\n".join(texts) if len(texts) == len(parts) else [_part(part) for part in parts]
        messages = [{"role": "user", "content": content}]
        body = {**self.endpoint.options, **options, "model": self.endpoint.model, "messages": messages}
        reply = Reply() if reply is None else reply
        if schema is None:
            return self._retried(body, reply)
        if self._structured:
            form = {"name": "answer", "strict": True, "schema": schema}
            with suppress(_RefusedError):
                structured = {**body, "response_format": {"type": "json_schema", "json_schema": form}}
                return decode(self._retried(structured, reply), schema)
        answer = decode(self._retried(body, reply), schema)
        self._structured = False  # only now is it known that the schema was refused
        return answer

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _retried(self, body: dict[str, Any], reply: Reply) -> str:
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self.endpoint.attempts),
            wait=self._wait,
            retry=tenacity.retry_if_exception_type(_RetryError),
            reraise=True,
        )
        return retrying(self._once, body, reply)

    def _wait(self, state: tenacity.RetryCallState) -> float:
        """Seconds until the next attempt: full jitter, or what the server asked for."""
        error = state.outcome.exception() if state.outcome else None
        drawn = self._random.uniform(0, self.endpoint.backoff * 2.0 ** (state.attempt_number - 1))
        return min(max(drawn, getattr(error, "after", 0.0)), self.endpoint.longest)

    def _once(self, body: dict[str, Any], reply: Reply) -> str:
        url, variable = self.endpoint.url, self.endpoint.key
        key = os.environ.get(variable, "").strip()
        headers = {"Accept-Encoding": "identity"}  # what is counted is what arrives
        if not (key.isascii() and key.isprintable()):
            raise JudgeError(f"the environment variable {variable} holds characters that no API key has; set it again")
        if key:
            headers["Authorization"] = f"Bearer {key}"
        try:
            deadline = time.monotonic() + self.endpoint.timeout
            with self._client.stream("POST", f"{url}/chat/completions", json=body, headers=headers) as response:
                data = self._read(response, deadline)
                status, after = response.status_code, response.headers.get("retry-after", "")
        except httpx2.TimeoutException as error:
            raise _RetryError(f"{url} did not answer in time ({type(error).__name__})") from None
        except httpx2.TransportError as error:
            raise _RetryError(f"{url} cannot be reached: {type(error).__name__}: {error}") from None
        quote = " ".join(_masked(data.decode("utf-8", "replace"), key)[:QUOTE].split())
        if status == 429 or status == 408 or status >= 500:
            raise _RetryError(f"{url} answered {status}: {quote!r}", _seconds(after))
        if status != 200:
            kind = _RefusedError if status in (400, 422) else JudgeError
            raise kind(f"{url} answered {status}: {quote!r}")
        content, tokens = self._content(data, quote)
        reply.text, reply.tokens = _masked(content, key), reply.tokens + tokens
        return reply.text

    def _read(self, response: httpx2.Response, deadline: float) -> bytes:
        url, most = self.endpoint.url, self.endpoint.max_bytes
        data = bytearray()
        for chunk in response.iter_raw():
            data += chunk
            if len(data) > most:
                raise JudgeError(f"{url} answered with more than {most:,} bytes, which no answer needs")
            if time.monotonic() > deadline:
                raise _RetryError(f"{url} was still answering after {self.endpoint.timeout:g} s")
        return bytes(data)

    def _content(self, data: bytes, quote: str) -> tuple[str, int]:
        """The model's text, and the cost of question and answer by the server's count, tokens."""
        url, model = self.endpoint.url, self.endpoint.model
        if data.lstrip()[:1] == b"<":
            raise JudgeError(f"{url} answered with a web page ({quote!r}); give the API's root, often ending in /v1")
        try:
            completion = json.loads(data)
            content = completion["choices"][0]["message"]["content"]
            tokens = (completion.get("usage") or {}).get("total_tokens", 0)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            raise JudgeError(f"{url} answered with something that is no chat completion: {quote!r}") from None
        if not isinstance(content, str):
            raise JudgeError(f"{model} answered nothing ({None if content is None else type(content).__name__})")
        return content, max(tokens, 0) if isinstance(tokens, int) else 0


class Breaker:
    """When to stop asking a server that does not answer, and when to try again. Times are seconds of any steady clock.

        closed --`failures` in a row, or more than half of the last 30 s--> open --`pause` s--> one question, the probe
           ^                                                                 ^                      |
           +---------------------------- it is answered ---------------------+------ it fails ------+

    Source: Nygard 2007, "Release It!", section 5.2 (circuit breaker). When it fails: a server that answers every other
    question never opens it for long, and its failures cost time again and again.
    """

    def __init__(self, pause: float = 30.0, failures: int = IN_A_ROW) -> None:
        self.pause, self.failures = pause, failures
        self.open = False  # whether questions are held back
        self.streak = 0  # failures since the last success
        self.until = 0.0  # when the next probe may be sent, while open
        self.probing = False  # a probe is in flight
        self._recent: deque[tuple[float, bool]] = deque()

    def room(self, now: float) -> int | None:
        """How many questions may be sent: None for any number."""
        return int(not self.probing and now >= self.until) if self.open else None

    def asked(self) -> None:
        """A question is in flight."""
        self.probing = self.open

    def succeeded(self, now: float) -> bool:
        """A question was answered; whether that ends an outage."""
        ended = self.open
        self.open = self.probing = False
        self.streak = 0
        if ended:
            self._recent.clear()
        self._note(now, False)
        return ended

    def failed(self, now: float) -> bool:
        """A question got no usable answer; whether that begins an outage."""
        self.streak += 1
        if self.open:
            if self.probing:  # and not one that was in flight when the outage began
                self.probing, self.until = False, now + self.pause
            return False
        self._note(now, True)
        failures = sum(failed for _, failed in self._recent)
        often = len(self._recent) >= LEAST and failures > SHARE * len(self._recent)
        if self.streak < self.failures and not often:
            return False
        self.open, self.until = True, now + self.pause
        return True

    def _note(self, now: float, failed: bool) -> None:
        self._recent.append((now, failed))
        while self._recent[0][0] < now - WINDOW:
            self._recent.popleft()


def in_parallel(
    ask: Callable[[T], R], items: Sequence[T], concurrency: int, breaker: Breaker | None = None
) -> list[R | JudgeError]:
    """`ask` of each item, `concurrency` at a time; an error where one failed, `PausedError` while `breaker` is open."""
    lock = threading.Lock()

    def one(item: T) -> R | JudgeError:
        if breaker is not None:
            with lock:
                if breaker.room(time.monotonic()) == 0:
                    return PausedError("the server failed too often and is not asked for a while")
                breaker.asked()
        try:
            answer: R | JudgeError = ask(item)
        except JudgeError as error:
            answer = error
        if breaker is not None:
            with lock:
                (breaker.failed if isinstance(answer, JudgeError) else breaker.succeeded)(time.monotonic())
        return answer

    if len(items) == 1:
        return [one(items[0])]
    executor = ThreadPoolExecutor(concurrency)
    try:
        return list(executor.map(one, items))
    finally:  # an interruption does not wait for a slow server
        executor.shutdown(wait=False, cancel_futures=True)


def decode(text: str, schema: dict[str, Any]) -> Any:
    """The last JSON object in a text that fits a schema, as models talk around it; JudgeError if there is none."""
    decoder = json.JSONDecoder()
    place = len(text)
    for _ in range(CANDIDATES):
        place = text.rfind("{", 0, place)
        if place < 0:
            break
        try:
            value, _ = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            continue
        if fits(value, schema):
            return value
    raise JudgeError(f"no JSON in the answer fits {json.dumps(schema)}: {text[-QUOTE:]!r}")


def answer_form(**properties: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of an object that has all of these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


_TYPES: dict[str, Any] = {"object": dict, "array": list, "string": str, "integer": int, "number": int | float}
_TYPES |= {"boolean": bool, "null": type(None)}


def fits(value: object, schema: dict[str, Any]) -> bool:
    """Whether a decoded value fits the part of JSON schema that `Chat.ask` lists; other properties may be there."""
    kind = _TYPES[schema["type"]] if "type" in schema else object
    if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, object)):
        return False
    if "enum" in schema and not any(value == one and type(value) is type(one) for one in schema["enum"]):
        return False
    if isinstance(value, dict):
        parts = schema.get("properties", {})
        named = set(schema.get("required", ())) <= set(value)
        return named and all(fits(value[key], part) for key, part in parts.items() if key in value)
    if isinstance(value, list):
        return all(fits(one, schema.get("items", {})) for one in value)
    if isinstance(value, int | float):
        return schema.get("minimum", value) <= value <= schema.get("maximum", value)
    return True


def _part(part: str | np.ndarray) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(part)).save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def _masked(text: str, key: str) -> str:
    """A server's words without the key, which a server may repeat."""
    return text.replace(key, "***") if key else text


def _seconds(retry_after: str) -> float:
    """A Retry-After header, a number of seconds or a date, in seconds from now; 0 where it says nothing."""
    with suppress(ValueError):
        return max(float(retry_after), 0.0)
    try:
        moment = email.utils.parsedate_to_datetime(retry_after)
        return max((moment - datetime.datetime.now(datetime.UTC)).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return 0.0


@dataclass(eq=False)
class ModelJudge(Endpoint, Judge):
    """Base class of judges that ask a server and keep its answers: a subclass calls `ask_kept` with its questions."""

    answers: str = setting("", "a file of answers (*.sqlite), read and added to; empty keeps them in memory only")
    failures: int = setting(5, "failed questions in a row after which the server is not asked for a while", low=1)
    pause: float = setting(60.0, "seconds of that while", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chat, self.breaker = Chat(self), Breaker(self.pause, self.failures)
        self.store = AnswerStore(self.answers, words=KEPT)

    def ask_kept(self, questions: Mapping[str, T], ask: Callable[[T], str]) -> dict[str, str | JudgeError]:
        """Answers to questions by their keys: kept ones, and those that `ask` returns, which are kept; or why not."""

        def answer(key: str) -> str:
            words = ask(questions[key])
            self.store.put(self.identity, [Label(key, raw=words)])
            return words

        kept = self.store.words_of(self.identity, list(questions))
        new = [key for key in questions if key not in kept]
        asked = in_parallel(answer, new, self.concurrency, self.breaker) if new else []
        return {**{str(key): words for key, words in kept.items()}, **dict(zip(new, asked))}

    def close(self) -> None:
        self.chat.close()
        self.store.close()
