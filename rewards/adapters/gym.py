"""The mix in any Gymnasium program: around one environment, or around a vector of them.

    env = RewardWrapper(envs.make.make("CartPole-v1"), rewards.make(["task", "rnd"], observation_space, action_space))
    vec = VectorRewardWrapper(envs.make.make_vec("CartPole-v1", 8), mix)

`step` returns the mix instead of the task's reward; `info["reward/task"]` and `info["reward/<name>"]` keep the
parts. Rewards that look at frames or texts need an environment that puts them into its info: `make(...,
frame_size=mix.frame_size, text=True)`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from envs.transitions import Chunk, Cursor, from_gym_step, from_vector_step, modalities_of, modalities_of_one
from envs.types import MODALITIES, Transitions
from rewards.mix.mix import Mix


class Driver:
    """Feeds a mix step by step: embed, score, combine, remember, and every `update_every` transitions learn.

    Attributes:
        raw: the streams' scores of the last step.
        metrics: what the last update reported.
        timesteps: environment steps so far, over all environments.
    """

    def __init__(self, mix: Mix, n: int, update_every: int) -> None:
        if update_every < 1:
            raise ValueError(f"update_every={update_every} transitions must be at least 1")
        self.mix = mix
        self.n = n
        self.chunk = Chunk(max(update_every // n, 1))
        self.memory = mix.initial_memory(n)
        self.cursor = Cursor(n)
        self.raw: dict[str, np.ndarray] = {}
        self.metrics: dict[str, float] = {}
        self.timesteps = 0

    def __call__(self, batch: Transitions) -> np.ndarray:
        """The reward of a step, float32 (N,)."""
        batch = self.mix.embed(batch)
        self.raw, self.memory = self.mix.score(batch, self.memory)
        total = self.mix.combine(self.raw, self.timesteps)
        self.timesteps += self.n if batch.valid.all() else int(batch.valid.sum())
        self.chunk.add(batch, self.raw)
        if self.chunk.full:
            fresh, raw = self.chunk.take()
            self.metrics = self.mix.update(fresh, raw, self.timesteps)
        return total

    def begin(self, modalities: Mapping[str, np.ndarray], mask: np.ndarray | None = None) -> None:
        """Episodes begin, in all environments or those of `mask`; `modalities` is what their infos show."""
        self.cursor.begin(modalities, mask)
        if self.memory:
            self.memory = self.mix.reset_memory(self.memory, np.ones(self.n, bool) if mask is None else mask)

    def state_dict(self) -> dict[str, Any]:
        """Memory, place in the episodes and the rows still to be learnt from."""
        return {
            "memory": copy.deepcopy(self.memory),
            "cursor": self.cursor.state_dict(),
            "chunk": self.chunk.state_dict(),
            "timesteps": self.timesteps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory = {name: {k: np.array(v) for k, v in m.items()} for name, m in state["memory"].items()}
        self.cursor.load_state_dict(state["cursor"])
        self.chunk.load_state_dict(state["chunk"])
        self.timesteps = int(state["timesteps"])


class RewardWrapper(gym.Wrapper):
    """Pays the mix around a single environment: the meaning every other way of running a reward is measured against.

    Args:
        env: any Gymnasium environment; put episode statistics inside of this wrapper, so that they count the task.
        mix: from `rewards.make`.
        update_every: transitions between two updates of the rewards.
    """

    def __init__(self, env: gym.Env, mix: Mix, update_every: int = 256) -> None:
        super().__init__(env)
        self.driver = Driver(mix, 1, update_every)
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        require_modalities(self.driver.mix, info)
        self.driver.begin(modalities_of_one(info))
        self._obs = copy.deepcopy(obs)
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        next_obs, reward, terminated, truncated, info = self.env.step(action)
        batch = from_gym_step(
            self.driver.cursor, self._obs, action, float(reward), next_obs, terminated, truncated, info
        )
        total = self.driver(batch)
        info["reward/task"] = float(reward)
        info.update({f"reward/{name}": float(raw[0]) for name, raw in self.driver.raw.items()})
        self._obs = copy.deepcopy(next_obs)
        return next_obs, float(total[0]), terminated, truncated, info


class VectorRewardWrapper(VectorWrapper):
    """Pays the mix around a vector environment: one `score` a step for all environments, in each auto-reset mode.

    In NEXT_STEP mode the step that only resets pays 0 and is never learnt from.

    Raises:
        ValueError: if the environment does not declare `metadata["autoreset_mode"]`: guessing it would pay for
            transitions that never happened.
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
        require_modalities(self.driver.mix, infos)
        self.driver.begin(modalities_of(infos), None if mask is None else np.asarray(mask, bool))
        self._obs = copy.deepcopy(obs)
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        next_obs, rewards, terminations, truncations, infos = self.env.step(actions)
        batch = from_vector_step(
            self.driver.cursor,
            self.mode,
            self._obs,
            actions,
            rewards,
            next_obs,
            terminations,
            truncations,
            infos,
        )
        total = self.driver(batch)
        infos["reward/task"] = np.asarray(rewards, np.float32)
        infos.update({f"reward/{name}": raw for name, raw in self.driver.raw.items()})
        self._obs = copy.deepcopy(next_obs)
        return next_obs, total, terminations, truncations, infos


def require_modalities(mix: Mix, info: Any) -> None:
    """Say at the first reset, not an hour later, that frames, texts or signals are missing."""
    for field in MODALITIES:
        if field in mix.requires and field not in info:
            wants = [name for name, stream in mix.streams.items() if field in stream.requires]
            option = f"frame_size={mix.frame_size}" if field == "frame" else f"{field}=True"
            raise ValueError(
                f'the reward {wants[0]!r} reads {field}, but info["{field}"] is missing; make the environment with '
                f"envs.make.make(..., {option})"
            )
