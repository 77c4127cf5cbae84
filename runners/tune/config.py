"""What a search is going to do, checked before anything runs.

Tuning seeds and test seeds are apart: a setting is chosen by runs with seeds 1000, 1001, ... and judged by new runs
with seeds 0, 1, ... The best of forty noisy numbers is better than the setting behind it; only the test is unbiased.

Source: Eimer, Lindauer & Raileanu 2023, "Hyperparameters in Reinforcement Learning and How To Tune Them", arXiv
2306.01324: tuning and test seeds apart, several of each, the space and the budget stated.

What may be tried: the `tune` ranges that settings declare, and those of a command line.

    learning_rate: float = setting(1e-4, "of Adam", tune=(1e-5, 1e-2, "log"))
    tune.agent.learning_rate=[1e-5,1e-2,log]   tune.agent.n_steps=[64,128,choice]

(low, high) is drawn evenly, (low, high, "log") by its logarithm, (..., "choice") is one of what it lists. A field of
whole numbers is tried in whole numbers.
"""

import dataclasses
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lodestar.settings import declarations, setting
from runners.cli.compose import kinds_of
from runners.cli.value import is_number
from runners.run.config import TrainConfig, UsageError, unknown
from runners.sweep.config import JobsConfig
from runners.sweep.grid import safe
from runners.sweep.job import Job

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

TUNING_SEED = 1000  # the first; test seeds begin at 0, so there may be as many of them


@dataclass
class TuneConfig(JobsConfig):
    """One search of `spaces` around the settings of `train`, `default`; `argv` is what every run is given besides."""

    trials: int = setting(40, "settings that are tried; raised later, the search continues", low=1)
    seeds: int = setting(3, "runs of each setting, with seeds 1000, 1001, ...", low=1)
    test_seeds: int = setting(5, "runs of the best and of the default, seeds 0, 1, ...", low=1, high=TUNING_SEED)
    budget: int = setting(0, "environment steps after which no trial begins any more; 0 for no limit", low=0)
    tune: list[str] = setting([], "keys to try, as in tune=agent.learning_rate,reward.rnd.weight; none for all ranges")
    tune_options: dict[str, Any] = setting({}, "a range of your own: [1e-5,1e-3], [1e-5,1e-3,log] or [32,64,choice]")
    sampler: str = setting("tpe", "tpe (tree of Parzen estimators), or random: the control", choices=("tpe", "random"))
    pruner: str = setting(
        "median",
        "median or asha give up on a trial by its task return so far; none never does",
        choices=("median", "asha", "none"),
    )
    seed: int = setting(0, "of the sampler", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.train, self.argv = self.searched(self.rest)
        self.tuning_seeds = [TUNING_SEED + i for i in range(self.seeds)]  # of the runs that choose
        given = {argument.partition("=")[0] for argument in self.rest}
        self.spaces = spaces(self.train, self.tune, self.tune_options, given)
        self.default = values_of(self.train, self.spaces)
        name = self.name or f"{self.train.env}-{self.train.agent_name}-{self.train.rewards}"
        self.folder = Path(self.root) / "tune" / safe(name)

    def run(self, name: str, values: dict[str, Any], seed: int) -> Job:
        """A run with some settings; `name` is its folder in that of the search, too."""
        return self.job(self.folder, name, self.argv, {**values, "seed": seed})

    def fixed(self) -> dict[str, Any]:
        """What must be the same for a search to continue in its folder; trials and budget may be raised."""
        own = {"seeds": self.seeds, "sampler": self.sampler, "pruner": self.pruner, "seed": self.seed}
        return {"argv": list(self.argv), "spaces": {one.key: str(one) for one in self.spaces}, **own}


@dataclass(frozen=True)
class Space:
    """The range of one setting."""

    key: str  # of the command line, as in agent.learning_rate
    values: tuple[Any, ...]  # the two ends, low first and both included; or what may be chosen
    kind: str = "even"  # or "log", or "choice"
    whole: bool = False  # whether only whole numbers are tried

    def suggest(self, trial: "BaseTrial") -> Any:
        """The value that a trial takes; the same again if it is asked again."""
        if self.kind == "choice":
            return trial.suggest_categorical(self.key, self.values)
        draw = trial.suggest_int if self.whole else trial.suggest_float
        return draw(self.key, *self.values, log=self.kind == "log")

    def nearest(self, value: Any) -> Any:
        """The nearest value of the range; None for what is neither in it nor a number. True is not 1."""
        if self.kind == "choice":
            return next((c for c in self.values if c == value and isinstance(c, bool) == isinstance(value, bool)), None)
        return min(max(value, self.values[0]), self.values[1]) if is_number(value) else None

    def __str__(self) -> str:
        """As a command line gives it: [0.0001,0.01,log]."""
        kind = [] if self.kind == "even" else [self.kind]
        return f"[{','.join([*(f'{v:g}' if isinstance(v, float) else str(v) for v in self.values), *kind])}]"


def spaces(
    config: TrainConfig, chosen: list[str], ranges: dict[str, Any], fixed: set[str] | frozenset[str] = frozenset()
) -> list[Space]:
    """What a search over the settings of a run tries, in the order in which it is declared; else a UsageError.

    `chosen` are the keys to try, by default all that have a range and are not `fixed`, as the command line sets them;
    `ranges` key -> range, where it gives one; tried too.
    """
    kinds, declared = dict[str, Any](), dict[str, tuple[Any, ...]]()  # the environment is not tuned
    for prefix, options in parts(config).items():
        kinds |= kinds_of(type(options), prefix)
        declared |= {prefix + name: one.tune for name, one in declarations(type(options)).items() if one.tune}
    for key in [*chosen, *ranges]:
        if key not in kinds:
            raise UsageError(unknown("tune", key, list(kinds)))
        if key not in declared and key not in ranges:
            raise UsageError(f"tune={key} has no range of its own; give one, as in tune.{key}=[0.1,10,log]")
    alone = {f"reward.{name}.weight" for name in config.reward if name == "task" or len(config.reward) == 1}
    default = [key for key in declared if key not in fixed | alone]  # a weight without another changes nothing
    keys = dict.fromkeys([*(chosen or default), *ranges])
    if not keys:
        raise UsageError(f"agent={config.agent_name} has nothing to try; name a range, as in tune.agent.gamma=[0.9,1]")
    return [space(key, ranges.get(key, declared.get(key)), kinds[key]) for key in keys]


def space(key: str, given: Any, kind: Any = float) -> Space:
    """The range that `given` writes down, or a UsageError; `kind` is the field's type."""
    items = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    last = items[-1] if items and items[-1] in ("log", "choice") else "even"
    values = items[:-1] if last != "even" else items
    wrong = f"tune.{key}={list(items)} is no range; give "
    if last == "choice":
        if len(set(map(str, values))) < 2:
            raise UsageError(wrong + "two alternatives or more, as in [32,64,choice]")
        return Space(key, values, "choice")
    if len(values) != 2 or not all(map(is_number, values)):
        raise UsageError(wrong + "[low,high], [low,high,log] or [one,other,choice]")
    if not values[0] < values[1]:
        raise UsageError(wrong + "the lower end first")
    if last == "log" and values[0] <= 0:
        raise UsageError(wrong + "a lower end above 0 for a logarithm")
    whole = int in (typing.get_args(kind) or (kind,)) and all(value == int(value) for value in values)
    return Space(key, tuple(map(int if whole else float, values)), last, whole)


def values_of(config: TrainConfig, tried: list[Space]) -> dict[str, Any]:
    """What a configuration itself takes for every setting that is tried."""
    each, names = parts(config), [one.key.rpartition(".") for one in tried]
    return {prefix + dot + name: getattr(each[prefix + dot], name) for prefix, dot, name in names}


def check(config: TrainConfig, values: dict[str, Any]) -> None:
    """Let the agent and the rewards look at settings together; one that refuses raises a ValueError."""
    for prefix, options in parts(config).items():
        mine = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
        dataclasses.replace(options, **mine)


def parts(config: TrainConfig) -> dict[str, Any]:
    """What has settings: prefix on the command line -> options of the agent, and of each reward."""
    return {"agent.": config.agent, **{f"reward.{name}.": options for name, options in config.reward.items()}}
