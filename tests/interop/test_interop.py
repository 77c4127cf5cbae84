"""Gymnasium's wrappers and auto-reset, and the checkers of Stable-Baselines3, TorchRL and tianshou, around ours."""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, VectorEnv

import rewards
from envs.make import make, make_vec
from rewards.adapters.gym import RewardWrapper, VectorRewardWrapper

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]
IDS = (
    *("CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "HalfCheetah-v5", "MiniGrid-DoorKey-5x5-v0", "highway-fast-v0"),
    *("lodestar/CartPoleUpright-v0", "NetHackScore-v0"),
)
WRAPPERS = {  # those of observations refuse SAME_STEP, Gymnasium's own too
    "statistics": wrappers.vector.RecordEpisodeStatistics,
    "normalised rewards": wrappers.vector.NormalizeReward,
    "clipped rewards": lambda vec: wrappers.vector.ClipReward(vec, -0.5, 0.5),
    "infos as a list": wrappers.vector.DictInfoToList,
}


def rewarded(env: gym.Env) -> RewardWrapper:
    return RewardWrapper(env, rewards.make(["task", "count"], env.observation_space, env.action_space))


def vectors(backend: str, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> VectorEnv:
    vec = make_vec("CartPole-v1", 3, seed=0, backend=backend, autoreset_mode=mode)
    mix = rewards.make(["task", "count"], vec.single_observation_space, vec.single_action_space)
    return VectorRewardWrapper(vec, mix)


def walk(vec: VectorEnv, steps: int = 100) -> Iterator[tuple[Any, ...]]:
    """Observations, rewards and ends of the same random actions every time."""
    vec.action_space.seed(0)
    yield (np.array(vec.reset(seed=1)[0]),)
    for _ in range(steps):
        yield tuple(np.array(part) for part in vec.step(vec.action_space.sample())[:4])


@pytest.mark.parametrize("env_id", IDS)
def test_gymnasiums_checker_accepts_every_family_as_made_and_rewarded(env_id: str) -> None:
    check_env(make(env_id), skip_render_check=True)
    check_env(rewarded(make(env_id)), skip_render_check=True)


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_gymnasiums_wrappers_do_around_our_vectors_what_they_do_around_its_own(wrap: Any) -> None:
    for ours, theirs in zip(walk(wrap(vectors("gym"))), walk(wrap(vectors("sync"))), strict=True):
        for mine, yours in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(mine, yours, rtol=1e-5, atol=1e-5)


def test_every_autoreset_mode_rewards_the_same_episodes() -> None:
    totals = []
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED):
        vec = vectors("sync", mode)
        vec.reset(seed=1)
        earned, ended = np.zeros(3), np.zeros(3, bool)
        while not ended.all():  # the first episode of each
            _, reward, terminated, truncated, _ = vec.step(np.ones(3, int))
            earned += np.where(ended, 0, reward)
            ended |= terminated | truncated
            if mode == AutoresetMode.DISABLED and (terminated | truncated).any():
                vec.reset(options={"reset_mask": terminated | truncated})
        totals.append(earned)
    np.testing.assert_array_equal(totals[0], totals[2])
    np.testing.assert_allclose(totals[0], totals[1], atol=0.1)  # a count of visits sees resets at other times


@pytest.mark.parametrize("env_id", IDS)
def test_stable_baselines3_accepts_every_family_as_made_and_rewarded(env_id: str) -> None:
    from stable_baselines3.common.env_checker import check_env as check

    check(make(env_id), skip_render_check=True)
    check(rewarded(make(env_id)), skip_render_check=True)


@pytest.mark.parametrize("env_id", [name for name in IDS if "NetHack" not in name])
def test_torchrl_finds_the_specs_of_every_family_true(env_id: str) -> None:
    pytest.importorskip("torchrl")
    from torchrl.envs import GymWrapper
    from torchrl.envs.utils import check_env_specs

    check_env_specs(GymWrapper(rewarded(make(env_id))))


@pytest.mark.parametrize("backend", ["gym", "sync"])
def test_torchrl_finds_the_specs_of_a_rewarded_vector_true(backend: str) -> None:
    pytest.importorskip("torchrl")
    from torchrl.envs import GymWrapper
    from torchrl.envs.utils import check_env_specs

    check_env_specs(GymWrapper(vectors(backend)))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", "Pendulum-v1", "MiniGrid-DoorKey-5x5-v0"])
def test_tianshous_collector_collects_whole_rewarded_episodes(env_id: str) -> None:
    pytest.importorskip("tianshou")
    from tianshou.algorithm.algorithm_base import Policy
    from tianshou.data import Batch, Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv

    class Chance(Policy):
        def forward(self, batch: Any, state: Any = None, **kwargs: Any) -> Any:
            return Batch(act=np.array([self.action_space.sample() for _ in range(len(batch.obs))]))

    envs = DummyVectorEnv([lambda: rewarded(make(env_id, max_episode_steps=20))] * 2)
    policy = Chance(action_space=envs.action_space[0], observation_space=envs.observation_space[0])
    buffer = VectorReplayBuffer(200, 2)
    found = Collector(policy, envs, buffer).collect(n_episode=4, reset_before_collect=True)
    assert found.n_collected_episodes == 4 and found.n_collected_steps == len(buffer) == found.lens.sum()
    rows = buffer.sample_indices(0)
    ends = buffer.terminated[rows] | buffer.truncated[rows]
    assert ends.sum() == 4
    np.testing.assert_allclose(found.returns.sum(), buffer.rew[rows].sum(), rtol=1e-5)
