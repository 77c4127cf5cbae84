"""The page on which a person answers: a server on 127.0.0.1 that gives nothing without the token in its address.

    GET  /?token=T                the page
    GET  /next?token=T&have=ID    what to show now, as JSON
    POST /answer?token=T          {"id": ID, "answer": "left", "right", "equal" or "skip"}, then what to show next
    POST /undo?token=T            takes the last answer back

A request that names another host, as one does that a foreign page sends through a name of its own (DNS rebinding), is
refused, too. Texts of an environment are shown as texts, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

HOST = "127.0.0.1"
HOSTS = (HOST, "localhost")  # as a browser names this machine, also through a tunnel
LONGEST = 4096  # bytes of a request's body
ANSWERS = ("left", "right", "equal", "skip")


class Asks(Protocol):
    """What the page shows and sends; each returns what to show next, as JSON holds it."""

    def view(self, have: str = "") -> dict[str, Any]:
        """The current question; its clips only if it is not the one that the page has."""
        ...

    def answer(self, id: str, answer: str) -> dict[str, Any]:
        """Take an answer to the question of that id: left, right, equal or skip."""
        ...

    def undo(self) -> dict[str, Any]:
        """Take the last answer back, while it has not been learned from."""
        ...


class Page:
    """Serves until it is closed, from threads of its own.

    Raises:
        OSError: if the port is in use.
    """

    def __init__(self, questions: Asks, port: int = 0) -> None:
        token = secrets.token_urlsafe(24)
        handler = type("Bound", (_Handler,), {"questions": questions, "token": token})
        self._server = ThreadingHTTPServer((HOST, port), handler)
        self.port = int(self._server.server_address[1])
        self.address = f"http://{HOST}:{self.port}/?token={token}"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="questions", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def free(port: int) -> bool:
    """Whether a page can have this port."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((HOST, port))
        except OSError:
            return False
    return True


class _Handler(BaseHTTPRequestHandler):
    questions: Asks
    token: str
    timeout = 30  # seconds for a request to arrive
    server_version, sys_version = "lodestar", ""

    def do_GET(self) -> None:
        route, query = self._admitted()
        if route == "/":
            nonce = secrets.token_urlsafe(16)
            page = files(__package__).joinpath("page.html").read_text(encoding="utf-8").replace("NONCE", nonce)
            self._reply(200, "text/html; charset=utf-8", page, nonce)
        elif route == "/next":
            self._tell(self.questions.view(have=query.get("have", [""])[0]))
        elif route:
            self._refuse(404, "There is nothing here.")

    def do_POST(self) -> None:
        route, _ = self._admitted()
        if not route:
            return
        try:
            told = json.loads(self.rfile.read(min(int(self.headers.get("Content-Length", 0)), LONGEST)) or "{}")
            if route == "/undo":
                self._tell(self.questions.undo())
            elif route == "/answer":
                self._tell(self.questions.answer(str(told["id"]), ANSWERS[ANSWERS.index(told["answer"])]))
            else:
                self._refuse(404, "There is nothing here.")
        except OSError as error:
            self._refuse(507, f"The answer could not be written, and does not count: {error}")
        except (ValueError, TypeError, LookupError):
            self._refuse(400, f"An answer is an id and one of {', '.join(ANSWERS)}.")

    def _admitted(self) -> tuple[str, dict[str, list[str]]]:
        """Route and query of a request that may be answered; "" for one that was refused."""
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        host = self.headers.get("Host", "").rpartition(":")
        if (host[0] or host[2]) not in HOSTS:
            self._refuse(403, "This page belongs to 127.0.0.1; open the address that the run printed.")
        elif not secrets.compare_digest(query.get("token", [""])[0].encode(), self.token.encode()):
            self._refuse(403, "Open the whole address that the run printed; it ends in a token.")
        else:
            return url.path or "/", query
        return "", {}

    def _tell(self, view: dict[str, Any]) -> None:
        self._reply(200, "application/json", json.dumps(view))

    def _refuse(self, status: int, sentence: str) -> None:
        self._reply(status, "text/plain; charset=utf-8", sentence + "\n")

    def _reply(self, status: int, kind: str, text: str, nonce: str = "") -> None:
        body = text.encode()
        own = f"'nonce-{nonce}'"
        policy = f"default-src 'none'; script-src {own}; style-src {own}; img-src data:; connect-src 'self'"
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": f"{policy}; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the run's output is the run's."""
