"""Train on a few tasks of a family, chosen one by one, so that their policies serve all of it without more training.

    python -m runners.transfer env=Pendulum-v1 over=env.g=[2,15,12] budget=5 agent=sac total_timesteps=8000

After every source its policy is played on all tasks; what it earns there says where to train next (see
`runners.transfer.mbtl`). The same command goes on where it was stopped, or killed.

    over=         an option of the environment and its range, [low,high,how many]; twice for a grid of two
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runners.sweep.job import Launcher
    from runners.sweep.job_log import Ledger
    from runners.transfer.family import Family


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    from runners.transfer.family import OPTIONS
    from runners.tune.plan import command

    return command(__doc__ or "", OPTIONS, transfer, sys.argv[1:] if argv is None else argv)


def transfer(argv: list[str]) -> int:
    """All of it, top to bottom."""
    from runners.sweep.job_log import Ledger
    from runners.transfer.family import family as read
    from runners.tune.plan import launching, promise

    launch, rest = launching(argv)
    family = read(rest)
    ledger = Ledger(family.folder)
    try:
        promise(family.folder, family.promises())
        print(f"{len(family.tasks)} tasks, {family.label(0)} to {family.label(len(family.tasks) - 1)}; {family.folder}")
        launcher = launch()
        try:
            return _run(family, ledger, launcher, f"python -m runners.transfer {shlex.join(argv)}")
        finally:
            launcher.close()
    finally:
        ledger.close()


def _run(family: Family, ledger: Ledger, launcher: Launcher, command: str) -> int:
    """Controls know their sources beforehand and run beside the first one; then a source at a time."""
    from runners.transfer import mbtl
    from runners.transfer.page import OURS, summary, table, write
    from runners.transfer.trained import Trained

    trained, contexts = Trained(family, ledger, launcher), family.contexts
    fixed = {
        "equidistant": mbtl.equidistant(contexts, family.budget),
        "random": mbtl.at_random(len(contexts), family.budget, family.seed),
    }
    orders: dict[str, list[int]] = {OURS: [], **{who: fixed[who] for who in family.controls}}
    trained.get([mbtl.choose(contexts, {}), *(source for order in orders.values() for source in order)])
    while len(orders[OURS]) < family.budget:
        seen = trained.get(orders[OURS])  # what the controls have seen stays theirs
        source = mbtl.choose(contexts, seen)
        orders[OURS].append(source)
        values = trained.get([source])[source]
        print(f"source {len(seen) + 1}: {family.label(source)}, {values[source]:.4g} at home", flush=True)
    found = summary(family, orders, trained.rows)
    picture = write(family, found, trained.rows, command)
    print(f"\n{table(found)}\n\npicture: {picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
