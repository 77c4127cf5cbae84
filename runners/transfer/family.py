"""A family of tasks: one environment, one or two of its options over a range. Training on one of them is a job.

over=env.g=[2,15,12]     twelve tasks, from env.g=2 to env.g=15; give it twice for a grid of two options
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runners.cli.compose import ENV, compose
from runners.cli.value import literal, value_of
from runners.run.config import TrainConfig, UsageError, unknown
from runners.sweep.grid import safe
from runners.sweep.job import Job
from runners.tune.plan import share

OPTIONS: dict[str, tuple[Any, str]] = {  # key -> default, what it is
    "budget": (5, "sources to train on, one after the other"),
    "seeds": (1, "runs of each source, with seeds 0, 1, ..."),
    "episodes": (10, "episodes of every policy on every task, the same for all"),
    "controls": (["equidistant", "random"], "other choices to compare with, which cost a budget each; [] for none"),
    "seed": (0, "of the random control"),
    "gpus": (0.0, "what a run takes of a GPU, as in 0.25 for four on one; 0: runs take no account of each other"),
    "name": ("", "of the folder below root/transfer; by default made of environment, agent, reward and options"),
    "root": ("runs", "folder that everything is written to"),
}
CONTROLS = ("equidistant", "random")


@dataclass(frozen=True)
class Family:
    """What is asked for.

    Attributes:
        argv: what every run is given, without its task, its seed and its folder.
        config: the run of the first task.
        keys: the options that differ, one or two, as in env.g.
        tasks: what each task sets, in the order of `keys`; N of them.
        folder: of all this.
    """

    argv: tuple[str, ...]
    config: TrainConfig
    keys: list[str]
    tasks: list[tuple[float, ...]]
    folder: Path
    budget: int
    seeds: int
    episodes: int
    controls: list[str]
    seed: int
    gpus: float

    @property
    def contexts(self) -> np.ndarray:
        """Every parameter scaled to [0, 1], (N, D)."""
        values = np.array(self.tasks, np.float64)
        return (values - values.min(axis=0)) / np.ptp(values, axis=0)

    def options(self, task: int) -> dict[str, Any]:
        """Of the environment."""
        return dict(zip((key.removeprefix(ENV) for key in self.keys), self.tasks[task]))

    def label(self, task: int) -> str:
        """As in `g=7.5`."""
        return ",".join(f"{key}={value:g}" for key, value in self.options(task).items())

    def job(self, task: int, seed: int) -> Job:
        """Training on one task."""
        name = f"jobs/{safe(self.label(task))}/s{seed}"
        folder = (self.folder / name).absolute()
        changes = [f"{key}={literal(value)}" for key, value in zip(self.keys, self.tasks[task])]
        place = f"run_dir={literal(str(folder))}"
        return Job(name, (*self.argv, *changes, f"seed={seed}", place), folder, self.gpus)

    def promises(self) -> dict[str, Any]:
        """What must be the same to go on in this folder; the budget may be raised."""
        return {"argv": list(self.argv), "keys": self.keys, "tasks": self.tasks, "episodes": self.episodes}


def family(argv: list[str]) -> Family:
    """The family that a command line asks for.

    Raises:
        UsageError: one sentence about the first thing that is wrong.
    """
    own: dict[str, Any] = {key: default for key, (default, _) in OPTIONS.items()}
    grids: dict[str, list[float]] = {}
    rest = []
    for argument in argv:
        key, _, text = argument.partition("=")
        if key == "over":
            grids |= _grid(text)
        elif key in OPTIONS:
            own[key] = _checked(key, value_of(argument))
        elif key in ("run_dir", "resume"):
            raise UsageError(f"{key}= is not yours to give here, as every run has a folder of its own; give name=")
        else:
            rest.append(argument)
    if not 1 <= len(grids) <= 2:
        raise UsageError(f"{len(grids)} options are given; name one or two, as in over=env.g=[2,15,12]")
    tasks = list(itertools.product(*grids.values()))
    if own["budget"] > len(tasks):
        raise UsageError(f"budget={own['budget']} is out of range; there are {len(tasks)} tasks")
    config, _ = compose([*rest, *(f"{key}={literal(value)}" for key, value in zip(grids, tasks[0]))])
    name = own.pop("name") or f"{config.env}-{config.agent_name}-{config.rewards}-{'-'.join(grids)}"
    folder = Path(own.pop("root")) / "transfer" / safe(name)
    return Family(("control=none", "video=false", *rest), config, list(grids), tasks, folder, **own)


def _grid(text: str) -> dict[str, list[float]]:
    """`env.g=[2,15,12]` -> the option and its values."""
    key = text.partition("=")[0]
    if not key.startswith(ENV):
        raise UsageError(
            f"over={key} is no option of an environment; give one, as in over=env.g=[2,15,12] (a reward or an agent is "
            "judged on the same task whatever its options: runners.tune)"
        )
    given = value_of(text)
    numbers = isinstance(given, list) and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in given)
    if not numbers or len(given) != 3 or not given[0] < given[1] or given[2] < 2 or given[2] != int(given[2]):
        raise UsageError(f"over={text} is no range; give [low,high,how many], as in over=env.g=[2,15,12]")
    low, high, count = given
    values = [float(f"{value:.6g}") for value in np.linspace(low, high, int(count))]
    whole = all(isinstance(v, int) for v in given) and all(value == int(value) for value in values)
    return {key: [int(value) for value in values] if whole else values}


def _checked(key: str, value: Any) -> Any:
    default = OPTIONS[key][0]
    if key == "controls":
        names = value if isinstance(value, list) else [part.strip() for part in str(value).split(",")]
        for name in names:
            if name not in CONTROLS:
                raise UsageError(unknown("controls", name, CONTROLS))
        return names
    if isinstance(default, str):
        return str(value)
    if key == "gpus":
        return share(value)
    low = 0 if key == "seed" else 1
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise UsageError(f"{key}={value} is out of range; give a whole number, {low} or more")
    return value
