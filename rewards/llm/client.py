"""One question to a language model over HTTP: text and images in, text or checked JSON out.

    chat = Chat(Endpoint("qwen3-vl-8b-instruct", "http://localhost:8000/v1"))
    chat.ask(["What does this show?", frame])                    -> text
    chat.ask(["Is the door open?", frame], schema=YES_OR_NO)     -> a dict that fits the schema

It uses OpenAI's chat completions, which vLLM, llama.cpp, Ollama, LM Studio and most providers serve too. A schema is
sent as `response_format`, and models that think before they answer are asked not to (`NO_THINKING`). What a server
refuses of these (400, 422) is left out from then on. The schema also stands in the question, and the
answer is checked on our side, since some servers accept a schema and ignore it.

Retried are: 429 (after the time the server names, up to a limit), 408, 5xx, a connection that fails or breaks.
Everything else fails at once, also images that a model cannot read, for which llama.cpp answers 500. Every failure is a
`JudgeError`, one sentence without the key. `timeout` is a deadline over a whole attempt, however slowly bytes come: a
blocking socket can only limit the time between two of them, so attempts run as tasks in one thread of the process.
When it fails: an answer of more than one JSON object that fits is no answer, also where a model only repeats itself.
"""

import asyncio
import base64
import datetime
import email.utils
import functools
import io
import json
import os
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx2
import numpy as np
import tenacity

from lodestar.settings import Settings, setting
from rewards.llm.judges.base import Judge
from rewards.llm.store import AnswerStore, Label

CANDIDATES = 64  # places in an answer at which JSON is looked for
QUOTE = 200  # characters of a server's answer in an error
FRAGMENT = 4  # characters of the key in a row that no error repeats; servers like to name its last four
SPOKEN = 8  # the same of what a model says, where a short word of the key may be a word of the answer
LOOK = 2.0  # seconds in which a server is looked for before a run
MOST_TOKENS = 10**9  # of one answer; a server that counts more does not count
KEPT = 1_000_000  # characters of an answer
IN_A_ROW = 5  # failures that open a breaker
WINDOW, SHARE, LEAST = 30.0, 0.5, 10  # seconds, share of failures, answers below which a share means nothing

# What asks a model not to think first: the name that OpenAI and Ollama know, and the one of vLLM and llama.cpp.
SCHEMA = "response_format"
NO_THINKING: dict[str, Any] = {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": False}}
THOUGHTS = ("reasoning", "reasoning_content")  # fields of a message in which servers put what a model thought
NO_IMAGES = re.compile(r"mmproj|multi-?modal|images?\b.*\bnot support|not support.*\bimages?\b", re.IGNORECASE)

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


class _AbsentError(_RetryError):
    """There is no connection to the server."""


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
    body: dict[str, Any] | None = setting(
        None,
        "more of the request's body; a None in it removes an entry, such as reasoning_effort, which is none by default",
    )
    concurrency: int = setting(8, "questions asked at the same time", low=1, high=64)
    seed: int = setting(0, "of the waits between attempts")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_if(not self.model, f"{self.prefix}model is empty; give the name that the server knows it by")
        url = None
        with suppress(httpx2.InvalidURL):
            url = httpx2.URL(self.url) if self.url.startswith(("http://", "https://")) else None
        if url is None or not url.host:
            known = "http://localhost:8000/v1"
            raise ValueError(f"{self.prefix}url={self.url!r} is no web address; give the API's root, such as {known}")
        if url.userinfo:
            raise ValueError(f"{self.prefix}url holds a login, which would be written down; give key=VARIABLE instead")
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
    tokens: int = 0  # of question and answer, all attempts, as the server counts them; 0 if it does not, or absurdly
    candidates: list[tuple[str, float]] = field(default_factory=list)  # first tokens and their log-probabilities


class Chat:
    """Asks the model of an endpoint; safe to use from several threads."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.takes: dict[str, bool] = {}  # optional entry of a request's body -> whether the server takes it
        self._random = random.Random(endpoint.seed)
        self._loop = _loop(os.getpid())
        self._client = httpx2.AsyncClient(timeout=httpx2.Timeout(None, connect=endpoint.connect))

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
        optional = {name: value for name, value in NO_THINKING.items() if name not in (self.endpoint.body or {})}
        if schema is not None:
            form = {"name": "answer", "strict": True, "schema": schema}
            optional[SCHEMA] = {"type": "json_schema", "json_schema": form}
        text = self._ask_in_some_form(body, optional, reply)
        return text if schema is None else decode(text, schema)

    def _ask_in_some_form(self, body: dict[str, Any], optional: dict[str, Any], reply: Reply) -> str:
        """Ask with as many of the optional entries as the server takes."""
        forms = self._forms(optional)
        while True:
            form = forms.pop(0)
            try:
                text = self._retried({**body, **{name: optional[name] for name in form}}, reply)
            except _RefusedError as error:
                # Most servers name what they do not know: everything else can stay.
                named = [name for name in form if name in str(error)]
                if named:
                    forms.insert(0, form)
                reduced = [[name for name in other if name not in named] for other in forms]
                forms = [other for at, other in enumerate(reduced) if other not in reduced[:at]]
                if not forms:
                    raise
                continue
            # Only an answer tells which entries are taken: a question may be refused for reasons of its own.
            self.takes |= {name: name in form for name in optional}
            return text

    def _forms(self, optional: Iterable[str]) -> list[list[str]]:
        """Choices among the optional entries, the fullest first; a single one once the server has answered."""
        forms = [[name for name in optional if self.takes.get(name, True)]]
        for unknown in (set(NO_THINKING), {SCHEMA}, {SCHEMA, *NO_THINKING}):
            form = [name for name in forms[0] if name in self.takes or name not in unknown]
            if form not in forms:
                forms.append(form)
        return forms

    def reach(self) -> str:
        """A sentence if there is no server at the address, within LOOK seconds; a slow or a busy one is there."""
        look = self._send("GET", f"{self.endpoint.url}/models", LOOK, timeout=httpx2.Timeout(None, connect=LOOK / 2))
        try:
            asyncio.run_coroutine_threadsafe(look, self._loop).result()
        except _AbsentError as error:
            return f"{error}; start the server, or correct url"
        except JudgeError:
            pass
        return ""

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._client.aclose(), self._loop)

    def _retried(self, body: dict[str, Any], reply: Reply) -> str:
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self.endpoint.attempts),
            wait=self._wait,
            retry=tenacity.retry_if_exception_type(_RetryError),
            reraise=True,
        )
        return retrying(self._once, body, reply)

    def _wait(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        drawn = self._random.uniform(0, self.endpoint.backoff * 2.0 ** (state.attempt_number - 1))
        return min(max(drawn, getattr(error, "after", 0.0)), self.endpoint.longest)

    @property
    def _key(self) -> str:
        return os.environ.get(self.endpoint.key, "").strip()

    def _quote(self, text: str) -> str:
        """The beginning of a server's words, fit for an error."""
        return " ".join(_masked(text[:QUOTE], self._key, FRAGMENT).split())

    def _once(self, body: dict[str, Any], reply: Reply) -> str:
        url, variable, key = self.endpoint.url, self.endpoint.key, self._key
        headers = {"Accept-Encoding": "identity"}  # what is counted is what arrives
        if not (key.isascii() and key.isprintable()):
            raise JudgeError(f"the environment variable {variable} holds characters that no API key has; set it again")
        if key:
            headers["Authorization"] = f"Bearer {key}"
        sent = self._send("POST", f"{url}/chat/completions", self.endpoint.timeout, json=body, headers=headers)
        status, after, data = asyncio.run_coroutine_threadsafe(sent, self._loop).result()
        quote = self._quote(data[: 4 * QUOTE].decode("utf-8", "replace"))
        has_images = isinstance(body["messages"][0]["content"], list)
        if status >= 400 and has_images and NO_IMAGES.search(quote):
            refusal = f"{self.endpoint.model} at {url} takes no images ({status}: {quote!r})"
            raise JudgeError(f"{refusal}; take a model that reads them")
        if status == 503 and "loading" in quote.lower():
            raise _RetryError(f"{url} is still loading its model ({status}: {quote!r}); wait until it answers")
        if status == 429 or status == 408 or status >= 500:
            raise _RetryError(f"{url} answered {status}: {quote!r}", _seconds(after))
        if status != 200:
            kind = _RefusedError if status in (400, 422) else JudgeError
            raise kind(f"{url} answered {status}: {quote!r}")
        content, tokens, reply.candidates = self._content(data, quote)
        reply.text, reply.tokens = _masked(content, key, SPOKEN), reply.tokens + tokens
        return reply.text

    async def _send(self, method: str, address: str, seconds: float, **request: Any) -> tuple[int, str, bytes]:
        """Status, Retry-After and body of one exchange that takes no longer than so many seconds in all."""
        url, most = self.endpoint.url, self.endpoint.max_bytes
        try:
            async with asyncio.timeout(seconds), self._client.stream(method, address, **request) as response:
                data = bytearray()
                async for chunk in response.aiter_raw():
                    data += chunk
                    if len(data) > most:
                        raise JudgeError(f"{url} answered with more than {most:,} bytes, which no answer needs")
                return response.status_code, response.headers.get("retry-after", ""), bytes(data)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise _AbsentError(f"{url} cannot be reached: {type(error).__name__}: {self._quote(str(error))}") from None
        except (TimeoutError, httpx2.TimeoutException):
            raise _RetryError(f"{url} did not answer in time ({seconds:g} s)") from None
        except httpx2.TransportError as error:  # its words may be the server's
            raise _RetryError(f"{url} broke off: {type(error).__name__}: {self._quote(str(error))}") from None

    def _content(self, data: bytes, quote: str) -> tuple[str, int, list[tuple[str, float]]]:
        """The model's text, the cost of question and answer in tokens by the server's count, and `Reply.candidates`."""
        url = self.endpoint.url
        if data.lstrip()[:1] == b"<":
            raise JudgeError(f"{url} answered with a web page ({quote!r}); give the API's root, often ending in /v1")
        try:
            completion = json.loads(data)
            failure = completion.get("error")
            [choice] = [{}] if failure else completion["choices"]  # of several no one is the answer
            failure = failure or choice.get("error") or choice.get("finish_reason") == "error"
            message = {} if failure else choice["message"]
            content = message.get("content")
            tokens = (completion.get("usage") or {}).get("total_tokens", 0)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            raise JudgeError(f"{url} answered with something that is no chat completion: {quote!r}") from None
        if failure:  # words beside an error are what there was of an answer when it broke off
            raise JudgeError(f"{url} answered with an error in place of a completion: {quote!r}")
        first: list[tuple[str, float]] = []
        with suppress(KeyError, IndexError, TypeError, ValueError):
            listed = choice["logprobs"]["content"][0]["top_logprobs"]
            first = [(str(one["token"]), min(float(one["logprob"]), 0.0)) for one in listed]
        answer = self._answer_in(choice, content, bool(first))
        whole = answer.encode("utf-8", "replace").decode()  # half characters, which JSON can hold and no file
        return whole, tokens if isinstance(tokens, int) and 0 <= tokens <= MOST_TOKENS else 0, first

    def _answer_in(self, choice: dict[str, Any], content: Any, has_candidates: bool) -> str:
        """The text of an answer without what the model thought first; JudgeError for none."""
        model = self.endpoint.model
        answer, thought = _without_thoughts(content) if isinstance(content, str) else ("", "")
        field = next((name for name in THOUGHTS if choice["message"].get(name)), "content" if thought else "")
        cut = choice.get("finish_reason") == "length"
        if field and not answer.strip():
            why = ", where max_tokens ended" if cut else ""
            raise JudgeError(
                f"{model} thought and did not answer: what it wrote stands in {field!r}{why}, and there is nothing "
                "after it; switch thinking off at the server, or take an Instruct model"
            )
        if cut and not answer.strip() and not has_candidates:
            raise JudgeError(
                f"{model} had no answer when max_tokens ended (finish_reason=length); raise max_tokens, and if it "
                "is a model that thinks first, switch that off at the server or take an Instruct model"
            )
        if not isinstance(content, str):
            raise JudgeError(f"{model} answered nothing ({None if content is None else type(content).__name__})")
        return answer


def _without_thoughts(text: str) -> tuple[str, str]:
    """An answer, and what the model thought before it, where a server leaves both in one text."""
    head = text.lstrip()
    if not head.startswith("<think>"):
        return text, ""
    thought, _, answer = head.removeprefix("<think>").partition("</think>")
    return answer.lstrip(), thought


class Breaker:
    """When to stop asking a server that does not answer, and when to try again. Times are seconds of any steady clock.

        closed --`failures` in a row, or more than half of the last 30 s--> open --`pause` s--> one question, the probe
           ^                                                                 ^                      |
           +---------------------------- it is answered ---------------------+------ it fails ------+

    Source: Nygard 2007, "Release It!", section 5.2 (circuit breaker).
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
        self.probing = self.open

    def succeeded(self, now: float) -> bool:
        if ended := self.open:
            self._recent.clear()
        self.open = self.probing = False
        self.streak = 0
        self._note(now, False)
        return ended

    def failed(self, now: float) -> bool:
        self.streak += 1
        if self.open:
            if self.probing:  # and not one that was in flight when the outage began
                self.probing, self.until = False, now + self.pause
            return False
        self._note(now, True)
        failures = sum(failed for _, failed in self._recent)
        often = len(self._recent) >= LEAST and failures > SHARE * len(self._recent)
        if begins := self.streak >= self.failures or often:
            self.open, self.until = True, now + self.pause
        return begins

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
    """The one JSON object in a text that fits a schema, as models talk around it; JudgeError for none, or several."""
    decoder = json.JSONDecoder(object_pairs_hook=_once_each)
    place, found = len(text), []
    for _ in range(CANDIDATES):
        place = text.rfind("{", 0, place)
        if place < 0:
            break
        try:
            value, _ = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            continue
        if fits(value, schema):
            found.append(value)
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} answers at once fit" if found else "no JSON in the answer fits"
    raise JudgeError(f"{what} {json.dumps(schema)}: {text[-QUOTE:]!r}")


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; ValueError if a name stands in it twice."""
    if len(value := dict(pairs)) < len(pairs):
        raise ValueError("a name stands twice")
    return value


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


def _masked(text: str, key: str, run: int) -> str:
    """A server's words without what stands in the key, `run` characters in a row or more."""
    parts = {re.escape(key[i : i + run]) for i in range(len(key) - run + 1)}
    return re.sub(rf"(?:(?={'|'.join(parts)}).)+.{{{run - 1}}}", "***", text, flags=re.DOTALL) if parts else text


@functools.cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """Where this process waits for servers: one thread for any number of questions; a fork needs its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="http", daemon=True).start()
    return loop


def _seconds(retry_after: str) -> float:
    """A Retry-After header, a number of seconds or a date, in seconds from now; 0 where it says nothing."""
    with suppress(ValueError):
        return max(float(retry_after), 0.0)
    try:
        moment = email.utils.parsedate_to_datetime(retry_after)
        return max((moment - datetime.datetime.now(datetime.UTC)).total_seconds(), 0.0)
    except (ValueError, TypeError, OverflowError):
        return 0.0


@dataclass(eq=False)
class ServedJudge(Endpoint, Judge):
    """Base class of judges that ask a server."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chat = Chat(self)

    def reach(self) -> str:
        return self.chat.reach()

    def close(self) -> None:
        self.chat.close()


@dataclass(eq=False)
class ModelJudge(ServedJudge):
    """Base class of those that keep its answers: a subclass calls `ask_kept` with its questions."""

    answers: str = setting("", "a file of answers (*.sqlite), read and added to; empty keeps them in memory only")
    failures: int = setting(5, "failed questions in a row after which the server is not asked for a while", low=1)
    pause: float = setting(60.0, "seconds of that while", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.breaker, self.store = Breaker(self.pause, self.failures), AnswerStore(self.answers, words=KEPT)

    def ask_kept(
        self, questions: Mapping[str, T], ask: Callable[[T], str], read: Callable[[str], R]
    ) -> tuple[dict[str, R], dict[str, R | JudgeError]]:
        """What `read` makes of answers to questions by their keys: of kept ones, and of those that `ask` returns now,
        or why not. One that `read` refuses is asked for again.
        """

        def answer(key: str) -> R:
            words = ask(questions[key])
            self.store.put(self.identity, [Label(key, raw=words)], instead=key in found)
            return read(words)

        found = {str(key): words for key, words in self.store.words_of(self.identity, list(questions)).items()}
        kept: dict[str, R] = {}
        for key, words in found.items():
            with suppress(KeyError, ValueError, TypeError, AttributeError, RecursionError):
                kept[key] = read(words)
        new = [key for key in questions if key not in kept]
        return kept, dict(zip(new, in_parallel(answer, new, self.concurrency, self.breaker) if new else []))

    def reach(self) -> str:
        return "" if len(self.store) else super().reach()  # what is kept may be all that is needed

    def close(self) -> None:
        super().close()
        self.store.close()
