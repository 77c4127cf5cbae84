"""When to stop asking a judge that does not answer, and when to try again.

    closed --5 failures in a row, or more than half of the last 30 s--> open --30 s--> one question, the probe
       ^                                                                   ^                |
       +--------------------------- it is answered ------------------------+- it fails -----+

Source: Nygard 2007, "Release It!", section 5.2 (circuit breaker). Times are handed in, in seconds of any steady clock.
When it fails: a judge that answers every other question costs its failures for ever; it never closes the breaker long.
"""

from __future__ import annotations

from collections import deque

IN_A_ROW = 5
WINDOW, SHARE, LEAST = 30.0, 0.5, 10  # seconds, share of failures, answers below which a share means nothing


class Breaker:
    """Counts failures.

    Args:
        probe: seconds from the last failure to the next try.

    Attributes:
        open: whether questions are held back.
        streak: failures since the last success.
    """

    def __init__(self, probe: float = 30.0) -> None:
        self.probe = probe
        self.open, self.streak = False, 0
        self.until = 0.0  # when the next probe may go, while open
        self.probing = False  # a probe is on its way
        self._recent: deque[tuple[float, bool]] = deque()

    def room(self, now: float) -> int | None:
        """How many questions may be put: None for any number."""
        if not self.open:
            return None
        return int(not self.probing and now >= self.until)

    def asked(self) -> None:
        """A question is on its way."""
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
            if self.probing:  # and not one that was on its way when the outage began
                self.probing, self.until = False, now + self.probe
            return False
        self._note(now, True)
        failures = sum(failed for _, failed in self._recent)
        often = len(self._recent) >= LEAST and failures > SHARE * len(self._recent)
        if self.streak < IN_A_ROW and not often:
            return False
        self.open, self.until = True, now + self.probe
        return True

    def _note(self, now: float, failed: bool) -> None:
        self._recent.append((now, failed))
        while self._recent[0][0] < now - WINDOW:
            self._recent.popleft()
