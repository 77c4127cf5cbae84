"""What may be tried: the `tune` ranges that settings declare, and those of a command line.

    learning_rate: float = setting(1e-4, "of Adam", tune=(1e-5, 1e-2, "log"))
    tune.agent.learning_rate=[1e-5,1e-2,log]   tune.agent.n_steps=[64,128,choice]

(low, high) is drawn evenly, (low, high, "log") by its logarithm, (..., "choice") is one of what it lists. A field of
whole numbers is tried in whole numbers.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envs.settings import declarations
from runners.run.config import TrainConfig, UsageError, unknown

if TYPE_CHECKING:
    from optuna.trial import BaseTrial


@dataclass(frozen=True)
class Space:
    """The range of one setting.

    Attributes:
        key: on the command line, as in agent.learning_rate.
        values: the two ends, low first and both included; or what may be chosen.
        kind: "even", "log" or "choice".
        whole: whether only whole numbers are tried.
    """

    key: str
    values: tuple[Any, ...]
    kind: str = "even"
    whole: bool = False

    def suggest(self, trial: BaseTrial) -> Any:
        """The value that a trial takes; the same again if it is asked again."""
        if self.kind == "choice":
            return trial.suggest_categorical(self.key, self.values)
        draw = trial.suggest_int if self.whole else trial.suggest_float
        return draw(self.key, *self.values, log=self.kind == "log")

    def holds(self, value: Any) -> bool:
        """Whether a value is in range; True is not 1."""
        if self.kind == "choice":
            return any(
                value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in self.values
            )
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and self.values[0] <= value <= self.values[1]

    def nearest(self, value: Any) -> Any:
        """The nearest value of the range; None for what is neither in it nor a number."""
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if self.kind == "choice" or not number:
            return value if self.holds(value) else None
        return min(max(value, self.values[0]), self.values[1])

    def __str__(self) -> str:
        """As a command line gives it: [0.0001,0.01,log]."""
        kind = [] if self.kind == "even" else [self.kind]
        return f"[{','.join([*(f'{v:g}' if isinstance(v, float) else str(v) for v in self.values), *kind])}]"


def spaces(
    config: TrainConfig, chosen: list[str], ranges: dict[str, Any], fixed: set[str] | frozenset[str] = frozenset()
) -> list[Space]:
    """What a search over `config` tries, in the order in which it is declared.

    Args:
        config: the run whose settings are tried.
        chosen: the keys to try; empty for all that have a range and are not `fixed`.
        ranges: key -> range, where the command line gives one; tried too.
        fixed: keys that the command line sets, which stay unless they are chosen.

    Raises:
        UsageError: for a key that is unknown or has no range, for a range that is none, and if nothing is left to try.
    """
    kinds, declared = _kinds(config), _declared(config)
    for key in [*chosen, *ranges]:
        if key not in kinds:
            raise UsageError(unknown("tune", key, list(kinds)))
        if key not in declared and key not in ranges:
            raise UsageError(f"tune={key} has no range of its own; give one, as in tune.{key}=[0.1,10,log]")
    default = [key for key in declared if key not in fixed and not _idle(config, key)]
    keys = dict.fromkeys([*(chosen or default), *ranges])
    if not keys:
        raise UsageError(f"agent={config.agent_name} has nothing to try; name a range, as in tune.agent.gamma=[0.9,1]")
    return [space(key, ranges.get(key, declared.get(key)), kinds[key]) for key in keys]


def space(key: str, given: Any, kind: Any = float) -> Space:
    """The range that `given` writes down; `kind` is the field's type.

    Raises:
        UsageError: if it is none.
    """
    items = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    last = items[-1] if items and items[-1] in ("log", "choice") else "even"
    values = items[:-1] if last != "even" else items
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    wrong = f"tune.{key}={list(items)} is no range; give "
    if last == "choice":
        if len(set(map(str, values))) < 2:
            raise UsageError(wrong + "two alternatives or more, as in [32,64,choice]")
        return Space(key, values, "choice")
    if len(values) != 2 or not numbers:
        raise UsageError(wrong + "[low,high], [low,high,log] or [one,other,choice]")
    if not values[0] < values[1]:
        raise UsageError(wrong + "the lower end first")
    if last == "log" and values[0] <= 0:
        raise UsageError(wrong + "a lower end above 0 for a logarithm")
    whole = int in (typing.get_args(kind) or (kind,)) and all(value == int(value) for value in values)
    return Space(key, tuple(map(int if whole else float, values)), last, whole)


def values_of(config: TrainConfig, tried: list[Space]) -> dict[str, Any]:
    """What a configuration itself takes for every setting that is tried."""
    return {one.key: getattr(_part(config, one.key), one.key.rpartition(".")[2]) for one in tried}


def _part(config: TrainConfig, key: str) -> Any:
    return config.agent if key.startswith("agent.") else config.reward[key.split(".")[1]]


def check(config: TrainConfig, values: dict[str, Any]) -> None:
    """Let the agent and the rewards look at settings together.

    Raises:
        ValueError: if one of them refuses.
    """
    for prefix, options in parts(config).items():
        mine = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
        dataclasses.replace(options, **mine)


def parts(config: TrainConfig) -> dict[str, Any]:
    """What has settings: prefix on the command line -> options of the agent, and of each reward."""
    return {"agent.": config.agent, **{f"reward.{name}.": options for name, options in config.reward.items()}}


def _kinds(config: TrainConfig) -> dict[str, Any]:
    """Every field of the agent and the rewards -> its type; the environment is not tuned."""
    found: dict[str, Any] = {}
    for prefix, options in parts(config).items():
        hints = typing.get_type_hints(type(options))
        found |= {prefix + field.name: hints[field.name] for field in dataclasses.fields(options)}
    return found


def _declared(config: TrainConfig) -> dict[str, tuple[Any, ...]]:
    """Every field with a range of its own -> the range."""
    each = [(prefix, declarations(type(options))) for prefix, options in parts(config).items()]
    return {prefix + name: one.tune for prefix, declared in each for name, one in declared.items() if one.tune}


def _idle(config: TrainConfig, key: str) -> bool:
    """Whether a setting is a weight without another: the task's own, and that of a reward which stands alone."""
    name, _, field = key.removeprefix("reward.").partition(".")
    return field == "weight" and (name == "task" or len(config.reward) == 1)
