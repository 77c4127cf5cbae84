# ruff: noqa: NPY002 - global generators are what some of these rewards abuse
"""check_reward lets an honest reward pass and names the rule that a broken one breaks."""

import numpy as np
import pytest
import torch
from broken_rewards import BUGS, Episodic, Honest, Reader, Recalled, broken, caught, same_for_all, update_returning
from gymnasium import spaces

from rewards.base import Reward, RewardConfig, Scored
from rewards.check import RewardCheckError, check_reward, random_rollout


def test_honest_rewards_pass():
    check_reward(Honest, seeds_differ=True)
    for kind in (Episodic, Reader, Recalled):
        check_reward(kind)
    check_reward(Honest(RewardConfig(), spaces.Box(0, 1, (2,)), spaces.Box(-1, 1, (3,))), seeds_differ=True)


def test_a_real_rollout_and_the_reward_handed_in_stay_as_they_were():
    box = spaces.Box(0, 1, (2,))
    reward, rollout = Honest(RewardConfig(), box, spaces.Discrete(2)), random_rollout(box, spaces.Discrete(2), seed=5)
    before = rollout.next_obs.copy()
    check_reward(reward, transitions=rollout)
    assert np.array_equal(rollout.next_obs, before)
    assert reward.weights.count == 0


def test_a_random_rollout_follows_from_its_seed():
    box, two = spaces.Box(0, 1, (2,)), spaces.Discrete(2)
    one, again, other = (random_rollout(box, two, seed=seed) for seed in (5, 5, 6))
    assert np.array_equal(one.next_obs, again.next_obs) and not np.array_equal(one.next_obs, other.next_obs)
    seen = random_rollout(box, two, {"frame", "obs_frame"}, 8, steps=5, envs=3)
    assert seen.frame.shape == (5, 3, 8, 8, 3) and np.array_equal(seen.frame[:-1], seen.obs_frame[1:])


def test_the_global_generators_are_left_as_they_were():
    torch.manual_seed(3)
    np.random.seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    check_reward(Honest)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])


def test_frames_are_exchanged_for_the_embedding_that_a_reward_names():
    class Bright(Reward):
        requires = frozenset({"frame"})
        embedding = "brightness"
        frame_size = 8

        def embed(self, batch):
            return batch.frame.mean(axis=(1, 2), dtype=np.float32)

        def score(self, batch, memory=None):
            return batch.extras["brightness"].mean(axis=1)

    check_reward(Bright)


def test_rows_that_are_not_ready_are_allowed():
    def score(self, batch, memory=None):
        return Scored(Honest.score(self, batch), batch.next_obs[:, 0] > 0)

    check_reward(broken(score=score))


def name_of(bug):
    """Of a test: what the broken reward replaces, and with what."""
    ordered = {key: sorted(value) if isinstance(value, frozenset) else value for key, value in bug[1].items()}
    return "-".join(f"{key}-{getattr(value, '__name__', value)}" for key, value in ordered.items())


@pytest.mark.parametrize("bug", BUGS, ids=name_of)
def test_a_broken_reward_is_named(bug):
    base, members, words = bug
    sentence = caught(base, members)
    assert sentence and sentence.startswith("Broken breaks the contract: ") and words in sentence
    assert "\n" not in sentence


def test_what_a_broken_reward_changed_in_the_process_is_changed_back():
    assert torch.is_grad_enabled() and torch.get_default_dtype() is torch.float32 and np.geterr()["divide"] == "warn"
    assert torch.get_float32_matmul_precision() == "highest"
    assert hash.__module__ == "builtins" and "hash" not in vars(__import__("broken_rewards"))


def test_a_reward_that_learns_by_the_global_generator_is_named():
    def update(self, batch):
        self.weights.mean = np.random.normal(size=self.weights.mean.shape)
        return {}

    assert "two instances with the same seed score differently" in caught(Honest, {"update": update})


def test_a_reward_that_ignores_its_seed_is_named_if_it_should_not():
    members = {"__init__": same_for_all, "update": update_returning({})}
    check_reward(broken(**members))
    with pytest.raises(RewardCheckError, match="seeds 0 and 1 give the same scores"):
        check_reward(broken(**members), seeds_differ=True)


def test_what_is_no_reward_is_refused():
    with pytest.raises(RewardCheckError, match=r"neither a class that extends .* nor an instance of one"):
        check_reward(lambda batch: batch.reward)
    with pytest.raises(RewardCheckError, match=r"transitions have shape \(24,\); give a rollout \(T, N\)"):
        check_reward(Honest, transitions=random_rollout(spaces.Box(-1, 1, (4,)), spaces.Discrete(3)).flatten())
