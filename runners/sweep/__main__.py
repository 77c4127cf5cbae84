"""Run a grid of runs, every job once, whatever is killed meanwhile.

    python -m runners.sweep env=CartPole-v1,Acrobot-v1 reward=task,rnd,[task,count] 'seed=range(5)'

Every key of runners.train may name alternatives behind commas; [a,b] is one value, and so is a quoted sentence. Every
combination is a job. The same command continues where the sweep was stopped, or killed. launcher=ray and launcher=slurm
run the same jobs on other machines, launcher.<option>= are their own.

Exit codes: 0 all finished, 1 some failed, 2 usage, 3 a missing package, 130 and 143 stopped by a signal.
"""

import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lodestar.settings import setting
from runners.cli.command import Command
from runners.cli.compose import compose
from runners.report.job_log import Entry
from runners.run.checkpoint import digest, versions, write_json
from runners.run.config import LOG_EVERY, TextValues, TrainConfig, UsageError, assignments
from runners.run.folder import read_status
from runners.run.output import clock
from runners.sweep.config import JobsConfig
from runners.sweep.display import Display, summary
from runners.sweep.drive import RESUME, drive
from runners.sweep.grid import expand, folder_name
from runners.sweep.job import Job, JobLog, Launcher, cells
from runners.sweep.local import warm_up

# The short runs of dry=true: environment steps that each learns from (a longer rollout is taken whole), the episodes of
# its evaluation, and its other settings. Two checkpoints and two rows of the log tell how those grow.
PROBE_STEPS = 100
PROBE_EPISODES = 2
PROBE_SETTINGS = {"video": "false", "control": "none", "checkpoint_every": "50", "log_every": "50"}
# Checkpoints that a run keeps.
KEPT_CHECKPOINTS = 3
# A guess.
VIDEO_BYTES = 1_000_000


@dataclass
class SweepConfig(JobsConfig):
    """One sweep."""

    resume: str = setting("unfinished", "what runs again; errored: what failed, too; never: nothing", choices=RESUME)
    attempts: int = setting(3, "how often a job that crashes is started; it continues from its last checkpoint", ">= 1")
    dry: bool = setting(False, "only estimate time, disk and memory of all jobs, from a short run of each kind")
    report: bool = setting(True, "write the report's page at the end")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse("run_dir")
        if self.name and folder_name(self.name) != self.name:
            raise UsageError(f"name={self.name} is no name of a folder; give letters, digits, - and _")
        if not self.name:
            given = _split_all(self.rest)
            stem = folder_name(f"{given.get('env', '')}-{given.get('reward', 'task')}")[:40].strip("-.,")
            self.name = f"{stem}-{digest(sorted(self.rest))[:6]}"
        self.folder = Path(self.root).absolute() / "sweeps" / self.name


def sweep(config: SweepConfig) -> int:
    """The whole sweep, top to bottom."""
    if config.launcher == "local":
        # It imports in the background while the jobs are composed.
        warm_up()
    jobs = expand(config.rest, config.folder, config.gpus)
    if config.dry:
        page, all_finished = probe(jobs, config.launch(), config.folder.parent)
        print(page)
        return 0 if all_finished else 1
    with closing(JobLog(config.folder)) as log:
        begin(config, [job.name for job in jobs], log)
        began = time.monotonic()
        with closing(config.launch()) as launcher, Display(jobs) as display:
            drive(jobs, log, launcher, resume=config.resume, attempts=config.attempts, watcher=display)
        print(summary(jobs, log.entries, time.monotonic() - began))
    show_tensorboard(config.folder, jobs)
    if config.report:
        report(config.folder)
    return 0 if all(job.is_finished for job in jobs) else 1


def begin(config: SweepConfig, names: list[str], log: JobLog) -> None:
    """Write down what is about to run; a UsageError if it was begun already and `resume` rules that out."""
    if config.resume == "never" and log.entries:
        raise UsageError(f"resume=never, but {config.folder} holds a sweep; give another name=, or resume=unfinished")
    plan = {"command": config.command("runners.sweep"), "versions": versions(), "jobs": names}
    write_json(config.folder / "sweep.json", plan)
    log.expect(names)
    print(f"sweep: {len(names)} job{'s' if len(names) > 1 else ''} in {config.folder}", flush=True)


def show_tensorboard(folder: Path, jobs: list[Job]) -> None:
    """Print what shows all runs, by short names, in one TensorBoard; nothing where none has a log."""
    logged = []
    for job in jobs:
        if (job.folder / "tensorboard").is_dir():
            logged.append(job)
    if not logged:
        return
    from runners.run.tensorboard import command_line, link_runs, short_names

    names = short_names([job.name for job in logged])
    with suppress(OSError):
        place = link_runs(folder / "tensorboard", dict(zip(names, [job.folder for job in logged])))
        print(f"tensorboard: {command_line(str(place))}")


def report(folder: Path) -> None:
    """One page about all runs; a report that fails costs a sentence."""
    try:
        from runners.report.__main__ import main as write

        write([str(folder)])
    except Exception as error:
        print(f"report:      none ({type(error).__name__}: {error})")


@dataclass(frozen=True)
class Cost:
    """What a job is expected to take: seconds, bytes on the disk and in memory; `error` if its probe failed."""

    seconds: float = 0.0
    size: float = 0.0
    memory: float = 0.0
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
        probes = {name: short_job(members[0], Path(place) / name) for name, members in by_cell.items()}
        with closing(JobLog(Path(place))) as log, closing(launcher):
            entries = drive(probes.values(), log, launcher, attempts=1)
        costs = {}
        for name, members in by_cell.items():
            costs[name] = job_cost(members[0], probes[name], entries[name])
    return cost_table(by_cell, costs, launcher.slots), not any(cost.error for cost in costs.values())


def short_job(job: Job, folder: Path) -> Job:
    """A job like this one that ends soon, in another folder."""
    config, _ = compose(list(job.argv))
    start = _learning_start(config)
    given = _split_all(job.argv) | PROBE_SETTINGS
    given["total_timesteps"] = str(PROBE_STEPS + start)
    given["run_dir"] = str(folder)
    given["eval_episodes"] = str(min(config.eval_episodes, PROBE_EPISODES))
    if start:
        given["agent.learning_starts"] = str(start)
    return replace(job, name=str(Path(job.name).parent), argv=tuple(assignments(given)), folder=folder)


def _split_all(arguments: Iterable[str]) -> TextValues:
    """The keys of arguments -> their texts."""
    return dict(argument.partition("=")[::2] for argument in arguments)


def _learning_start(config: TrainConfig) -> int:
    """Steps before a probe of an agent with a replay begins to learn."""
    start = getattr(config.agent, "learning_starts", 0)
    if start is None:
        return PROBE_STEPS
    return min(start, PROBE_STEPS)


def job_cost(job: Job, probe: Job, entry: Entry) -> Cost:
    """From a probe to the whole job: beginning + training, step by step + evaluation, episode by episode."""
    if entry.state != "finished":
        return Cost(error=entry.error or entry.state)
    config, _ = compose(list(job.argv))
    # The run writes the first of these when it begins, the second while it trains and the third when it ends.
    begun = (probe.folder / "command.txt").stat().st_mtime
    trained = (probe.folder / "metrics.csv").stat().st_mtime
    ended = (probe.folder / "status.json").stat().st_mtime
    status = read_status(probe.folder)
    steps = max(status["step"] - _learning_start(config), 1)
    seconds = max(entry.seconds - (ended - begun), 0.0)
    seconds += (trained - begun) * config.total_timesteps / steps
    seconds += (ended - trained) * max(config.eval_episodes / PROBE_EPISODES, 1.0)
    last_checkpoint, full_checkpoint = checkpoint_sizes(probe.folder / "checkpoints", config)
    size = full_checkpoint * KEPT_CHECKPOINTS + log_size(probe.folder, config) + VIDEO_BYTES * config.video
    # What the checkpoint still grows by, as a replay does, grows in memory, too.
    memory = float(status["peak_memory"]) + full_checkpoint - last_checkpoint
    return Cost(seconds, size, memory)


def checkpoint_sizes(folder: Path, config: TrainConfig) -> tuple[float, float]:
    """Bytes of a probe's last checkpoint, and of one of the whole job."""
    checkpoints = sorted(folder.glob("step_*"))
    first_step = int(checkpoints[0].name.removeprefix("step_"))
    last_step = int(checkpoints[-1].name.removeprefix("step_"))
    last_size = _bytes_below(checkpoints[-1])
    bytes_a_step = 0.0
    if last_step > first_step:
        bytes_a_step = max(last_size - _bytes_below(checkpoints[0]), 0) / (last_step - first_step)
    total = config.total_timesteps
    # A checkpoint grows until the replay is full; without a replay, for as long as the run lasts.
    full_step = min(total, getattr(config.agent, "buffer_size", total))
    full_size = last_size + bytes_a_step * (full_step - last_step)
    return last_size, max(full_size, last_size)


def log_size(folder: Path, config: TrainConfig) -> float:
    """Bytes of the whole job's logs, from a probe's."""
    log_rows = max(config.total_timesteps / (config.log_every or LOG_EVERY), 1.0)
    bytes_a_row = (_bytes_below(folder / "tensorboard") + _bytes_below(folder / "metrics.csv")) / 2
    return bytes_a_row * log_rows


def cost_table(by_cell: dict[str, list[Job]], costs: dict[str, Cost], slots: int) -> str:
    """What `dry=true` prints."""
    width = max(map(len, [*by_cell, "cell"]))
    lines = [f"{'cell':<{width}}  jobs  time a job  disk a job  memory a job"]
    count = 0
    failures = 0
    seconds = 0.0
    size = 0.0
    longest = 0.0
    largest = 0.0
    for name, members in by_cell.items():
        cost = costs[name]
        sizes = f"{_size_text(cost.size):>10}  {_size_text(cost.memory):>12}"
        figures = cost.error or f"{clock(cost.seconds):>10}  {sizes}"
        lines.append(f"{name:<{width}}  {len(members):>4}  {figures}")
        count += len(members)
        failures += cost.error != ""
        seconds += cost.seconds * len(members)
        size += cost.size * len(members)
        longest = max(longest, cost.seconds)
        largest = max(largest, cost.memory)
    at_once = min(slots, count)
    # However many jobs run at once, the sweep lasts as long as its longest job.
    seconds = max(seconds / at_once, longest)
    total = f"about {clock(seconds)}, {_size_text(size)} of disk and {_size_text(largest * at_once)} of memory"
    lines += ["", f"{count} jobs, {at_once} at once: {total}"]
    if failures:
        lines.append(f"{failures} of {len(by_cell)} probes failed; their jobs are left out of the sum")
    lines.append(f"An estimate, from about {PROBE_STEPS} steps of each cell; no job of the sweep has run.")
    return "\n".join(lines)


def _bytes_below(path: Path) -> int:
    """The size of a file, or of all files in a folder."""
    files = [path, *path.rglob("*")]
    return sum(file.stat().st_size for file in files if file.is_file())


def _size_text(size: float) -> str:
    if size >= 1e9:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.1f} MB"


main = Command(SweepConfig, sweep, __doc__, stopped="stopped: the jobs have saved; the same command continues")

if __name__ == "__main__":
    sys.exit(main())
