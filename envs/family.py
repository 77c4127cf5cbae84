"""What a family of environments knows about itself: its ids, observations, captions and goals.

`classic.py`, `minigrid.py` and their neighbours each hold one `FAMILY`; `make.py` asks all of them in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec


@dataclass(frozen=True)
class Goal:
    """A state somebody may want, in words and in truth.

    Attributes:
        name: short, unique within its environment.
        prompt: the sentence for a vision-language reward.
        baseline: the sentence for "anything at all in this environment", what goal-baseline regularisation removes.
        truth: whether the state of an environment meets the goal; reads the simulator, never a frame.
    """

    name: str
    prompt: str
    baseline: str
    truth: Callable[[gym.Env], bool]


def _same(env: gym.Env) -> gym.Env:
    return env


def _as_given(spec: EnvSpec, kwargs: dict[str, Any]) -> dict[str, Any]:
    return kwargs


def _no_caption(env: gym.Env) -> str:
    return ""


def _no_goals(spec: EnvSpec) -> list[Goal]:
    return []


def _unknown(env: gym.Env, episode_return: float, terminated: bool) -> bool | None:
    return None


@dataclass(frozen=True)
class Family:
    """One family of environments.

    Attributes:
        name: the file it lives in.
        description: one line for `runners.list`.
        ids: the ids worth listing; `knows` may accept more.
        knows: whether a registered environment belongs to this family.
        modules: what must be imported before Gymnasium knows the ids.
        adapt: wraps an environment so that its observations suit Stable-Baselines3.
        arguments: the last word on the keyword arguments that go to `gymnasium.make`.
        caption: the state in words, for `info["text"]`.
        goals: what may be wanted of an environment; the first is the default.
        success: (env, task return of the episode, terminated) -> whether it succeeded; None where nothing says so.
    """

    name: str
    description: str
    ids: tuple[str, ...]
    knows: Callable[[EnvSpec], bool]
    modules: tuple[str, ...] = ()
    adapt: Callable[[gym.Env], gym.Env] = _same
    arguments: Callable[[EnvSpec, dict[str, Any]], dict[str, Any]] = _as_given
    caption: Callable[[gym.Env], str] = _no_caption
    goals: Callable[[EnvSpec], list[Goal]] = _no_goals
    success: Callable[[gym.Env, float, bool], bool | None] = _unknown


def entry(spec: EnvSpec) -> str:
    """The entry point of an id as text, whichever form it was registered in."""
    point = spec.entry_point
    if isinstance(point, str):
        return point
    return f"{getattr(point, '__module__', '')}:{getattr(point, '__qualname__', '')}"
