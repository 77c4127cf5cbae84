"""Train on a few tasks of a family, chosen one by one, so that their policies serve all of it without more training.

    python -m runners.transfer env=Pendulum-v1 over=env.g=[2,15,12] budget=5 agent=sac total_timesteps=8000

over= names an option of the environment and its range, [low,high,how many]; give it twice for a grid of two. After
every source its policy is evaluated on all tasks, which decides where to train next (see `runners.transfer.mbtl`). The
same command continues where it was stopped, or killed.
"""

from __future__ import annotations

import sys
from contextlib import closing

from runners.cli.command import Command
from runners.transfer.config import TransferConfig


def transfer(config: TransferConfig) -> None:
    """All of it: controls know their sources beforehand and run beside the first one; then a source at a time."""
    from runners.run.exits import Signals
    from runners.sweep.config import begin
    from runners.sweep.job_log import JobLog
    from runners.transfer import mbtl
    from runners.transfer.results import OURS, SourcePolicies, summary, table, write

    with Signals(), closing(JobLog(config.folder)) as log:
        begin(config.folder, config.fixed())
        labels, contexts = config.labels, config.contexts
        print(f"{len(labels)} tasks, {labels[0]} to {labels[-1]}; {config.folder}")
        fixed = {
            "equidistant": mbtl.equidistant(contexts, config.budget),
            "random": mbtl.at_random(len(contexts), config.budget, config.seed),
        }
        orders: dict[str, list[int]] = {OURS: [], **{name: fixed[name] for name in config.controls}}
        with closing(config.launch()) as launcher:
            trained = SourcePolicies(config, log, launcher)
            trained.get([mbtl.choose(contexts, {}), *(source for order in orders.values() for source in order)])
            while len(orders[OURS]) < config.budget:
                seen = trained.get(orders[OURS])  # results of the controls are not used
                source = mbtl.choose(contexts, seen)
                orders[OURS].append(source)
                value = trained.get([source])[source][source]
                print(f"source {len(seen) + 1}: {labels[source]}, {value:.4g} at home", flush=True)
        found = summary(config, orders, trained.rows)
        picture = write(config, found, trained.rows, config.command("runners.transfer"))
        print(f"\n{table(found)}\n\npicture: {picture}")


main = Command(TransferConfig, transfer, __doc__, stopped="stopped: the runs have saved; the same command continues")

if __name__ == "__main__":
    sys.exit(main())
