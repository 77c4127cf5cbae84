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
from collections.abc import Collection
from dataclasses import dataclass
from itertools import filterfalse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lodestar.settings import declarations, setting
from runners.cli.compose import kinds_of
from runners.run.config import TrainConfig, UsageError, Values, describe_unknown
from runners.run.value import is_number
from runners.sweep.config import JobsConfig
from runners.sweep.grid import folder_name
from runners.sweep.job import Job

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

# The first tuning seed; test seeds begin at 0, so there may be as many of them.
TUNING_SEED = 1000
# Of a fitted evaluation, where objective=fqe and the command names none.
FITTED_MINIBATCHES = 3000


@dataclass
class TuneConfig(JobsConfig):
    """One search of `spaces` around the settings of `train`, `default`; `argv` is what every run is given besides."""

    trials: int = setting(40, "settings that are tried; raised later, the search continues", ">= 1")
    seeds: int = setting(3, "runs of each setting, with seeds 1000, 1001, ...", ">= 1")
    test_seeds: int = setting(5, "runs of the best and of the default, seeds 0, 1, ...", low=1, high=TUNING_SEED)
    budget: int = setting(0, "environment steps after which no trial begins any more; 0 for no limit", ">= 0")
    tune: list[str] = setting([], "keys to try, as in tune=agent.learning_rate,reward.rnd.weight; none for all ranges")
    tune_options: Values = setting({}, "a range of your own: [1e-5,1e-3], [1e-5,1e-3,log] or [32,64,choice]")
    objective: str = setting(
        "return",
        "what chooses: return, by evaluations; or fqe, for data=, by what the recording alone says of the policy",
        "return | fqe",
    )
    sampler: str = setting("tpe", "tpe (tree of Parzen estimators), or random: the control", "tpe | random")
    pruner: str = setting(
        "median", "median or asha give up on a trial by its task return so far; none never does", "median | asha | none"
    )
    seed: int = setting(0, "of the sampler", ">= 0")

    def __post_init__(self) -> None:
        super().__post_init__()
        given = {argument.partition("=")[0] for argument in self.rest}
        if self.objective == "fqe":
            # A run has no such value before its end, by which it could be given up.
            self.pruner = "none"
            if "fitted" not in given:
                self.rest = [*self.rest, f"fitted={FITTED_MINIBATCHES}"]
        self.train, self.argv = self.compose_search()
        # Of the runs that choose.
        self.tuning_seeds = list(range(TUNING_SEED, TUNING_SEED + self.seeds))
        self.spaces = spaces(self.train, self.tune, self.tune_options, given)
        self.default = values_of(self.train, self.spaces)
        name = f"{self.train.env}-{self.train.agent_name}-{self.train.rewards}"
        self.folder = Path(self.root) / "tune" / folder_name(self.name or name)

    def run(self, name: str, values: Values, seed: int) -> Job:
        """A run with some settings; `name` is its folder in that of the search, too."""
        return self.job(self.folder, name, self.argv, {**values, "seed": seed})

    def fixed_settings(self) -> Values:
        """What must be the same for a search to continue in its folder; trials and budget may be raised."""
        fixed = {
            "argv": self.argv,
            "spaces": {space.key: str(space) for space in self.spaces},
            "seeds": self.seeds,
            "sampler": self.sampler,
            "pruner": self.pruner,
            "seed": self.seed,
        }
        # Searches of before there was a choice have none in their folders.
        if self.objective != "return":
            fixed["objective"] = self.objective
        return fixed


@dataclass(frozen=True)
class Space:
    """The range of one setting."""

    # Of the command line, as in agent.learning_rate.
    key: str
    # The two ends, low first and both included; or what may be chosen.
    values: tuple[Any, ...]
    # "even", "log" or "choice".
    kind: str = "even"
    # Whether only whole numbers are tried.
    whole: bool = False

    def suggest(self, trial: "BaseTrial") -> Any:
        """The value that a trial takes; the same again if it is asked again."""
        if self.kind == "choice":
            return trial.suggest_categorical(self.key, self.values)
        draw = trial.suggest_int if self.whole else trial.suggest_float
        return draw(self.key, *self.values, log=self.kind == "log")

    def nearest(self, value: Any) -> Any:
        """The nearest value of the range; None for what is neither in it nor a number. True is not 1."""
        if self.kind == "choice":
            for choice in self.values:
                if choice == value and isinstance(choice, bool) == isinstance(value, bool):
                    return choice
            return None
        if not is_number(value):
            return None
        low, high = self.values
        return min(max(value, low), high)

    def __str__(self) -> str:
        """As a command line gives it: [0.0001,0.01,log]."""
        words = []
        for value in self.values:
            words.append(f"{value:g}" if isinstance(value, float) else str(value))
        if self.kind != "even":
            words.append(self.kind)
        return f"[{','.join(words)}]"


def spaces(config: TrainConfig, chosen: list[str], ranges: Values, fixed: Collection[str] = ()) -> list[Space]:
    """What a search over the settings of a run tries, in the order in which it is declared; else a UsageError.

    `chosen` are the keys to try, by default all that have a range and are not `fixed`, as the command line sets them;
    `ranges` key -> range, where it gives one; tried too.
    """
    # Types and ranges of what the agent and the rewards declare: the environment is not tuned.
    kinds: Values = {}
    declared = {}
    for prefix, options in options_by_prefix(config).items():
        kinds |= kinds_of(type(options), prefix)
        for name, declaration in declarations(type(options)).items():
            if declaration.tune:
                declared[prefix + name] = declaration.tune
    for key in [*chosen, *ranges]:
        if key not in kinds:
            raise UsageError(describe_unknown("tune", key, list(kinds)))
        if key not in declared and key not in ranges:
            raise UsageError(f"tune={key} has no range of its own; give one, as in tune.{key}=[0.1,10,log]")
    if not chosen:
        # The weight of a reward changes nothing where there is no other.
        no_effect = {"reward.task.weight"}
        if len(config.reward) == 1:
            no_effect |= {f"reward.{name}.weight" for name in config.reward}
        chosen = list(filterfalse({*fixed, *no_effect}.__contains__, declared))
    keys = dict.fromkeys([*chosen, *ranges])
    if not keys:
        raise UsageError(f"agent={config.agent_name} has nothing to try; name a range, as in tune.agent.gamma=[0.9,1]")
    return [space(key, ranges.get(key, declared.get(key)), kinds[key]) for key in keys]


def space(key: str, given: Any, kind: Any = float) -> Space:
    """The range that `given` writes down, or a UsageError; `kind` is the field's type."""
    items = tuple(given) if isinstance(given, list | tuple) else (given,)
    kind_of_range = "even"
    values = items
    if items and items[-1] in ("log", "choice"):
        values = items[:-1]
        kind_of_range = items[-1]
    wrong = f"tune.{key}={list(items)} is no range; give "
    if kind_of_range == "choice":
        if len(set(map(str, values))) < 2:
            raise UsageError(wrong + "two alternatives or more, as in [32,64,choice]")
        return Space(key, values, "choice")
    if len(values) != 2 or not all(map(is_number, values)):
        raise UsageError(wrong + "[low,high], [low,high,log] or [one,other,choice]")
    low, high = values
    if not low < high:
        raise UsageError(wrong + "the lower end first")
    if kind_of_range == "log" and low <= 0:
        raise UsageError(wrong + "a lower end above 0 for a logarithm")
    # An optional field, as int | None, has several types.
    types = typing.get_args(kind) or (kind,)
    if int in types and low == int(low) and high == int(high):
        return Space(key, (int(low), int(high)), kind_of_range, whole=True)
    return Space(key, (float(low), float(high)), kind_of_range)


def values_of(config: TrainConfig, tried: list[Space]) -> Values:
    """What a configuration itself takes for every setting that is tried."""
    options = options_by_prefix(config)
    values = {}
    for space in tried:
        owner, _, name = space.key.rpartition(".")
        values[space.key] = getattr(options[f"{owner}."], name)
    return values


def check(config: TrainConfig, values: Values) -> None:
    """Let the agent and the rewards look at settings together; one that refuses raises a ValueError."""
    for prefix, options in options_by_prefix(config).items():
        changes = {}
        for key, value in values.items():
            if key.startswith(prefix):
                changes[key.removeprefix(prefix)] = value
        dataclasses.replace(options, **changes)


def options_by_prefix(config: TrainConfig) -> Values:
    """What has settings: prefix on the command line -> options of the agent, and of each reward."""
    rewards = {f"reward.{name}.": options for name, options in config.reward.items()}
    return {"agent.": config.agent, **rewards}
