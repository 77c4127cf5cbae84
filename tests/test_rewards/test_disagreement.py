"""Disagreement: the variance by hand, members that differ, and noise that is no longer rewarded."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rewards.check import random_rollout
from rewards.exploration.disagreement import Disagreement, DisagreementConfig, StackedHeads
from rewards.exploration.forward import Forward, ForwardConfig
from rewards.exploration.learned import dense_layers

BOX, ACTIONS = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(4)


def make(space=BOX, actions=ACTIONS, **options):
    return Disagreement(DisagreementConfig(**options), space, actions)


def noise(count, seed):
    """A next observation that nothing foretells, from one place."""
    batch = random_rollout(BOX, ACTIONS, steps=count, envs=1).flatten()
    after = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    return batch.replace(obs=np.zeros_like(after), next_obs=after)


def test_an_ensemble_is_its_members_run_one_by_one():
    generator = torch.Generator().manual_seed(0)
    members = [dense_layers(6, (16, 16, 3), generator) for _ in range(4)]
    for member in members:
        torch.nn.init.normal_(member[0].bias, generator=generator)
    ensemble, x = StackedHeads(members), torch.randn(10, 6, generator=generator)
    together = ensemble(x)
    assert together.shape == (4, 10, 3)
    torch.testing.assert_close(together, torch.stack([member(x) for member in members]))
    together.square().sum().backward()
    for k, member in enumerate(members):
        member(x).square().sum().backward()
        torch.testing.assert_close(ensemble.weights[1].grad[k], member[2].weight.grad.T)
        torch.testing.assert_close(ensemble.biases[0].grad[k, 0], member[0].bias.grad)


def test_the_reward_is_the_variance_over_members_meant_over_features_by_hand():
    reward = make(members=3, features=2)
    for parameter in reward.ensemble.parameters():
        parameter.data.zero_()
    reward.ensemble.biases[-1].data = torch.tensor([[[1.0, 0.0]], [[2.0, 0.0]], [[6.0, 3.0]]])
    # 1, 2, 6 about 3: (4 + 1 + 9) / 3; 0, 0, 3 about 1: (1 + 1 + 4) / 3
    np.testing.assert_allclose(reward.score(random_rollout(BOX, ACTIONS).flatten()), (14 / 3 + 2) / 2, rtol=1e-6)


def test_the_reward_is_the_variance_of_its_members_predictions():
    reward, batch = make(members=4), random_rollout(BOX, ACTIONS).flatten()
    reward.update(batch)
    one, action = reward.encoder(reward.inputs(batch.obs)), reward.actions(batch.action)
    said = []
    for k in range(4):
        hidden = torch.cat([one, action], dim=1) @ reward.ensemble.weights[0][k] + reward.ensemble.biases[0][k]
        said.append(hidden.relu() @ reward.ensemble.weights[1][k] + reward.ensemble.biases[1][k])
    expected = np.var(torch.stack(said).detach().numpy(), axis=0).mean(axis=1)
    np.testing.assert_allclose(reward.score(batch), expected, rtol=1e-4)


def test_the_reward_does_not_look_at_what_happened():
    reward, batch = make(), random_rollout(BOX, ACTIONS).flatten()
    assert np.array_equal(reward.score(batch), reward.score(batch.replace(next_obs=batch.next_obs + 1)))


def test_members_begin_apart_and_each_learns_from_rows_of_its_own():
    reward, batch = make(members=3, bootstrap=0.5), noise(400, 0)
    weights = reward.ensemble.weights[0].detach()
    assert float((weights[0] - weights[1]).abs().max()) > 0.01
    columns = reward.columns(batch)
    reward.ensemble.weights[0].data[:] = weights[:1]  # the same weights to all
    for parameter in reward.ensemble.parameters():
        parameter.data[:] = parameter.data[:1].clone()
    reward.loss(*columns)["loss"].backward()
    gradient = reward.ensemble.weights[1].grad
    assert not torch.allclose(gradient[0], gradient[1])
    reward.ensemble.zero_grad()
    reward.config.bootstrap = 1.0
    reward.loss(*columns)["loss"].backward()
    gradient = reward.ensemble.weights[1].grad
    torch.testing.assert_close(gradient[0], gradient[1])


def test_a_member_learns_from_its_share_rounded_up_no_row_twice_and_its_loss_keeps_its_size(monkeypatch):
    reward, seen = make(members=2, features=3, bootstrap=0.25), []
    for parameter in reward.ensemble.parameters():
        parameter.data.zero_()
    forward = reward.ensemble.forward
    monkeypatch.setattr(reward.ensemble, "forward", lambda x: seen.append(x) or forward(x))
    inputs = torch.arange(10.0)[:, None].expand(10, 3 + 4)
    # every row is off by 2 in each feature: squared 4 for each of two members, whichever rows are drawn
    for share in (0.25, 1.0):
        reward.config.bootstrap = share
        assert float(reward.loss(inputs, torch.full((10, 3), 2.0))["loss"].detach()) == pytest.approx(2 * 4)
    drawn, whole = seen
    assert drawn.shape == (2, 3, 7)
    assert whole.shape == (10, 7)
    assert all(len(set(rows[:, 0].tolist())) == 3 for rows in drawn)


def test_a_member_learns_from_its_own_rows_and_their_targets():
    reward = make(members=2, features=3, bootstrap=0.5)
    inputs, target = torch.zeros(8, 3 + 4), torch.arange(8.0)[:, None].expand(8, 3)
    for parameter in reward.ensemble.parameters():
        parameter.data.zero_()
    # a member that guesses nothing is told the mean of its targets by the gradient of its last bias
    loss = reward.loss(inputs, target)["loss"]
    loss.backward()
    rows = np.random.default_rng(0).random((2, 8), dtype=np.float32).argsort(axis=1)[:, :4]
    gradient = reward.ensemble.biases[-1].grad[:, 0, 0]
    np.testing.assert_allclose(gradient.numpy(), -2 * rows.mean(axis=1) / 3, rtol=1e-6)


@pytest.mark.nightly
def test_noise_stops_being_rewarded_where_forward_prediction_rewards_it_for_ever():
    disagreement = make(learning_rate=1e-3, epochs=4)
    forward = Forward(ForwardConfig(learning_rate=1e-3, epochs=4), BOX, ACTIONS)
    test, left = noise(1000, 99), []
    for reward in (disagreement, forward):
        reward.watch(test)
        before = reward.score(test).mean()
        for seed in range(12):
            reward.update(noise(1024, seed))
        left.append(reward.score(test).mean() / before)
    assert left[0] < 0.05
    assert left[1] > 0.5
    away = test.replace(obs=test.obs + 3)  # where it has never been it pays
    assert disagreement.score(away).mean() > 5 * disagreement.score(test).mean()


def test_the_encoder_never_learns():
    reward = make()
    before = [parameter.clone() for parameter in reward.encoder.parameters()]
    reward.update(noise(64, 0))
    assert all(map(torch.equal, before, reward.encoder.parameters()))
