"""Run a grid of runs, every job once, whatever is killed meanwhile.

    python -m runners.sweep env=CartPole-v1,Acrobot-v1 reward=task,rnd,[task,count] 'seed=range(5)'

Every key of runners.train may name alternatives behind commas; [a,b] is one value, and so is a quoted sentence. Every
combination is a job. The same command continues where the sweep was stopped, or killed. launcher=ray and launcher=slurm
run the same jobs on other machines, launcher.<option>= are their own.

Exit codes: 0 all finished, 1 some failed, 2 usage, 3 a missing package, 130 and 143 stopped by a signal.
"""

import hashlib
import json
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from lodestar.settings import setting
from runners.cli.command import Command
from runners.cli.compose import compose
from runners.cli.output import clock
from runners.run.checkpoint import versions, write_atomically
from runners.run.config import LOG_EVERY, TrainConfig, UsageError
from runners.run.folder import read_status
from runners.sweep.config import JobsConfig
from runners.sweep.display import Display, summary
from runners.sweep.drive import RESUME, drive
from runners.sweep.grid import expand, safe
from runners.sweep.job import Entry, Job, JobLog, Launcher, cells
from runners.sweep.local import warm_up

# of the short runs of dry=true
STEPS = 100  # environment steps that a probe learns from; a longer rollout is taken whole
EPISODES = 2  # of its evaluation
KEPT = 3  # checkpoints that a run keeps
VIDEO = 1_000_000  # bytes, a guess
QUIET = {"video": "false", "control": "none", "checkpoint_every": str(STEPS // 2), "log_every": str(STEPS // 2)}


@dataclass
class SweepConfig(JobsConfig):
    """One sweep."""

    resume: str = setting("unfinished", "what runs again; errored: what failed, too; never: nothing", choices=RESUME)
    attempts: int = setting(3, "how often a job that crashes is started; it continues from its last checkpoint", low=1)
    dry: bool = setting(False, "only estimate how long and how large all jobs will be, from a short run of each kind")
    report: bool = setting(True, "write the report's page at the end")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse("run_dir")
        if self.name and safe(self.name) != self.name:
            raise UsageError(f"name={self.name} is no name of a folder; give letters, digits, - and _")
        if not self.name:
            given = dict(argument.partition("=")[::2] for argument in self.rest)
            stem = safe(f"{given.get('env', '')}-{given.get('reward', 'task')}")[:40].strip("-.,")
            self.name = f"{stem}-{hashlib.sha256(json.dumps(sorted(self.rest)).encode()).hexdigest()[:6]}"
        self.folder = Path(self.root).absolute() / "sweeps" / self.name


def sweep(config: SweepConfig) -> int:
    """The whole sweep, top to bottom."""
    if config.launcher == "local":
        warm_up()  # imports in the background while the jobs are composed
    jobs = expand(config.rest, config.folder, config.gpus)
    if config.dry:
        page, successful = probe(jobs, config.launch(), config.folder.parent)
        print(page)
        return 0 if successful else 1
    with closing(JobLog(config.folder)) as log:
        begin(config, [job.name for job in jobs], log)
        began = time.monotonic()
        with closing(config.launch()) as launcher, Display(jobs) as display:
            drive(jobs, log, launcher, resume=config.resume, attempts=config.attempts, watcher=display)
        print(summary(jobs, log.entries, time.monotonic() - began))
    if config.report:
        report(config.folder)
    return 0 if all(log.entries[job.name].state == "finished" for job in jobs) else 1


def begin(config: SweepConfig, names: list[str], log: JobLog) -> None:
    """Write down what is about to run; a UsageError if it was begun already and `resume` rules that out."""
    if config.resume == "never" and log.entries:
        raise UsageError(f"resume=never, but {config.folder} holds a sweep; give another name=, or resume=unfinished")
    page = {"command": config.command("runners.sweep"), "versions": versions(), "jobs": names}
    write_atomically(config.folder / "sweep.json", json.dumps(page, indent=1) + "\n")
    log.expect(names)
    print(f"sweep: {len(names)} job{'s' if len(names) > 1 else ''} in {config.folder}", flush=True)


def report(folder: Path) -> None:
    """One page about all runs; a report that fails costs a sentence."""
    try:
        from runners.report.__main__ import main as write

        write([str(folder)])
    except Exception as error:
        print(f"report:      none ({type(error).__name__}: {error})")


@dataclass(frozen=True)
class Cost:
    """What a job is expected to take: seconds, and bytes on the disk; `error` if its probe failed."""

    seconds: float = 0.0
    size: float = 0.0
    error: str = ""


def probe(jobs: list[Job], launcher: Launcher, folder: Path) -> tuple[str, bool]:
    """`dry=true`: what a sweep would cost, estimated from a short run of every kind of job; and whether all finished.

    Each cell's first seed trains for a few steps in a temporary folder, by the same launcher, which is closed. What
    begins late, as learning from a replay does, begins early there; what grows, as a replay's checkpoint does, is
    extrapolated.
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
    argv = tuple(f"{key}={value}" for key, value in {**given, **changes}.items())
    return replace(job, name=str(Path(job.name).parent), argv=argv, folder=folder)


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
    files = [probed.folder / name for name in ("command.txt", "metrics.csv", "status.json")]
    begun, trained, ended = (path.stat().st_mtime for path in files)
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
    rows = max(total / (config.log_every or LOG_EVERY), 1.0)
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


def _bytes(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _megabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


main = Command(SweepConfig, sweep, __doc__, stopped="stopped: the jobs have saved; the same command continues")

if __name__ == "__main__":
    sys.exit(main())
