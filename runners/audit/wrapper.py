"""An audit of any loop that steps a Gymnasium environment or a vector of them: a wrapper that changes nothing.

It cannot see when the agent learns, so the first ten episodes stand for the untrained policy. `close` prints the
verdict and writes the page.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from envs.types import EnvReset, EnvStep, Info, Options, VectorStep
from runners.audit.page import finish
from runners.audit.recorder import Recorder
from runners.audit.streams import OneStep, Source, StreamReader

DEFAULT_EVERY = 1000


def audit(
    env: Any,
    folder: str | Path = "audit",
    task: Source = "",
    streams: Mapping[str, Source] | None = None,
    every: int = DEFAULT_EVERY,
) -> Any:
    """The environment or vector, whose steps are followed as `lodestar.Audit` follows those of Stable-Baselines3.

    Args:
        env: a Gymnasium environment or a vector, as the agent sees it, its reward being what the agent learns from.
        folder: where the audit is written; what an earlier one left there is replaced.
        task: the task's own reward, a key of the info or, for one environment, a function (obs, action, next_obs,
            info); `info["reward/task"]` by default.
        streams: parts of the reward, by name, such keys and functions; by default as in `lodestar.Audit`.
        every: environment steps between two rows of the log.

    Raises:
        ValueError: for what is no environment, functions beside a vector, and, at the first step, a task's reward that
            is not there.

    Example:
        >>> from tempfile import mkdtemp
        >>> env = audit(gym.make("CartPole-v1"), mkdtemp(), task=lambda obs, action, next_obs, info: -abs(next_obs[0]))
        >>> obs, info = env.reset(seed=0)
        >>> env.step(0)[1]
        1.0
    """
    if every < 1:
        raise ValueError(f"every={every} environment steps must be at least 1")
    reader = StreamReader(task, streams)
    if isinstance(env, gym.Env):
        reader.follow(env)
        return AuditWrapper(env, Recorder(Path(folder), 1, every), reader)
    if not isinstance(env, VectorEnv):
        raise ValueError(f"{env!r:.80} is no environment of Gymnasium; for Stable-Baselines3 take lodestar.Audit")
    if any(map(callable, [task, *(streams or {}).values()])):
        raise ValueError("a function reads one environment, not a vector; write its value into the info of each")
    reader.follow(env)
    return AuditVectorWrapper(env, Recorder(Path(folder), env.num_envs, every), reader)


class AuditWrapper(gym.Wrapper):
    """Follows one environment."""

    def __init__(self, env: gym.Env, recorder: Recorder, reader: StreamReader) -> None:
        super().__init__(env)
        self.recorder = recorder
        self.reader = reader
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: Options | None = None) -> EnvReset:
        obs, info = self.env.reset(seed=seed, options=options)
        self._obs = obs
        return obs, info

    def step(self, action: Any) -> EnvStep:
        next_obs, reward, terminated, truncated, info = self.env.step(action)
        step = OneStep(self._obs, action, next_obs, info)
        ended = np.array([terminated or truncated])
        self.recorder.add(self.reader.audit([step], np.array([float(reward)]), ended, np.ones(1, bool)))
        self._obs = next_obs
        return next_obs, reward, terminated, truncated, info

    def close(self) -> None:
        super().close()
        _conclude(self.recorder)


class AuditVectorWrapper(VectorWrapper):
    """Follows a vector, in each auto-reset mode."""

    def __init__(self, env: VectorEnv, recorder: Recorder, reader: StreamReader) -> None:
        super().__init__(env)
        self.recorder = recorder
        self.reader = reader
        # In this mode the step after an episode's last one only resets, and is none.
        self._next_step = env.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP
        self._ended = np.zeros(env.num_envs, bool)

    def reset(self, *, seed: Any = None, options: Options | None = None) -> EnvReset:
        self._ended[:] = False
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> VectorStep:
        next_obs, rewards, terminations, truncations, infos = self.env.step(actions)
        valid = ~self._ended if self._next_step else np.ones(self.num_envs, bool)
        steps = [OneStep(None, None, None, _info_of(infos, row)) for row in range(self.num_envs)]
        ended = np.logical_or(terminations, truncations)
        self.recorder.add(self.reader.audit(steps, np.array(rewards, np.float64), ended, valid))
        self._ended = ended
        return next_obs, rewards, terminations, truncations, infos

    def close(self, **options: Any) -> None:
        super().close(**options)
        _conclude(self.recorder)


def _info_of(infos: Info, row: int) -> Info:
    """One environment's info, out of a vector's; of its last step where the vector has reset it in the same step."""
    info = {}
    for key, value in infos.items():
        if key.startswith("_") or isinstance(value, dict) or np.ndim(value) == 0:
            continue
        if infos.get(f"_{key}", np.ones(row + 1, bool))[row]:
            info[key] = value[row]
    final = infos.get("final_info")
    if isinstance(final, dict) and infos["_final_info"][row]:
        info |= _info_of(final, row)
    return info


def _conclude(recorder: Recorder) -> None:
    """Write the last row, and judge; once, as environments may be closed twice."""
    if recorder.is_open:
        recorder.close()
        finish(recorder.folder)
