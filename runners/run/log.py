"""Where numbers go: TensorBoard, metrics.csv and the live line, all through Stable-Baselines3's Logger.

`TAGS` is the glossary of every tag a run may write. A log is never worth a run: a writer that meets a full disk is
switched off with one warning, and training continues.
"""

from __future__ import annotations

import csv
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from stable_baselines3.common.logger import KVWriter, Logger, filter_excluded_keys

from runners.run.checkpoint import write_atomically

WINDOW = 10  # rows of the log
SHARE = 0.2  # of the range seen so far that both must have moved
CLEAR = 2.0  # times the scatter around the line that both must have moved
TASK_RETURN = "rollout/ep_rew_mean"
LEARNED_RETURN = "rollout/ep_learned_mean"

TAGS: dict[str, str] = {
    TASK_RETURN: "task return of an episode, mean of the last 100; never touched by a learned reward",
    "rollout/ep_len_mean": "steps in an episode, mean of the last 100",
    LEARNED_RETURN: "return of an episode in the agent's own reward, mean of the last 100",
    "rollout/success_rate": "share of the last 100 episodes that met the task's goal, where the environment reports it",
    "rollout/exploration_rate": "share of random actions (DQN, QR-DQN)",
    "reward/<name>": "mean score of a stream over the last batch, before weight and scale",
    "reward/<name>_share": "share of the stream in the mean absolute reward, 0 to 1",
    "reward/<name>_corr": "correlation of the stream with the task's reward over the batch, -1 to 1",
    "reward/<name>_scale": "what the stream is divided by",
    "reward/alarm": "1 while the learned return rises and the task's falls, else 0",
    "reward/total": "mean reward per step of the agent's own reward",
    "reward/nan": "rewards so far that were NaN or infinite and replaced by 0 (on_nan=zero)",
    "env/restarts": "worker processes replaced so far, written when one was",
    "<name>/<metric>": "what a reward reports about its own learning, explained in its file",
    "train/<metric>": "losses and schedules of the agent, as Stable-Baselines3 names them",
    "time/fps": "environment steps per second since the start of this process",
    "time/episodes": "episodes so far (off-policy agents)",
    "time/time_elapsed": "seconds since the start of this process",
    "time/total_timesteps": "environment steps so far, summed over environments",
}


def explain(tag: str) -> str | None:
    """The glossary's sentence for a tag, or None for a tag it does not know; the most literal entry wins."""
    for pattern in sorted(TAGS, key=lambda pattern: (pattern.count("<"), -len(pattern))):
        expression = re.escape(pattern).replace("<name>", r"\w+").replace("<metric>", r"[\w/]+")
        if re.fullmatch(expression, tag):
            return TAGS[pattern]
    return None


def make_logger(folder: Path, live: Live, *, step: int = 0, warn: Callable[[str], None] = print) -> Logger:
    """The logger of a run that starts, or continues, at `step`; older rows after `step` are dropped."""
    path = folder / "metrics.csv"
    earlier = [row for row in read_csv(path) if int(row["step"]) <= step] if step and path.exists() else []
    writers: list[KVWriter] = [
        Alarm(TASK_RETURN, LEARNED_RETURN, live.say, earlier),  # first: what it adds is written by the others
        Guarded("metrics.csv", lambda: CSVLog(path, step), warn),
        Guarded("tensorboard", lambda: TensorBoardLog(folder / "tensorboard", step), warn),
        live,
    ]
    return Logger(str(folder), writers)


class Guarded(KVWriter):
    """A writer that is switched off, with one warning, at its first error from the disk."""

    def __init__(self, name: str, make: Callable[[], Any], warn: Callable[[str], None] = print) -> None:
        self.name, self.warn = name, warn
        self.writer: Any = None
        self._try(lambda: setattr(self, "writer", make()))

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        if self.writer is not None:
            self._try(lambda: self.writer.write(key_values, key_excluded, step))

    def close(self) -> None:
        if self.writer is not None:
            self._try(lambda: self.writer.close())

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            self.writer = None
            self.warn(f"{self.name} is switched off for the rest of this run ({error}); training continues")


class CSVLog(KVWriter):
    """One row per dump, one column per tag; a new tag adds a column. Continues an existing file at `step`."""

    def __init__(self, path: Path, step: int = 0) -> None:
        self.path = path
        self.columns = ["step"]
        rows: list[dict[str, str]] = []
        if path.exists() and step > 0:
            rows = [row for row in read_csv(path) if int(row["step"]) <= step]
            self.columns = list(rows[0]) if rows else ["step"]
        self._rewrite(rows)

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        row = {"step": step, **{k: f"{v:.8g}" for k, v in sorted(scalars(key_values).items())}}
        new = [key for key in row if key not in self.columns]
        if new:
            self.file.close()
            rows = read_csv(self.path)
            self.columns += new
            self._rewrite(rows)
        csv.DictWriter(self.file, self.columns, restval="").writerow(row)
        self.file.flush()

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        lines = [",".join(self.columns), *(",".join(row.get(c, "") for c in self.columns) for row in rows)]
        write_atomically(self.path, "\r\n".join(lines) + "\r\n")
        self.file = self.path.open("a", newline="")

    def close(self) -> None:
        self.file.close()


def read_csv(path: Path) -> list[dict[str, str]]:
    """Rows of a metrics.csv; a last line that a kill cut short is left out."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    if not rows:
        return []
    header = rows[0]
    whole = [row for row in rows[1:] if len(row) == len(header) and row[0].isdigit()]
    return [dict(zip(header, row)) for row in whole]


class TensorBoardLog(KVWriter):
    """Scalars for TensorBoard; a run that continues at `step` hides what a killed process wrote after it.

    It writes in the caller's thread: the usual SummaryWriter has a thread of its own, which loses rows to `kill -9` and
    dies with a traceback on a full disk.
    """

    def __init__(self, folder: Path, step: int = 0) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        folder.mkdir(parents=True, exist_ok=True)
        # The counter keeps the order of a run's files for a reader that sorts them by name.
        name = f"events.out.tfevents.{int(time.time()):010d}.{len(list(folder.iterdir())):04d}.{os.getpid()}"
        self.file = RecordWriter((folder / name).open("wb"))
        self._add(self._event(wall_time=time.time(), file_version="brain.Event:2"))
        if step > 0:  # "forget the steps from here on in the files before this one"
            start = SessionLog(status=SessionLog.START)
            self._add(self._event(wall_time=time.time(), step=step + 1, session_log=start))
        self.file.flush()

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        found = scalars(filter_excluded_keys(key_values, key_excluded, "tensorboard"))
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in sorted(found.items())]
        self._add(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))
        self.file.flush()

    def _add(self, event: Any) -> None:
        self.file.write(event.SerializeToString())

    def close(self) -> None:
        self.file.close()


def scalars(values: dict[str, Any]) -> dict[str, float]:
    """The numbers among logged values."""
    return {
        key: float(value)
        for key, value in values.items()
        if isinstance(value, int | float | np.number) or (hasattr(value, "item") and getattr(value, "ndim", 1) == 0)
    }


class Live(KVWriter):
    """The line that moves: progress with the time left, task return, learned return, frames per second.

    On a terminal it is a bar; elsewhere it is one plain line every `every_s` seconds.
    """

    def __init__(self, total: int, start: int = 0, *, stream: TextIO | None = None, every_s: float = 10.0) -> None:
        self.total, self.start = total, start
        self.stream = sys.stdout if stream is None else stream
        self.began = self.last = time.monotonic()
        self.learned: float | None = None
        self.bar: Any = None
        self.wants_bar = self.stream.isatty()
        self.every_s = 0.2 if self.wants_bar else every_s

    def _open_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self.wants_bar = False
        self.bar = Progress(
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.description}"),
            console=Console(file=self.stream),
            refresh_per_second=4,
        )
        self.task = self.bar.add_task("", total=self.total, completed=self.start)
        self.bar.start()

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        self.learned = key_values.get(LEARNED_RETURN, self.learned)

    def update(self, step: int, task_return: Callable[[], float | None], *, force: bool = False) -> None:
        """Show `step` when it is time to, or `force`; only then is the task return computed."""
        now = time.monotonic()
        if now - self.last < self.every_s and not force:
            return
        self.last = now
        if self.wants_bar:
            self._open_bar()
        rate = (step - self.start) / max(now - self.began, 1e-9)
        words = self._words(task_return(), rate)
        if self.bar is not None:
            self.bar.update(self.task, completed=min(step, self.total), description=words)
            return
        left = max(self.total - step, 0) / rate if rate > 0 else float("inf")
        share = min(100 * step // self.total, 100)
        print(f"{share:3d} %  step {step:,}  {_clock(left)} left  {words}", file=self.stream, flush=True)

    def _words(self, task_return: float | None, rate: float) -> str:
        task = "-" if task_return is None else f"{task_return:.4g}"
        learned = "-" if self.learned is None else f"{self.learned:.4g}"
        return f"task return {task}  learned return {learned}  {rate:,.0f} frames/s"

    def say(self, sentence: str) -> None:
        """Print a sentence above the bar."""
        if self.bar is not None:
            self.bar.console.print(sentence, markup=False, highlight=False, soft_wrap=True)
        else:
            print(sentence, file=self.stream, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def _clock(seconds: float) -> str:
    if seconds == float("inf"):
        return "?:??"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


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
    """Says when an agent raises the learned reward at the task's expense: reward hacking (Gao et al. 2022, 2210.10760).

    It reads the rows before the writers. If over the last `WINDOW` of them (or twice or four times as many) the learned
    return rose and the task's fell, both by a fifth of all they have ever moved and by more than they scatter, one
    sentence says so, `reward/alarm` is 1, and the curve is shaded there. Training continues: only the user knows
    whether the task's reward is what was wanted.

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
                "the reward instead of doing the task: look at curve.png and video.mp4"
            )

    def close(self) -> None:
        """Nothing is held open."""
