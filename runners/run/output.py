"""What commands print: on streams that outlive what reads them, as no line is worth the command; times as a clock.

Texts of others are printed, too: an environment's error, the name of a folder. What would steer the terminal in them,
such as its title or its clipboard, is shown instead; only what a command styles itself (`style_stream`) gets through.
"""

import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any

# A command that has printed nothing for so long says what it does.
SIGN_OF_LIFE_S = 8.0
SILENCE_POLL_S = 0.5

COLOUR = re.compile(r"\x1b\[[\d;]*m")
# Control characters, but for those that end lines and indent -> as Python writes them.
ESCAPED_CONTROLS = {code: f"\\x{code:02x}" for code in {*range(32), *range(127, 160)} - {*b"\n\r\t"}}


def plain_text(text: str) -> str:
    """A text of others without its colours, Gymnasium's for one, and with its other control characters shown."""
    return COLOUR.sub("", text).translate(ESCAPED_CONTROLS)


def aligned_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of a table as lines of text whose columns begin below each other."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for row in rows:
        cells = "  ".join(map(str.ljust, row, widths))
        lines.append(cells.rstrip())
    return lines


class Activity:
    """What this process is doing, in words, since when, and when it last printed something."""

    def __init__(self) -> None:
        self.words = ""
        self._values: tuple[int, ...] = ()
        self._began = time.monotonic()
        self.last_output = self._began

    def begin(self, words: str, *values: int) -> None:
        """From now on it does this: words, a format for the values; "" for what needs no sign of life."""
        if words != self.words:
            self._began = time.monotonic()
        self.words = words
        self._values = values

    def sign(self, now: float) -> str:
        """One line; "" where it has printed something lately."""
        if not self.words or now - self.last_output < SIGN_OF_LIFE_S:
            return ""
        return f"{self.words.format(*self._values)}: {clock(now - self._began)} so far"


activity = Activity()


@contextmanager
def signs_of_life(words: str) -> Iterator[None]:
    """While this lasts, a line on standard error ends every silence of `SIGN_OF_LIFE_S`."""
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(SILENCE_POLL_S):
            line = activity.sign(time.monotonic())
            if line:
                activity.last_output = time.monotonic()
                # The stream's own lock may be held where this process is copied, so the line goes around it.
                with suppress(OSError):
                    os.write(2, f"{line}\n".encode())

    activity.begin(words)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


class Lasting:
    """A text stream whose reader may go away, with a closed terminal or pipe, or on a full disk: it falls silent.

    What is written is `plain_text`, unless it is `own_style`.
    """

    def __init__(self, stream: Any, own_style: bool = False) -> None:
        self._stream = stream
        self._own_style = own_style

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, if that is still possible."""
        activity.last_output = time.monotonic()
        try:
            self._stream.write(text if self._own_style else plain_text(text))
        except OSError:
            self._fall_silent()
        return len(text)

    def flush(self) -> None:
        """Flush, if that is still possible."""
        try:
            self._stream.flush()
        except OSError:
            self._fall_silent()

    def _fall_silent(self) -> None:
        """What is buffered goes nowhere, too; else Python would fail over it again when it ends."""
        with suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())


def style_stream(stream: Any) -> Any:
    """The stream below, to which colours and moves of the cursor can be written."""
    if not isinstance(stream, Lasting):
        return stream
    while isinstance(stream, Lasting):
        stream = stream._stream
    return Lasting(stream, own_style=True)


@contextmanager
def lasting_output() -> Iterator[None]:
    """Standard output and error as `Lasting` streams."""
    with redirect_stdout(Lasting(sys.stdout)), redirect_stderr(Lasting(sys.stderr)):  # type: ignore[type-var]
        yield


class Ticker:
    """A sign of life from what takes long: a line every eight seconds."""

    def __init__(self, what: str) -> None:
        self.what = what
        # A path in it may hold braces, which are no places of values.
        self._words = what.replace("{", "{{").replace("}", "}}")
        self._last = time.monotonic()

    def __call__(self, where: str, *values: int) -> None:
        """Print where it is, a format for the values, if it is time to."""
        activity.begin(f"{self._words}: {where}", *values)
        now = time.monotonic()
        if now - self._last >= SIGN_OF_LIFE_S:
            self._last = now
            print(f"{self.what}: {where.format(*values)}", flush=True)


def number_text(value: float | None) -> str:
    """A number to four digits; - where there is none."""
    return "-" if value is None else f"{value:.4g}"


def clock(seconds: float) -> str:
    """As in 0:07, 12:30 or 3:05:00; ?:?? for infinity."""
    if seconds == float("inf"):
        return "?:??"
    minutes, seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{seconds:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
