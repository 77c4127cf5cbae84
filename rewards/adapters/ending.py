"""Rewards that end episodes: the environment terminates where one of them, with `ends` among its options, is above 0.

    env = ending(env, mix)          around one environment; as it is if no reward of the mix ends anything

The end is a termination: nothing is worth anything after it, and what is around resets the environment. Its own
statistics of the episode are as if it had been cut there, so success stays what the environment calls so.
Limits: each environment asks its reward alone, at every step, so it has to be in this process.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from envs.steps import from_gym_step, modalities_of_one
from envs.transitions import Transitions
from envs.wrappers import layers
from rewards.adapters.driver import EpisodeTracker
from rewards.base import Reward, values_of
from rewards.mix.mix import Mix


def endings(mix: Mix) -> dict[str, Reward]:
    """The rewards of a mix that end episodes, by name."""
    return {name: s.reward for name, s in mix.streams.items() if getattr(s.reward.config, "ends", False)}


def ending(env: gym.Env, mix: Mix) -> gym.Env:
    """The environment, whose episodes such rewards end; itself without one, or if they do already."""
    return env if layers(env, Ending) or not endings(mix) else Ending(env, mix)


class Ending(gym.Wrapper, RecordConstructorArgs):
    """One environment; its snapshots include what the rewards remember of the episode."""

    def __init__(self, env: gym.Env, mix: Mix) -> None:
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, mix=mix)
        super().__init__(env)
        self.tracker = EpisodeTracker(endings(mix), 1, mix.frame_size)
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._obs, info = self.env.reset(seed=seed, options=options)
        self.tracker.begin(modalities_of_one(info))
        return self._obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        step = (self._obs, action, float(reward), obs, terminated, truncated, info)
        self._obs = obs
        if self._says_so(from_gym_step(self.tracker.cursor, *step)) and not (terminated or truncated):
            terminated = True
            if self.env.has_wrapper_attr("conclude"):
                self.env.get_wrapper_attr("conclude")(info, False)
        return obs, reward, terminated, truncated, info

    def _says_so(self, batch: Transitions) -> bool:
        ends = False
        for name, reward in self.tracker.sources.items():
            given = [self.tracker.memory[name]] if name in self.tracker.memory else []
            scored: Any = reward.score(batch, *given)
            if given:
                scored, self.tracker.memory[name] = scored
            ends |= bool(values_of(scored)[0] > 0)
        return ends

    def snapshot(self) -> dict[str, Any]:
        """The environment's snapshot, and the rewards' memories."""
        return {"env": self.env.get_wrapper_attr("snapshot")(), "endings": self.tracker.state_dict()}

    def restore(self, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Come back to a snapshot."""
        self._obs, info = self.env.get_wrapper_attr("restore")(state["env"])
        self.tracker.load_state_dict(state["endings"])
        return self._obs, info
