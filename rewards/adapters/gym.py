"""The mix in any Gymnasium program: around one environment, or around a vector of them.

    env = RewardWrapper(envs.make.make("CartPole-v1"), rewards.make(["task", "rnd"], observation_space, action_space))
    vec = VectorRewardWrapper(envs.make.make_vec("CartPole-v1", 8), mix)

`step` returns the mix instead of the task's reward; `info["reward/task"]` and `info["reward/<name>"]` keep the
parts. Rewards that look at frames or texts need an environment that puts them into its info: `make(...,
frame_size=mix.frame_size, text=True)`.
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from envs.steps import from_gym_step, from_vector_step, modalities_of, modalities_of_one
from rewards.adapters.driver import Driver
from rewards.mix.mix import Mix


class RewardWrapper(gym.Wrapper):
    """The mix around any Gymnasium environment: what every other way of running a reward is compared with.

    Put episode statistics inside of this wrapper, so that they count the task; `update_every` is in transitions.
    """

    def __init__(self, env: gym.Env, mix: Mix, update_every: int = 256) -> None:
        super().__init__(env)
        self.driver = Driver(mix, 1, update_every)
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self.driver.begin(modalities_of_one(info))
        self._obs = copy.deepcopy(obs)
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        next_obs, reward, terminated, truncated, info = self.env.step(action)
        step = (self._obs, action, float(reward), next_obs, terminated, truncated, info)
        total = self.driver(from_gym_step(self.driver.cursor, *step))
        info["reward/task"] = float(reward)
        info.update({f"reward/{name}": float(raw[0]) for name, raw in self.driver.raw.items()})
        self._obs = copy.deepcopy(next_obs)
        return next_obs, float(total[0]), terminated, truncated, info


class VectorRewardWrapper(VectorWrapper):
    """The mix around a vector environment: one `score` a step for all environments, in each auto-reset mode.

    In NEXT_STEP mode the step that only resets has reward 0 and is never learnt from. Raises ValueError if the
    environment does not declare `metadata["autoreset_mode"]`: guessing it would reward transitions that never happened.
    """

    def __init__(self, env: VectorEnv, mix: Mix, update_every: int = 1024) -> None:
        mode = env.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise ValueError(
                f'{env} declares metadata["autoreset_mode"]={mode!r}; set it to a gymnasium.vector.AutoresetMode, '
                "because the transitions at the end of an episode look different in each"
            )
        super().__init__(env)
        self.mode = mode
        self.driver = Driver(mix, env.num_envs, update_every)
        self._obs: Any = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        mask = (options or {}).get("reset_mask")  # read before Gymnasium takes it out of the options
        obs, infos = self.env.reset(seed=seed, options=options)
        self.driver.begin(modalities_of(infos), mask)
        self._obs = copy.deepcopy(obs)
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        next_obs, rewards, terminations, truncations, infos = self.env.step(actions)
        step = (self._obs, actions, rewards, next_obs, terminations, truncations, infos)
        total = self.driver(from_vector_step(self.driver.cursor, self.mode, *step))
        infos["reward/task"] = np.asarray(rewards, np.float32)
        infos.update({f"reward/{name}": raw for name, raw in self.driver.raw.items()})
        self._obs = copy.deepcopy(next_obs)
        return next_obs, total, terminations, truncations, infos
