"""What a family of environments knows about itself: its ids, observations, captions, goals and terminations.

`envs/classic/family.py` and its siblings each define one `FAMILY`; `family_of` finds the one an id belongs to.
"""

import functools
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from envs.observations import plain_observation
from envs.transitions import Ends


@dataclass(frozen=True)
class Goal:
    """A state that a user may want, in words and as a check of the simulator's state."""

    name: str  # short, unique within its environment
    prompt: str  # the sentence for a vision-language reward
    baseline: str  # the one for "anything at all in this environment", what goal-baseline regularisation removes
    truth: Callable[[gym.Env], bool]  # whether a state meets the goal; reads the simulator, never a frame
    negative: str = ""  # the sentence for the opposite, what `contrast` subtracts; empty where there is none
    degree: Callable[[gym.Env], float] | None = None  # how near a state is, higher is nearer, in any unit, if known


@dataclass(frozen=True)
class Axis:
    """One number along which an environment can be posed, to draw a reward over it."""

    name: str  # with its unit
    low: float
    high: float
    place: Callable[[gym.Env, float], None]  # puts the environment there, at rest and all else as usual


class Metrics(ABC):
    """Counts evaluation episodes in a family's own terms, from the largest of each signal (K,) of their states."""

    def __init__(self) -> None:
        self.episodes: list[Any] = []  # what is kept of each

    def begin(self, signals: np.ndarray) -> None:
        """An episode begins in a state with these signals."""
        self.episodes.append(signals)

    def step(self, signals: np.ndarray) -> None:
        """One step on, to a state with these signals."""
        self.episodes[-1] = np.maximum(self.episodes[-1], signals)

    @abstractmethod
    def summary(self) -> dict[str, float]:
        """Name with unit -> mean over the episodes."""


Success = Callable[[gym.Env, float, bool, dict[str, Any]], bool | None]


@dataclass(frozen=True)
class Family:
    """One family of environments."""

    name: str  # as `runners.list` shows it
    description: str  # one line for `runners.list`
    ids: tuple[str, ...]  # those worth listing; `knows` may accept more
    knows: Callable[[EnvSpec], bool]  # whether a registered environment belongs to this family
    module: str | None = None  # to import before Gymnasium knows the ids; None for Gymnasium's and ours
    extra: str = ""  # the extra of ours that installs it; "" where a plain install does
    # (spec, keyword arguments for `gymnasium.make`, frame size) -> the arguments to use.
    arguments: Callable[[EnvSpec, dict[str, Any], int | None], dict[str, Any]] = lambda spec, arguments, size: arguments
    # Wraps what is wrong with the environment itself (seeds, time limits), adapted observations or not.
    repair: Callable[[gym.Env], gym.Env] = lambda env: env
    adapt: Callable[..., gym.Env] = plain_observation  # (env, **options) -> observations that suit Stable-Baselines3
    options: frozenset[str] = frozenset()  # keyword arguments of `adapt`
    # The state or the last event in words; `memory` is a dict that the caller keeps and empties at each reset.
    caption: Callable[[gym.Env, dict[str, Any]], str] = lambda env, memory: ""
    goals: Callable[[EnvSpec], list[Goal]] = lambda spec: []  # the first is the default
    aim: Callable[[EnvSpec], str] = lambda spec: ""  # for a judge of captions: what counts as progress; "" if undefined
    observed: Callable[[EnvSpec], tuple[str, ...]] = lambda spec: ()  # names of a flat observation's numbers, if known
    # Names of the numbers that `sense` reads, float32 (K,); none if empty. Cars have `envs.driving.vehicle.VEHICLE`.
    signals: Callable[[EnvSpec], tuple[str, ...]] = lambda spec: ()
    sense: Callable[[gym.Env], np.ndarray] = lambda env: np.zeros(0, np.float32)
    # Puts an environment, after its reset, into a random state, so that many of them cover its state space, from the
    # generator alone; returns False where it cannot. The task need not be able to reach that state.
    scatter: Callable[[gym.Env, np.random.Generator], bool] = lambda env, rng: False
    axis: Callable[[EnvSpec], Axis | None] = lambda spec: None  # along which an environment can be posed
    metrics: Callable[[gym.Env], Metrics | None] = lambda env: None  # env -> a fresh count, fed with what `sense` reads
    # Whether transitions terminate the episode, from arrays (B, D), (B, A), (B, D) of NumPy or torch alone, time limits
    # apart; None where observations do not determine it.
    terminates: Callable[[EnvSpec], Ends | None] = lambda spec: None
    # The lowest and the highest task return that an episode can have; None where the family does not know them.
    returns: Callable[[EnvSpec], tuple[float, float] | None] = lambda spec: None
    # (env, task return of the episode, terminated, info of its last step) -> whether it succeeded; None if undefined.
    success: Success = lambda env, total, terminated, info: None


FILES = (
    *("classic.family", "mujoco.family", "minigrid.family", "nethack.family", "driving.family"),
    *("exploration.family", "exploration.factored", "exploration.peg", "crafter.family", "exploration.probe"),
)
OTHER = Family("other", "any other Gymnasium id, or module:Id-v0", ids=(), knows=lambda spec: True)


@functools.cache
def families() -> dict[str, Family]:
    """Name -> family; the last one, `other`, takes every id that the rest do not know."""
    found = [importlib.import_module(f"envs.{name}").FAMILY for name in FILES]
    return {family.name: family for family in [*found, OTHER]}


def simulator(env: gym.Env) -> Any:
    """The environment without its wrappers, whose attributes Gymnasium's types do not know."""
    return env.unwrapped


def family_of(spec: EnvSpec | None) -> Family:
    """The family that knows `spec`; `other` if none does."""
    if spec is None:
        return OTHER
    return next(family for family in families().values() if family.knows(spec))


def entry(spec: EnvSpec) -> str:
    """The entry point of an id as text "module:Class", in whichever form it was registered."""
    point = spec.entry_point
    if isinstance(point, str):
        return point
    return f"{getattr(point, '__module__', '')}:{getattr(point, '__qualname__', '')}"
