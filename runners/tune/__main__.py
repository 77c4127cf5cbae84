"""Find settings of an agent and its rewards, and say honestly what they are worth.

    python -m runners.tune env=CartPole-v1 reward=rnd agent=ppo trials=40 total_timesteps=30000

Optuna proposes settings from the ranges that stand beside every option (`python -m runners.list NAME` shows them); each
is trained with several tuning seeds and judged by the task's return, never the learned one. At the end the best setting
and the default run on test seeds that nothing was chosen by: only these numbers are final. The same command goes on
where the search was stopped, or killed.

    tune=         keys to try, as in tune=agent.learning_rate,reward.rnd.weight; by default all that have a range and
                  that the command does not set
    tune.<key>=   a range of your own: [1e-5,1e-3], [1e-5,1e-3,log] or [32,64,choice]
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runners.sweep.job import Launcher
    from runners.sweep.job_log import Ledger
    from runners.tune.plan import Plan


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    from runners.tune.plan import OPTIONS, command

    listed = {key: words for key, words in OPTIONS.items() if key != "tune"}
    return command(__doc__ or "", listed, tune, sys.argv[1:] if argv is None else argv)


def tune(argv: list[str]) -> int:
    """The whole search, top to bottom."""
    from runners.sweep.job_log import Ledger
    from runners.tune.plan import launching
    from runners.tune.plan import plan as read

    launch, rest = launching(argv)
    plan = read(rest)
    ledger = Ledger(plan.folder)
    try:
        _begin(plan)
        launcher = launch()
        try:
            return _search(plan, ledger, launcher, f"python -m runners.tune {shlex.join(argv)}")
        finally:
            launcher.close()
    finally:
        ledger.close()


def _begin(plan: Plan) -> None:
    """Write down what is promised, and tell it."""
    from runners.tune.plan import promise

    promise(plan.folder, plan.promises())
    runs = plan.trials * plan.seeds + 2 * plan.test_seeds
    print(f"reward of a trial: the task's return, IQM over seeds {plan.tuning_seeds[0]}-{plan.tuning_seeds[-1]}")
    for one in plan.spaces:
        print(f"  {one.key:<32}{one!s:<28}default {plan.default[one.key]}")
    print(f"at most {runs} runs of {int(plan.config.total_timesteps):,} steps; folder: {plan.folder}", flush=True)


def _search(plan: Plan, ledger: Ledger, launcher: Launcher, command: str) -> int:
    """Try, then test."""
    from runners.sweep.drive import drive
    from runners.tune.search import Search, open_study
    from runners.tune.verdict import best, table, test_jobs, verdict, write

    study = open_study(plan)
    Search(plan, study, launcher, lambda sentence: print(sentence, flush=True)).run(ledger)
    jobs = test_jobs(plan, best(study, plan))
    print(f"test: {len(jobs)} runs", flush=True)
    entries = drive(jobs, ledger, launcher, resume="errored")
    missing = [job for job in jobs if not job.finished]
    if missing:
        raise RuntimeError(
            f"{len(missing)} of {len(jobs)} test runs did not finish ({entries[missing[0].name].error}); "
            "the same command tries them again"
        )
    found = verdict(plan, study, jobs, entries)
    path = write(plan, found, command)
    print(f"\n{table(found)}\n\nuse it:     python -m runners.train preset={path}")
    print(f"one page:   python -m runners.report {plan.folder / 'test'}")  # tuning seeds would flatter it
    return 0


if __name__ == "__main__":
    sys.exit(main())
