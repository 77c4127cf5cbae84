"""Run a grid of runs, every job once, whatever the night brings.

    python -m runners.sweep env=CartPole-v1,Acrobot-v1 reward=task,rnd,[task,count] 'seed=range(5)'

Every key of runners.train may name alternatives behind commas; [a,b] is one value, and so is a quoted sentence. Every
combination is a job. The same command goes on where the sweep was stopped, or killed.

    name=         folder below root/sweeps; by default from the grid, so that the same grid is the same sweep
    root=         folder that sweeps are written to (runs)
    resume=       what runs again: unfinished (default), errored (also what failed), never (no sweep that was begun)
    attempts=     how often a job that crashes is started (3); it continues from its last checkpoint
    launcher=     local (default), ray, slurm; launcher.<option>= are its own
    slots=        jobs at once; by default one a core
    gpus=         what a job takes of a GPU, as in 0.25 for four on one (0: jobs take no account of each other)
    dry=true      print the jobs and, from a short run of each kind, how long and how large all will be; run nothing
    report=false  no report page at the end

Exit codes: 0 all finished, 1 some failed, 2 usage, 3 a missing package, 130 and 143 stopped by a signal.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
import time
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from typing import Any

from runners.run.config import UsageError, unknown

FLAGS = {"true": True, "false": False}


@dataclass
class Plan:
    """What a sweep's command line asks for, beside the grid."""

    grid: list[str]  # what is runners.train's
    name: str = ""
    root: str = "runs"
    resume: str = "unfinished"
    attempts: int = 3
    launcher: str = "local"
    options: dict[str, Any] = field(default_factory=dict)  # launcher.<option>
    slots: int | None = None
    gpus: float = 0.0
    dry: bool = False
    report: bool = True

    @property
    def folder(self) -> Path:
        """The sweep's."""
        return Path(self.root).absolute() / "sweeps" / self.name


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or "--help" in argv or "-h" in argv:
        print(__doc__)
        return 0 if argv else 2
    from runners.run.exits import Stopped
    from runners.run.packages import name_collision

    try:
        stranger = name_collision()
        if stranger:
            raise UsageError(stranger)
        return sweep(read(argv), argv)
    except Stopped as stop:
        print("stopped: the jobs have saved; the same command goes on")
        return stop.code
    except KeyboardInterrupt:
        return 130
    except (UsageError, ImportError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 3


def read(argv: list[str]) -> Plan:
    """The command line.

    Raises:
        UsageError: if one of the sweep's own keys has a value that it cannot have.
    """
    from runners.cli.value import value_of

    plan = Plan([])
    kinds = {"name": str, "root": str, "resume": str, "launcher": str}
    for argument in argv:
        key, _, text = argument.partition("=")
        if key.startswith("launcher."):
            plan.options[key.removeprefix("launcher.")] = value_of(argument)
        elif key in kinds:
            setattr(plan, key, text)
        elif key in ("dry", "report"):
            if text not in FLAGS:
                raise UsageError(unknown(key, text, FLAGS))
            setattr(plan, key, FLAGS[text])
        elif key in ("slots", "attempts"):
            setattr(plan, key, int(_number(argument, value_of(argument), 1, whole=True)))
        elif key == "gpus":
            value = value_of(argument)
            plan.gpus = _number(argument, value, 0, whole=isinstance(value, (int, float)) and value > 1)
        else:
            plan.grid.append(argument)
    _check(plan)
    return plan


def _check(plan: Plan) -> None:
    from runners.sweep.drive import LAUNCHERS, RESUME
    from runners.sweep.grid import safe

    if plan.resume not in RESUME:
        raise UsageError(unknown("resume", plan.resume, RESUME))
    if plan.launcher not in LAUNCHERS:
        raise UsageError(unknown("launcher", plan.launcher, LAUNCHERS))
    if plan.name and safe(plan.name) != plan.name:
        raise UsageError(f"name={plan.name} is no name of a folder; give letters, digits, - and _")
    if not plan.name:
        given = dict(argument.partition("=")[::2] for argument in plan.grid)
        stem = safe(f"{given.get('env', '')}-{given.get('reward', 'task')}")[:40].strip("-.,")
        plan.name = f"{stem}-{hashlib.sha256(json.dumps(sorted(plan.grid)).encode()).hexdigest()[:6]}"


def _number(argument: str, value: Any, low: int, *, whole: bool) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or value < low or (whole and value != int(value)):
        words = "a whole number" if whole else "0 to 1, or a whole number"
        raise UsageError(f"{argument} is out of range; give {words}, {low} or more")
    return float(value)


def sweep(plan: Plan, argv: list[str]) -> int:
    """The whole sweep, top to bottom."""
    if plan.launcher == "local":
        from runners.sweep.local import warm_up

        warm_up()  # imports beside us while the jobs are composed
    from runners.sweep.display import Display, summary
    from runners.sweep.drive import drive, make_launcher
    from runners.sweep.grid import expand
    from runners.sweep.job_log import Ledger

    jobs = expand(plan.grid, plan.folder, plan.gpus)
    options = {"slots": plan.slots, **plan.options}
    if plan.dry:
        from runners.sweep.probe import probe

        page, well = probe(jobs, make_launcher(plan.launcher, options), plan.folder.parent)
        print(page)
        return 0 if well else 1
    ledger = Ledger(plan.folder)
    try:
        begin(plan, argv, [job.name for job in jobs], ledger)
        launcher = make_launcher(plan.launcher, options)
        began = time.monotonic()
        with Display(jobs, launcher.slots) as table:
            try:
                drive(jobs, ledger, launcher, resume=plan.resume, attempts=plan.attempts, table=table)
            finally:
                launcher.close()
        print(summary(jobs, ledger.entries, time.monotonic() - began))
    finally:
        ledger.close()
    if plan.report:
        report(plan.folder)
    return 0 if all(ledger.entries[job.name].state == "finished" for job in jobs) else 1


def begin(plan: Plan, argv: list[str], names: list[str], ledger: Any) -> None:
    """Write down what is about to run.

    Raises:
        UsageError: if the sweep was begun already and `resume` rules that out.
    """
    from runners.run.checkpoint import versions, write_atomically

    if plan.resume == "never" and ledger.entries:
        raise UsageError(f"resume=never, but {plan.folder} holds a sweep; give another name=, or resume=unfinished")
    command = f"python -m runners.sweep {shlex.join(argv)}"
    page = {"command": command, "argv": argv, "versions": versions(), "jobs": names}
    write_atomically(plan.folder / "sweep.json", json.dumps(page, indent=1) + "\n")
    ledger.expect(names)
    print(f"sweep: {len(names)} job{'s' if len(names) > 1 else ''} in {plan.folder}", flush=True)


def report(folder: Path) -> None:
    """One page about it all; a report that fails costs a sentence."""
    if util.find_spec("runners.report") is None:
        return
    try:
        from runners.report.__main__ import main as write

        write([str(folder)])
    except Exception as error:
        print(f"report:      none ({type(error).__name__}: {error})")


if __name__ == "__main__":
    sys.exit(main())
