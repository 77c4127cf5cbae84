"""What an audit writes down of a training run, whatever trains: episodes and rows of a log, into one folder.

    episodes.csv   an episode a line: its last step, both returns, its length, whether it came after the first update
    metrics.csv    rows as `lodestar train` writes them: both returns, and each stream's mean, share and correlation

`runners.audit.verdict` reads them. A row looks back on the last 100 episodes.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lodestar.files import make_folder
from runners.run.config import Values
from runners.run.progress import LEARNED_RETURN, TASK_RETURN, Alarm, CSVLog

RETURN_WINDOW_EPISODES = 100
# A mean of fewer would raise alarms by chance.
MIN_WINDOW_EPISODES = 5
EPISODES_HEADER = "step,task,learned,length,updated"
# What the streams leave of the reward counts as a stream of its own from this share on.
MIN_REST_SHARE = 0.001
REST_STREAM = "rest"


@dataclass
class AuditedStep:
    """One step of N environments: arrays (N,).

    `reward` is what the agent learns from, None where only its library knows. `streams` are its parts. A row that only
    resets an environment is not `valid`. `updated`: whether the agent has learned before.
    """

    task: np.ndarray
    reward: np.ndarray | None
    ended: np.ndarray
    streams: Mapping[str, np.ndarray]
    valid: np.ndarray
    updated: bool


class EpisodeEnd(NamedTuple):
    """Returns and length of an episode; the learned return is None where it is not known."""

    task: float
    learned: float | None
    length: int


class Recorder:
    """Follows N environments and writes both files; a row each `every` environment steps, none if that is 0.

    `measure` returns a row's metrics of the rewards where no step tells them, as behind a replay buffer.
    """

    def __init__(
        self,
        folder: Path,
        n: int,
        every: int,
        say: Callable[[str], None] = print,
        measure: Callable[[], dict[str, float]] | None = None,
    ) -> None:
        if (folder / "config.yaml").exists():
            raise ValueError(f"folder={str(folder)!r} is a run of `lodestar train`; give an audit a folder of its own")
        self.folder = make_folder(folder)
        self.every = every
        self.measure = measure
        self.steps = 0
        self._logged = 0
        self._task = np.zeros(n)
        self._learned = np.zeros(n)
        self._length = np.zeros(n, int)
        self._window: deque[EpisodeEnd] = deque(maxlen=RETURN_WINDOW_EPISODES)
        self._since_row: list[AuditedStep] = []
        self._episodes = (folder / "episodes.csv").open("w", encoding="utf-8")
        print(EPISODES_HEADER, file=self._episodes, flush=True)
        # The alarm comes first, as the log writes what it adds.
        self.writers = [Alarm(say), CSVLog(folder / "metrics.csv")]

    def add(self, step: AuditedStep) -> None:
        """Take in a step, and write what is complete with it."""
        self.steps += int(step.valid.sum())
        self._task += np.where(step.valid, step.task, 0.0)
        if step.reward is not None:
            self._learned += np.where(step.valid, step.reward, 0.0)
        self._length += step.valid
        for row in np.flatnonzero(step.ended & step.valid).tolist():
            self._end_episode(row, step)
        if not self.every:
            return
        self._since_row.append(step)
        if self.steps - self._logged >= self.every:
            self.write_row()

    def _end_episode(self, row: int, step: AuditedStep) -> None:
        learned = None if step.reward is None else float(self._learned[row])
        episode = EpisodeEnd(float(self._task[row]), learned, int(self._length[row]))
        self._window.append(episode)
        learned_text = "" if learned is None else f"{learned:.8g}"
        cells = (str(self.steps), f"{episode.task:.8g}", learned_text, str(episode.length), str(int(step.updated)))
        print(",".join(cells), file=self._episodes, flush=True)
        self._task[row] = 0
        self._learned[row] = 0
        self._length[row] = 0

    def write_row(self) -> None:
        """A row of the log about the steps since the last one."""
        if not self._since_row:
            return
        values: Values = self.measure() if self.measure else stream_metrics(self._since_row)
        # A buffer whose rewards have just learned has nothing to measure before the next step.
        if not values:
            return
        self._logged = self.steps
        self._since_row = []
        values |= self.window_returns()
        for writer in self.writers:
            writer.write(values, {}, self.steps)

    def window_returns(self) -> dict[str, float]:
        """Mean returns and length of the last episodes, by tag; none where they are few."""
        if len(self._window) < MIN_WINDOW_EPISODES:
            return {}
        means = {
            TASK_RETURN: float(np.mean([episode.task for episode in self._window])),
            "rollout/ep_len_mean": float(np.mean([episode.length for episode in self._window])),
        }
        learned = [episode.learned for episode in self._window if episode.learned is not None]
        if learned:
            means[LEARNED_RETURN] = float(np.mean(learned))
        return means

    @property
    def is_open(self) -> bool:
        """Whether `close` was not called yet."""
        return not self._episodes.closed

    def close(self) -> None:
        """Write the last row, and close the files."""
        self.write_row()
        self._episodes.close()
        for writer in self.writers:
            writer.close()


def stream_metrics(steps: list[AuditedStep]) -> Values:
    """Mean, share of the absolute reward and correlation with the task, by tag, of each stream over these steps.

    Their `reward` is known.
    """
    valid = np.concatenate([step.valid for step in steps])
    task = np.concatenate([step.task for step in steps])[valid]
    total = np.concatenate([np.asarray(step.reward) for step in steps])[valid]
    metrics: Values = {"reward/total": float(total.mean()) if len(total) else 0.0}
    parts = {}
    for name in steps[0].streams:
        parts[name] = np.concatenate([step.streams[name] for step in steps])[valid]
    if not parts or not len(total):
        return metrics
    rest = total - np.sum(list(parts.values()), axis=0)
    if np.abs(rest).mean() > MIN_REST_SHARE * np.abs(total).mean():
        parts[REST_STREAM] = rest
    size = sum(float(np.abs(part).mean()) for part in parts.values())
    for name, part in parts.items():
        metrics[f"reward/{name}"] = float(part.mean())
        metrics[f"reward/{name}_share"] = float(np.abs(part).mean()) / size if size > 0 else 0.0
        if name != "task" and part.std() > 0 and task.std() > 0:
            metrics[f"reward/{name}_corr"] = float(np.corrcoef(part, task)[0, 1])
    return metrics
