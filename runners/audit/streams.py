"""Where an audit finds the task's reward and the streams: in infos, in functions of a step, in our own wrappers.

A `Source` is either the name of a number in the info, or a function `(obs, action, next_obs, info) -> number`.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from envs.steps import innermost_vec_env
from envs.types import EnvStep, Info
from envs.wrappers import layers
from rewards.adapters.driver import Driver
from rewards.adapters.gym import RewardWrapper, VectorRewardWrapper
from rewards.adapters.sb3 import RewardVecEnv
from runners.audit.recorder import AuditedStep

Function = Callable[[Any, Any, Any, Info], Any]
Source = str | Function

TASK_KEY = "reward/task"
# Gymnasium's robots put the terms of their reward into the info under names that begin so.
TERM_PREFIX = "reward_"
MAX_NAMED_KEYS = 12


class RecordTask(gym.Wrapper):
    """Keeps the reward of what is inside as `info["reward/task"]`; put it around the task, inside of shaping wrappers.

    Example:
        >>> env = RecordTask(gym.make("CartPole-v1"))
        >>> obs, info = env.reset(seed=0)
        >>> env.step(0)[4]["reward/task"]
        1.0
    """

    def step(self, action: Any) -> EnvStep:
        obs, reward, terminated, truncated, info = self.env.step(action)
        info[TASK_KEY] = float(reward)
        return obs, reward, terminated, truncated, info


class OneStep(NamedTuple):
    """One step of one environment, as functions of strangers read it."""

    obs: Any
    action: Any
    next_obs: Any
    info: Info


class StreamReader:
    """The task's reward and the streams of one environment's step."""

    def __init__(self, task: Source, streams: Mapping[str, Source] | None) -> None:
        sources = {"task": task}
        for name, source in (streams or {}).items():
            sources[f"streams[{name!r}]"] = source
        for name, source in sources.items():
            if not isinstance(source, str) and not callable(source):
                raise ValueError(
                    f"{name}={source!r} is neither a key of the info nor a function (obs, action, next_obs, info)"
                )
        self.task_source = task or TASK_KEY
        self.streams = streams
        self.drivers: list[Driver] = []

    def follow(self, env: Any) -> None:
        """Read the streams of our own wrappers around what is stepped, where no streams are named."""
        if self.streams is None:
            self.drivers = drivers_of(env)

    def task(self, step: OneStep) -> float:
        """The task's own reward."""
        if isinstance(self.task_source, str) and self.task_source not in step.info:
            numbers = [key for key, value in step.info.items() if np.ndim(value) == 0 and not isinstance(value, str)]
            shown = ", ".join(numbers[:MAX_NAMED_KEYS]) or "no numbers"
            raise ValueError(
                f"the task's own reward is not in info[{self.task_source!r}], and an audit compares with it; give "
                f"task=KEY (the info has {shown}) or task=FUNCTION of (obs, action, next_obs, info), or put "
                "lodestar.RecordTask around the task, inside of what shapes its reward"
            )
        return _read(self.task_source, step)

    def audit(
        self, steps: list[OneStep], reward: np.ndarray, ended: np.ndarray, valid: np.ndarray, updated: bool = True
    ) -> AuditedStep:
        """A step of N environments with the task's reward, of those that are `valid`, and the streams."""
        task = np.zeros(len(steps))
        for row in np.flatnonzero(valid):
            task[row] = self.task(steps[row])
        return AuditedStep(task, reward, ended, self.table(steps), valid, updated)

    def table(self, steps: list[OneStep]) -> dict[str, np.ndarray]:
        """The streams of a step of N environments, (N,) each; 0 where one lacks a stream."""
        drivers = self.drivers
        table = {}
        # Our wrappers know their weighted and scaled streams, if each environment's is held by this process.
        if sum(driver.n for driver in drivers) == len(steps) and all(driver.parts for driver in drivers):
            for name in drivers[0].parts:
                table[name] = np.concatenate([np.atleast_1d(driver.parts[name]) for driver in drivers])
            return table
        rows = list(map(self.stream_values, steps))
        for name in dict.fromkeys(itertools.chain(*rows)):
            table[name] = np.array([row.get(name, 0.0) for row in rows])
        return table

    def stream_values(self, step: OneStep) -> dict[str, float]:
        """The streams that were named, else the terms of a reward that the info holds."""
        if self.streams is not None:
            return {name: _read(source, step) for name, source in self.streams.items()}
        terms = {}
        for key, value in step.info.items():
            if key.startswith(TERM_PREFIX) and np.ndim(value) == 0:
                terms[key.removeprefix(TERM_PREFIX)] = float(value)
        return terms


def _read(source: Source, step: OneStep) -> float:
    if callable(source):
        value = source(*step)
    elif source in step.info:
        value = step.info[source]
    else:
        raise ValueError(f"info[{source!r}] is missing; the info has {', '.join(list(step.info)[:MAX_NAMED_KEYS])}")
    return float(np.asarray(value).reshape(()))


def drivers_of(env: Any) -> list[Driver]:
    """What scores our rewards around an environment, a vector or a VecEnv, as far as this process holds it."""
    if isinstance(env, gym.Env):
        return [layer.driver for layer in layers(env, RewardWrapper)][:1]
    layer = env
    while layer is not None:
        if isinstance(layer, RewardVecEnv | VectorRewardWrapper):
            return [layer.driver]
        layer = getattr(layer, "venv", None) or vars(layer).get("env")
    inner = env.unwrapped if isinstance(env, gym.vector.VectorEnv) else innermost_vec_env(env)
    found = []
    for one in getattr(inner, "envs", []):
        found += drivers_of(one)
    return found
