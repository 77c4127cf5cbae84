"""What a search is going to do: a command line, checked before anything runs.

Tuning seeds and test seeds are apart: a setting is chosen by runs with seeds 1000, 1001, ... and judged by new runs
with seeds 0, 1, ... The best of forty noisy numbers is better than what earned it; only the test says what it is worth.

Source: Eimer, Lindauer & Raileanu 2023, "Hyperparameters in Reinforcement Learning and How To Tune Them", arXiv
2306.01324: tuning and test seeds apart, several of each, the space and the budget stated.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from runners.cli.compose import compose
from runners.cli.value import literal, value_of
from runners.run.checkpoint import write_atomically
from runners.run.config import TrainConfig, UsageError, unknown
from runners.sweep.drive import make_launcher
from runners.sweep.grid import safe
from runners.sweep.job import Job, Launcher
from runners.train import LOG_EVERY
from runners.tune.space import Space, spaces, values_of

TUNING_SEED = 1000  # the first; test seeds begin at 0, so there may be as many of them
OPTIONS: dict[str, tuple[Any, str]] = {  # key -> default, what it is
    "trials": (40, "settings that are tried; raised later, the search goes on"),
    "seeds": (3, "runs of each setting, with seeds 1000, 1001, ..."),
    "test_seeds": (5, "runs that judge the best setting and the default, with seeds 0, 1, ..."),
    "budget": (0.0, "environment steps after which no trial begins any more; 0 for no limit"),
    "tune": ([], "keys to try, as in tune=agent.learning_rate,reward.rnd.weight; none for all that have a range"),
    "sampler": ("tpe", "tpe (tree of Parzen estimators), or random: the control"),
    "pruner": ("median", "median or asha give up on a trial by its task return so far; none never does"),
    "seed": (0, "of the sampler"),
    "gpus": (0.0, "what a run takes of a GPU, as in 0.25 for four on one; 0: runs take no account of each other"),
    "name": ("", "of the folder below root/tune; by default made of environment, agent and reward"),
    "root": ("runs", "folder that everything is written to"),
}
CHOICES = {"sampler": ("tpe", "random"), "pruner": ("median", "asha", "none")}


@dataclass(frozen=True)
class Plan:
    """A search.

    Attributes:
        argv: what every run is given, without its setting, its seed and its folder.
        config: the run with the settings that it has by itself.
        spaces: what is tried.
        folder: of the search.
    """

    argv: tuple[str, ...]
    config: TrainConfig
    spaces: list[Space]
    folder: Path
    trials: int
    seeds: int
    test_seeds: int
    budget: float
    sampler: str
    pruner: str
    seed: int
    gpus: float

    @property
    def tuning_seeds(self) -> list[int]:
        """Of the runs that choose."""
        return [TUNING_SEED + i for i in range(self.seeds)]

    @property
    def default(self) -> dict[str, Any]:
        """The settings that a run has by itself."""
        return values_of(self.config, self.spaces)

    def job(self, name: str, values: dict[str, Any], seed: int) -> Job:
        """A run with some settings; `name` is its folder in that of the search, too."""
        folder = (self.folder / name).absolute()
        changes = [f"{key}={literal(value)}" for key, value in values.items()]
        place = f"run_dir={literal(str(folder))}"
        return Job(name, (*self.argv, *changes, f"seed={seed}", place), folder, self.gpus)

    def promises(self) -> dict[str, Any]:
        """What must be the same for a search to go on in its folder; trials and budget may be raised."""
        own = {"seeds": self.seeds, "sampler": self.sampler, "pruner": self.pruner, "seed": self.seed}
        return {"argv": list(self.argv), "spaces": {one.key: str(one) for one in self.spaces}, **own}


def plan(argv: list[str]) -> Plan:
    """The search that a command line asks for.

    Raises:
        UsageError: one sentence about the first thing that is wrong.
    """
    own, ranges, rest = _sorted(argv)
    config, _ = compose(rest)
    if config.eval_episodes == 0:
        raise UsageError("eval_episodes=0 leaves nothing to judge a setting by; give 1 or more")
    fixed = {argument.partition("=")[0] for argument in rest}
    total = int(config.total_timesteps)
    # Nobody looks at the films, and a control beside every run would be paid for every time.
    argv_ = ["control=none", "video=false", f"log_every={min(LOG_EVERY, max(total // 20, 1))}", *rest]
    name = own["name"] or f"{config.env}-{config.agent_name}-{config.rewards}"
    return Plan(
        argv=tuple(argv_),
        config=config,
        spaces=spaces(config, own["tune"], ranges, fixed),
        folder=Path(own["root"]) / "tune" / safe(name),
        **{key: own[key] for key in ("trials", "seeds", "test_seeds", "budget", "sampler", "pruner", "seed", "gpus")},
    )


def _sorted(argv: list[str]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """The search's own options, the ranges given, and what is for the runs."""
    own = {key: default for key, (default, _) in OPTIONS.items()}
    ranges: dict[str, Any] = {}
    rest = []
    for argument in argv:
        key = argument.partition("=")[0]
        if key in OPTIONS:
            own[key] = _checked(key, value_of(argument))
        elif key.startswith("tune."):
            ranges[key.removeprefix("tune.")] = value_of(argument)
        elif key in ("run_dir", "resume"):
            raise UsageError(
                f"{key}= is the search's to give, as every run has a folder of its own; give name= or root="
            )
        else:
            rest.append(argument)
    return own, ranges, rest


def _checked(key: str, value: Any) -> Any:
    default = OPTIONS[key][0]
    if key in CHOICES and value not in CHOICES[key]:
        raise UsageError(unknown(key, value, CHOICES[key]))
    if key == "tune":
        return [str(item) for item in value] if isinstance(value, list) else [part.strip() for part in value.split(",")]
    if isinstance(default, str):
        return str(value)
    if key == "gpus":
        return share(value)
    low = 0 if key in ("seed", "budget") else 1
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or value < low or value != int(value):
        raise UsageError(f"{key}={value} is out of range; give a whole number, {low} or more")
    if key == "test_seeds" and value > TUNING_SEED:
        raise UsageError(f"test_seeds={value} reaches the tuning seeds; give at most {TUNING_SEED}")
    return int(value)


def share(value: Any) -> float:
    """What a run takes of a GPU.

    Raises:
        UsageError: if it is neither a share nor a number of them.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or value < 0 or (value > 1 and value != int(value)):
        raise UsageError(f"gpus={value} is out of range; give a share, 0 to 1, or a whole number")
    return float(value)


def promise(folder: Path, mine: dict[str, Any]) -> None:
    """Write down what a command is about, or compare it with what was written down before.

    Raises:
        UsageError: if the folder holds something else.
    """
    path, mine = folder / "plan.json", json.loads(json.dumps(mine))
    known = json.loads(path.read_text()) if path.exists() else mine
    if known != mine:
        keys = ", ".join(key for key in mine if mine[key] != known.get(key))
        raise UsageError(f"{folder} was begun by another command (it differs in {keys}); give name= for a new one")
    write_atomically(path, json.dumps(mine, indent=1) + "\n")


def launching(argv: list[str]) -> tuple[Callable[[], Launcher], list[str]]:
    """What `launcher=`, `launcher.<option>=` and `slots=` ask for, to be made when it is time; and the other arguments.

    Raises:
        UsageError: if one of them cannot be read.
    """
    mine = [argument for argument in argv if argument.partition("=")[0].split(".")[0] in ("launcher", "slots")]
    given = {argument.partition("=")[0]: value_of(argument) for argument in mine}
    name = str(given.pop("launcher", "local"))
    options = {key.removeprefix("launcher."): value for key, value in given.items()}
    return partial(make_launcher, name, options), [argument for argument in argv if argument not in mine]


def command(doc: str, options: Mapping[str, tuple[Any, str]], work: Callable[[list[str]], int], argv: list[str]) -> int:
    """A command whose runs a sweep makes: its help from `options` (key -> default, words), or `work`'s exit code."""
    if not argv or "--help" in argv or "-h" in argv:
        rows = [f"    {key + '=':<14}{words} ({_shown(default)})" for key, (default, words) in options.items()]
        rows += ["    launcher=     local (default), ray, slurm; launcher.<option>= are its own; slots= jobs at once"]
        print(doc + "\n".join(rows) + "\n\nEvery other key is runners.train's.")
        return 0 if argv else 2
    from runners.run.exits import Signals, Stopped

    try:
        with Signals():
            return work(argv)
    except Stopped as stop:
        print("stopped: the runs have saved; the same command goes on")
        return stop.code
    except (UsageError, ImportError, RuntimeError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 3 if isinstance(error, ImportError) else 1


def _shown(default: Any) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default) or "by itself"
