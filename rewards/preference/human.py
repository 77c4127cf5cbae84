"""A person compares two clips on a page of this machine; training never waits for an answer.

    pairs -> questions that wait (the newest) -> page -> answer -> file, on the disk -> the reward's next session

Source: Christiano et al. 2017, arXiv 1706.03741, section 2.2.2: two clips side by side; left, right, equal, or neither
(skipped, which teaches nothing).
Differences: training continues meanwhile; questions that were not shown yet are replaced by newer ones, about what the
agent does now; an answer can be taken back until the reward has learned from it, not before the next answer or ten
seconds later.

A run that is killed loses no answer: resumed, it learns from those that its checkpoint had not, and asks again. Later
runs, and `judge=recorded`, begin with the file, whatever their seed or agent.
When it fails: an environment so fast that training ends after a few answers (train again from the file); goals that one
clip cannot show; frames slow training down, because every step is drawn (`show: obs` draws none).
"""

import io
import json
import math
import os
import secrets
import sys
import threading
import time
import webbrowser
from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qs, urlsplit

import numpy as np

from envs.transitions import Transitions, map_obs
from lodestar.settings import setting
from rewards.llm.judges.base import SegmentJudge
from rewards.preference.answers import PICTURE_NUMBERS, KeptAnswers, Pair, fingerprint, pack_segments

# What is shown step by step: either frames (JPEG), texts, or rows of numbers.
Clip: TypeAlias = dict[str, list[Any]]
# The newest frames are kept, a few KB each; questions about older ones are not asked.
MAX_PICTURES = 20_000
UNDO_SECONDS = 10.0
MAX_PLOTTED_NUMBERS = 12
MAX_BODY_BYTES = 4096
ANSWER_LABELS = {"left": 0.0, "right": 1.0, "equal": 0.5, "skip": math.nan}
DEFAULT_QUESTION = "Which clip does the task better?"
PAGE_HOST = "127.0.0.1"
# How a browser names this machine, also through a tunnel.
HOST_NAMES = (PAGE_HOST, "localhost")


@dataclass(eq=False)
class Human(SegmentJudge):
    """Opens its page with the first question, and prints the address."""

    answers: str = setting("preferences.jsonl", "file of answers, extended, and begun with; judge=recorded reads it")
    show: str = setting("frame", "of a clip: its frames, its texts, or a plot of observations", "frame | text | obs")
    frame_size: int | None = setting(160, "height and width of a frame, pixels", "[8, 1024]")
    aspect: float | None = setting(
        None, "width over height at which the page shows frames; None: a run's environment's, else 1", "> 0"
    )
    question: str = setting("", "what the page asks; else whether a clip is nearer to the environment's first goal")
    port: int = setting(0, "of the page on 127.0.0.1; 0 takes a free one", "[0, 65535]")
    browser: bool = setting(True, "whether to open it in a browser, where there is a screen and a terminal")
    wait: bool = setting(False, "whether each session waits until its questions are answered, as for runners.offline")

    name = "human"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.requires = frozenset({"next_obs" if self.show == "obs" else self.show})
        self.embedding = PICTURE_NUMBERS if self.show == "frame" else None
        self.frame_size = self.frame_size if self.show == "frame" else None
        self.kept = KeptAnswers(self.answers)
        if self.kept.path.is_file() and self.kept.path.read_bytes()[:1] not in (b"", b"{"):
            raise ValueError(f"judge human: answers={self.answers} is of another kind; give JSON lines, or a new file")
        self.questions = Questions(self.kept)
        self.show_in_proportion(self.aspect or 1.0)
        self.questions.text = self.question or DEFAULT_QUESTION
        self.page: Page | None = None
        self._pictures: dict[int, str] = {}
        # Pictures of another process have other numbers.
        self._next_number = time.time_ns()

    def ask(self, first: Transitions, second: Transitions, most: int) -> tuple[Transitions, Transitions, np.ndarray]:
        """Let these pairs wait in place of those not shown yet; the answers since the last call, `most` at most."""
        questions = self.questions
        pairs = zip(fingerprint(first), fingerprint(second))
        clips = zip(self._clips(first), self._clips(second))
        new = []
        for b, (pair, (left, right)) in enumerate(zip(pairs, clips)):
            if left and right:
                new.append(Question(pair, first[:, b], second[:, b], (left, right)))
        with questions.lock:
            self.kept.drop_segments_unlike(first)
            questions.budget = len(self.kept.taken) + most
            questions.replace(new)
        if self.page is None and questions.open():
            self._open()
        while self.wait and questions.open():
            time.sleep(0.05)
        with questions.lock:
            return self.kept.take(first, most, questions.undoable_pair(0.0 if self.wait else UNDO_SECONDS))

    def show_in_proportion(self, aspect: float) -> None:
        """Show frames, which are squares, at `aspect`: width over height of what the environment draws."""
        self.questions.aspect = aspect

    def introduce_task(self, task: str, goal: str = "") -> None:
        """Show this task, and ask about its goal, a sentence, unless the user gave a question."""
        self.questions.task = task
        if goal and not self.question:
            self.questions.text = f"Which clip is nearer to “{goal}”?"

    def compare(self, first: Transitions, second: Transitions) -> np.ndarray:
        raise TypeError("a person answers later; call ask")

    def embed(self, batch: Transitions) -> np.ndarray:
        """Keep the frames, and return the numbers (N, 1) under which they are found."""
        from PIL import Image

        if batch.frame is None:
            raise ValueError(f"the judge human shows frames, and these have none; use frame_size={self.frame_size}")
        for frame in batch.frame:
            file = io.BytesIO()
            Image.fromarray(frame).save(file, "JPEG", quality=85, subsampling=0)
            # JSON holds it in this form.
            self._pictures[self._next_number] = b64encode(file.getvalue()).decode()
            self._next_number += 1
        while len(self._pictures) > MAX_PICTURES:
            del self._pictures[next(iter(self._pictures))]
        return np.arange(self._next_number - len(batch.frame), self._next_number)[:, None]

    def reach(self) -> str:
        try:
            ThreadingHTTPServer((PAGE_HOST, self.port), _Handler).server_close()
        except OSError:
            return f"port={self.port} of the judge human is in use; give another, or 0 for any"
        return ""

    def notes(self) -> list[str]:
        file = f"answers are kept in {self.answers}, which has {len(self.kept):,}"
        return [f"a person compares clips; {file}", *self.kept.notes()]

    def state_dict(self) -> dict[str, Any]:
        return self.kept.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept.load_state_dict(state)

    def close(self) -> None:
        if self.page is not None:
            self.page.close()
            self.page = None
            print(f"questions: closed; {len(self.kept):,} answers are in {self.answers}", flush=True)

    def _open(self) -> None:
        self.page = Page(self.questions, self.port)
        print(f"questions: {self.page.address}", flush=True)
        display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        has_screen = display or sys.platform in ("win32", "darwin")
        if self.browser and has_screen and sys.stdout.isatty():
            with suppress(webbrowser.Error):
                webbrowser.open(self.page.address)

    def _clips(self, segments: Transitions) -> list[Clip]:
        """What is shown of each of B segments (L, B); empty for one whose frames are gone."""
        if self.show == "text":
            texts: Any = segments.text
            return [{"texts": list(map(str, text))} for text in texts.T]
        if self.show == "obs":
            parts: list[Any] = []
            map_obs(parts.append, segments.next_obs)
            numbers = [np.asarray(part, float).reshape(*segments.shape, -1) for part in parts]
            rows = np.round(np.concatenate(numbers, axis=-1)[..., :MAX_PLOTTED_NUMBERS], 5)
            return [{"rows": row} for row in rows.swapaxes(0, 1).tolist()]
        pictures = segments.extras.get(PICTURE_NUMBERS)
        # With `of=frame` the segments hold the frames themselves.
        if pictures is None:
            pictures = self.embed(segments.flatten()).reshape(*segments.shape, 1)
        clips: list[Clip] = []
        for picture_numbers in pictures[..., 0].T.tolist():
            frames = list(map(self._pictures.get, picture_numbers))
            clips.append({"frames": frames} if all(frames) else {})
        return clips


class Question(NamedTuple):
    """Two segments (L,), and what is shown of each."""

    pair: Pair
    first: Transitions
    second: Transitions
    clips: tuple[Clip, Clip]

    @property
    def id(self) -> str:
        return " ".join(self.pair)


class Questions:
    """What is asked, shared by the reward and any number of tabs: one question at a time, the first answer counts."""

    def __init__(self, kept: KeptAnswers) -> None:
        self.kept = kept
        # To be held around `undoable_pair`, `replace` and changes of `kept`.
        self.lock = threading.RLock()
        # Width over height of frames on the page.
        self.aspect = 1.0
        # What is asked about two clips, and the environment that they are from.
        self.text = DEFAULT_QUESTION
        self.task = ""
        self.budget = 0
        # The next question is the last of those that wait.
        self.waiting: list[Question] = []
        self.current: Question | None = None
        # What was answered and can be taken back, and when.
        self.given: list[tuple[Question, float]] = []
        self.counts = dict.fromkeys(("asked", "answered", "skipped"), 0)

    def replace(self, questions: list[Question]) -> None:
        """These wait instead of those that were not shown yet, unless they were answered before."""
        labels = self.kept.labels
        waiting = {}
        for question in questions:
            if question.pair not in labels and question.pair[::-1] not in labels:
                waiting[question.pair] = question
        self.waiting = list(waiting.values())

    def undoable_pair(self, seconds: float) -> Pair | None:
        """The pair of the last answer, while it can be taken back; what came before cannot."""
        if self.given:
            question, answered_at = self.given[-1]
            if time.monotonic() - answered_at < seconds:
                self.given = self.given[-1:]
                return question.pair
        self.given = []
        return None

    def open(self) -> bool:
        return (self.current is not None or bool(self.waiting)) and len(self.kept) < self.budget

    def view(self, have: str = "", message: str = "") -> dict[str, Any]:
        """What the page shows next, as JSON holds it; without its clips if the page `have`s that question."""
        with self.lock:
            if not self.open():
                self.current = None
            elif self.current is None:
                self.current = self.waiting.pop()
                self.counts["asked"] += 1
            question: dict[str, Any] | None = None
            if self.current is not None:
                question = {"id": self.current.id, "aspect": self.aspect}
                if self.current.id != have:
                    question["clips"] = list(self.current.clips)
            return {
                "question": question,
                "text": self.text,
                "task": self.task,
                "undo": bool(self.given),
                "message": message,
                "budget": self.budget,
                "labels": len(self.kept),
                "file": str(self.kept.path),
                **self.counts,
            }

    def answer(self, id: str, answer: str) -> dict[str, Any]:
        label = ANSWER_LABELS[answer]
        with self.lock:
            current = self.current
            if current is None or current.id != id:
                return self.view(message="This question was answered already; here is the next one.")
            self.kept.append(current.pair, label, pack_segments(current.first, current.second))
            self.given.append((current, time.monotonic()))
            self.counts["skipped" if math.isnan(label) else "answered"] += 1
            self.current = None
            self.replace(self.waiting)
            return self.view()

    def undo(self) -> dict[str, Any]:
        with self.lock:
            if not self.given:
                return self.view(message="There is no answer that the reward has not learned from.")
            question, _ = self.given[-1]
            skipped = math.isnan(self.kept.labels[question.pair])
            # If the file cannot be written, the answer stays as it is.
            self.kept.append(question.pair, math.nan)
            del self.kept.labels[question.pair]
            self.given.pop()
            self.counts["skipped" if skipped else "answered"] -= 1
            if self.current is not None:
                self.waiting.append(self.current)
                self.counts["asked"] -= 1
            self.current = question
            return self.view(message="Taken back; please answer again.")


class Page(ThreadingHTTPServer):
    """A server on 127.0.0.1 that gives nothing without the token in its address, from threads of its own.

        GET  /?token=T                the page
        GET  /next?token=T&have=ID    what to show now, as JSON
        POST /answer?token=T          {"id": ID, "answer": "left", "right", "equal" or "skip"}, then what to show next
        POST /undo?token=T            takes the last answer back

    A request that names another host is refused, too (DNS rebinding). OSError if the port is in use.
    """

    def __init__(self, questions: Questions, port: int) -> None:
        self.questions = questions
        self.token = secrets.token_urlsafe(24)
        super().__init__((PAGE_HOST, port), _Handler)
        self.address = f"http://{PAGE_HOST}:{self.server_port}/?token={self.token}"
        threading.Thread(target=self.serve_forever, args=(0.1,), name="questions", daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what went wrong, but for a browser that left before it had its answer."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Page
    # Seconds for a request to arrive.
    timeout = 30
    server_version = "lodestar"
    sys_version = ""

    def do_GET(self) -> None:
        route, query = self._admit()
        if route == "/":
            nonce = secrets.token_urlsafe(16)
            page = files(__package__).joinpath("page.html").read_text(encoding="utf-8").replace("NONCE", nonce)
            self._reply(200, "text/html; charset=utf-8", page, nonce)
        elif route == "/next":
            self._reply_json(self.server.questions.view(have=query.get("have", [""])[0]))
        elif route:
            self._refuse(404, "There is nothing here.")

    def do_POST(self) -> None:
        route, _ = self._admit()
        if not route:
            return
        try:
            message = json.loads(self._read_body() or "{}")
            if route == "/undo":
                self._reply_json(self.server.questions.undo())
            elif route == "/answer":
                self._reply_json(self.server.questions.answer(str(message["id"]), message["answer"]))
            else:
                self._refuse(404, "There is nothing here.")
        except OSError as error:
            self._refuse(507, f"The answer could not be written, and does not count: {error}")
        except (ValueError, TypeError, LookupError):
            self._refuse(400, f"An answer is an id and one of {', '.join(ANSWER_LABELS)}.")

    def _read_body(self) -> bytes:
        """What was sent, at most `MAX_BODY_BYTES`; a ValueError for a length below 0, which would read to the end."""
        length = int(self.headers.get("Content-Length", 0))
        if length < 0:
            raise ValueError(f"Content-Length={length} is below 0")
        return self.rfile.read(min(length, MAX_BODY_BYTES))

    def _admit(self) -> tuple[str, dict[str, list[str]]]:
        """Route and query of a request that may be answered; "" for one that was refused."""
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        # A host may come with a port, or without.
        host, _, last = self.headers.get("Host", "").rpartition(":")
        token = query.get("token", [""])[0]
        if (host or last) not in HOST_NAMES:
            self._refuse(403, "This page belongs to 127.0.0.1; open the address that the run printed.")
        elif not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(403, "Open the whole address that the run printed; it ends in a token.")
        else:
            return url.path or "/", query
        return "", {}

    def _reply_json(self, view: dict[str, Any]) -> None:
        self._reply(200, "application/json", json.dumps(view))

    def _refuse(self, status: int, sentence: str) -> None:
        self._reply(status, "text/plain; charset=utf-8", sentence + "\n")

    def _reply(self, status: int, kind: str, text: str, nonce: str = "") -> None:
        body = text.encode()
        # Only the page's own script and style run, which name the nonce.
        source = f"'nonce-{nonce}'"
        policy = f"default-src 'none'; script-src {source}; style-src {source}; img-src data:; connect-src 'self'"
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
