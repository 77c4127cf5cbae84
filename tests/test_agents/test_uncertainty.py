"""What a latent model is unsure of: its size by hand, sought when acting, avoided when imagining."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

import envs.make
from agents.networks.actor_critic import SpaceEncoding
from agents.replay.replay import Sequences
from agents.world_model.agent import WorldLearner, WorldModel
from agents.world_model.config import WorldModelConfig
from agents.world_model.uncertainty import Uncertainty

SMALL = {"latent": 16, "hidden": 16, "embed": 16, "groups": 4, "classes": 4}
BOTH = {"alpha_real": 3.0, "alpha_imagined": 2.0}


def two_heads(**changes):
    """Heads of one feature and one action that always predict (0, 0) and (1, 1)."""
    config = WorldModelConfig(members=2, **BOTH, **SMALL, **changes)
    made = Uncertainty(1, 1, 2, config, 0)
    with torch.no_grad():
        for parameter in made.heads.parameters():
            parameter.zero_()
        made.heads.stack[-1][1] = 1.0
    return made


def learner(**changes):
    config = WorldModelConfig(**{**SMALL, **BOTH, **changes})
    encoding = SpaceEncoding(spaces.Box(-9, 9, (3,), np.float32), spaces.Discrete(2))
    return WorldLearner(config, encoding, seed=0, device=torch.device("cpu"))


def test_disagreement_and_loss_by_hand():
    made = two_heads()
    features = torch.zeros(3, 4, 1, requires_grad=True)
    action = torch.zeros(3, 4, 1)
    assert made.disagreement(features, action).tolist() == [[0.5] * 4] * 3
    # Squared errors of the latent (1, 3): 1 + 9 of the one head, 0 + 4 of the other.
    loss = made.loss(features, action, torch.tensor([1.0, 3.0]).expand(3, 4, 2))
    assert loss.tolist() == [[14.0] * 4] * 3
    loss.sum().backward()
    # It shapes no latent.
    assert features.grad is None


def test_imagined_rewards_lose_alpha_times_their_size_times_the_disagreement():
    made = two_heads()
    here = (torch.zeros(2, 1), torch.zeros(2, 1))
    # S = sqrt((9 + 16 * 0) / 1) of equal rewards 3: 3 - 2 * 3 * 0.5.
    assert made.penalize(torch.tensor([3.0, 3.0]), *here).tolist() == [0.0, 0.0]
    # The mean square moves by a hundredth: 9 + 0.01 * (109 - 9) = 10.
    made.penalize(torch.full((2,), 109.0).sqrt(), *here)
    assert made.square.item() == pytest.approx(10)
    optimistic = made.optimistic_rewards(torch.tensor([1.0, 0.0]), *here)
    assert optimistic.tolist() == pytest.approx([10**-0.5 + 3 * 0.5, 3 * 0.5])


def test_before_a_reward_was_imagined_only_uncertainty_counts():
    optimistic = two_heads().optimistic_rewards(torch.tensor([5.0, -5.0]), torch.zeros(2, 1), torch.zeros(2, 1))
    assert optimistic.tolist() == [1.5, 1.5]


def test_heads_agree_where_they_have_learned():
    config = WorldModelConfig(**BOTH, **SMALL)
    made = Uncertainty(2, 1, 4, config, 0)
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(64, 2, generator=draw)
    action = torch.zeros(64, 1)
    latent = torch.eye(4)[torch.arange(64) % 4]
    target = latent.mean(0).expand(64, 4)
    before = made.disagreement(features, action).mean()
    optimizer = torch.optim.Adam(made.parameters(), 1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        made.loss(features, action, target).mean().backward()
        optimizer.step()
    known = made.disagreement(features, action).mean()
    unknown = made.disagreement(features + 5, action + 1).mean()
    assert known < 0.2 * before and unknown > 5 * known


def test_only_steps_that_have_a_successor_train_the_heads():
    made = learner()
    features = torch.zeros(3, 2, made.world.cell.size)
    seen = []

    def loss(features, action, latent):
        seen.append(features.shape[0])
        return torch.tensor([[1.0, 2.0], [4.0, 8.0]])

    made.world.uncertainty.loss = loss
    first = torch.zeros(3, 2, dtype=torch.bool)
    # The successor of step 1 of the second sequence belongs to another episode.
    first[2, 1] = True
    empty = torch.zeros(3, 2)
    rows = torch.arange(6).view(3, 2)
    seq = Sequences(
        torch.zeros(3, 2, 3), {}, torch.zeros(3, 2, 2), empty, empty, empty, first, torch.ones_like(first), rows
    )
    losses = made.world._latent_losses(seq, {"h": features[..., :16], "z": features[..., 16:]}, features[..., :16])
    assert seen == [2] and losses["uncertainty"].item() == pytest.approx((1 + 2 + 4) / 3)


def test_acting_seeks_the_action_that_is_least_known():
    made = learner(plan_candidates=40, plan_horizon=1)
    made.world.uncertainty.disagreement = lambda features, action: action[..., 1]
    state = made.initial(6)
    begins = torch.ones(6, dtype=torch.bool)
    observed = (torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), {}, begins, state)
    sought, _ = made.think(*observed, seek=True)
    # Each of forty draws is action 0 with a chance near a half.
    assert sought[:, 1].tolist() == [1.0] * 6
    free = torch.stack([made.think(*observed)[0][:, 1] for _ in range(10)])
    assert 0.2 < free.mean() < 0.8


@pytest.mark.nightly
def test_an_agent_with_both_learns_and_its_predictions_seek_nothing(monkeypatch):
    vector = envs.make.make_vec("CartPole-v1", 2, backend="batched", seed=0)
    few = {"batch_size": 4, "batch_length": 8, "train_ratio": 8.0, "horizon": 3, "imagine_starts": 8}
    config = WorldModelConfig(**SMALL, **BOTH, **few, learning_starts=64, rollout=50)
    agent = WorldModel(vector, config)
    sought = []
    seek = agent.learner.behaviour.seek
    monkeypatch.setattr(agent.learner.behaviour, "seek", lambda *given: sought.append(1) or seek(*given))
    agent.learn(200)
    assert agent.learner.world.uncertainty.square > 0 and len(sought) > 50
    count = len(sought)
    agent.predict(vector.reset(seed=0)[0])
    assert len(sought) == count
    other = WorldModel(envs.make.make_vec("CartPole-v1", 2, backend="batched", seed=0), config)
    other.set_state(agent.get_state())
    assert other.learner.world.uncertainty.square == agent.learner.world.uncertainty.square


@pytest.mark.parametrize("preset", ["mrq", "tdmpc2"])
def test_what_imagines_nothing_with_a_memory_refuses(preset):
    with pytest.raises(ValueError, match=r"agent.alpha_real=1 and .* are for imagined rollouts of a latent with a"):
        WorldModelConfig(preset=preset, alpha_real=1)
