"""Run a grid of runs, every job once, whatever is killed meanwhile.

    python -m runners.sweep env=CartPole-v1,Acrobot-v1 reward=task,rnd,[task,count] 'seed=range(5)'

Every key of runners.train may name alternatives behind commas; [a,b] is one value, and so is a quoted sentence. Every
combination is a job. The same command continues where the sweep was stopped, or killed. launcher=ray and launcher=slurm
run the same jobs on other machines, launcher.<option>= are their own.

Exit codes: 0 all finished, 1 some failed, 2 usage, 3 a missing package, 130 and 143 stopped by a signal.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from envs.settings import setting
from runners.cli.command import Command
from runners.run.config import UsageError
from runners.sweep.config import JobsConfig
from runners.sweep.drive import RESUME, drive
from runners.sweep.grid import expand, safe
from runners.sweep.job_log import JobLog


@dataclass
class SweepConfig(JobsConfig):
    """One sweep."""

    resume: str = setting(
        "unfinished", "what runs again; errored: also what failed, never: no sweep that was begun", choices=RESUME
    )
    attempts: int = setting(3, "how often a job that crashes is started; it continues from its last checkpoint", low=1)
    dry: bool = setting(False, "only estimate how long and how large all jobs will be, from a short run of each kind")
    report: bool = setting(True, "write the report's page at the end")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name and safe(self.name) != self.name:
            raise UsageError(f"name={self.name} is no name of a folder; give letters, digits, - and _")
        if not self.name:
            given = dict(argument.partition("=")[::2] for argument in self.rest)
            stem = safe(f"{given.get('env', '')}-{given.get('reward', 'task')}")[:40].strip("-.,")
            self.name = f"{stem}-{hashlib.sha256(json.dumps(sorted(self.rest)).encode()).hexdigest()[:6]}"

    @property
    def folder(self) -> Path:
        return Path(self.root).absolute() / "sweeps" / self.name


def sweep(config: SweepConfig) -> int:
    """The whole sweep, top to bottom."""
    if config.launcher == "local":
        from runners.sweep.local import warm_up

        warm_up()  # imports in the background while the jobs are composed
    jobs = expand(config.rest, config.folder, config.gpus)
    if config.dry:
        from runners.sweep.probe import probe

        page, successful = probe(jobs, config.launch(), config.folder.parent)
        print(page)
        return 0 if successful else 1
    from runners.sweep.display import Display, summary

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
    """Write down what is about to run.

    Raises:
        UsageError: if the sweep was begun already and `resume` rules that out.
    """
    from runners.run.checkpoint import versions, write_atomically

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


main = Command(SweepConfig, sweep, __doc__, stopped="stopped: the jobs have saved; the same command continues")

if __name__ == "__main__":
    sys.exit(main())
