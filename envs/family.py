"""What a family of environments knows about itself: its ids, observations, captions and goals.

`classic.py`, `minigrid.py` and their neighbours each hold one `FAMILY`; `family_of` finds the one an id belongs to.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from envs.types import Array


@dataclass(frozen=True)
class Goal:
    """A state somebody may want, in words and in truth.

    Attributes:
        name: short, unique within its environment.
        prompt: the sentence for a vision-language reward.
        baseline: the sentence for "anything at all in this environment", what goal-baseline regularisation removes.
        truth: whether the state of an environment meets the goal; reads the simulator, never a frame.
        negative: the sentence for the opposite, what `contrast` subtracts; empty where there is none.
        degree: how near a state is to the goal, higher is nearer, in any unit; None where nothing graded is known.
    """

    name: str
    prompt: str
    baseline: str
    truth: Callable[[gym.Env], bool]
    negative: str = ""
    degree: Callable[[gym.Env], float] | None = None


@dataclass(frozen=True)
class Axis:
    """One number along which an environment can be posed, to draw a reward over it.

    Attributes:
        name: what it is, with its unit.
        low, high: its ends.
        place: puts the environment there, at rest and all else as usual.
    """

    name: str
    low: float
    high: float
    place: Callable[[gym.Env, float], None]


class Metrics(Protocol):
    """Counts evaluation episodes in a family's own terms, from the signals of their states."""

    def begin(self, signals: np.ndarray) -> None:
        """An episode begins in a state with these signals, (K,)."""

    def step(self, signals: np.ndarray) -> None:
        """One step on, to a state with these signals."""

    def summary(self) -> dict[str, float]:
        """Name with unit -> mean over the episodes."""


def _as_given(spec: EnvSpec, arguments: dict[str, Any], frame_size: int | None) -> dict[str, Any]:
    return arguments


def _as_it_is(env: gym.Env) -> gym.Env:
    return env


def _plain(env: gym.Env) -> gym.Env:
    from envs.wrappers import PlainObservation, plain_space

    return env if plain_space(env.observation_space) == env.observation_space else PlainObservation(env)


def _no_caption(env: gym.Env, memory: dict[str, Any]) -> str:
    return ""


def _no_goals(spec: EnvSpec) -> list[Goal]:
    return []


def _no_aim(spec: EnvSpec) -> str:
    return ""


def _no_signals(spec: EnvSpec) -> tuple[str, ...]:
    return ()


def _no_sense(env: gym.Env) -> np.ndarray:
    return np.zeros(0, np.float32)


def _no_scatter(env: gym.Env, rng: np.random.Generator) -> bool:
    return False


def _no_axis(spec: EnvSpec) -> Axis | None:
    return None


def _no_ends(spec: EnvSpec) -> Callable[[Array, Array, Array], Array] | None:
    return None


def _no_metrics(env: gym.Env) -> Metrics | None:
    return None


def _unknown(env: gym.Env, episode_return: float, terminated: bool, info: dict[str, Any]) -> bool | None:
    return None


@dataclass(frozen=True)
class Family:
    """One family of environments.

    Attributes:
        name: the file it lives in.
        description: one line for `runners.list`.
        ids: the ids worth listing; `knows` may accept more.
        knows: whether a registered environment belongs to this family.
        module: what must be imported before Gymnasium knows the ids; None for Gymnasium's and ours.
        arguments: (spec, keyword arguments for `gymnasium.make`, frame size) -> the arguments to use.
        repair: wraps what is wrong with the environment itself (seeds, time limits), adapted observations or not.
        adapt: (env, **options) -> env whose observations suit Stable-Baselines3.
        options: keyword arguments of `adapt`.
        caption: (env, memory) -> the state or the last event in words. `memory` is a dict that the caller keeps and
            empties at each reset.
        goals: what may be wanted of an environment; the first is the default.
        aim: one sentence for a judge of texts: what counts as progress; "" where nobody has said.
        signals: names of the numbers that `sense` reads; empty where there are none. Cars have `envs.driving.vehicle.VEHICLE`.
        sense: the state in numbers, float32 (K,), as `signals` names them.
        scatter: puts an environment, after its reset, into a random state, so that many of them cover its space; says
            False where it cannot.
        axis: the number along which an environment can be posed; None where there is none.
        metrics: env -> a fresh count of evaluation episodes, fed with what `sense` reads; None where there is none.
        terminates: spec -> function of (obs, action, next_obs), arrays (B, D), (B, A), (B, D), whether the episode ends
            there, bool (B,); reads no simulator. None where observations do not tell. See `envs.terminations`.
        sampled: whether policies are judged as they explore, with chance: where the likeliest action, taken always, may
            repeat itself until time is up.
        success: (env, task return of the episode, terminated, info of its last step) -> whether it succeeded; None
            where nothing says so.
    """

    name: str
    description: str
    ids: tuple[str, ...]
    knows: Callable[[EnvSpec], bool]
    module: str | None = None
    arguments: Callable[[EnvSpec, dict[str, Any], int | None], dict[str, Any]] = _as_given
    repair: Callable[[gym.Env], gym.Env] = _as_it_is
    adapt: Callable[..., gym.Env] = _plain
    options: frozenset[str] = frozenset()
    caption: Callable[[gym.Env, dict[str, Any]], str] = _no_caption
    goals: Callable[[EnvSpec], list[Goal]] = _no_goals
    aim: Callable[[EnvSpec], str] = _no_aim
    signals: Callable[[EnvSpec], tuple[str, ...]] = _no_signals
    sense: Callable[[gym.Env], np.ndarray] = _no_sense
    scatter: Callable[[gym.Env, np.random.Generator], bool] = _no_scatter
    axis: Callable[[EnvSpec], Axis | None] = _no_axis
    metrics: Callable[[gym.Env], Metrics | None] = _no_metrics
    terminates: Callable[[EnvSpec], Callable[[Array, Array, Array], Array] | None] = _no_ends
    sampled: bool = False
    success: Callable[[gym.Env, float, bool, dict[str, Any]], bool | None] = _unknown


FILES = (
    "classic.family",
    "mujoco.family",
    "minigrid.family",
    "nethack.family",
    "driving.family",
    "driving.carla",
    "exploration.family",
    "exploration.factored",
    "crafter.family",
    "exploration.probe",
)
OTHER = Family(
    name="other",
    description="any other Gymnasium id, or module:Id-v0",
    ids=(),
    knows=lambda spec: True,
)


@functools.cache
def families() -> dict[str, Family]:
    """Name -> family; the last one, `other`, takes every id that the rest do not know."""
    found = [importlib.import_module(f"envs.{name}").FAMILY for name in FILES]
    return {family.name: family for family in [*found, OTHER]}


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
