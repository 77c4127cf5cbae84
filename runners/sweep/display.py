"""What a sweep prints: a live table on a terminal, plain lines elsewhere, and a summary at the end.

The progress of a job is read from the last line of its metrics.csv; nothing is asked of the job itself.
"""

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lodestar.files import LARGE, opened, read_json
from runners.cli.output import clock
from runners.cli.value import is_float
from runners.run.folder import OTHER_WAY, read_status
from runners.sweep.drive import Watcher
from runners.sweep.job import LOG, STATES, Entry, Job, cells

TAIL = 8192  # bytes of metrics.csv that surely hold its last line


@dataclass(frozen=True)
class RunProgress:
    """How far a run is."""

    step: int = 0  # environment steps so far
    total: int = 0  # and in all
    task_return: float | None = None  # mean of the last episodes; None before one has ended
    fps: float | None = None  # environment steps a second

    @property
    def share(self) -> float:
        """0 to 1."""
        return min(self.step / self.total, 1.0) if self.total else 0.0


def progress(folder: Path) -> RunProgress:
    """Read from a run's folder; zeros if there is nothing yet."""
    status = read_status(folder) or {}
    row = _last_row(folder / "metrics.csv")
    step = max(int(row.get("step") or 0), int(status.get("step") or 0))
    numbers = [float(row[tag]) if row.get(tag) else None for tag in ("rollout/ep_rew_mean", "time/fps")]
    return RunProgress(step, int(status.get("total") or 0), *numbers)


def _last_row(path: Path) -> dict[str, str]:
    """Of a metrics.csv that another process may be writing."""
    try:
        with opened(path, LARGE) as file:
            header = file.readline()
            file.seek(max(file.seek(0, 2) - TAIL, len(header)))
            lines = file.read().split(b"\r\n")[:-1]  # what follows the last end of line is no row yet
    except OSError:
        return {}
    names = header.decode(errors="replace").strip().split(",")
    row = lines[-1].decode(errors="replace").split(",") if lines else []
    whole = len(row) == len(names) and row[0].isdecimal() and all(map(is_float, filter(None, row)))
    return dict(zip(names, row)) if whole else {}


def score(folder: Path, policy: str = "this run") -> float | None:
    """The task's return of a policy in a run's final evaluation; None if it has none."""
    try:
        return float(read_json(folder / "result.json")[policy]["task_return"])
    except (ValueError, LookupError, TypeError):
        return None


class Display(Watcher):
    """Prints how a sweep stands: a terminal gets a live table, another stream a line every so many seconds."""

    def __init__(
        self,
        jobs: list[Job],
        *,
        stream: TextIO | None = None,
        every_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.jobs, self.clock, self.every_s = jobs, clock, every_s
        self.stream = sys.stdout if stream is None else stream
        self._began = self._last = clock()
        self._before: float | None = None  # jobs that were done when we began
        self._live: Live | None = None

    def __enter__(self) -> "Display":
        if self.stream.isatty():
            self._live = Live(console=Console(file=self.stream), refresh_per_second=2, transient=True)
            self._live.start()
            self.every_s = 0.5
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def tick(self, entries: dict[str, Entry], running: list[Job]) -> None:
        """Print how the jobs stand, if it is time to."""
        if self._before is None:
            self._before = self._worked(entries, {})
        if self.clock() - self._last < self.every_s:
            return
        self._last = self.clock()
        reached = {job.name: progress(job.folder) for job in running}
        if self._live is None:
            self.message(self._counts(entries, reached))
        else:
            self._live.update(self._table(entries, reached))

    def attempt_ended(self, job: Job, entry: Entry) -> None:
        """One line about an attempt that ended."""
        found = score(job.folder) if entry.state == "finished" else None
        state = "again" if entry.state == "waiting" else entry.state
        parts = [f"{state:<9} {job.name}", f"{entry.seconds:.1f} s"]
        parts += [f"task return {found:.4g}"] if found is not None else []
        parts += [entry.error] if entry.error else []
        self.message("  ".join(parts))

    def message(self, sentence: str) -> None:
        """A line of its own, above the live table."""
        if self._live is not None:
            self._live.console.print(sentence, markup=False, highlight=False, soft_wrap=True)
        else:
            print(sentence, file=self.stream, flush=True)

    def left(self, entries: dict[str, Entry], reached: dict[str, RunProgress]) -> float | None:
        """Seconds until all have ended at the speed since we began; None while it is unknown."""
        worked = self._worked(entries, reached)
        speed = (worked - (self._before or 0.0)) / max(self.clock() - self._began, 1e-9)
        return (len(self.jobs) - worked) / speed if speed > 0 else None

    def _worked(self, entries: dict[str, Entry], reached: dict[str, RunProgress]) -> float:
        states = _states(self.jobs, entries)
        return states["finished"] + states["failed"] + sum(one.share for one in reached.values())

    def _counts(self, entries: dict[str, Entry], reached: dict[str, RunProgress]) -> str:
        counts = _states(self.jobs, entries)
        listed = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
        left = self.left(entries, reached)
        return f"{listed} of {len(self.jobs)}" + (f"; {clock(left)} left" if left is not None else "")

    def _table(self, entries: dict[str, Entry], reached: dict[str, RunProgress]) -> Table:
        table = Table(title=Text(self._counts(entries, reached)), title_justify="left", box=None, pad_edge=False)
        for column in ("job", "step", "task return", "frames/s"):
            table.add_column(column, justify="left" if column == "job" else "right")
        for name, one in reached.items():
            step = f"{one.step:,} of {one.total:,}" if one.total else "begins"
            table.add_row(Text(name), step, _number(one.task_return), _number(one.fps))
        return table


def summary(jobs: list[Job], entries: dict[str, Entry], seconds: float) -> str:
    """The table at the end: a line for every cell, what failed and why, and how to continue."""
    by_cell = cells(jobs)
    width = max(map(len, [*by_cell, "cell"]))
    finished = {name: [job for job in members if _is_finished(job, entries)] for name, members in by_cell.items()}
    modes = {name: _mean_score(members, OTHER_WAY) for name, members in finished.items()}
    # Only a sampled policy has been judged by its mode, too.
    has_modes = any(mode is not None for mode in modes.values())
    lines = ["", f"{'cell':<{width}}  finished  failed  task return" + "  by its mode" * has_modes]
    for name, members in by_cell.items():
        share = f"{len(finished[name])}/{len(members)}"
        failed = _states(members, entries)["failed"]
        line = f"{name:<{width}}  {share:>8}  {failed:>6}  {_number(_mean_score(finished[name])):>11}"
        lines.append(line + f"  {_number(modes[name]):>11}" * has_modes)
    states = _states(jobs, entries)
    lines += ["", f"{states['finished']} of {len(jobs)} jobs finished; this command took {clock(seconds)}"]
    failures = [job for job in jobs if entries.get(job.name, Entry()).state == "failed"]
    lines += [f"failed: {job.name}: {entries[job.name].error} (see {job.folder / LOG})" for job in failures]
    lines += ["resume=errored tries what failed again"] if failures else []
    stopped = states["stopped"] + states["waiting"] + states["lost"]
    lines += [f"{stopped} stopped or waiting: the same command continues"] if stopped else []
    return "\n".join(lines)


def _is_finished(job: Job, entries: dict[str, Entry]) -> bool:
    return entries.get(job.name, Entry()).state == "finished"


def _mean_score(jobs: list[Job], policy: str = "this run") -> float | None:
    found = [score(job.folder, policy) for job in jobs]
    scores = [value for value in found if value is not None]
    return statistics.fmean(scores) if scores else None


def _states(jobs: list[Job], entries: dict[str, Entry]) -> Counter[str]:
    return Counter(entries.get(job.name, Entry()).state for job in jobs)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
