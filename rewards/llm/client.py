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
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from lodestar.settings import Settings, setting

# How many places in an answer are tried as the beginning of its JSON.
MAX_JSON_PLACES = 64
# Characters of a server's answer that an error quotes.
MAX_QUOTE_CHARACTERS = 200
# Characters of the key in a row that no error repeats: servers like to name its last four. In what a model says a short
# word of the key may be a word of the answer.
KEY_RUN_IN_ERROR = 4
KEY_RUN_IN_ANSWER = 8
# Seconds in which a server is looked for before a run.
LOOK = 2.0
# Of the frames of a video, percent.
JPEG_QUALITY = 95
# A server that counts more tokens for one answer does not count.
MAX_TOKENS_COUNTED = 10**9
# A breaker opens after so many failures in a row, or above this share of failures within so many seconds, if there were
# enough answers for a share to mean anything.
IN_A_ROW = 5
FAILURE_WINDOW_S = 30.0
MAX_FAILURE_SHARE = 0.5
MIN_ANSWERS_FOR_SHARE = 10

# What asks a model not to think first: the name that OpenAI and Ollama know, and the one of vLLM and llama.cpp.
SCHEMA_OPTION = "response_format"
NO_THINKING: dict[str, Any] = {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": False}}
# Fields of a message in which servers put what a model thought.
THOUGHT_FIELDS = ("reasoning", "reasoning_content")
NO_IMAGES = re.compile(r"mmproj|multi-?modal|images?\b.*\bnot support|not support.*\bimages?\b", re.IGNORECASE)

T = TypeVar("T")
R = TypeVar("R")


class JudgeError(RuntimeError):
    """A question that got no usable answer; the message is one sentence."""


class PausedError(JudgeError):
    """A question that was not sent, because the server failed too often just before."""


class RetryError(JudgeError):
    """A question that may be answered if it is asked again."""

    def __init__(self, sentence: str, after: float = 0.0) -> None:
        super().__init__(sentence)
        # How many seconds the server asked us to wait.
        self.after = after


class _AbsentError(RetryError):
    """There is no connection to the server."""


class _RefusedError(JudgeError):
    """The server understood the question and does not take it in this form."""


def _import_http() -> Any:
    """The client of HTTP; an ImportError without the extra `llm`."""
    try:
        import httpx2
    except ImportError:
        raise ImportError("a judge on a server is asked with httpx2; pip install 'lodestar-rl[llm]'") from None
    return httpx2


@functools.cache
def _trusted_certificates() -> ssl.SSLContext:
    """Every client of this process shares them, as reading them takes longer than building a client."""
    return _import_http().create_ssl_context()


@dataclass(eq=False)
class Endpoint(Settings):
    """A model on a server. The key itself is read from the environment when a question is sent and is kept nowhere."""

    model: str = setting(help="its name on the server")
    url: str = setting("http://localhost:8000/v1", "the API's root, with its version")
    key: str = setting("OPENAI_API_KEY", "environment variable with the API key; unset for a server without one")
    connect: float = setting(5.0, "seconds until a connection must stand", "> 0")
    timeout: float = setting(60.0, "seconds for one attempt from question to answer", "> 0")
    attempts: int = setting(4, "how often a question is tried", ">= 1")
    backoff: float = setting(1.0, "seconds of the first wait, drawn from [0, backoff], doubled each time", ">= 0")
    longest: float = setting(30.0, "seconds that no wait exceeds, whatever the server asks for", ">= 0")
    max_bytes: int = setting(1_000_000, "size of an answer at which reading stops", ">= 1")
    max_tokens: int = setting(1024, "length of an answer, tokens", ">= 1")
    body: dict[str, Any] | None = setting(
        None,
        "more of the request's body; a None in it removes an entry, such as reasoning_effort, which is none by default",
    )
    concurrency: int = setting(8, "questions asked at the same time", "[1, 64]")
    seed: int = setting(0, "of the waits between attempts")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_if(not self.model, f"{self.prefix}model is empty; give the name that the server knows it by")
        url = None
        if self.url.startswith(("http://", "https://")):
            http = _import_http()
            with suppress(http.InvalidURL):
                url = http.URL(self.url)
        if url is None or not url.host:
            example = "http://localhost:8000/v1"
            raise ValueError(f"{self.prefix}url={self.url!r} is no web address; give the API's root, such as {example}")
        if url.userinfo:
            raise ValueError(f"{self.prefix}url holds a login, which would be written down; give key=VARIABLE instead")
        self.url = self.url.rstrip("/")

    @property
    def options(self) -> dict[str, Any]:
        """What the request's body holds beside model and messages."""
        options = {"temperature": 0, "max_tokens": self.max_tokens, **(self.body or {})}
        given = {}
        for name, value in options.items():
            if value is not None:
                given[name] = value
        return given


@dataclass
class Reply:
    """What came back for one question.

    `text` is the model's last answer, "" if there was none. `tokens` are those of question and answer, of all attempts,
    as the server counts them; 0 if it does not, or absurdly. `candidates` are first tokens and their log-probabilities.
    """

    text: str = ""
    tokens: int = 0
    candidates: list[tuple[str, float]] = field(default_factory=list)


class Chat:
    """Asks the model of an endpoint; safe to use from several threads."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        # Optional entry of a request's body -> whether the server takes it.
        self.takes: dict[str, bool] = {}
        self._random = random.Random(endpoint.seed)
        self._loop = _loop(os.getpid())
        self._http = _import_http()
        timeout = self._http.Timeout(None, connect=endpoint.connect)
        self._client = self._http.AsyncClient(timeout=timeout, verify=_trusted_certificates())

    def ask(
        self,
        parts: Iterable[str | np.ndarray | dict[str, Any]],
        schema: dict[str, Any] | None = None,
        reply: Reply | None = None,
        turns: Sequence[dict[str, Any]] = (),
        **options: Any,
    ) -> Any:
        """Ask one question; returns the text of the answer, or what it decodes to with a schema.

        `parts` are texts, images, uint8 (H, W, 3), and parts of a message as they are sent, in the order in which they
        are read; a schema is JSON, with type, enum, properties, required, items, minimum and maximum; `reply` gets the
        model's text and its cost in any case; `turns` are messages that stand before the question; `options` belong to
        the request's body. Raises JudgeError without an answer, or one that fits the schema.
        """
        parts = list(parts)
        if schema is not None:
            parts.append(f"Answer with JSON only, in the form of this JSON schema: {json.dumps(schema)}")
        texts = [part for part in parts if isinstance(part, str)]
        # Some servers take a list of parts only where there is an image.
        content: Any = "\n".join(texts)
        if len(texts) < len(parts):
            content = list(map(_message_part, parts))
        messages = [*turns, {"role": "user", "content": content}]
        body = {**self.endpoint.options, **options, "model": self.endpoint.model, "messages": messages}
        if reply is None:
            reply = Reply()
        # What the user set in the body is not asked for in another way.
        user_body = self.endpoint.body or {}
        optional = {}
        for name, value in NO_THINKING.items():
            if name not in user_body:
                optional[name] = value
        if schema is not None:
            form = {"name": "answer", "strict": True, "schema": schema}
            optional[SCHEMA_OPTION] = {"type": "json_schema", "json_schema": form}
        text = self._ask_in_some_form(body, optional, reply)
        return text if schema is None else decode(text, schema)

    def _ask_in_some_form(self, body: dict[str, Any], optional: dict[str, Any], reply: Reply) -> str:
        """Ask with as many of the optional entries as the server takes."""
        taken = []
        for name in optional:
            if self.takes.get(name, True):
                taken.append(name)
        fullest = frozenset(taken)
        # The fullest form first; a single one once the server has answered.
        forms = [fullest]
        for left_out in (NO_THINKING.keys(), {SCHEMA_OPTION}, {SCHEMA_OPTION, *NO_THINKING}):
            forms.append(fullest - (left_out - self.takes.keys()))
        while True:
            form, *others = dict.fromkeys(forms)
            entries = {name: value for name, value in optional.items() if name in form}
            try:
                text = self._call_with_retries(self._ask_once, {**body, **entries}, reply)
            except _RefusedError as error:
                # Most servers name what they do not know: everything else can stay.
                refused = {name for name in form if name in str(error)}
                forms = [other - refused for other in (form, *others)] if refused else others
                if not forms:
                    raise
                continue
            # Only an answer tells which entries are taken: a question may be refused for reasons of its own.
            self.takes |= {name: name in form for name in optional}
            return text

    def post(self, place: str, **request: Any) -> bytes:
        """What the server answers at another place than that of chat completions; JudgeError without an answer."""
        data, _ = self._call_with_retries(self._exchange, f"{self.endpoint.url}/{place}", False, **request)
        return data

    def reach(self) -> str:
        """A sentence if there is no server at the address, within LOOK seconds; a slow or a busy one is there."""
        timeout = self._http.Timeout(None, connect=LOOK / 2)
        exchange = self._send("GET", f"{self.endpoint.url}/models", LOOK, timeout=timeout)
        try:
            asyncio.run_coroutine_threadsafe(exchange, self._loop).result()
        except _AbsentError as error:
            return f"{error}; start the server, or correct url"
        except JudgeError:
            pass
        return ""

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._client.aclose(), self._loop)

    def _call_with_retries(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a function, and again if it failed for a reason that may pass."""
        for attempt in range(self.endpoint.attempts - 1):
            try:
                return function(*args, **options)
            except RetryError as error:
                seconds = self._random.uniform(0, self.endpoint.backoff * 2.0**attempt)
                time.sleep(min(max(seconds, error.after), self.endpoint.longest))
        return function(*args, **options)

    @property
    def _key(self) -> str:
        return os.environ.get(self.endpoint.key, "").strip()

    def _quote(self, text: str) -> str:
        """The beginning of a server's words, fit for an error."""
        quote = _mask_key(text[:MAX_QUOTE_CHARACTERS], self._key, KEY_RUN_IN_ERROR)
        return " ".join(quote.split())

    def _ask_once(self, body: dict[str, Any], reply: Reply) -> str:
        has_images = isinstance(body["messages"][-1]["content"], list)
        data, quote = self._exchange(f"{self.endpoint.url}/chat/completions", has_images, json=body)
        choice, content, tokens = self._read_completion(data, quote)
        candidates: list[tuple[str, float]] = []
        with suppress(KeyError, IndexError, TypeError, ValueError):
            listed = choice["logprobs"]["content"][0]["top_logprobs"]
            candidates = [(str(one["token"]), min(float(one["logprob"]), 0.0)) for one in listed]
        answer = self._read_answer(choice, content, bool(candidates))
        # Half characters, which JSON can hold and no file can, are replaced.
        answer = answer.encode("utf-8", "replace").decode()
        reply.candidates = candidates
        reply.text = _mask_key(answer, self._key, KEY_RUN_IN_ANSWER)
        # What is no number of tokens, or an absurd one, adds nothing.
        if isinstance(tokens, int) and 0 <= tokens <= MAX_TOKENS_COUNTED:
            reply.tokens += tokens
        return reply.text

    def _exchange(self, address: str, has_images: bool, **request: Any) -> tuple[bytes, str]:
        """The body of an answer with status 200, and its beginning, fit for an error."""
        url = self.endpoint.url
        key = self._key
        # Without compression the bytes that are counted are those that arrive.
        headers = {"Accept-Encoding": "identity"}
        if not (key.isascii() and key.isprintable()):
            variable = self.endpoint.key
            raise JudgeError(f"the environment variable {variable} holds characters that no API key has; set it again")
        if key:
            headers["Authorization"] = f"Bearer {key}"
        exchange = self._send("POST", address, self.endpoint.timeout, headers=headers, **request)
        status, retry_after, data = asyncio.run_coroutine_threadsafe(exchange, self._loop).result()
        quote = self._quote(data[: 4 * MAX_QUOTE_CHARACTERS].decode("utf-8", "replace"))
        if status >= 400 and has_images and NO_IMAGES.search(quote):
            refusal = f"{self.endpoint.model} at {url} takes no images ({status}: {quote!r})"
            raise JudgeError(f"{refusal}; take a model that reads them")
        if status == 503 and "loading" in quote.lower():
            raise RetryError(f"{url} is still loading its model ({status}: {quote!r}); wait until it answers")
        if status == 429 or status == 408 or status >= 500:
            raise RetryError(f"{url} answered {status}: {quote!r}", _seconds(retry_after))
        if status != 200:
            kind = _RefusedError if status in (400, 422) else JudgeError
            raise kind(f"{url} answered {status}: {quote!r}")
        return data, quote

    async def _send(self, method: str, address: str, seconds: float, **request: Any) -> tuple[int, str, bytes]:
        """Status, Retry-After and body of one exchange that takes no longer than so many seconds in all."""
        url = self.endpoint.url
        max_bytes = self.endpoint.max_bytes
        try:
            async with asyncio.timeout(seconds), self._client.stream(method, address, **request) as response:
                data = bytearray()
                async for chunk in response.aiter_raw():
                    data += chunk
                    if len(data) > max_bytes:
                        raise JudgeError(f"{url} answered with more than {max_bytes:,} bytes, which no answer needs")
                retry_after = response.headers.get("retry-after", "")
                return response.status_code, retry_after, bytes(data)
        except (self._http.ConnectError, self._http.ConnectTimeout) as error:
            raise _AbsentError(f"{url} cannot be reached: {type(error).__name__}: {self._quote(str(error))}") from None
        except (TimeoutError, self._http.TimeoutException):
            raise RetryError(f"{url} did not answer in time ({seconds:g} s)") from None
        except self._http.TransportError as error:
            # Its words may be the server's, so they are quoted with the key masked.
            raise RetryError(f"{url} broke off: {type(error).__name__}: {self._quote(str(error))}") from None

    def _read_completion(self, data: bytes, quote: str) -> tuple[dict[str, Any], Any, Any]:
        """The model's choice, its content, and the cost of question and answer in tokens by the server's count."""
        url = self.endpoint.url
        if data.lstrip()[:1] == b"<":
            raise JudgeError(f"{url} answered with a web page ({quote!r}); give the API's root, often ending in /v1")
        try:
            completion = json.loads(data)
            failure = completion.get("error")
            content = None
            if not failure:
                # Of several choices no one is the answer: ValueError.
                [choice] = completion["choices"]
                failure = choice.get("error") or choice.get("finish_reason") == "error"
            if not failure:
                content = choice["message"].get("content")
            tokens = (completion.get("usage") or {}).get("total_tokens", 0)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            raise JudgeError(f"{url} answered with something that is no chat completion: {quote!r}") from None
        # Words beside an error are what there was of an answer when it broke off.
        if failure:
            raise JudgeError(f"{url} answered with an error in place of a completion: {quote!r}")
        return choice, content, tokens

    def _read_answer(self, choice: dict[str, Any], content: Any, has_candidates: bool) -> str:
        """The text of an answer without what the model thought first; JudgeError for none."""
        model = self.endpoint.model
        answer = ""
        thought = ""
        if isinstance(content, str):
            answer, thought = _split_thought(content)
        # The field in which the model's thoughts stand, if it has any.
        thought_field = "content" if thought else ""
        thought_field = next((name for name in THOUGHT_FIELDS if choice["message"].get(name)), thought_field)
        cut = choice.get("finish_reason") == "length"
        if thought_field and not answer.strip():
            why = ", where max_tokens ended" if cut else ""
            raise JudgeError(
                f"{model} thought and did not answer: what it wrote stands in {thought_field!r}{why}, and there is "
                "nothing after it; switch thinking off at the server, or take an Instruct model"
            )
        if cut and not answer.strip() and not has_candidates:
            raise JudgeError(
                f"{model} had no answer when max_tokens ended (finish_reason=length); raise max_tokens, and if it "
                "is a model that thinks first, switch that off at the server or take an Instruct model"
            )
        if not isinstance(content, str):
            kind = None if content is None else type(content).__name__
            raise JudgeError(f"{model} answered nothing ({kind})")
        return answer


def _split_thought(text: str) -> tuple[str, str]:
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
        self.pause = pause
        self.failures = failures
        # Whether questions are held back; then when the next probe may be sent, and whether one is in flight.
        self.open = False
        self.until = 0.0
        self.probing = False
        # Failures since the last success.
        self.streak = 0
        # Times of the latest answers, and whether they were failures.
        self._recent: deque[tuple[float, bool]] = deque()

    def room(self, now: float) -> int | None:
        """How many questions may be sent: None for any number."""
        if not self.open:
            return None
        return int(not self.probing and now >= self.until)

    def note_question(self) -> None:
        self.probing = self.open

    def note_success(self, now: float) -> bool:
        """Take note of an answer; returns whether it ends an outage."""
        was_open = self.open
        if was_open:
            self._recent.clear()
        self.open = False
        self.probing = False
        self.streak = 0
        self._note(now, False)
        return was_open

    def note_failure(self, now: float) -> bool:
        """Take note of a failure; returns whether it begins an outage."""
        self.streak += 1
        if self.open:
            # A question that was in flight when the outage began says nothing new.
            if self.probing:
                self.probing = False
                self.until = now + self.pause
            return False
        self._note(now, True)
        answers = len(self._recent)
        failures = sum(failed for _, failed in self._recent)
        is_frequent = answers >= MIN_ANSWERS_FOR_SHARE and failures > MAX_FAILURE_SHARE * answers
        if self.streak < self.failures and not is_frequent:
            return False
        self.open = True
        self.until = now + self.pause
        return True

    def _note(self, now: float, failed: bool) -> None:
        self._recent.append((now, failed))
        while self._recent[0][0] < now - FAILURE_WINDOW_S:
            self._recent.popleft()


def in_parallel(
    ask: Callable[[T], R], items: Sequence[T], concurrency: int, breaker: Breaker | None = None
) -> list[R | JudgeError]:
    """`ask` of each item, `concurrency` at a time; an error where one failed, `PausedError` while `breaker` is open."""
    lock = threading.Lock()

    def ask_one(item: T) -> R | JudgeError:
        if breaker is not None:
            with lock:
                if breaker.room(time.monotonic()) == 0:
                    return PausedError("the server failed too often and is not asked for a while")
                breaker.note_question()
        try:
            answer: R | JudgeError = ask(item)
        except JudgeError as error:
            answer = error
        if breaker is not None:
            with lock:
                now = time.monotonic()
                if isinstance(answer, JudgeError):
                    breaker.note_failure(now)
                else:
                    breaker.note_success(now)
        return answer

    if len(items) == 1:
        return [ask_one(items[0])]
    executor = ThreadPoolExecutor(concurrency)
    try:
        return list(executor.map(ask_one, items))
    finally:
        # An interruption does not wait for a slow server.
        executor.shutdown(wait=False, cancel_futures=True)


def decode(text: str, schema: dict[str, Any]) -> Any:
    """The one JSON object in a text that fits a schema, as models talk around it; JudgeError for none, or several."""
    decoder = json.JSONDecoder(object_pairs_hook=_object_of)
    # From the end, where models put their answer.
    place = len(text)
    answers = []
    for _ in range(MAX_JSON_PLACES):
        place = text.rfind("{", 0, place)
        if place < 0:
            break
        try:
            value, _ = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            continue
        if fits(value, schema):
            answers.append(value)
    if len(answers) == 1:
        return answers[0]
    problem = f"{len(answers)} answers at once fit" if answers else "no JSON in the answer fits"
    raise JudgeError(f"{problem} {json.dumps(schema)}: {text[-MAX_QUOTE_CHARACTERS:]!r}")


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; ValueError if a name stands in it twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
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
        if not set(schema.get("required", ())) <= set(value):
            return False
        properties = schema.get("properties", {})
        return all(fits(value[key], part) for key, part in properties.items() if key in value)
    if isinstance(value, list):
        return all(fits(one, schema.get("items", {})) for one in value)
    if isinstance(value, int | float):
        return schema.get("minimum", value) <= value <= schema.get("maximum", value)
    return True


def _message_part(part: str | np.ndarray | dict[str, Any]) -> dict[str, Any]:
    if isinstance(part, dict):
        return part
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_encode_image(part, 'PNG')}"}}


def video_part(frames: Sequence[np.ndarray]) -> dict[str, Any]:
    """Frames, uint8 (H, W, 3), as the part of a message that is one video: JPEG by JPEG, as vLLM reads it."""
    data = ",".join(_encode_image(frame, "JPEG", quality=JPEG_QUALITY) for frame in frames)
    return {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{data}"}}


def _encode_image(image: np.ndarray, form: str, **options: Any) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(file, form, **options)
    return base64.b64encode(file.getvalue()).decode()


def _mask_key(text: str, key: str, run: int) -> str:
    """A server's words without what stands in the key, `run` characters in a row or more."""
    runs = {re.escape(key[i : i + run]) for i in range(len(key) - run + 1)}
    if not runs:
        return text
    # Every place at which a run begins, and the rest of the last run.
    begins = "|".join(runs)
    return re.sub(rf"(?:(?={begins}).)+.{{{run - 1}}}", "***", text, flags=re.DOTALL)


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
