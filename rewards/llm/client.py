"""One question to a language model over HTTP: text and images in, text or checked JSON out.

    chat = Chat("qwen2.5-vl-7b", "http://localhost:8000/v1")
    chat.ask(["What does this show?", frame])                    -> text
    chat.ask(["Is the door open?", frame], schema=YES_OR_NO)     -> a dict that fits the schema

It speaks the chat completions of OpenAI, which vLLM, llama.cpp, Ollama, LM Studio and most providers answer too. A
schema is sent as `response_format`; a server that refuses it (400, 422) is asked again without, once and for all. The
schema also stands in the question, and the answer is checked on our side, since some servers take it and ignore it.

What may be tried again is: 429 (after the time the server names, within reason), 408, 5xx, a connection that fails or
breaks. Everything else fails at once. Whatever fails is a `JudgeError`, one sentence without the key.

When it fails: nothing stops a server that sends its headers one byte at a time but the read timeout between two bytes.
"""

from __future__ import annotations

import base64
import datetime
import email.utils
import io
import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import numpy as np
import tenacity

CANDIDATES = 64  # places in an answer at which JSON is looked for
QUOTE = 200  # characters of a server's own words in an error


class JudgeError(RuntimeError):
    """A question that got no usable answer; the message is one sentence."""


class _TryAgain(JudgeError):
    def __init__(self, sentence: str, after: float = 0.0) -> None:
        super().__init__(sentence)
        self.after = after  # seconds the server asked us to wait


class _Refused(JudgeError):
    """The server understood the question and does not take it in this form."""


@dataclass
class Said:
    """What came back for one question.

    Attributes:
        text: the model's last words, "" if there were none.
        tokens: of question and answer together, all attempts, as the server counts them; 0 if it does not.
    """

    text: str = ""
    tokens: int = 0


class Chat:
    """A server and a model; safe to ask from several threads.

    Args:
        model: its name on the server.
        url: the API's root, with its version: `http://localhost:8000/v1`.
        key: the environment variable that holds the API key; unset for a server without one. The key itself is read
            when a question is asked and kept nowhere.
        connect: seconds until a connection must stand, above 0.
        timeout: seconds for one attempt from question to answer, above 0.
        attempts: how often a question is tried, at least 1.
        backoff: seconds of the first wait between attempts, doubled each time; the wait is drawn between 0 and that.
        longest: seconds no wait exceeds, whatever the server asks for.
        max_bytes: size of an answer at which reading stops.
        options: more of the request's body; None for {"temperature": 0, "max_tokens": 1024}.
        seed: of the waits.

    Raises:
        ValueError: for a value out of range.
    """

    def __init__(
        self,
        model: str,
        url: str = "http://localhost:8000/v1",
        *,
        key: str = "OPENAI_API_KEY",
        connect: float = 5.0,
        timeout: float = 60.0,
        attempts: int = 4,
        backoff: float = 1.0,
        longest: float = 30.0,
        max_bytes: int = 1_000_000,
        options: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        if not model:
            raise ValueError("model is empty; give the name that the server knows it by")
        try:
            host = httpx2.URL(url).host if url.startswith(("http://", "https://")) else ""
        except httpx2.InvalidURL:
            host = ""
        if not host:
            raise ValueError(f"url={url!r} is no web address; give the API's root, such as http://localhost:8000/v1")
        positive = {"connect": connect, "timeout": timeout, "attempts": attempts, "max_bytes": max_bytes}
        for name, value in positive.items():
            if not value > 0:
                raise ValueError(f"{name}={value} is out of range; give a number above 0")
        self.model, self.url, self.key = model, url.rstrip("/"), key
        self.timeout, self.attempts, self.backoff, self.longest = timeout, attempts, backoff, longest
        self.max_bytes = max_bytes
        self.options = {"temperature": 0, "max_tokens": 1024} if options is None else dict(options)
        self._structured = True  # whether the server takes a schema
        self._random = random.Random(seed)
        self._client = httpx2.Client(timeout=httpx2.Timeout(timeout, connect=connect))

    def ask(
        self, parts: Sequence[str | np.ndarray], schema: dict[str, Any] | None = None, said: Said | None = None
    ) -> Any:
        """Put one question.

        Args:
            parts: texts and images, uint8 (H, W, 3), in the order in which they are read.
            schema: a JSON schema (type, enum, properties, required, items, minimum, maximum) that the answer must fit.
            said: filled with the model's words and what they cost, also if there is no usable answer.

        Returns:
            The answer's text; with a schema what it decodes to.

        Raises:
            JudgeError: if there is none, or it does not fit the schema.
        """
        parts = list(parts)
        if schema is not None:
            parts.append(f"Answer with JSON only, in the form of this JSON schema: {json.dumps(schema)}")
        texts = [part for part in parts if isinstance(part, str)]  # some servers take no list where nothing is shown
        content = "\n".join(texts) if len(texts) == len(parts) else [_part(part) for part in parts]
        body = {**self.options, "model": self.model, "messages": [{"role": "user", "content": content}]}
        said = Said() if said is None else said
        if schema is None:
            return self._retried(body, said)
        if self._structured:
            form = {"name": "answer", "strict": True, "schema": schema}
            try:
                structured = {**body, "response_format": {"type": "json_schema", "json_schema": form}}
                return decode(self._retried(structured, said), schema)
            except _Refused:
                answer = decode(self._retried(body, said), schema)
                self._structured = False  # only now is it known to be the schema that was refused
                return answer
        return decode(self._retried(body, said), schema)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _retried(self, body: dict[str, Any], said: Said) -> str:
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self.attempts),
            wait=self._wait,
            retry=tenacity.retry_if_exception_type(_TryAgain),
            reraise=True,
        )
        return retrying(self._once, body, said)

    def _wait(self, state: tenacity.RetryCallState) -> float:
        """Seconds until the next attempt: full jitter, or what the server asked for."""
        error = state.outcome.exception() if state.outcome else None
        drawn = self._random.uniform(0, self.backoff * 2.0 ** (state.attempt_number - 1))
        return min(max(drawn, getattr(error, "after", 0.0)), self.longest)

    def _once(self, body: dict[str, Any], said: Said) -> str:
        key = os.environ.get(self.key, "").strip()
        headers = {"Accept-Encoding": "identity"}  # what is counted is what arrives
        if not (key.isascii() and key.isprintable()):
            raise JudgeError(f"the environment variable {self.key} holds characters that no API key has; set it again")
        if key:
            headers["Authorization"] = f"Bearer {key}"
        try:
            deadline = time.monotonic() + self.timeout
            with self._client.stream("POST", f"{self.url}/chat/completions", json=body, headers=headers) as response:
                data = self._read(response, deadline)
                status, after = response.status_code, response.headers.get("retry-after", "")
        except httpx2.TimeoutException as error:
            raise _TryAgain(f"{self.url} did not answer in time ({type(error).__name__})") from None
        except httpx2.TransportError as error:
            raise _TryAgain(f"{self.url} cannot be reached: {type(error).__name__}: {error}") from None
        quote = " ".join(_masked(data.decode("utf-8", "replace"), key)[:QUOTE].split())
        if status == 429 or status == 408 or status >= 500:
            raise _TryAgain(f"{self.url} answered {status}: {quote!r}", _seconds(after))
        if status != 200:
            kind = _Refused if status in (400, 422) else JudgeError
            raise kind(f"{self.url} answered {status}: {quote!r}")
        content, tokens = self._content(data, quote)
        said.text, said.tokens = _masked(content, key), said.tokens + tokens
        return said.text

    def _read(self, response: httpx2.Response, deadline: float) -> bytes:
        data = bytearray()
        for chunk in response.iter_raw():
            data += chunk
            if len(data) > self.max_bytes:
                raise JudgeError(f"{self.url} answered with more than {self.max_bytes:,} bytes, which no answer needs")
            if time.monotonic() > deadline:
                raise _TryAgain(f"{self.url} was still answering after {self.timeout:g} s")
        return bytes(data)

    def _content(self, data: bytes, quote: str) -> tuple[str, int]:
        """The model's words, and what question and answer cost by the server's count, tokens."""
        if data.lstrip()[:1] == b"<":
            raise JudgeError(
                f"{self.url} answered with a web page ({quote!r}); give the API's root, often ending in /v1"
            )
        try:
            completion = json.loads(data)
            content = completion["choices"][0]["message"]["content"]
            tokens = (completion.get("usage") or {}).get("total_tokens", 0)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            raise JudgeError(f"{self.url} answered with something that is no chat completion: {quote!r}") from None
        if not isinstance(content, str):
            raise JudgeError(f"{self.model} answered nothing ({None if content is None else type(content).__name__})")
        return content, max(tokens, 0) if isinstance(tokens, int) else 0


def decode(text: str, schema: dict[str, Any]) -> Any:
    """The last JSON object in a text that fits a schema; models like to talk around it.

    Raises:
        JudgeError: if there is none.
    """
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


_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a decoded value fits the part of JSON schema that `Chat.ask` lists; other properties may be there."""
    kinds = _TYPES[schema["type"]] if "type" in schema else (object,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and not {bool, object} & set(kinds)):
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


def png(frame: np.ndarray) -> bytes:
    """A frame, uint8 (H, W, 3), as a PNG."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(frame)).save(file, "PNG")
    return file.getvalue()


def _part(part: str | np.ndarray) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    data = base64.b64encode(png(part)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def _masked(text: str, key: str) -> str:
    """A server's words without the key, which a server may repeat."""
    return text.replace(key, "***") if key else text


def _seconds(retry_after: str) -> float:
    """A Retry-After header, a number of seconds or a date, in seconds from now; 0 where it says nothing."""
    try:
        return max(float(retry_after), 0.0)
    except ValueError:
        pass
    try:
        moment = email.utils.parsedate_to_datetime(retry_after)
        return max((moment - datetime.datetime.now(datetime.UTC)).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return 0.0
