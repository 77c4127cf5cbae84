"""ICM: its reward from hand-set weights, how beta splits the losses, and what the embedding keeps."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rewards.check import random_rollout
from rewards.exploration.icm import ICM, ICMConfig

BOX, ACTIONS = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(4)
MOVES = np.float32([[1, 0], [-1, 0], [0, 1], [0, -1]])


def make(space=BOX, actions=ACTIONS, **options):
    return ICM(ICMConfig(**options), space, actions)


def walks(count, seed, noise=1.0):
    """Two numbers that the action moves by one, and two that are noise."""
    rng = np.random.default_rng(seed)
    batch = random_rollout(BOX, ACTIONS, steps=count, envs=1).flatten()
    action = rng.integers(0, 4, count)
    place = rng.uniform(-1, 1, (count, 2))
    one, two = rng.normal(0, noise, (2, count, 2))
    obs, next_obs = np.hstack([place, one]), np.hstack([place + MOVES[action], two])
    return batch.replace(obs=obs.astype(np.float32), next_obs=next_obs.astype(np.float32), action=action)


def linear(rows, bias=None):
    """A dense layer whose outputs are `rows` times its inputs."""
    rows = torch.tensor(rows)
    layer = torch.nn.Linear(rows.shape[1], rows.shape[0])
    layer.weight.data, layer.bias.data = rows, torch.zeros(len(rows)) if bias is None else torch.tensor(bias)
    return layer


def by_hand():
    """phi(s) = (s_0, 2 s_1), f(phi, a) = phi + (a == 1, 0), the guess of a = (0, 1) whatever happened."""
    icm = make(spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(2), features=2, forward_share=0.3)
    icm.encoder.dense = linear([[1.0, 0.0], [0.0, 2.0]])
    icm.forward_model = linear([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]])
    icm.prediction = linear([[0.0] * 4] * 2, [0.0, 1.0])
    return icm


def transitions(obs, action, next_obs):
    space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    batch = random_rollout(space, spaces.Discrete(2), steps=len(obs), envs=1).flatten()
    return batch.replace(obs=np.float32(obs), action=np.array(action), next_obs=np.float32(next_obs))


def test_the_reward_is_half_the_squared_error_of_the_forward_model_by_hand():
    batch = transitions([[1, 0], [1, 0], [0, 1], [0, 0]], [0, 1, 0, 1], [[1, 0], [1, 0], [2, 2], [-3, 0]])
    # f is (1, 0), (2, 0), (0, 2), (1, 0); phi(s') is (1, 0), (1, 0), (2, 4), (-3, 0)
    np.testing.assert_allclose(by_hand().score(batch), [0, 1 / 2, (4 + 4) / 2, 16 / 2])


def test_beta_splits_the_losses_of_the_two_models():
    icm = by_hand()
    batch = transitions([[1, 0], [0, 1]], [1, 0], [[1, 0], [2, 2]])
    losses = icm.loss(*icm.columns(batch))
    assert float(losses["forward_loss"].detach()) == pytest.approx(0.3 * (0.5 + 4) / 2)
    chances = np.exp([1, 0]) / (1 + np.e)  # of actions 1 and 0, to a guess of (0, 1)
    assert float(losses["inverse_loss"].detach()) == pytest.approx(0.7 * -np.log(chances).mean(), rel=1e-6)


def test_the_forward_loss_moves_the_embedding_of_the_successor_too():
    icm = by_hand()
    loss = icm.loss(*icm.columns(transitions([[0, 0]], [1], [[3, 5]])))["forward_loss"]
    # phi(s') = (3, 10), f = (1, 0): 0.3 / 2 |f - phi(s')|^2 pulls phi(s') by 0.3 (2, 10), its weights by s' times that
    pull = torch.autograd.grad(loss, icm.encoder.dense.weight)[0]
    np.testing.assert_allclose(pull, [[0.6 * 3, 0.6 * 5], [3 * 3, 3 * 5]], rtol=1e-6)


@pytest.mark.parametrize(("share", "still"), [(0.0, "forward_model"), (1.0, "prediction")])
def test_at_its_ends_beta_leaves_one_model_out(share, still):
    icm = make(forward_share=share)
    before = [parameter.clone() for parameter in getattr(icm, still).parameters()]
    encoder = [parameter.clone() for parameter in icm.encoder.parameters()]
    icm.update(walks(64, 0))
    assert all(map(torch.equal, before, getattr(icm, still).parameters()))
    assert not all(map(torch.equal, encoder, icm.encoder.parameters()))  # both losses reach the embedding


def trained():
    icm = make(learning_rate=3e-3, epochs=5, forward_share=0.2, features=16)
    for seed in range(10):
        icm.update(walks(1024, seed))
    return icm


def test_the_inverse_model_tells_actions_apart_and_the_embedding_leaves_noise_out():
    icm, fresh, batch = trained(), make(features=16), walks(1000, 99)
    with torch.no_grad():
        one, two = icm.encode(icm.inputs(batch.obs), icm.inputs(batch.next_obs))
        guessed = icm.prediction(torch.cat([one, two], dim=1)).argmax(dim=1).numpy()
    assert np.mean(guessed == batch.action) > 0.95
    moved, noisy = batch.next_obs.copy(), batch.next_obs.copy()
    moved[:, :2] += 0.5 * batch.next_obs[:, :2].std(axis=0)
    noisy[:, 2:] += 0.5 * batch.next_obs[:, 2:].std(axis=0)

    def sensitivity(reward):
        reward.statistics.mean, reward.statistics.var = icm.statistics.mean, icm.statistics.var
        plain = reward.in_pieces(reward.encoder, reward.inputs(batch.next_obs))
        return [
            float((reward.in_pieces(reward.encoder, reward.inputs(x)) - plain).square().sum(dim=1).mean())
            for x in (moved, noisy)
        ]

    place, noise = sensitivity(icm)
    place_before, noise_before = sensitivity(fresh)
    assert 0.5 < noise_before / place_before < 2  # a random embedding keeps both alike
    assert noise < 0.1 * place


def test_the_bonus_falls_where_it_has_been_and_stays_where_it_has_not():
    icm, here, there = trained(), walks(256, 100), walks(256, 100)
    there = there.replace(next_obs=there.next_obs + np.float32([3, 3, 0, 0]))
    assert icm.score(there).mean() > 20 * icm.score(here).mean()
