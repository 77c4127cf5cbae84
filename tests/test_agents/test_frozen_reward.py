"""A frozen reward returns stored rewards, while the reward itself continues to learn."""

import pytest
import torch

import envs.make
import rewards
from agents.base import Steps
from agents.networks.actor_critic import SpaceEncoding
from agents.replay.replay import FrozenReward, Replay


@pytest.mark.parametrize("names", [("task", "rnd"), ("task", "count"), ("rnd",)])
def test_old_transitions_keep_their_reward_and_new_ones_get_the_present_one(names):
    venv = envs.make.make_vec("CartPole-v1", 2, seed=0)
    spaces = (venv.single_observation_space, venv.single_action_space)
    configs = {name: rewards.get(name).Config() for name in names}
    mix = rewards.make(configs, *spaces, gamma=0.99, seed=0)
    encoding, stale = SpaceEncoding(*spaces), FrozenReward(mix)
    replay = Replay(1000, 2, encoding, stale, gamma=0.99, update_every=100)
    steps = Steps(venv, 0)
    steps.begin()
    action = torch.eye(2)
    before = None
    for t in range(120):
        replay.add(steps.step(action[t % 2].expand(2, 2), encoding))
        if t == 39:
            before = replay.rows(torch.arange(20)).reward
    assert torch.equal(replay.rows(torch.arange(20)).reward, before)
    assert replay.metrics and "reward/total" in replay.metrics  # it has learned since


def test_a_scorer_that_cannot_relabel_is_refused_by_agents_with_a_replay():
    from agents.dyna.agent import Dyna, DynaConfig

    class Streams:
        requires, relabelable, differentiable = frozenset({"reward"}), True, False
        streams = {"task": None}

        def initial_memory(self, n):
            return {}

        total = embed = score = scale_rewards = weights = update = initial_memory

    venv = envs.make.make_vec("Pendulum-v1", 1, seed=0)
    with pytest.raises(ValueError, match=r"has no streams, or lacks members of envs.types.ReplayScorer"):
        Dyna(venv, DynaConfig(preset="sac"), scorer=Streams())
