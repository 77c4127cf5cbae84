"""What a run writes while it trains: checkpoints, rows of metrics.csv and TensorBoard, and the live line.

`Saver` is the callback that does so. State is taken and given back at one kind of moment only, between two rollouts,
where the current observation is known and the last update is complete. That is why a run that was killed and started
again ends with the same weights.

Numbers go through Stable-Baselines3's Logger; docs/runs.md explains every tag that a run may write. A log is never
worth a run: a writer that meets a full disk is switched off with one warning, and training continues.
"""

import csv
import math
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger, filter_excluded_keys
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from agents.sb3 import agent as sb3
from envs.transitions import NotFinite, is_finite
from envs.types import StateDict
from lodestar.files import make_folder, open_text_file
from lodestar.state import pack, state_of, unpack
from runners.run import checkpoint
from runners.run.config import LOG_EVERY, TextValues, TrainConfig, UsageError, flatten
from runners.run.exits import Signals, Stopped
from runners.run.folder import RunFolder
from runners.run.output import SIGN_OF_LIFE_S, activity, clock, number_text, plain_text, style_stream
from runners.run.value import is_float

if TYPE_CHECKING:
    from runners.evaluation.evaluator import Evaluator
    from runners.run.build import Parts

Say = Callable[[str], None]
# What Stable-Baselines3 hands to a writer: the logged values, and by tag the writers that leave it out.
LoggedValues = dict[str, Any]
ExcludedFormats = dict[str, tuple[str, ...]]

# A rollout that takes longer may be cut short by a signal.
SLOW_ROLLOUT_S = 1.0
SAVE_RETRY_S = 600.0
# The alarm looks at so many rows of the log, or twice or four times as many. Over them both returns
# must have moved by a share of the range seen so far, and by a multiple of the scatter around the line.
ALARM_WINDOW_ROWS = 10
MIN_ALARM_RANGE_SHARE = 0.2
MIN_ALARM_SCATTERS = 2.0
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
        state: StateDict | None,
        evaluator: "Evaluator | None" = None,
    ) -> None:
        super().__init__()
        self.folder = folder
        self.signals = signals
        self.live = live
        self.evaluator = evaluator
        self.coverage = parts.coverage
        self.mix = parts.mix
        self.driver: Any = parts.driver
        self.config = config
        # The error of the last save; None once one succeeded again.
        self.storage_error: str | None = None
        # To be restored at the first rollout.
        self._state_to_restore = state
        # Whether to save at the next rollout's start, whenever the last time was.
        self._save_soon = False
        # Environment steps of the last checkpoint and of the last row.
        self._saved = 0
        self._logged = 0
        self._failed_at = -SAVE_RETRY_S
        self._finishing = False
        self._started_ns = time.monotonic_ns()
        # How long a rollout takes is not known before the first one, whose start is therefore held.
        self._rollout_began = -math.inf
        # The packed state of the running rollout's start, and its step.
        self._held: tuple[Any, int] | None = None

    def _init_callback(self) -> None:
        # Workers and actors say so when one of them was replaced; no other environments call it.
        workers: Any = self.training_env.unwrapped
        workers.say = self._note_restart
        self.workers = workers

    def capture(self) -> StateDict:
        """Everything the run needs to continue from here; valid between two rollouts."""
        venv: Any = self.training_env
        agent: Any = self.model
        is_ours = hasattr(agent, "get_state")
        return {
            "agent": agent.get_state() if is_ours else sb3.get_state(agent),
            "masked": getattr(agent, "masked", False),
            "mix": self.mix.state_dict(),
            "driver": self.driver.state_dict() if hasattr(self.driver, "state_dict") else None,
            "envs": venv.snapshot(),
            "random": random_state(),
            "log": {"rows": self._logged, "pending": scalars(self.logger.name_to_value)},
            "evaluator": state_of(self.evaluator),
            "coverage": state_of(self.coverage),
        }

    def restore(self, model: Any, training: bool = True) -> None:
        """The inverse of `capture`, once; without the environments where no step is left to train."""
        state, self._state_to_restore = self._state_to_restore, None
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
            if "parts" in state["envs"] and self.config.cluster == "none":
                raise UsageError("this run was saved by several actors; continue it with cluster=auto and workers=")
            venv: Any = self.training_env
            venv.restore(state["envs"])
            self._saved = model.num_timesteps
            self._logged = state["log"]["rows"]
            self._record(state["log"]["pending"])
        if self.evaluator is not None and state.get("evaluator"):
            self.evaluator.load_state_dict(state["evaluator"])
        if self.coverage is not None and state.get("coverage"):
            self.coverage.load_state_dict(state["coverage"])
        set_random_state(state["random"])

    def _record(self, values: Mapping[str, float]) -> None:
        """Values for the next row of the log."""
        for tag, value in values.items():
            self.logger.record(tag, value)

    def _on_rollout_start(self) -> None:
        self.restore(self.model)
        step = self.model.num_timesteps
        self.num_timesteps = step
        evaluated = self._evaluate()
        row_due = evaluated or step - self._logged >= (self.config.log_every or LOG_EVERY)
        # A signal cut the evaluation short: the run that continues does it again, and writes the row with it.
        cut_short = self.evaluator is not None and self.evaluator.is_due(step)
        if row_due and not cut_short:
            self.dump()
        if self.signals.received is not None:
            self.save()
            raise Stopped(self.signals.received)
        save_every = self.config.checkpoint_every
        if self._save_soon or (save_every and step - self._saved >= save_every):
            self.save()
            self._save_soon = False
        now = time.monotonic()
        self._held = None
        # With a lag a snapshot waits for the actors.
        if self.config.lag == 0 and now - self._rollout_began > SLOW_ROLLOUT_S:
            self._held = (pack(self.capture()), step)
        self._rollout_began = now

    def _on_step(self) -> bool:
        self.live.update(self.num_timesteps, self.task_return)
        if self.coverage is not None:
            self.coverage.add(self.locals["new_obs"])
        if self.signals.received is not None and self._held is not None:
            self.save_held()
            raise Stopped(self.signals.received)
        return True

    def _note_restart(self, sentence: str) -> None:
        """A worker was replaced: log it, count it, and save soon, in case that happens too often."""
        self.live.say(sentence)
        self.logger.record("env/restarts", self.workers.restarts)
        self._save_soon = True

    def save_held(self) -> None:
        """Write the state at the start of the running rollout, if it is held and newer than the last checkpoint."""
        if self._held is None:
            return
        (tree, arrays), step = self._held
        if step > self._saved:
            self._write(unpack(tree, arrays), step)

    def _evaluate(self, last: bool = False) -> bool:
        """Whether there was an evaluation for the next row of the log; a signal does not cut the `last` one short."""
        if self.evaluator is None:
            return False
        scores = self.evaluator(self.model.num_timesteps, self.model, last)
        self._record(scores)
        return bool(scores)

    def dump(self) -> None:
        """Write a row of the log."""
        model = self.model
        venv = self.training_env
        self._logged = model.num_timesteps
        if hasattr(self.driver, "before_log"):
            self.driver.before_log()
        if hasattr(venv, "take_metrics"):
            self._record(venv.take_metrics())
        if self.coverage is not None:
            self._record(self.coverage.metrics())
        # Stable-Baselines3 subtracts this from a clock that may be set meanwhile.
        if hasattr(model, "start_time"):
            model.start_time = time.time_ns() - (time.monotonic_ns() - self._started_ns)
        model.dump_logs()

    def save(self) -> None:
        """Write a checkpoint; a full disk is one sentence, not the end of training."""
        if self.model.num_timesteps != self._saved:
            self._write(self.capture(), self.model.num_timesteps)

    def _write(self, state: StateDict, step: int) -> None:
        if not self._is_saveable(state["agent"]["modules"], step):
            return
        if time.monotonic() - self._failed_at < SAVE_RETRY_S and self.signals.received is None:
            return
        try:
            checkpoint.save(self.folder.checkpoints, state, step)
        except OSError as error:
            self._failed_at = time.monotonic()
            self.storage_error = str(error)
            self.live.say(f"no checkpoint at step {step:,} ({error}); the earlier ones are intact, training continues")
            return
        self._saved = step
        self.storage_error = None
        with suppress(OSError):
            self.folder.write_status(step=step)

    def _is_saveable(self, modules: StateDict, step: int) -> bool:
        """Whether every weight of the agent is finite; a NotFinite unless the agent will restore such weights."""
        for path, value in flatten(modules).items():
            if not isinstance(value, torch.Tensor) or is_finite(value):
                continue
            if getattr(self.model, "recovers", False) and not self._finishing:
                return False
            raise NotFinite(
                f"the weights {path} became NaN or infinite by step {step:,}: training diverged; they are not saved, "
                "the last checkpoint is finite; lower agent.learning_rate or scale the reward "
                "(reward.<name>.scale=return)"
            )
        return True

    def finish(self) -> None:
        """The last row and the last checkpoint, after `learn` returned."""
        evaluated = self._evaluate(last=True)
        if evaluated or self._logged != self.model.num_timesteps:
            self.dump()
        self.live.update(self.model.num_timesteps, self.task_return, force=True)
        # Now it is tried again, however short ago a save failed.
        self._failed_at = -SAVE_RETRY_S
        self._finishing = True
        self.save()

    def task_return(self) -> float | None:
        """Mean task return of the last episodes."""
        window = self.model.ep_info_buffer
        if not window:
            return None
        return float(np.mean([episode["r"] for episode in window]))


def random_state() -> StateDict:
    """The global generators of Python, NumPy and torch."""
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 (SB3 draws from it)
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: StateDict) -> None:
    """The inverse of `random_state`."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def make_logger(
    folder: Path,
    live: "Live",
    *,
    step: int = 0,
    warn: Say = print,
    more: Mapping[str, Callable[[], KVWriter]] | None = None,
) -> Logger:
    """The logger of a run whose last row is of `step`: later rows are dropped; `more` makes further writers, by name.

    A row may be written and its checkpoint not, as by a kill: the run that continues writes it again.
    """
    path = folder / "metrics.csv"
    with suppress(OSError):
        with open_text_file(path) as file:
            first_line = file.readline()
        if first_line and not first_line.startswith("step"):
            broken = path.rename(path.with_name(f"broken_{path.name}"))
            warn(f"{path} is no log any more; it is kept as {broken.name}, and the log begins after step {step:,}")
    # The alarm comes first, because the others write what it adds.
    writers = [Alarm(live.say, read_csv(path, step)), Guarded("metrics.csv", lambda: CSVLog(path, step), warn)]
    for name, make in (more or {}).items():
        writers.append(Guarded(name, make, warn))
    writers.append(live)
    return Logger(str(folder), writers)


class Guarded(KVWriter):
    """A writer that is switched off, with one warning, at its first error from the disk."""

    def __init__(self, name: str, make: Callable[[], KVWriter], warn: Say) -> None:
        self.name = name
        self.warn = warn
        self.writer = self._attempt(make)

    def write(self, key_values: LoggedValues, key_excluded: ExcludedFormats, step: int = 0) -> None:
        self.call_writer(lambda writer: writer.write(key_values, key_excluded, step))

    def call_writer(self, action: Callable[[Any], None]) -> None:
        """Do something with the writer, unless it is switched off."""
        if self.writer is not None:
            self._attempt(lambda: action(self.writer))

    def close(self) -> None:
        self.call_writer(lambda writer: writer.close())

    def _attempt(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
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

    def write(self, key_values: LoggedValues, key_excluded: ExcludedFormats, step: int = 0) -> None:
        row: StateDict = {"step": step}
        for tag, value in sorted(scalars(key_values).items()):
            row[tag] = f"{value:.8g}"
        new_columns = [tag for tag in row if tag not in self.columns]
        if new_columns:
            self.file.close()
            rows = read_csv(self.path)
            self.columns += new_columns
            self._rewrite(rows)
        csv.DictWriter(self.file, self.columns, restval="").writerow(row)
        self.file.flush()

    def _rewrite(self, rows: list[TextValues]) -> None:
        text = ",".join(self.columns) + "\r\n"
        for row in rows:
            text += ",".join(row.get(column, "") for column in self.columns) + "\r\n"
        checkpoint.write_atomically(self.path, text)
        self.file = self.path.open("a", newline="")

    def close(self) -> None:
        self.file.close()


def read_csv(path: Path, last: int | None = None) -> list[TextValues]:
    """Rows of a metrics.csv, up to the step `last`, at 0 none; without what a kill or a broken disk made of it."""
    if last is not None and (last == 0 or not path.exists()):
        return []
    rows = []
    with open_text_file(path) as file:
        header = file.readline().rstrip("\r\n").split(",")
        if header[0] != "step":
            return []
        for line in file:
            cells = line.rstrip("\r\n").split(",")
            is_whole = len(cells) == len(header) and cells[0].isdecimal()
            if not is_whole or not all(map(is_float, filter(None, cells))):
                continue
            if last is None or int(cells[0]) <= last:
                rows.append(dict(zip(header, cells)))
    return rows


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
        self._add_event(file_version="brain.Event:2")
        if step is not None:
            # A reader forgets the steps from here on in the files before this one.
            self._add_event(step=step + 1, session_log=SessionLog(status=SessionLog.START))
        self.file.flush()

    def write(self, key_values: LoggedValues, key_excluded: ExcludedFormats, step: int = 0) -> None:
        numbers = scalars(filter_excluded_keys(key_values, key_excluded, "tensorboard"))
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in sorted(numbers.items())]
        self.add(Summary(value=values), step)

    def add(self, summary: Any, step: int) -> None:
        """Write a Summary."""
        self._add_event(step=step, summary=summary)
        self.file.flush()

    def _add_event(self, **content: Any) -> None:
        self.file.write(Event(wall_time=time.time(), **content).SerializeToString())

    def close(self) -> None:
        self.file.close()


def scalars(values: LoggedValues) -> dict[str, float]:
    """The numbers among logged values."""
    numbers = {}
    for key, value in values.items():
        if isinstance(value, int | float | np.generic | np.ndarray | torch.Tensor) and np.ndim(value) == 0:
            numbers[key] = float(value)
    return numbers


class Dashboard(Progress):
    """A bar and, below it, the numbers of the log's last row."""

    numbers: Mapping[str, float] = {}

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        cells = [Text(f"{tag} {value:.4g}") for tag, value in sorted(self.numbers.items())]
        yield Columns(cells, equal=True, column_first=True)


class Live(KVWriter):
    """What moves: progress, time left, returns, frames a second, the last row; off a terminal a line every `every_s`
    seconds.
    """

    def __init__(self, total: int, start: int = 0) -> None:
        self.total = total
        self.start = start
        self.stream = sys.stdout
        self.console = Console(file=style_stream(self.stream))
        self.began = time.monotonic()
        self.last = self.began
        self.learned: float | None = None
        self.bar: Dashboard | None = None
        # Of the log's last row.
        self.numbers: dict[str, float] = {}
        # The bar is drawn when there is something to show.
        self.wants_bar = self.stream.isatty()
        self.every_s = 0.2 if self.wants_bar else SIGN_OF_LIFE_S

    def _open_bar(self) -> None:
        self.wants_bar = False
        self.bar = Dashboard(
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.description}"),
            console=self.console,
            refresh_per_second=4,
        )
        self.task = self.bar.add_task("", total=self.total, completed=self.start)
        self.bar.start()

    def write(self, key_values: LoggedValues, key_excluded: ExcludedFormats, step: int = 0) -> None:
        self.learned = key_values.get(LEARNED_RETURN, self.learned)
        self.numbers = scalars(key_values)

    def update(self, step: int, task_return: Callable[[], float | None], *, force: bool = False) -> None:
        """Show `step` when it is time to, or `force`; only then is the task return computed."""
        now = time.monotonic()
        if now - self.last < self.every_s and not force:
            return
        self.last = now
        activity.begin("training")
        if self.wants_bar:
            self._open_bar()
        rate = (step - self.start) / max(now - self.began, 1e-9)
        returns = f"task return {number_text(task_return())}  learned return {number_text(self.learned)}"
        words = f"{returns}  {rate:,.0f} frames/s"
        if self.bar is not None:
            self.bar.numbers = self.numbers
            self.bar.update(self.task, completed=min(step, self.total), description=words)
            return
        seconds_left = math.inf
        if rate > 0:
            seconds_left = max(self.total - step, 0) / rate
        percent = min(100 * step // self.total, 100)
        print(f"{percent:3d} %  step {step:,}  {clock(seconds_left)} left  {words}", file=self.stream, flush=True)

    def say(self, sentence: str) -> None:
        """Print a sentence above the bar."""
        self.console.print(Text(plain_text(sentence)), soft_wrap=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def diverging_rows(task: np.ndarray, learned: np.ndarray) -> np.ndarray:
    """Rows at which the learned return rises while the task's falls, bool, one for each row."""
    values = np.array([task, learned])
    diverges = np.zeros(len(task), bool)
    for row in range(ALARM_WINDOW_ROWS - 1, len(task)):
        diverges[row] = _divergence_length(values[:, : row + 1]) is not None
    return diverges


def _divergence_length(values: np.ndarray) -> int | None:
    """Rows in the shortest window at the end over which (task, learned), a row each of `values`, moved apart."""
    span = np.ptp(values, axis=1)
    length = ALARM_WINDOW_ROWS
    while length <= values.shape[1]:
        window = values[:, -length:]
        # The least-squares line of each return over the window, whose rows count as one apart.
        x = np.arange(length) - (length - 1) / 2
        slope = window @ x / (x @ x)
        scatter = (window - window.mean(1, keepdims=True) - slope[:, None] * x).std(1)
        change = slope * (length - 1)
        enough = np.maximum(MIN_ALARM_RANGE_SHARE * span, MIN_ALARM_SCATTERS * scatter)
        task_change, learned_change = change
        if -task_change > enough[0] and learned_change > enough[1]:
            return length
        length *= 2
    return None


class Alarm(KVWriter):
    """Says when an agent raises the learned reward at the task's expense: reward hacking (Gao et al. 2022, 2210.10760).

    It reads the rows before the writers. If over the last `ALARM_WINDOW_ROWS` of them (or twice or four times as many)
    the learned return rose and the task's fell, both by a fifth of all they have ever moved and by more than they
    scatter, one sentence says so, `reward/alarm` is 1, and the curve is shaded there. Training continues: only the user
    knows whether the task's reward is what was wanted. `rows` are those of a run that continues.
    """

    def __init__(self, say: Say, rows: Sequence[TextValues] = ()) -> None:
        self.say = say
        self.rows_since_alarm = ALARM_WINDOW_ROWS
        self.steps: list[int] = []
        # (task return, learned return) of each row that has both.
        self.returns: list[tuple[float, float]] = []
        for row in rows:
            if row.get(TASK_RETURN) and row.get(LEARNED_RETURN):
                self._add(int(row["step"]), row)

    def _add(self, step: int, row: LoggedValues) -> None:
        self.steps.append(step)
        self.returns.append((float(row[TASK_RETURN]), float(row[LEARNED_RETURN])))

    def write(self, key_values: LoggedValues, key_excluded: ExcludedFormats, step: int = 0) -> None:
        if TASK_RETURN not in key_values or LEARNED_RETURN not in key_values:
            return
        self._add(step, key_values)
        length = _divergence_length(np.array(self.returns, np.float64).T)
        key_values["reward/alarm"] = float(length is not None)
        if length is None:
            self.rows_since_alarm += 1
            return
        # One sentence for a whole stretch of alarming rows.
        if self.rows_since_alarm >= ALARM_WINDOW_ROWS:
            task, learned = self.returns[-length]
            task_now, learned_now = self.returns[-1]
            self.say(
                f"alarm: since step {self.steps[-length]:,} the learned return rose from {learned:.4g} to "
                f"{learned_now:.4g} while the task's fell from {task:.4g} to {task_now:.4g}; the agent may be pleasing "
                "the reward instead of doing the task: look at curve.png and its videos"
            )
        self.rows_since_alarm = 0

    def close(self) -> None:
        """Nothing is held open."""
