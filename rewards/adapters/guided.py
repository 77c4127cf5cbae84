"""Rewards that also speak to the policy: what they have to say stands beside the observation.

A reward with a memory of the episode may have

    guides: int                        how many numbers, D
    guide(memory) -> float32 (N, D)    what it says to N policies whose episodes it remembers so
    begin(memory, shown, mask)         optional: the memory after seeing what is shown with first observations (frames,
                                       texts, signals, each (N, ...)) of the environments in `mask`, bool (N,)

and the policy then reads (n + D,) numbers instead of the environment's (n,):

    mix = make_mix(...); env = guided(env, mix)         around one environment or a vector; as it is without a guide

The wrapper keeps the reward's memory as the drivers of a mix do: scored step by step, reset at episode ends. It is a
memory of its own, beside the one of the driver that pays. An episode's last observation comes with what was said of
it, also where the next episode's first one has taken its place (`final_obs`).

Limits: flat observations, Box (n,). A guide may read texts and signals, but no observations: with its own words behind
them, the driver that pays would hand it others than this wrapper.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

import rewards
from envs.transitions import Cursor, from_gym_step, from_vector_step, modalities_of, modalities_of_one
from envs.types import MODALITIES, Memory, Obs, Transitions
from rewards.base import merge_memory
from rewards.mix.mix import Mix


def guides(mix: Mix) -> dict[str, Any]:
    """The rewards of a mix that speak to the policy, by name; most have none."""
    return {name: s.reward for name, s in mix.streams.items() if getattr(s.reward, "guides", 0) > 0}


def shown_to(mix: Mix) -> dict[str, bool]:
    """What an environment must show for them: arguments of `envs.make.make`, such as {"signals": True}."""
    read = frozenset().union(*(reward.requires for reward in guides(mix).values()))
    return {name: True for name in ("text", "signals") if {name, f"obs_{name}"} & read}


def guided(env: Any, mix: Mix) -> Any:
    """The environment, or vector of them, whose observations hold what the mix says; itself if it says nothing."""
    if not guides(mix):
        return env
    return Guided(env, mix) if isinstance(env, VectorEnv) else GuidedEnv(env, mix)


def guided_space(space: spaces.Space, mix: Mix) -> spaces.Space:
    """The space of one observation with what the mix says behind it.

    Raises:
        ValueError: if observations are not flat numbers, or a guide would read them.
    """
    speakers = guides(mix)
    if not speakers:
        return space
    names = ", ".join(speakers)
    if not (isinstance(space, spaces.Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating)):
        raise ValueError(f"{names} speaks to the policy beside flat float observations, not {space}; flatten them")
    for name, reward in speakers.items():
        read = sorted(_OBSERVED & reward.requires)
        if read:
            raise ValueError(f"the reward {name!r} guides, so it may read texts and signals, but not {', '.join(read)}")
    more = np.full(sum(reward.guides for reward in speakers.values()), np.inf, np.float32)
    low, high = (np.asarray(bound, np.float32) for bound in (space.low, space.high))
    return spaces.Box(np.concatenate([low, -more]), np.concatenate([high, more]), dtype=np.float32)


def make_mix(given: Any, observation_space: spaces.Space, action_space: spaces.Space, **options: Any) -> Mix:
    """As `rewards.make`; where one reward speaks to the policy, the others see the observations it speaks beside."""
    mix = rewards.make(given, observation_space, action_space, **options)
    space = guided_space(observation_space, mix)
    if space is observation_space or not {"obs", "next_obs"} & mix.requires:
        return mix
    return rewards.make(given, space, action_space, **options)


_OBSERVED = frozenset({"obs", "next_obs", "frame", "obs_frame"})


class _Listener:
    """What the guides of a mix remember of N running episodes, and say of them."""

    def __init__(self, mix: Mix, n: int) -> None:
        self.n = n
        self.rewards = guides(mix)
        self.cursor = Cursor(n)
        self.memory: dict[str, Memory] = {name: reward.initial_memory(n) for name, reward in self.rewards.items()}

    def begin(self, modalities: Mapping[str, Any], mask: np.ndarray | None = None) -> None:
        """Episodes begin, in all environments or those of `mask`; `modalities` comes with their first observations."""
        mask = np.ones(self.n, bool) if mask is None else np.asarray(mask, bool)
        self._require(modalities)
        for name, reward in self.rewards.items():
            memory = merge_memory(self.memory[name], reward.initial_memory(self.n), mask)
            self.memory[name] = reward.begin(memory, modalities, mask) if hasattr(reward, "begin") else memory

    def hear(self, batch: Transitions) -> None:
        """One step on, (N,); rows that are no transitions change nothing."""
        for name, reward in self.rewards.items():
            before = self.memory[name]
            _, after = reward.score(batch, before)
            self.memory[name] = after if batch.valid.all() else merge_memory(after, before, ~batch.valid)

    def words(self) -> np.ndarray:
        """Float32 (N, D)."""
        return np.concatenate([reward.guide(self.memory[name]) for name, reward in self.rewards.items()], axis=1)

    def _require(self, modalities: Mapping[str, Any]) -> None:
        for name, reward in self.rewards.items():
            for field in MODALITIES:
                if field in reward.requires and field not in modalities:
                    option = f"frame_size={reward.frame_size}" if field == "frame" else f"{field}=True"
                    raise ValueError(
                        f'the reward {name!r} reads {field}, but info["{field}"] is missing; make the environment with '
                        f"envs.make.make(..., {option})"
                    )

    def state_dict(self) -> dict[str, Any]:
        return {"memory": copy.deepcopy(self.memory), "cursor": self.cursor.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.memory = {name: {k: np.array(v) for k, v in memory.items()} for name, memory in state["memory"].items()}
        self.cursor.load_state_dict(state["cursor"])


class GuidedEnv(gym.Wrapper):
    """One environment whose observations hold what the rewards of a mix say; its snapshots too."""

    def __init__(self, env: gym.Env, mix: Mix) -> None:
        super().__init__(env)
        self.observation_space = guided_space(env.observation_space, mix)
        self.listener = _Listener(mix, 1)
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._obs, info = self.env.reset(seed=seed, options=options)
        modalities = modalities_of_one(info)
        self.listener.cursor.begin(modalities)
        self.listener.begin(modalities)
        return self._join(), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        cursor = self.listener.cursor
        self.listener.hear(
            from_gym_step(cursor, self._obs, action, float(reward), obs, terminated, truncated, info)  # type: ignore[arg-type]
        )
        self._obs = obs
        return self._join(), reward, terminated, truncated, info

    def snapshot(self) -> dict[str, Any]:
        """The environment's snapshot, and what the guides remember."""
        return {"env": self.env.get_wrapper_attr("snapshot")(), "guides": self.listener.state_dict()}

    def restore(self, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Come back to a snapshot."""
        self._obs, info = self.env.get_wrapper_attr("restore")(state["env"])
        self.listener.load_state_dict(state["guides"])
        return self._join(), info

    def _join(self) -> np.ndarray:
        return np.concatenate([self._obs, self.listener.words()[0]], dtype=np.float32)


class Guided(VectorWrapper):
    """A vector of environments whose observations hold what the rewards of a mix say; its snapshots too.

    As with `envs.vector.in_process`, the observations returned hold until the next step; SAME_STEP and NEXT_STEP resets.
    """

    def __init__(self, env: VectorEnv, mix: Mix) -> None:
        mode = env.metadata.get("autoreset_mode")
        if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
            raise ValueError(f'{env} declares metadata["autoreset_mode"]={mode!r}; guides need SAME_STEP or NEXT_STEP')
        super().__init__(env)
        self.mode = mode
        self.single_observation_space = guided_space(env.single_observation_space, mix)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.listener = _Listener(mix, env.num_envs)
        shape = (env.num_envs, *(self.single_observation_space.shape or ()))
        self._joined, self._final = np.zeros(shape, np.float32), np.zeros(shape, np.float32)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        mask = (options or {}).get("reset_mask")  # read before Gymnasium takes it out of the options
        obs, infos = self.env.reset(seed=seed, options=options)
        modalities = modalities_of(infos)
        self.listener.cursor.begin(modalities, None if mask is None else np.asarray(mask, bool))
        self.listener.begin(modalities, mask)
        return self._join(obs), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        next_obs, rewards, terminations, truncations, infos = self.env.step(actions)
        listener = self.listener
        listened = None if self.mode == AutoresetMode.SAME_STEP else listener.cursor.resetting.copy()
        obs = next_obs  # guides do not read it, and the one before may be overwritten by now
        batch = from_vector_step(
            listener.cursor, self.mode, obs, actions, rewards, next_obs, terminations, truncations, infos
        )
        listener.hear(batch)
        begun = batch.ended if listened is None else listened
        if begun.any():
            if listened is None:  # its last observation goes out with what was said of it
                infos = {**infos, "final_obs": self._last(batch.next_obs, begun)}
            listener.begin(modalities_of(infos), begun)
        return self._join(next_obs), rewards, terminations, truncations, infos

    def snapshot(self) -> dict[str, Any]:
        """The environments' snapshot, and what the guides remember."""
        return {"envs": self.env.snapshot(), "guides": self.listener.state_dict()}  # type: ignore[attr-defined]

    def restore(self, state: Mapping[str, Any]) -> Obs:
        """Come back to a snapshot; returns the observations of that moment."""
        obs = self.env.restore(state["envs"])  # type: ignore[attr-defined]
        self.listener.load_state_dict(state["guides"])
        return self._join(obs)

    def _join(self, obs: np.ndarray) -> np.ndarray:
        width = obs.shape[1]
        self._joined[:, :width] = obs
        self._joined[:, width:] = self.listener.words()
        return self._joined

    def _last(self, obs: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """True successors (N, n + D); rows outside of `ended` mean nothing."""
        width = obs.shape[1]
        self._final[ended, :width] = obs[ended]
        self._final[ended, width:] = self.listener.words()[ended]
        return self._final
