"""A chat server on this machine that looks at the images it gets, and misbehaves when it is told to."""

import base64
import io
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from PIL import Image


class ModelServer(ThreadingHTTPServer):
    """Answers chat completions with `think(text, images)`.

    Attributes:
        url: the API's root.
        plan: what the next requests meet, first one first: a callable that is handed the request's handler, or None
            for an ordinary answer; an ordinary answer is given when it is empty.
        refused: names in a request's body that it answers 400 to, as servers do that do not know them.
        turns: whether it takes examples as turns of a conversation; else it answers them 400, and counts them nowhere.
        seen: (headers, body) of every request.
        most: how many requests were in work at the same time.
    """

    daemon_threads = True

    def __init__(self, think, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.think, self.plan, self.seen = think, [], []
        self.refused = ()
        self.turns = False
        self.most = self.busy = 0
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """Clients that hang up are part of the tests."""


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_POST(self):
        server = self.server
        self.body = body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if len(body["messages"]) > 1 and not server.turns:
            self.send(400, "one message is all that this server takes")
            return
        with server.lock:
            server.seen.append((dict(self.headers), body))
            server.busy += 1
            server.most = max(server.most, server.busy)
            unknown = [name for name in server.refused if name in body]
            plan = server.plan.pop(0) if server.plan and not unknown else None
        try:
            if unknown:
                self.send(400, f"{unknown[0]} is not supported")
                return
            if plan is not None:
                plan(self)
                return
            parts = body["messages"][-1]["content"]
            if isinstance(parts, str):
                parts = [{"type": "text", "text": parts}]
            text = "\n".join(part["text"] for part in parts if part["type"] == "text")
            images = [picture(part["image_url"]["url"]) for part in parts if part["type"] == "image_url"]
            self.say(server.think(text, images))
        finally:
            with server.lock:
                server.busy -= 1

    def say(self, content):
        """Send a text, or {token: log-probability} of the candidates for a single token."""
        choice = {"message": {"role": "assistant", "content": content}}
        if isinstance(content, dict):
            choice["message"]["content"] = max(content, key=content.get)
            listed = [{"token": token, "logprob": value} for token, value in content.items()]
            choice["logprobs"] = {"content": [{**listed[0], "top_logprobs": listed}]}
        self.send(200, json.dumps({"choices": [choice]}))

    def send(self, status, text, **headers):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)


def picture(url):
    """The image in a data URL, uint8 (H, W, 3)."""
    kind, data = url.split(",", 1)
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def status(number, text="busy", **headers):
    """A plan: an answer with this status."""
    return lambda handler: handler.send(number, text, **headers)


def says(content):
    """A plan: a completion that says this."""
    return lambda handler: handler.say(content)


def completes(message, finish_reason="stop", **more):
    """A plan: a completion with this message, and more of its own."""
    choice = {"message": message, "finish_reason": finish_reason}
    return status(200, json.dumps({"choices": [choice], **more}))


def hangs(seconds):
    """A plan: no answer for a while."""

    def plan(handler):
        time.sleep(seconds)
        handler.say("too late")

    return plan


def drips(seconds):
    """A plan: an answer that comes byte by byte and does not end within `seconds`."""

    def plan(handler):
        handler.send_response(200)
        handler.end_headers()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.02)

    return plan


def drips_headers(seconds):
    """A plan: headers that come byte by byte (slow-loris) and do not end within `seconds`."""

    def plan(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.02)

    return plan


def breaks_off(handler):
    """A plan: fewer bytes than were promised."""
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [{"mess')
    handler.close_connection = True


class Flood:
    """A plan: an answer of 100 MB; `sent` counts what the client took of it."""

    def __init__(self):
        self.sent = 0

    def __call__(self, handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(100 * 2**20))
        handler.end_headers()
        try:
            for _ in range(1600):
                handler.wfile.write(b"x" * 2**16)
                self.sent += 2**16
        except OSError:
            handler.close_connection = True
