"""What a family of environments knows about itself: its ids, observations, captions, goals and terminations.

`envs/classic/family.py` and its siblings each define one; `family_of` finds the one an id belongs to. A user's own
environment declares the same in its own file, as `FAMILY`.
"""

import functools
import pkgutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from envs.observations import plain_observation
from envs.transitions import Ends
from envs.types import Info, Notes, Options


@dataclass(frozen=True)
class Goal:
    """A state that a user may want, in words and as a check of the simulator's state."""

    # Short, and unique within its environment.
    name: str
    # The sentence for a vision-language reward.
    prompt: str
    # The sentence for "anything at all in this environment", which goal-baseline regularisation removes.
    baseline: str
    # Whether a state meets the goal; reads the simulator, never a frame.
    truth: Callable[[gym.Env], bool]
    # The sentence for the opposite, which `contrast` subtracts; empty where there is none.
    negative: str = ""
    # How near a state is, higher is nearer, in any unit, if known.
    degree: Callable[[gym.Env], float] | None = None


@dataclass(frozen=True)
class Axis:
    """One number along which an environment can be posed, to draw a reward over it."""

    # With its unit.
    name: str
    low: float
    high: float
    # Puts the environment there, at rest and all else as usual.
    place: Callable[[gym.Env, float], None]


class Metrics(ABC):
    """Counts evaluation episodes in a family's own terms, from the largest of each signal (K,) of their states."""

    def __init__(self) -> None:
        # What is kept of each episode.
        self.episodes: list[Any] = []

    def begin(self, signals: np.ndarray) -> None:
        """An episode begins in a state with these signals."""
        self.episodes.append(signals)

    def step(self, signals: np.ndarray) -> None:
        """One step on, to a state with these signals."""
        self.episodes[-1] = np.maximum(self.episodes[-1], signals)

    @abstractmethod
    def summary(self) -> dict[str, float]:
        """Name with unit -> mean over the episodes."""


# (env, task return of the episode, terminated, info of its last step) -> whether it succeeded; None if undefined.
Success = Callable[[gym.Env, float, bool, Info], bool | None]


@dataclass(frozen=True)
class Family:
    """One family of environments."""

    # As `runners.list` shows it, with a description of one line.
    name: str
    description: str
    # The ids worth listing.
    ids: tuple[str, ...]
    # How the entry points of environments begin that belong to it, whatever their ids are.
    entries: tuple[str, ...] = ()
    # The module to import before Gymnasium knows the ids; None for Gymnasium's and ours.
    module: str | None = None
    # The extra of ours that installs it; "" where a plain install does.
    extra: str = ""
    # (spec, keyword arguments for `gymnasium.make`, frame size) -> the arguments to use.
    arguments: Callable[[EnvSpec, Options, int | None], Options] = lambda spec, arguments, size: arguments
    # Wraps what is wrong with the environment itself (seeds, time limits), adapted observations or not.
    repair: Callable[[gym.Env], gym.Env] = lambda env: env
    # (env, **options) -> observations that suit Stable-Baselines3; the names of those options.
    adapt: Callable[..., gym.Env] = plain_observation
    options: frozenset[str] = frozenset()
    # The state or the last event in words; `memory` is a dict that the caller keeps and empties at each reset.
    caption: Callable[[gym.Env, Notes], str] = lambda env, memory: ""
    # The first goal is the default.
    goals: Callable[[EnvSpec], list[Goal]] = lambda spec: []
    # For a judge of captions: what counts as progress; "" if undefined.
    aim: Callable[[EnvSpec], str] = lambda spec: ""
    # The names of a flat observation's numbers, if known.
    observed: Callable[[EnvSpec], tuple[str, ...]] = lambda spec: ()
    # Names of the numbers that `sense` reads, float32 (K,); none if empty. Cars have `envs.driving.vehicle.VEHICLE`.
    signals: Callable[[EnvSpec], tuple[str, ...]] = lambda spec: ()
    sense: Callable[[gym.Env], np.ndarray] = lambda env: np.zeros(0, np.float32)
    # Puts an environment, after its reset, into a random state, so that many of them cover its state space, from the
    # generator alone; returns False where it cannot. The task need not be able to reach that state.
    scatter: Callable[[gym.Env, np.random.Generator], bool] = lambda env, rng: False
    # The axis along which an environment can be posed.
    axis: Callable[[EnvSpec], Axis | None] = lambda spec: None
    # A fresh count of evaluation episodes, which is given what `sense` reads.
    metrics: Callable[[gym.Env], Metrics | None] = lambda env: None
    # Whether transitions terminate the episode, from arrays (B, D), (B, A), (B, D) of NumPy or torch alone, time limits
    # apart; None where observations do not determine it.
    terminates: Callable[[EnvSpec], Ends | None] = lambda spec: None
    # The lowest and the highest task return that an episode can have; None where the family does not know them.
    returns: Callable[[EnvSpec], tuple[float, float] | None] = lambda spec: None
    success: Success = lambda env, total, terminated, info: None

    def knows(self, spec: EnvSpec) -> bool:
        """Whether a registered environment belongs to this family."""
        return spec.id in self.ids or entry(spec).startswith(self.entries)


# Where the families of this package are defined.
FAMILIES = (
    "envs.classic.family:CLASSIC_FAMILY",
    "envs.mujoco.family:MUJOCO_FAMILY",
    "envs.minigrid.family:MINIGRID_FAMILY",
    "envs.nethack.family:NETHACK_FAMILY",
    "envs.driving.family:DRIVING_FAMILY",
    "envs.exploration.family:EXPLORATION_FAMILY",
    "envs.exploration.factored:FACTORED_FAMILY",
    "envs.exploration.peg:PEG_FAMILY",
    "envs.crafter.family:CRAFTER_FAMILY",
    "envs.exploration.probe:PROBE_FAMILY",
)
OTHER = Family("other", "any other Gymnasium id, or module:Id-v0", ids=(), entries=("",))


@functools.cache
def families() -> dict[str, Family]:
    """Name -> family; the last one, `other`, takes every id that the rest do not know."""
    return {family.name: family for family in (*map(pkgutil.resolve_name, FAMILIES), OTHER)}


def simulator(env: gym.Env) -> Any:
    """The environment without its wrappers, whose attributes Gymnasium's types do not know."""
    return env.unwrapped


def step_limit(env: gym.Env) -> int | None:
    """The most steps of an episode, by the environment's registration or by itself; None where there is no limit."""
    limits = [getattr(simulator(env), "max_steps", None)]
    if env.spec is not None:
        limits.append(env.spec.max_episode_steps)
    return min(filter(None, limits), default=None)


def family_of(spec: EnvSpec | None) -> Family:
    """The family that knows `spec`: one of ours, else the `FAMILY` of the file that defines it, else `other`."""
    if spec is None:
        return OTHER
    family = next(family for family in families().values() if family.knows(spec))
    if family is not OTHER:
        return family
    # The file was imported when the environment was registered.
    module = sys.modules.get(entry(spec).partition(":")[0])
    declared = vars(module).get("FAMILY") if module else None
    if isinstance(declared, Family) and declared.knows(spec):
        return declared
    return OTHER


@functools.cache
def _read_aims() -> dict[str, dict[str, str]]:
    import yaml

    return yaml.safe_load(Path(__file__).with_name("aims.yaml").read_text(encoding="utf8"))


def aims_of(family: str, name_of: Callable[[EnvSpec], str] = attrgetter("name")) -> Callable[[EnvSpec], str]:
    """A `Family.aim` that looks up what an environment is called in `aims.yaml`."""

    def aim(spec: EnvSpec) -> str:
        name = f"{name_of(spec)}-"
        for start, sentence in _read_aims()[family].items():
            if name.startswith(start):
                return sentence
        return ""

    return aim


def class_name(spec: EnvSpec) -> str:
    """The class, or the function, in the entry point."""
    return entry(spec).split(":")[-1]


def entry(spec: EnvSpec) -> str:
    """The entry point of an id as text "module:Class", in whichever form it was registered."""
    point = spec.entry_point
    if isinstance(point, str):
        return point
    # A class, a function or any other callable; not all of them have these names.
    return f"{getattr(point, '__module__', '')}:{getattr(point, '__qualname__', '')}"
