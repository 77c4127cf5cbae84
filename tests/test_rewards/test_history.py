"""Preferences that depend on what came before: the network by torch's own, an order of events, causality, every way."""

import numpy as np
import pytest
import torch
from test_bradley_terry import made, walk

from rewards.check import check_reward
from rewards.preference.history import StackedGRU


def test_the_network_is_torchs_own_for_every_member():
    ours = StackedGRU(2, 3, 5, torch.Generator().manual_seed(0))
    x = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(1))
    wx, bx, wh, bh, w, b = ours.weights
    for k in range(2):
        theirs = torch.nn.GRU(3, 5, batch_first=True)
        with torch.no_grad():
            for name, value in (
                ("weight_ih", wx[k].T),
                ("bias_ih", bx[k, 0]),
                ("weight_hh", wh[k].T),
                ("bias_hh", bh[k, 0]),
            ):
                getattr(theirs, f"{name}_l0").copy_(value)
        expected = (theirs(x)[0] @ w[k] + b[k])[..., 0]
        torch.testing.assert_close(ours(x)[k], expected)
        torch.testing.assert_close(ours(torch.stack([x, 2 * x]))[0], ours(x)[0])


def orders(pairs=80):
    """Segments of three steps (3, B): A, B, nothing or B, A, nothing; the former is better, but for one wrong label."""
    a, b = np.float32([1, 0]), np.float32([0, 1])
    forth = np.stack([a, b, 0 * a])[:, None].repeat(pairs, 1)
    back = np.stack([b, a, 0 * a])[:, None].repeat(pairs, 1)
    first = np.arange(pairs) % 2 == 0
    batch = walk(steps=3, envs=pairs).replace(action=np.zeros((3, pairs, 1), np.float32))
    sides = (np.where(first[None, :, None], one, other) for one, other in ((forth, back), (back, forth)))
    label = 1 - first.astype(np.float32)
    label[2] = 1  # so that no pass gets all of them right and ends the session
    return [batch.replace(next_obs=side) for side in sides], label


@pytest.mark.parametrize("of", ["history", "transition"])
def test_equal_last_states_with_different_histories_are_told_apart_by_history_alone(of):
    reward = made(of=of, length=3, epochs=60, held_out=0.0, learning_rate=1e-2, mistakes=0.0, enough=1.0, members=2)
    (first, second), label = orders()
    found = reward.learn_from(first, second, label)
    if of == "transition":
        sides = (np.stack(parts, axis=1) for parts in zip(reward.read(first), reward.read(second)))
        assert reward._logits(reward.inputs_of(*sides)).abs().max() < 1e-4  # the same states, the same sum
        return
    scores, memory = reward.scan(first[:, :2], reward.initial_memory(2))
    assert found["train_accuracy"] > 0.98 and scores[:, 0].sum() - scores[:, 1].sum() > 1
    assert abs(scores[2, 0] - scores[2, 1]) > 0.1  # the last state and action are the same
    assert memory["states"].shape == (2, 2, 8) and memory["states"].any()


def test_it_keeps_the_contract_and_no_later_step_changes_an_earlier_reward():
    check_reward(made(of="history", members=2))
    reward, batch = made(of="history"), walk(steps=12, envs=2)
    reward.update(batch)
    whole, _ = reward.scan(batch, reward.initial_memory(2))
    short, memory = reward.scan(batch[:7], reward.initial_memory(2))
    rest, _ = reward.scan(batch[7:], memory)
    np.testing.assert_allclose(np.concatenate([short, rest]), whole, atol=1e-6)
    lost = batch.replace(valid=np.arange(12)[:, None].repeat(2, 1) != 5)
    kept, _ = reward.scan(lost[np.r_[:5, 6:12]], reward.initial_memory(2))
    np.testing.assert_allclose(reward.scan(lost, reward.initial_memory(2))[0][6:], kept[5:], atol=1e-6)
    assert whole.any() and not reward.relabelable
