"""A family of tasks: one environment, one or two of its options over a range. Training on one of them is a job.

over=env.g=[2,15,12]     twelve tasks, from env.g=2 to env.g=15; give it twice for a grid of two options
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envs.settings import setting
from runners.cli.compose import ENV, compose
from runners.cli.value import is_number, literal, value_of
from runners.run.config import UsageError
from runners.sweep.config import JobsConfig
from runners.sweep.grid import safe
from runners.sweep.job import Job

CONTROLS = ("equidistant", "random")


@dataclass
class TransferConfig(JobsConfig):
    """What is asked for.

    Attributes:
        argv: what every run is given, without its task, its seed and its folder.
        train: the run of the first task.
        keys: the options that differ, one or two, as in env.g.
        tasks: what each task sets, in the order of `keys`; N of them.
        folder: of all this.
    """

    budget: int = setting(5, "sources to train on, one after the other", low=1)
    seeds: int = setting(1, "runs of each source, with seeds 0, 1, ...", low=1)
    episodes: int = setting(10, "episodes of every policy on every task, the same for all", low=1)
    controls: list[str] = setting(
        [*CONTROLS], "other choices to compare with, which cost a budget each; [] for none", choices=CONTROLS
    )
    seed: int = setting(0, "of the random control", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse("run_dir", "resume")
        over = [argument.partition("=")[2] for argument in self.rest if argument.startswith("over=")]
        rest = [argument for argument in self.rest if not argument.startswith("over=")]
        grids = dict(map(_grid, over))
        if not 1 <= len(grids) <= 2:
            raise UsageError(f"{len(grids)} options are given; name one or two, as in over=env.g=[2,15,12]")
        self.keys, self.tasks = list(grids), list(itertools.product(*grids.values()))
        if self.budget > len(self.tasks):
            raise UsageError(f"budget={self.budget} is out of range; there are {len(self.tasks)} tasks")
        self.train, _ = compose([*rest, *(f"{key}={literal(value)}" for key, value in zip(grids, self.tasks[0]))])
        self.argv = ("control=none", "video=false", *rest)
        run = f"{self.train.env}-{self.train.agent_name}-{self.train.rewards}-{'-'.join(grids)}"
        self.folder = Path(self.root) / "transfer" / safe(self.name or run)

    @property
    def contexts(self) -> np.ndarray:
        """Every parameter scaled to [0, 1], (N, D)."""
        values = np.array(self.tasks, np.float64)
        return (values - values.min(axis=0)) / np.ptp(values, axis=0)

    def options(self, task: int) -> dict[str, Any]:
        return dict(zip((key.removeprefix(ENV) for key in self.keys), self.tasks[task]))

    def label(self, task: int) -> str:
        """As in `g=7.5`."""
        return ",".join(f"{key}={value:g}" for key, value in self.options(task).items())

    @property
    def labels(self) -> list[str]:
        return [self.label(task) for task in range(len(self.tasks))]

    def run(self, task: int, seed: int) -> Job:
        """Training on one task."""
        changes = {**dict(zip(self.keys, self.tasks[task])), "seed": seed}
        return self.job(self.folder, f"jobs/{safe(self.label(task))}/s{seed}", self.argv, changes)

    def fixed(self) -> dict[str, Any]:
        """What must be the same to continue in this folder; the budget may be raised."""
        return {"argv": list(self.argv), "keys": self.keys, "tasks": self.tasks, "episodes": self.episodes}


def _grid(text: str) -> tuple[str, list[float]]:
    """`env.g=[2,15,12]` -> the option and its values."""
    key = text.partition("=")[0]
    if not key.startswith(ENV):
        raise UsageError(
            f"over={key} is no option of an environment; give one, as in over=env.g=[2,15,12] (a reward or an agent is "
            "judged on the same task whatever its options: runners.tune)"
        )
    given = value_of(text)
    numbers = isinstance(given, list) and all(map(is_number, given))
    if not numbers or len(given) != 3 or not given[0] < given[1] or given[2] < 2 or given[2] != int(given[2]):
        raise UsageError(f"over={text} is no range; give [low,high,how many], as in over=env.g=[2,15,12]")
    low, high, count = given
    values = [float(f"{value:.6g}") for value in np.linspace(low, high, int(count))]
    whole = all(isinstance(v, int) for v in given) and all(value == int(value) for value in values)
    return key, [int(value) for value in values] if whole else values
