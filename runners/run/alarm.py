"""Says when an agent has found out how to please the learned reward at the task's expense.

While a run is logged, the task's return and the learned one are watched side by side. If over the last `WINDOW` rows
(or twice as many, or four times) the learned return rose and the task's fell, both by a fifth of all they have ever
moved and by more than they scatter, one sentence says so, `reward/alarm` is 1, and the curve is shaded there. Training
goes on: only the user knows whether the task's reward is what was wanted.

The phenomenon is known as reward hacking, or over-optimisation of a proxy (Gao et al. 2022, arXiv 2210.10760).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.logger import KVWriter

WINDOW = 10  # rows of the log
SHARE = 0.2  # of the range seen so far that both must have moved
CLEAR = 2.0  # times the scatter around the line that both must have moved


def apart(task: Sequence[float] | np.ndarray, learned: Sequence[float] | np.ndarray) -> np.ndarray:
    """Rows at which the learned return rises while the task's falls, bool, one for each row."""
    values = np.array([task, learned], np.float64)
    found = np.zeros(values.shape[1], bool)
    for end in range(WINDOW, values.shape[1] + 1):
        found[end - 1] = _since(values[:, :end]) is not None
    return found


def _since(values: np.ndarray) -> int | None:
    """Rows ago at which the shortest window begins over which the two (task, learned) parted by the last row."""
    span = np.ptp(values, axis=1)
    length = WINDOW
    while length <= values.shape[1]:
        window = values[:, -length:]
        x = np.arange(length) - (length - 1) / 2
        slope = window @ x / (x @ x)
        scatter = (window - window.mean(1, keepdims=True) - slope[:, None] * x).std(1)
        change = slope * (length - 1)
        enough = np.maximum(SHARE * span, CLEAR * scatter)
        if -change[0] > enough[0] and change[1] > enough[1]:
            return length
        length *= 2
    return None


class Alarm(KVWriter):
    """Reads along with the log, before the writers, and adds `reward/alarm`; speaks once a stretch of alarms.

    Args:
        task: tag of the task's return.
        learned: tag of the learned return.
        say: prints a sentence.
        rows: earlier rows of the log, of a run that continues.
    """

    def __init__(
        self, task: str, learned: str, say: Callable[[str], None], rows: Sequence[dict[str, str]] = ()
    ) -> None:
        self.tags = (task, learned)
        self.say = say
        self.quiet = WINDOW  # rows since the last alarm
        self.steps: list[int] = []
        self.values: list[tuple[float, float]] = []
        for row in rows:
            if row.get(task) and row.get(learned):
                self.steps.append(int(row["step"]))
                self.values.append((float(row[task]), float(row[learned])))

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        if not all(tag in key_values for tag in self.tags):
            return
        self.steps.append(step)
        self.values.append((float(key_values[self.tags[0]]), float(key_values[self.tags[1]])))
        since = _since(np.array(self.values, np.float64).T)
        key_values["reward/alarm"] = float(since is not None)
        before, self.quiet = self.quiet, 0 if since is not None else self.quiet + 1
        if since is not None and before >= WINDOW:
            (task, learned), (task_now, learned_now) = self.values[-since], self.values[-1]
            self.say(
                f"alarm: since step {self.steps[-since]:,} the learned return rose from {learned:.4g} to "
                f"{learned_now:.4g} while the task's fell from {task:.4g} to {task_now:.4g}; the agent may be pleasing "
                "the reward instead of doing the task: look at curve.png and the film"
            )

    def close(self) -> None:
        """Nothing is held open."""
