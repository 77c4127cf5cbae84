"""The embedding that inverse dynamics makes: what it shows of observations, and what its guess costs."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rewards.check import random_rollout
from rewards.exploration.learned import InverseDynamics, LearnedConfig

BOX, ACTIONS = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(3)


class Steps(InverseDynamics):
    """Pays the distance between the embeddings of both ends."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.train_on(self.encoder, self.prediction)

    def score(self, batch, memory=None):
        return (embedded(self, batch.next_obs) - embedded(self, batch.obs)).norm(dim=1).numpy()


def embedded(reward, obs):
    return torch.from_numpy(reward.values(reward.encoder, obs))


def make(**options):
    return Steps(LearnedConfig(features=8, **options), BOX, ACTIONS)


def test_both_ends_pass_the_same_encoder():
    steps, batch = make(), random_rollout(BOX, ACTIONS).flatten()
    x, _, after = steps.columns(batch)
    one, two = steps.encode(x, after)
    torch.testing.assert_close(one, embedded(steps, batch.obs))
    torch.testing.assert_close(two, embedded(steps, batch.next_obs))
    assert one.shape == (24, 8)
    np.testing.assert_allclose(steps.score(batch.replace(next_obs=batch.obs)), 0, atol=1e-6)


def test_the_loss_is_the_cross_entropy_of_the_prediction_and_reaches_encoder_and_head():
    steps, batch = make(), random_rollout(BOX, ACTIONS).flatten()
    x, action, after = steps.columns(batch)
    loss = steps.loss(x, action, after)["inverse_loss"]
    prediction = steps.prediction(torch.cat([embedded(steps, batch.obs), embedded(steps, batch.next_obs)], dim=1))
    chances = torch.softmax(prediction, dim=1).detach().numpy()
    expected = -np.log(chances[np.arange(24), batch.action]).mean()
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in steps.trained)


def test_an_action_that_shows_in_the_next_state_is_learnt_and_one_that_does_not_is_not():
    rng = np.random.default_rng(0)
    batch = random_rollout(BOX, ACTIONS, steps=512, envs=1).flatten()
    obs, action = rng.normal(size=(512, 4)).astype(np.float32), rng.integers(0, 3, 512)
    losses = {}
    for shows in (True, False):
        steps, next_obs = make(learning_rate=3e-3, epochs=20), obs.copy()
        next_obs[:, 0] += 2 * (action if shows else rng.integers(0, 3, 512))
        for _ in range(3):
            losses[shows] = steps.update(batch.replace(obs=obs, next_obs=next_obs, action=action))["inverse_loss"]
    assert losses[True] < 0.1
    assert losses[False] > 0.5
