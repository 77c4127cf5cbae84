"""Steps of environments for agents that learn between them: true successors, the account of episodes, exact resume."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import envs.make
from agents.base import Steps
from agents.networks.actor_critic import SpaceEncoding

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]


class Counter(gym.Env):
    """Observation: steps taken; pays 2 per step; ends after `length`."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Box(-3, 1, (1,), np.float32)

    def __init__(self, length, reward=2.0):
        self.length, self.reward, self.k, self.taken = length, reward, 0, []

    def reset(self, *, seed=None, options=None):
        self.k = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.taken.append(float(action[0]))
        self.k += 1
        ended = self.k == self.length
        info = {"is_success": True} if ended else {}
        return np.full(1, self.k, np.float32), self.reward, ended, False, info


def counters(mode, *lengths, **kwargs):
    return SyncVectorEnv([lambda n=n: Counter(n, **kwargs) for n in lengths], autoreset_mode=mode)


def walk(steps, encoding, count):
    return [steps.step(torch.zeros(steps.n, 1), encoding) for _ in range(count)]


@pytest.mark.parametrize("mode", MODES)
def test_successors_are_true_at_an_episodes_end_in_either_mode(mode):
    made = counters(mode, 3, 5)
    encoding, steps = SpaceEncoding(made.single_observation_space, made.single_action_space), Steps(made, 0)
    assert steps.begin() and not steps.begin()
    for batch in walk(steps, encoding, 12):
        assert np.array_equal(batch.next_obs[batch.valid], batch.obs[batch.valid] + 1)
        assert np.array_equal(batch.step[batch.valid], batch.obs[batch.valid, 0])
    assert {e["l"] for e in steps.episodes.returns} == {3, 5}
    assert all(e["r"] == 2 * e["l"] for e in steps.episodes.returns)
    assert list(steps.episodes.successes) == [1.0] * len(steps.episodes.returns)


def test_actions_reach_the_environment_in_its_own_range():
    made = counters(AutoresetMode.SAME_STEP, 9)
    encoding, steps = SpaceEncoding(made.single_observation_space, made.single_action_space), Steps(made, 0)
    steps.begin()
    for action in (-1.0, 0.0, 1.0):
        steps.step(torch.tensor([[action]]), encoding)
    assert made.envs[0].taken == [-3.0, -1.0, 1.0]


def test_what_was_handed_out_is_not_overwritten_by_the_next_step():
    made = envs.make.make_vec("CartPole-v1", 2, seed=0)
    encoding, steps = SpaceEncoding(made.single_observation_space, made.single_action_space), Steps(made, 0)
    steps.begin()
    hot = torch.eye(2)
    first = steps.step(hot, encoding)
    kept = first.map(np.copy)
    for _ in range(30):
        batch = steps.step(hot, encoding)
    for name in ("obs", "action", "reward", "next_obs", "terminated"):
        assert np.array_equal(getattr(first, name), getattr(kept, name)), name
    assert batch.obs.shape == (2, 4)


def test_it_goes_on_where_it_stood():
    def fresh():
        made = envs.make.make_vec("Pendulum-v1", 2, seed=3, backend="auto")
        return made, SpaceEncoding(made.single_observation_space, made.single_action_space), Steps(made, 3)

    made, encoding, steps = fresh()
    steps.begin()
    walk(steps, encoding, 150)
    state, world = steps.state_dict(), made.snapshot()
    expected = walk(steps, encoding, 120)
    again, _, resumed = fresh()
    again.restore(world)
    resumed.load_state_dict(state)
    assert not resumed.begin()
    for one, other in zip(expected, walk(resumed, encoding, 120)):
        assert np.array_equal(one.next_obs, other.next_obs) and np.array_equal(one.step, other.step)
    assert list(steps.episodes.returns) == list(resumed.episodes.returns) and len(steps.episodes.returns) == 2


def test_numbers_that_are_none_are_refused_with_their_place():
    made = counters(AutoresetMode.SAME_STEP, 9, reward=np.nan)
    encoding, steps = SpaceEncoding(made.single_observation_space, made.single_action_space), Steps(made, 0)
    steps.begin()
    with pytest.raises(FloatingPointError, match=r"environment 0 gave the reward nan at step 0 of its episode"):
        steps.step(torch.zeros(1, 1), encoding)


def test_environments_that_do_not_reset_themselves_are_refused():
    with pytest.raises(ValueError, match=r"must reset its environments itself"):
        Steps(counters(AutoresetMode.DISABLED, 3), 0)


def test_an_episode_that_is_given_up_is_not_added_to_the_next():
    made = counters(AutoresetMode.SAME_STEP, 5, 5)
    encoding, steps = SpaceEncoding(made.single_observation_space, made.single_action_space), Steps(made, 0)
    steps.begin()
    walk(steps, encoding, 3)
    steps.obs = None
    steps.begin()
    walk(steps, encoding, 5)
    assert list(steps.episodes.returns) == [{"r": 10.0, "l": 5}] * 2
