"""What a sweep prints: a live table on a terminal, plain lines elsewhere, and a summary at the end.

The progress of a job is read from the last line of its metrics.csv; nothing is asked of the job itself.
"""

import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lodestar.files import LARGE, open_file, read_json
from runners.report.job_log import JOB_STATES, Entry
from runners.run.config import TextValues
from runners.run.folder import LOG, OTHER_WAY, read_status
from runners.run.output import SIGN_OF_LIFE_S, clock, number_text
from runners.run.value import is_float
from runners.sweep.drive import Watcher
from runners.sweep.job import Job, cells

# Bytes of metrics.csv that surely hold its last line.
METRICS_TAIL_BYTES = 8192


@dataclass(frozen=True)
class RunProgress:
    """How far a run is."""

    # Environment steps so far, and in all.
    step: int = 0
    total: int = 0
    # Mean of the last episodes; None before one has ended.
    task_return: float | None = None
    # Environment steps a second.
    fps: float | None = None
    # In a word or two.
    doing: str = "setting up"

    @property
    def share(self) -> float:
        """0 to 1."""
        return min(self.step / self.total, 1.0) if self.total else 0.0


def progress(folder: Path) -> RunProgress:
    """Read from a run's folder; zeros if there is nothing yet."""
    status = read_status(folder)
    row = _last_row(folder / "metrics.csv")
    step = max(int(row.get("step") or 0), status.get("step", 0))
    total = status.get("total", 0)
    doing = status.get("doing", RunProgress.doing)
    # The first rollout is over when there is a row.
    if row and step < total:
        doing = "training"
    return RunProgress(step, total, _read_number(row, "rollout/ep_rew_mean"), _read_number(row, "time/fps"), doing)


def _read_number(row: TextValues, tag: str) -> float | None:
    text = row.get(tag)
    return float(text) if text else None


def _last_row(path: Path) -> TextValues:
    """Of a metrics.csv that another process may be writing."""
    try:
        with open_file(path, LARGE) as file:
            header = file.readline()
            size = file.seek(0, 2)
            file.seek(max(size - METRICS_TAIL_BYTES, len(header)))
            # What follows the last end of line is no row yet.
            lines = file.read().split(b"\r\n")[:-1]
    except OSError:
        return {}
    if not lines:
        return {}
    names = header.decode(errors="replace").strip().split(",")
    row = lines[-1].decode(errors="replace").split(",")
    is_row = len(row) == len(names) and row[0].isdecimal() and all(map(is_float, filter(None, row)))
    return dict(zip(names, row)) if is_row else {}


def score(folder: Path, policy: str = "this run") -> float | None:
    """The task's return of a policy in a run's final evaluation; None if it has none."""
    try:
        return float(read_json(folder / "result.json")[policy]["task_return"])
    except (ValueError, LookupError, TypeError):
        return None


def scores(folders: Iterable[Path], policy: str = "this run") -> list[float]:
    """The same of several runs, as far as they have one."""
    values = []
    for folder in folders:
        value = score(folder, policy)
        if value is not None:
            values.append(value)
    return values


class Display(Watcher):
    """Prints how a sweep stands: a terminal gets a live table, another stream a line every so many seconds."""

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs = jobs
        self.every_s = SIGN_OF_LIFE_S
        self.console = Console(file=sys.stdout)
        self._began = monotonic()
        self._last = self._began
        # Jobs that had ended when this command began; None before the first tick.
        self._ended_before: float | None = None
        # As of the last tick.
        self._entries: dict[str, Entry] = {}
        self._runs: dict[str, RunProgress] = {}
        self._live: Live | None = None

    def __enter__(self) -> "Display":
        if self.console.file.isatty():
            self._live = Live(console=self.console, refresh_per_second=2, transient=True)
            self._live.start()
            self.every_s = 0.5
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def tick(self, entries: dict[str, Entry], running: list[Job]) -> None:
        """Print how the jobs stand, if it is time to."""
        self._entries = entries
        if self._ended_before is None:
            self._ended_before = self._amount_ended()
        if monotonic() - self._last < self.every_s:
            return
        self._last = monotonic()
        self._runs = {job.name: progress(job.folder) for job in running}
        if self._live is None:
            self.message(self._counts() + self._describe_running())
        else:
            self._live.update(self._table())

    def attempt_ended(self, job: Job, entry: Entry) -> None:
        """One line about an attempt that ended."""
        state = "again" if entry.state == "waiting" else entry.state
        line = f"{state:<9} {job.name}  {entry.seconds:.1f} s"
        if entry.state == "finished":
            task_return = score(job.folder)
            if task_return is not None:
                line += f"  task return {task_return:.4g}"
        if entry.error:
            line += f"  {entry.error}"
        self.message(line)

    def message(self, sentence: str) -> None:
        """A line of its own, above the live table."""
        self.console.print(Text(sentence), soft_wrap=True)

    def _amount_ended(self) -> float:
        """Jobs that have ended, and the shares of those that run."""
        by_state = _by_state(self.jobs, self._entries)
        return len(by_state["finished"] + by_state["failed"]) + sum(run.share for run in self._runs.values())

    def _counts(self) -> str:
        """How many jobs are in which state, and the time left at the speed since this command began."""
        by_state = _by_state(self.jobs, self._entries)
        count_words = []
        for state in JOB_STATES:
            if by_state[state]:
                count_words.append(f"{len(by_state[state])} {state}")
        counts = ", ".join(count_words)
        line = f"{counts} of {len(self.jobs)}"
        amount = self._amount_ended()
        new = amount - (self._ended_before or 0.0)
        if new > 0:
            jobs_a_second = new / max(monotonic() - self._began, 1e-9)
            line += f"; {clock((len(self.jobs) - amount) / jobs_a_second)} left"
        return line

    def _describe_running(self) -> str:
        """What the running jobs do, and how many of them."""
        doings = Counter(run.doing for run in self._runs.values())
        if not doings:
            return ""
        parts = []
        for doing, count in doings.items():
            parts.append(doing if count == 1 else f"{count} {doing}")
        return f"; {', '.join(parts)}"

    def _table(self) -> Table:
        table = Table(title=Text(self._counts()), title_justify="left", box=None, pad_edge=False)
        table.add_column("job")
        table.add_column("does")
        for column in ("step", "task return", "frames/s"):
            table.add_column(column, justify="right")
        for name, run in self._runs.items():
            step = f"{run.step:,} of {run.total:,}" if run.total else "-"
            table.add_row(Text(name), run.doing, step, number_text(run.task_return), number_text(run.fps))
        return table


def summary(jobs: list[Job], entries: dict[str, Entry], seconds: float) -> str:
    """The table at the end: a line for every cell, what failed and why, and how to continue."""
    by_cell = cells(jobs)
    width = max(map(len, [*by_cell, "cell"]))
    lines = ["", f"{'cell':<{width}}  finished  failed  task return"]
    modes = []
    for name, members in by_cell.items():
        by_state = _by_state(members, entries)
        finished = by_state["finished"]
        share = f"{len(finished)}/{len(members)}"
        task_return = number_text(_mean_score(finished))
        lines.append(f"{name:<{width}}  {share:>8}  {len(by_state['failed']):>6}  {task_return:>11}")
        modes.append(number_text(_mean_score(finished, OTHER_WAY)))
    # Only a sampled policy has been judged by its mode, too.
    if set(modes) != {"-"}:
        for number, cell in enumerate(["by its mode", *modes], 1):
            lines[number] += f"  {cell:>11}"
    by_state = _by_state(jobs, entries)
    lines += ["", f"{len(by_state['finished'])} of {len(jobs)} jobs finished; this command took {clock(seconds)}"]
    for job in by_state["failed"]:
        lines.append(f"failed: {job.name}: {entries[job.name].error} (see {job.folder / LOG})")
    if by_state["failed"]:
        lines.append("resume=errored tries what failed again")
    remaining = len(by_state["stopped"] + by_state["waiting"] + by_state["lost"])
    if remaining:
        lines.append(f"{remaining} stopped or waiting: the same command continues")
    return "\n".join(lines)


def _mean_score(jobs: list[Job], policy: str = "this run") -> float | None:
    values = scores([job.folder for job in jobs], policy)
    return statistics.fmean(values) if values else None


def _by_state(jobs: list[Job], entries: dict[str, Entry]) -> dict[str, list[Job]]:
    """State -> the jobs in it."""
    by_state = defaultdict(list)
    for job in jobs:
        by_state[entries.get(job.name, Entry()).state].append(job)
    return by_state
