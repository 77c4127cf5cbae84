"""One honest page from a sweep, or from any runs: curves, scores with intervals, differences, videos, configurations.

    python -m runners.report runs/sweeps/x
    python -m runners.report runs/CartPole-v1 published.csv threshold=475 out=paper
    python -m runners.report runs/sweeps/old runs/sweeps/new label=old,new

A PATH is a folder, below which run folders are looked for, or a CSV with published curves: an export of Weights &
Biases ("global_step", "<run> - charts/episodic_return"), or a long table with columns like step, episodic_return, seed,
exp_name, env_id.

Writes report.html (one file, no network, no script), report.png (the picture for a paper), report.csv (all numbers) and
curves.csv (the curves on their common grid); `runners.report.study` documents their columns, and reads from a script.
"""

from __future__ import annotations

import sys

from runners.cli.command import Command
from runners.report.study import Report, ReportConfig


def report(config: ReportConfig) -> None:
    """Read, compute, draw, write."""
    print(f"report:      {Report(config).write()}")


main = Command(ReportConfig, report, __doc__)

if __name__ == "__main__":
    sys.exit(main())
