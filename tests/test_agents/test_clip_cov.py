"""Rows that narrow the policy fastest get no gradient; values by hand."""

import pytest
import torch
from test_ppo_update import ACTIONS, learner

from agents.ppo.agent import PPO
from agents.ppo.config import PPOConfig
from agents.ppo.plugins.clip_cov import ClipCovUpdate
from envs.make import make_vec
from tests.rollouts import cut

# Deviations from the mean of 1, -1, 0, 0; covariances of 2, 2, 0, 0.
LOG_PROB = [-0.1, -2.1, -1.1, -1.1]
ADVANTAGE = [2.0, -2.0, 1.5, -1.5]


def objective(ratio=(1.0, 1.0, 1.0, 1.0), **settings):
    """What the four rows add to the policy's objective, and their slopes in the ratio."""
    update = learner(ClipCovUpdate, ACTIONS["discrete"])
    update.config = PPOConfig(**settings)
    ratios = torch.tensor(ratio, requires_grad=True)
    surrogate = update.surrogate(torch.tensor(ADVANTAGE), ratios, torch.tensor(LOG_PROB))
    surrogate.sum().backward()
    return surrogate.tolist(), ratios.grad.tolist()


def test_rows_with_a_covariance_in_the_range_have_no_gradient():
    assert objective(clip_cov=0.5) == ([0, 0, 1.5, -1.5], [0, 0, 1.5, -1.5])
    assert objective(clip_cov=0.5, clip_cov_high=1.9) == (ADVANTAGE, ADVANTAGE)
    # The clip of PPO has the first row already, so a share of all leaves it in the objective.
    values, slopes = objective(ratio=(1.5, 1.0, 1.0, 1.0), clip_cov=1.0)
    assert values == pytest.approx([2.4, 0, 1.5, -1.5])
    assert slopes == [0, 0, 1.5, -1.5]


def test_a_share_below_one_row_is_right_in_the_mean():
    update = learner(ClipCovUpdate, ACTIONS["discrete"])
    update.config = PPOConfig(clip_cov=0.1)
    counts = []
    for _ in range(1000):
        update.surrogate(torch.tensor(ADVANTAGE), torch.ones(4), torch.tensor(LOG_PROB))
        counts.append(update.dropped * 4)
    assert set(counts) == {0.0, 1.0}
    # 0.4 rows, with a deviation of the mean of 0.015.
    assert sum(counts) / 1000 == pytest.approx(0.4, abs=0.06)


def test_ppo_learns_with_it_and_logs_the_share():
    config = PPOConfig(n_steps=32, batch_size=32, clip_cov=0.5, clip_cov_low=0.0)
    agent = PPO(make_vec("CartPole-v1", 2, backend="batched"), config).learn(128)
    assert isinstance(agent.learner, ClipCovUpdate)
    assert 0 < agent.metrics["train/clip_cov_fraction"] <= 0.5


def test_a_run_continues_with_the_same_rows():
    config = PPOConfig(n_steps=32, batch_size=32, clip_cov=0.3, clip_cov_low=0.0)
    whole, second = cut(lambda: PPO(make_vec("CartPole-v1", 2, seed=0), config), 64 * 2)
    assert torch.equal(second.flat.value, whole.flat.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clip_cov": 0.1, "path": "numba"}, "give agent.path=auto or eager"),
        ({"clip_cov": 0.1, "net": "trees"}, "here: trees"),
        ({"clip_cov_low": 6.0}, "leave no covariance between them"),
    ],
)
def test_what_it_does_not_go_with_is_one_sentence(settings, words):
    with pytest.raises(ValueError, match=words):
        PPOConfig(**settings)
