"""What a run writes while it trains: checkpoints, rows of metrics.csv and TensorBoard, and the live line.

`Saver` is the callback that does so. State is taken and given back at one kind of moment only, between two rollouts,
where the current observation is known and the last update is complete. That is why a run that was killed and started
again ends with the same weights.

Numbers go through Stable-Baselines3's Logger; docs/runs.md explains every tag that a run may write. A log is never
worth a run: a writer that meets a full disk is switched off with one warning, and training continues.
"""

import csv
import itertools
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger, filter_excluded_keys
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from agents.sb3 import agent as sb3
from envs.transitions import NotFinite, is_finite
from lodestar.files import make_folder, opened_text
from lodestar.state import pack, unpack
from runners.cli.output import clock, plain_text, styled
from runners.cli.value import is_float
from runners.run import checkpoint
from runners.run.config import LOG_EVERY, TrainConfig, UsageError, flatten
from runners.run.exits import Signals, Stopped
from runners.run.folder import RunFolder

if TYPE_CHECKING:
    from runners.run.build import Parts
    from runners.run.evaluator import Evaluator

Say = Callable[[str], None]
SLOW_ROLLOUT_S = 1.0  # a rollout that takes longer may be cut short by a signal
RETRY_S = 600.0  # after a save failed
WINDOW = 10  # rows of the log
SHARE = 0.2  # of the range seen so far that both must have moved
CLEAR = 2.0  # times the scatter around the line that both must have moved
TASK_RETURN = "rollout/ep_rew_mean"
LEARNED_RETURN = "rollout/ep_learned_mean"


class Saver(BaseCallback):
    """Put it first in the list of callbacks, so that the others begin the rollout with what was restored."""

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        parts: "Parts",
        signals: Signals,
        live: "Live",
        state: dict[str, Any] | None,
        evaluator: "Evaluator | None" = None,
    ) -> None:
        super().__init__()
        self.evaluator, self.coverage = evaluator, parts.coverage
        self.folder, self.signals, self.live = folder, signals, live
        self.mix, self.driver = parts.mix, cast(Any, parts.driver)
        self.every, self.log_every = config.checkpoint_every, config.log_every or LOG_EVERY
        self.storage_error: str | None = None  # of the last save, None once one succeeded again
        self.waiting = state  # to be restored at the first rollout
        self.due = False  # save at the next rollout's start, whenever the last time was
        self._saved = self._logged = 0
        self._failed_at = -RETRY_S
        self._finishing = False
        self._started = time.monotonic_ns()
        self._began = float("-inf")  # how long a rollout takes is not yet known: hold the first one
        self._held: tuple[Any, int] | None = None  # packed state of the running rollout's start

    def _init_callback(self) -> None:
        workers: Any = self.training_env.unwrapped
        if hasattr(workers, "say"):
            workers.say = self._replaced

    def capture(self) -> dict[str, Any]:
        """Everything the run needs to continue from here; valid between two rollouts."""
        venv: Any = self.training_env
        agent: Any = self.model
        return {
            "agent": agent.get_state() if hasattr(agent, "get_state") else sb3.get_state(agent),
            "masked": getattr(agent, "masked", False),  # by action masks
            "mix": self.mix.state_dict(),
            "driver": self.driver.state_dict() if hasattr(self.driver, "state_dict") else None,
            "envs": venv.snapshot() if hasattr(venv, "snapshot") else venv.env_method("snapshot"),
            "random": random_state(),
            "log": {"rows": self._logged, "pending": scalars(self.logger.name_to_value)},
            "evaluator": None if self.evaluator is None else self.evaluator.state_dict(),
            "coverage": None if self.coverage is None else self.coverage.state_dict(),
        }

    def restore(self, model: Any, training: bool = True) -> None:
        """The inverse of `capture`, once; without the environments where no step is left to train."""
        state, self.waiting = self.waiting, None
        if state is None:
            return
        if hasattr(model, "set_state"):
            model.set_state(state["agent"])
        else:
            sb3.set_state(model, state["agent"])
        if state.get("masked"):
            model.masked = True
        self.mix.load_state_dict(state["mix"])
        if training:
            if state["driver"] is not None:
                self.driver.load_state_dict(state["driver"])
            venv: Any = self.training_env
            if "parts" in state["envs"] and not hasattr(venv, "members"):
                raise UsageError("this run was saved by several actors; continue it with cluster=auto and workers=")
            if hasattr(venv, "restore"):
                venv.restore(state["envs"])
            else:
                for index, snapshot in enumerate(state["envs"]):
                    venv.env_method("restore", snapshot, indices=index)
            self._saved, self._logged = model.num_timesteps, state["log"]["rows"]
            for tag, value in state["log"]["pending"].items():
                self.logger.record(tag, value)
        if self.evaluator is not None and state.get("evaluator"):
            self.evaluator.load_state_dict(state["evaluator"])
        if self.coverage is not None and state.get("coverage"):
            self.coverage.load_state_dict(state["coverage"])
        set_random_state(state["random"])

    def _on_rollout_start(self) -> None:
        self.restore(self.model)
        step = self.num_timesteps = self.model.num_timesteps
        evaluated = self._evaluate()
        row_due = evaluated or step - self._logged >= self.log_every
        # A signal cut the evaluation short: the run that continues does it again, and writes the row with it.
        cut_short = self.evaluator is not None and self.evaluator.is_due(step)
        if row_due and not cut_short:
            self.dump()
        if self.signals.received is not None:
            self.save()
            raise Stopped(self.signals.received)
        if self.due or (self.every and step - self._saved >= self.every):
            self.save()
            self.due = False
        now = time.monotonic()
        holds = getattr(self.training_env, "holds", True) and now - self._began > SLOW_ROLLOUT_S
        self._held = (pack(self.capture()), step) if holds else None
        self._began = now

    def _on_step(self) -> bool:
        self.live.update(self.num_timesteps, self.task_return)
        if self.coverage is not None:
            self.coverage.add(self.locals["new_obs"])
        if self.signals.received is not None and self._held is not None:
            self.save_held()
            raise Stopped(self.signals.received)
        return True

    def _replaced(self, sentence: str) -> None:
        """A worker was replaced: log it, count it, and save soon, in case that happens too often."""
        workers: Any = self.training_env.unwrapped
        self.live.say(sentence)
        self.logger.record("env/restarts", workers.restarts)
        self.due = True

    def save_held(self) -> None:
        """Write the state at the start of the running rollout, if it is held and newer than the last checkpoint."""
        if self._held is not None:
            (tree, arrays), step = self._held
            if step > self._saved:
                self._write(unpack(tree, arrays), step)

    def _evaluate(self, last: bool = False) -> bool:
        """Whether there was an evaluation for the next row of the log; a signal does not cut the `last` one short."""
        if self.evaluator is None:
            return False
        found = self.evaluator(self.model.num_timesteps, self.model, last)
        for tag, value in found.items():
            self.logger.record(tag, value)
        return bool(found)

    def dump(self) -> None:
        """Write a row of the log."""
        self._logged = self.model.num_timesteps
        if hasattr(self.driver, "before_log"):
            self.driver.before_log()
        venv: Any = self.training_env
        measured = venv.measured() if hasattr(venv, "measured") else {}
        for tag, value in (measured | (self.coverage.metrics() if self.coverage is not None else {})).items():
            self.logger.record(tag, value)
        if hasattr(self.model, "start_time"):  # Stable-Baselines3 reads a clock that may be set meanwhile
            self.model.start_time = time.time_ns() - (time.monotonic_ns() - self._started)
        self.model.dump_logs()  # type: ignore[attr-defined]

    def save(self) -> None:
        """Write a checkpoint; a full disk is one sentence, not the end of training."""
        if self.model.num_timesteps != self._saved:
            self._write(self.capture(), self.model.num_timesteps)

    def _write(self, state: dict[str, Any], step: int) -> None:
        if not self._all_finite(state["agent"]["modules"], step):
            return
        if time.monotonic() - self._failed_at < RETRY_S and self.signals.received is None:
            return
        try:
            checkpoint.save(self.folder.checkpoints, state, step)
        except OSError as error:
            self._failed_at, self.storage_error = time.monotonic(), str(error)
            self.live.say(f"no checkpoint at step {step:,} ({error}); the earlier ones are intact, training continues")
            return
        self._saved, self.storage_error = step, None
        with suppress(OSError):
            self.folder.write_status(step=step)

    def _all_finite(self, modules: dict[str, Any], step: int) -> bool:
        """Whether every weight of the agent is finite, or it restores such weights by itself; else a NotFinite."""
        weights = {path: value for path, value in flatten(modules).items() if isinstance(value, torch.Tensor)}
        bad = next((path for path, value in weights.items() if not is_finite(value)), None)
        if bad is None:
            return True
        if getattr(self.model, "recovers", False) and not self._finishing:
            return False
        raise NotFinite(
            f"the weights {bad} became NaN or infinite by step {step:,}: training diverged; they are not saved, the "
            "last checkpoint is finite; lower agent.learning_rate or scale the reward (reward.<name>.scale=return)"
        )

    def finish(self) -> None:
        """The last row and the last checkpoint, after `learn` returned."""
        evaluated = self._evaluate(last=True)
        if evaluated or self._logged != self.model.num_timesteps:
            self.dump()
        self.live.update(self.model.num_timesteps, self.task_return, force=True)
        self._failed_at = -RETRY_S
        self._finishing = True
        self.save()

    def task_return(self) -> float | None:
        """Mean task return of the last episodes."""
        window = self.model.ep_info_buffer
        return float(np.mean([episode["r"] for episode in window])) if window else None


def random_state() -> dict[str, Any]:
    """The global generators of Python, NumPy and torch."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 (SB3 draws from it)
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """The inverse of `random_state`."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def make_logger(
    folder: Path, live: "Live", *, step: int = 0, warn: Say = print, more: Mapping[str, Any] | None = None
) -> Logger:
    """The logger of a run whose last row is of `step`: later rows are dropped; `more` makes further writers, by name.

    A row may be written and its checkpoint not, as by a kill: the run that continues writes it again.
    """
    path = folder / "metrics.csv"
    with suppress(OSError):
        with opened_text(path) as file:
            first = file.readline()
        if first and not first.startswith("step"):
            broken = path.rename(path.with_name(f"broken_{path.name}"))
            warn(f"{path} is no log any more; it is kept as {broken.name}, and the log begins after step {step:,}")
    writers: list[KVWriter] = [
        Alarm(TASK_RETURN, LEARNED_RETURN, live.say, read_csv(path, step)),  # first: the others write what it adds
        Guarded("metrics.csv", lambda: CSVLog(path, step), warn),
        *(Guarded(name, make, warn) for name, make in (more or {}).items()),
        live,
    ]
    return Logger(str(folder), writers)


class Guarded(KVWriter):
    """A writer that is switched off, with one warning, at its first error from the disk."""

    def __init__(self, name: str, make: Callable[[], Any], warn: Say = print) -> None:
        self.name, self.warn = name, warn
        self.writer: Any = None
        self._try(lambda: setattr(self, "writer", make()))

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        self.use(lambda writer: writer.write(key_values, key_excluded, step))

    def use(self, action: Callable[[Any], None]) -> None:
        """Do something with the writer, unless it is switched off."""
        if self.writer is not None:
            self._try(lambda: action(self.writer))

    def close(self) -> None:
        self.use(lambda writer: writer.close())

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
        rows = read_csv(path, step)
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
        checkpoint.write_atomically(self.path, "\r\n".join(lines) + "\r\n")
        self.file = self.path.open("a", newline="")

    def close(self) -> None:
        self.file.close()


def read_csv(path: Path, last: int | None = None) -> list[dict[str, str]]:
    """Rows of a metrics.csv, up to the step `last`, at 0 none; without what a kill or a broken disk made of it."""
    if last is not None and (last == 0 or not path.exists()):
        return []
    with opened_text(path) as file:
        header, *rows = [line.rstrip("\r\n").split(",") for line in file] or [[""]]
    rows = rows if header[0] == "step" else []
    good = (len(row) == len(header) and row[0].isdecimal() and all(map(is_float, filter(None, row))) for row in rows)
    whole = [dict(zip(header, row)) for row in itertools.compress(rows, good)]
    return whole if last is None else [row for row in whole if int(row["step"]) <= last]


class TensorBoardLog(KVWriter):
    """Scalars for TensorBoard; a log of rows hides what a killed process wrote after its `step`, if it has one.

    The usual SummaryWriter has a thread, which loses rows to `kill -9` and dies with a traceback on a full disk.
    """

    def __init__(self, folder: Path, step: int | None = None) -> None:
        make_folder(folder)
        # Readers sort the files by name: ours stand in their order, behind those of TensorBoard's own writers.
        count = len(list(folder.iterdir()))
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.9{count:03d}"
        self.file = RecordWriter((folder / name).open("xb"))
        self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if step is not None:  # "forget the steps from here on in the files before this one"
            start = SessionLog(status=SessionLog.START)
            self._add(Event(wall_time=time.time(), step=step + 1, session_log=start))
        self.file.flush()

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        found = scalars(filter_excluded_keys(key_values, key_excluded, "tensorboard"))
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in sorted(found.items())]
        self.add(Summary(value=values), step)

    def add(self, summary: Any, step: int) -> None:
        """Write a Summary."""
        self._add(Event(wall_time=time.time(), step=step, summary=summary))
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
    """The line that moves: progress, time left, returns, frames a second; off a terminal every `every_s` seconds."""

    def __init__(self, total: int, start: int = 0, *, stream: TextIO | None = None, every_s: float = 10.0) -> None:
        self.total, self.start = total, start
        self.stream = sys.stdout if stream is None else stream
        self.began = self.last = time.monotonic()
        self.learned: float | None = None
        self.bar: Any = None
        self.wants_bar = self.stream.isatty()
        self.every_s = 0.2 if self.wants_bar else every_s

    def _open_bar(self) -> None:
        self.wants_bar = False
        left, words = TimeRemainingColumn(elapsed_when_finished=True), TextColumn("{task.description}")
        columns = BarColumn(bar_width=24), TaskProgressColumn(), left, words
        self.bar = Progress(*columns, console=Console(file=styled(self.stream)), refresh_per_second=4)
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
        task, learned = ("-" if value is None else f"{value:.4g}" for value in (task_return(), self.learned))
        words = f"task return {task}  learned return {learned}  {rate:,.0f} frames/s"
        if self.bar is not None:
            self.bar.update(self.task, completed=min(step, self.total), description=words)
            return
        left = max(self.total - step, 0) / rate if rate > 0 else float("inf")
        share = min(100 * step // self.total, 100)
        print(f"{share:3d} %  step {step:,}  {clock(left)} left  {words}", file=self.stream, flush=True)

    def say(self, sentence: str) -> None:
        """Print a sentence above the bar."""
        if self.bar is not None:
            self.bar.console.print(plain_text(sentence), markup=False, highlight=False, soft_wrap=True)
        else:
            print(sentence, file=self.stream, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


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
    whether the task's reward is what was wanted. `task` and `learned` are tags, `rows` those of a run that continues.
    """

    def __init__(self, task: str, learned: str, say: Say, rows: Sequence[dict[str, str]] = ()) -> None:
        self.tags = (task, learned)
        self.say = say
        self.quiet = WINDOW  # rows since the last alarm
        both = [row for row in rows if row.get(task) and row.get(learned)]
        self.steps = [int(row["step"]) for row in both]
        self.values = [(float(row[task]), float(row[learned])) for row in both]

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
