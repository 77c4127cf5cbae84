"""Rewards that end episodes: the environment terminates where one of them, with `ends` among its options, is above 0.

    env = add_endings(env, mix)        around one environment; as it is if no reward of the mix ends anything

The environment's own statistics are as if the episode had been cut there, so success stays its own.
Limits: each environment asks its reward alone, at every step, so it has to be in this process.
"""

from typing import Any

import gymnasium as gym

from envs.transitions import Transitions
from envs.types import Info
from envs.wrappers import layers
from rewards.adapters.driver import EpisodeTracker, TrackedEnv
from rewards.base import Reward, values_of
from rewards.mix.mix import Mix


def endings(mix: Mix) -> dict[str, Reward]:
    """The rewards of a mix that end episodes, by name."""
    # `ends` is an option of few rewards.
    return {name: stream.reward for name, stream in mix.streams.items() if getattr(stream.reward.config, "ends", False)}


def add_endings(env: gym.Env, mix: Mix) -> gym.Env:
    """The environment, whose episodes such rewards end; itself without one, or if they do already."""
    if layers(env, Ending) or not endings(mix):
        return env
    return Ending(env, mix)


class Ending(TrackedEnv):
    """One environment."""

    kept = "endings"

    def __init__(self, env: gym.Env, mix: Mix) -> None:
        super().__init__(env, mix, EpisodeTracker(endings(mix), 1, mix.frame_size))

    def observe(self, batch: Transitions, info: Info) -> bool:
        ends = False
        memory = self.tracker.memory
        reward: Any
        for name, reward in self.tracker.sources.items():
            # Only a reward with a memory takes and returns one.
            if name in memory:
                score, memory[name] = reward.score(batch, memory[name])
            else:
                score = reward.score(batch)
            ends |= bool(values_of(score)[0] > 0)
        # Where time runs out with the success the episode still terminates, but its account is written already.
        if ends and not batch.ended[0] and self.env.has_wrapper_attr("conclude"):
            self.env.get_wrapper_attr("conclude")(info, False)
        return ends
