"""A reward that reads frames where there are none is refused in the same sentence, whichever way it is run."""

import re

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv

import agents
import rewards
from envs.make import make, make_vec
from rewards.adapters.gym import RewardWrapper, VectorRewardWrapper
from rewards.adapters.sb3 import RelabelCallback, RewardCallback, RewardVecEnv, relabelling
from rewards.base import Reward
from rewards.check import random_rollout


class Bright(Reward):
    """How bright the frame is."""

    requires = frozenset({"frame"})
    frame_size = 32

    def score(self, batch, memory=None):
        return batch.frame.mean(axis=(1, 2, 3), dtype=np.float32) / 255


POLE = make("CartPole-v1")
SPACES = POLE.observation_space, POLE.action_space
SMALL = {"n_steps": 8, "batch_size": 8, "n_epochs": 1}


def mix():
    return rewards.make([Bright], *SPACES)


def pole():
    return DummyVecEnv([lambda: make("CartPole-v1")])


def relabelled(callback):
    buffer = {"replay_buffer_class": relabelling(ReplayBuffer), "replay_buffer_kwargs": {"mix": mix()}}
    DQN("MlpPolicy", pole(), learning_starts=8, batch_size=4, **buffer).learn(32, callback=callback)


def with_our_ppo():
    agents.get("ppo")(make_vec("CartPole-v1", 2), agents.get("ppo").Config(**SMALL), scorer=mix()).learn(32)


def with_our_replay():
    car = gym.make("Pendulum-v1")
    scorer = rewards.make([Bright], car.observation_space, car.action_space)
    config = agents.get("dyna").Config(learning_starts=8, batch_size=4)
    agents.get("dyna")(make_vec("Pendulum-v1", 2), config, scorer=scorer).learn(64)


WAYS = {
    "an environment": lambda: RewardWrapper(make("CartPole-v1"), mix()).reset(),
    "a vector": lambda: VectorRewardWrapper(make_vec("CartPole-v1", 2), mix()).reset(),
    "a VecEnv": lambda: RewardVecEnv(pole(), mix()).reset(),
    "rollouts": lambda: PPO("MlpPolicy", pole(), **SMALL).learn(8, callback=RewardCallback(mix())),
    "a replay": lambda: relabelled(None),
    "a replay with its callback": lambda: relabelled(RelabelCallback()),
    "our PPO": with_our_ppo,
    "our replay": with_our_replay,
    "the mix": lambda: mix().total(random_rollout(*SPACES), None, 0),
}


@pytest.mark.parametrize("way", WAYS)
def test_missing_frames_are_refused_in_the_same_sentence(way, short_fits):
    sentence = (
        'the reward \'bright\' reads frame, but info["frame"] is missing; make it with render_mode="rgb_array", or '
        "with envs.make.make(..., frame_size=32); in other processes, "
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        WAYS[way]()


def test_frames_that_are_there_are_scored():
    rollout = random_rollout(*SPACES, {"frame"}, 32)
    scores, _ = mix().total(rollout, None, 0)
    assert scores == pytest.approx(rollout.frame.mean(axis=(2, 3, 4)) / 255, abs=1e-6)
