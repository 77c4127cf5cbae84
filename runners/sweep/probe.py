"""`dry=true`: what a sweep would cost, estimated from a short run of every kind of job.

Each cell's first seed trains for a few steps in a temporary folder, by the same launcher. What begins late, such as
learning from a replay, begins early there; what grows, such as the replay in a checkpoint, is extrapolated.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from runners.cli.compose import compose
from runners.run.config import TrainConfig
from runners.run.folder import read_status
from runners.sweep.display import clock
from runners.sweep.drive import drive
from runners.sweep.job import Job, Launcher, cells
from runners.sweep.job_log import Entry, JobLog

STEPS = 100  # environment steps that a probe learns from; a longer rollout is taken whole
EPISODES = 2  # of its evaluation
KEPT = 3  # checkpoints that a run keeps
VIDEO = 1_000_000  # bytes, a guess
QUIET = {"video": "false", "control": "none", "checkpoint_every": str(STEPS // 2), "log_every": str(STEPS // 2)}


@dataclass(frozen=True)
class Cost:
    """What a job is expected to take: seconds, and bytes on the disk; `error` if its probe failed."""

    seconds: float = 0.0
    size: float = 0.0
    error: str = ""


def probe(jobs: list[Job], launcher: Launcher, folder: Path) -> tuple[str, bool]:
    """Run the probes; returns the estimate as text, and whether all finished.

    Args:
        jobs: the sweep's.
        launcher: runs the probes; is closed afterwards.
        folder: where a temporary one may be made; every node must share it.
    """
    by_cell = cells(jobs)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="probe-", dir=folder) as place:
        probes = {name: short(members[0], Path(place) / name) for name, members in by_cell.items()}
        with closing(JobLog(Path(place))) as log, closing(launcher):
            entries = drive(list(probes.values()), log, launcher, attempts=1)
        costs = {name: cost(members[0], probes[name], entries[name]) for name, members in by_cell.items()}
    return table(by_cell, costs, launcher.slots), not any(one.error for one in costs.values())


def short(job: Job, folder: Path) -> Job:
    """A job like this one that ends soon, in another folder."""
    config, _ = compose(list(job.argv))
    starts = _starts(config)
    changes = {**QUIET, "total_timesteps": str(STEPS + starts), "run_dir": str(folder)}
    changes["eval_episodes"] = str(min(config.eval_episodes, EPISODES))
    if starts:
        changes["agent.learning_starts"] = str(starts)
    given = dict(argument.partition("=")[::2] for argument in job.argv)
    return replace(
        job,
        name=str(Path(job.name).parent),
        argv=tuple(f"{k}={v}" for k, v in {**given, **changes}.items()),
        folder=folder,
    )


def _starts(config: TrainConfig) -> int:
    """Steps before a probe of an agent with a replay begins to learn."""
    if not hasattr(config.agent, "learning_starts"):
        return 0
    return STEPS if config.agent.learning_starts is None else min(config.agent.learning_starts, STEPS)


def cost(job: Job, probed: Job, entry: Entry) -> Cost:
    """From a probe to the whole job: beginning + training, step by step + evaluation, episode by episode."""
    status = read_status(probed.folder) or {}
    if entry.state != "finished":
        return Cost(error=entry.error or entry.state)
    config, _ = compose(list(job.argv))
    begun, trained, ended = (_time(probed.folder / name) for name in ("command.txt", "metrics.csv", "status.json"))
    learned = max(int(status["step"]) - _starts(config), 1)
    begin = max(entry.seconds - (ended - begun), 0.0)
    total = int(config.total_timesteps)
    episodes = max(config.eval_episodes / EPISODES, 1.0)
    return Cost(begin + (trained - begun) * total / learned + (ended - trained) * episodes, size(probed.folder, config))


def size(folder: Path, config: TrainConfig) -> float:
    """Bytes of a run: its checkpoints, grown to their full size, its logs and its video."""
    found = sorted((folder / "checkpoints").glob("step_*"))
    sizes = [(int(path.name.removeprefix("step_")), _bytes(path)) for path in found]
    (first, small), (last, large) = sizes[0], sizes[-1]
    slope = max(large - small, 0) / (last - first) if last > first else 0.0
    total = int(config.total_timesteps)
    checkpoint = large + slope * (min(total, getattr(config.agent, "buffer_size", total)) - last)
    rows = max(total / (int(config.log_every) or 1000), 1.0)
    logs = (_bytes(folder / "tensorboard") + _bytes(folder / "metrics.csv")) / 2
    return max(checkpoint, large) * KEPT + logs * rows + VIDEO * config.video


def table(by_cell: dict[str, list[Job]], costs: dict[str, Cost], slots: int) -> str:
    """What `dry=true` prints."""
    width = max(map(len, [*by_cell, "cell"]))
    lines = [f"{'cell':<{width}}  jobs  time a job  disk a job"]
    for name, members in by_cell.items():
        one = costs[name]
        figures = f"{clock(one.seconds):>10}  {_megabytes(one.size):>10}" if not one.error else one.error
        lines.append(f"{name:<{width}}  {len(members):>4}  {figures}")
    count = sum(map(len, by_cell.values()))
    seconds = sum(costs[name].seconds * len(members) for name, members in by_cell.items()) / min(slots, count)
    seconds = max([seconds, *(one.seconds for one in costs.values())])
    disk = sum(costs[name].size * len(members) for name, members in by_cell.items())
    failed = [name for name, one in costs.items() if one.error]
    lines += ["", f"{count} jobs, {min(slots, count)} at once: about {clock(seconds)} and {_megabytes(disk)}"]
    lines += [f"{len(failed)} of {len(by_cell)} probes failed; their jobs are left out of the sum"] if failed else []
    lines += [f"An estimate, from about {STEPS} steps of each cell; no job of the sweep has run."]
    return "\n".join(lines)


def _time(path: Path) -> float:
    return path.stat().st_mtime


def _bytes(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _megabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
