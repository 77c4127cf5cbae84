"""A chat server in a process of its own that misbehaves as its path says: http://127.0.0.1:PORT/429/v1.

    with FaultyServer() as server:
        make_judge("openai", model="any", url=server.url("hang"), ...)

`rules` is the well-behaved one: a shipped rulebook labels what stands in the quotation of the question, and nothing
else, after `delay` seconds. `LITERAL` answers with fixed words; the others break the connection, the protocol or the
size. The process can be killed and started again on its port.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LITERAL = {  # what the model says, word for word; none of it is an answer
    "prose": "I think that this is helpful, label it so.",
    "nothing": "",
    "other word": '{"reason": "good", "label": "good", "better": "newer"}',
    "number": '{"reason": "good", "label": 1, "better": 1}',
    "truth": '{"reason": "good", "label": true, "better": true}',
    "null": '{"reason": "good", "label": null, "better": null}',
    "list": '[{"reason": "good"}, "helpful", "second"]',
    "no reason": '{"label": "helpful", "better": "second"}',
    "cut off": '{"reason": "a fight was won, so this is helpful", "label": "help',
    "contradiction": '{"reason": "", "label": "helpful", "better": "first"} {"reason": "", "label": "neutral", '
    '"better": "second"}',
    "repetition": '{"reason": "", "label": "helpful", "better": "second"}' * 3,
    "name twice": '{"reason": "", "label": "neutral", "label": "helpful", "better": "first", "better": "second"}',
    "half characters": '{"reason": "\ud800", "label": "\udfff", "better": "\udfff"}',
    "deep": "[" * 30_000 + '{"a":' * 30_000,
    "schema": '{"type": "object", "properties": {"label": {"enum": ["helpful"]}}, "required": ["label"]}',
}
HEAVY = 100 * 2**20  # bytes of a flood


class FaultyServer:
    """The process; it runs between `with` and its end.

    Args:
        family: whose rulebook answers.
        delay: seconds until it does.
    """

    def __init__(self, family: str = "nethack", delay: float = 0.0) -> None:
        self.words, self.port = (family, str(delay)), 0

    def __enter__(self) -> FaultyServer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, on the port it had before if there was one; it takes connections when this returns."""
        root = Path(__file__).resolve().parents[2]
        command = [sys.executable, "-m", "tests.faults.faulty_server", *self.words, str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def kill(self) -> None:
        """SIGKILL: no connection is closed properly."""
        self.process.kill()
        self.process.communicate()

    def url(self, fault: str) -> str:
        """The API's root where that fault happens."""
        return f"http://127.0.0.1:{self.port}/{fault.replace(' ', '-')}/v1"


def quotations(text: str) -> list[str]:
    """The captions a question is about: what the lines hold that end in one whole JSON string."""
    found = []
    for line in text.splitlines():
        _, mark, rest = line.partition(': "')
        try:
            found += [json.loads(f'"{rest}')] if mark else []
        except ValueError:
            continue
    return found


class Handler(BaseHTTPRequestHandler):
    """One question."""

    judge: Any = None
    delay = 0.0

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["messages"][-1]["content"]
        fault = self.path.split("/")[1].replace("-", " ")
        if fault == "rules" and len(body["messages"]) > 1:
            self.send(400, b"one message is all that this server takes")
            return
        try:
            FAULTS[fault](self, text) if fault in FAULTS else self.say(LITERAL[fault])
        except OSError:  # whoever asked has hung up
            self.close_connection = True

    def say(self, content: Any) -> None:
        usage = {"total_tokens": 100}
        self.send(200, json.dumps({"choices": [{"message": {"content": content}}], "usage": usage}).encode())

    def send(self, status: int, data: bytes, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)


def rules(handler: Handler, text: str) -> None:
    """The answer of the rulebook to what is quoted."""
    time.sleep(handler.delay)
    if not isinstance(text, str):  # there are frames among it, which get the same grade all
        return handler.say('{"score": 3}')
    captions = quotations(text)
    if '"better"' in text:
        better = {0.0: "first", 0.5: "equal", 1.0: "second"}[float(handler.judge.compare(*zip(captions)).value[0])]
        return handler.say(json.dumps({"reason": "by the rules", "better": better}))
    (caption,) = captions  # two would be a caption that broke out of its quotation
    label = {0.0: "neutral", 1.0: "helpful"}[float(handler.judge.label([caption]).value[0])]
    handler.say(json.dumps({"reason": "by the rules", "label": label}))


def _flood(handler: Handler, text: str) -> None:
    handler.send(200, b"", HEAVY)
    for _ in range(HEAVY // 2**16):
        handler.wfile.write(b"x" * 2**16)


def _drip(handler: Handler, text: str) -> None:
    handler.send(200, b"", 1000)
    for _ in range(600):
        handler.wfile.write(b" ")
        time.sleep(0.05)


def _drip_headers(handler: Handler, text: str) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    for _ in range(600):
        handler.wfile.write(b"x")
        time.sleep(0.05)


def _bill(handler: Handler, tokens: float) -> None:
    """No usable answer, and an absurd cost."""
    said = {"choices": [{"message": {"content": "so"}}], "usage": {"total_tokens": tokens}}
    handler.send(200, json.dumps(said).encode())


def _choices(handler: Handler, text: str) -> None:
    words = ('{"reason": "", "label": "helpful", "better": "second"}', LITERAL["prose"])
    handler.send(200, json.dumps({"choices": [{"message": {"content": one}} for one in words]}).encode())


def _drop(handler: Handler, text: str) -> None:
    handler.close_connection = True


def _key(handler: Handler) -> bytes:
    return str(handler.headers["Authorization"]).encode()


FAULTS: dict[str, Callable[[Handler, str], object]] = {
    "rules": rules,
    "429": lambda handler, text: handler.send(429, b"slow down", Retry_After="1"),
    "500": lambda handler, text: handler.send(500, b"oops"),
    "503": lambda handler, text: handler.send(503, b"loading", Retry_After="soon"),
    "400": lambda handler, text: handler.send(400, b"no such model"),
    "401": lambda handler, text: handler.send(401, b"x" * 170 + b" wrong key " + _key(handler)),
    "403": lambda handler, text: handler.send(403, b"wrong key " + _key(handler)[7:16] + b"***" + _key(handler)[-4:]),
    "header": lambda handler, text: handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + _key(handler) + b"\r\n\r\n"),
    "302": lambda handler, text: handler.send(302, b"", Location="http://127.0.0.1:9/v1"),
    "hang": lambda handler, text: time.sleep(600),
    "drip": _drip,
    "drip headers": _drip_headers,
    "bill": lambda handler, text: _bill(handler, 10**30),
    "endless bill": lambda handler, text: _bill(handler, float("inf")),
    "choices": _choices,
    "drop": _drop,
    "truncated": lambda handler, text: handler.send(200, b'{"choices": [{"message": {"content": "{', 5000),
    "html": lambda handler, text: handler.send(200, b'<html>{"reason": "", "label": "helpful", "better": "second"}'),
    "no choices": lambda handler, text: handler.send(200, b'{"reason": "", "label": "helpful", "better": "second"}'),
    "error inside": lambda handler, text: handler.send(200, b'{"error": {"message": "overloaded"}}'),
    "not utf 8": lambda handler, text: handler.send(200, b'\xff\xfe{"choices": 1}'),
    "empty": lambda handler, text: handler.send(200, b""),
    "flood": _flood,
    "says the key": lambda handler, text: handler.say(f"your key is {_key(handler).decode()}"),
    "says an object": lambda handler, text: handler.say({"label": "helpful", "key": _key(handler).decode()}),
    "repeats the text": lambda handler, text: handler.say(" ".join(quotations(text))),
}


if __name__ == "__main__":
    from rewards.llm.judges.base import make_judge

    family, delay, port = sys.argv[1:]
    Handler.judge, Handler.delay = make_judge("rules", family=family), float(delay)
    listening = ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    listening.daemon_threads = True
    print(listening.server_address[1], flush=True)
    listening.serve_forever()
