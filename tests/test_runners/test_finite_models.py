"""Finite models: values, gaps and informativeness by hand, ties and how they flip, models of recordings."""

import numpy as np
import pytest
from gymnasium import spaces

from envs.transitions import Transitions
from rewards.exploration.learned import Layout
from runners.compare.finite import gaps, informativeness, model_of_clusters, optimal_values, share_moved_by_noise, ties

# s0 -> s1 -> end; action 0 moves on, action 1 stays at s0 and goes back from s1
CHAIN = np.zeros((2, 2, 2))
CHAIN[0, 0, 1] = CHAIN[0, 1, 0] = CHAIN[1, 1, 0] = 1
SPARSE = np.array([[0.0, 0.0], [1.0, 0.0]])


def test_values_and_gaps_of_a_chain_by_hand():
    q = optimal_values(SPARSE, CHAIN, 0.5)
    assert q == pytest.approx(np.array([[0.5, 0.25], [1, 0.25]]))
    gap, best = gaps(q)
    assert gap == pytest.approx([0.25, 0.75]) and best.tolist() == [[True, False], [True, False]]
    assert gaps(np.array([[1.0, 1.0]]))[0] == pytest.approx([0])  # nothing to lose


def test_informativeness_by_hand(monkeypatch):
    # one step after the first: Delta_1(s0) = 0.5 - 0, above 0.25; Delta_1(s1) = 1 - 0: no loss. At once: 0 for s0.
    monkeypatch.setattr("runners.compare.finite.HORIZONS", (1,))
    assert informativeness(SPARSE, SPARSE, CHAIN, 0.5) == pytest.approx(1)
    nothing, wrong = np.zeros((2, 2)), -SPARSE
    assert informativeness(nothing, SPARSE, CHAIN, 0.5) == pytest.approx(0)
    # s0: 0.25 + 0.5, s1: 0.75 + 1, half of that, over half of 0.25 + 0.75
    assert informativeness(wrong, SPARSE, CHAIN, 0.5) == pytest.approx(1 - 2.5)
    assert informativeness(7 * SPARSE, SPARSE, CHAIN, 0.5) == pytest.approx(1)  # whatever its scale
    assert informativeness(SPARSE, nothing, CHAIN, 0.5) is None


def test_a_long_way_to_the_goal_says_nothing_at_its_beginning_where_a_potential_does():
    n = 40
    line = np.zeros((n, 2, n))
    line[np.arange(n - 1), 0, np.arange(1, n)] = 1
    line[np.arange(n), 1, np.maximum(np.arange(n) - 1, 0)] = 1
    sparse = np.zeros((n, 2))
    sparse[-1, 0] = 1
    value = optimal_values(sparse, line, 0.95).max(axis=1)
    shaped = sparse + 0.95 * line @ value - value[:, None]
    far, near = (informativeness(reward, sparse, line, 0.95) for reward in (sparse, shaped))
    assert far < 0.8 < 0.99 < near


def test_ties_are_counted_in_units_of_the_rewards_range_and_flip_under_noise():
    two = np.zeros((2, 2, 2))  # both actions end
    reward = np.array([[1.0, 0.995], [1.0, 0.0]])
    assert ties(reward, two, 0.9) == 0.5 and ties(reward, two, 0.9, eps=0.001) == 0
    flips = share_moved_by_noise(reward, two, 0.9)
    assert 0 < flips < 0.5  # the near tie alone, not in every draw
    assert share_moved_by_noise(reward, two, 0.9, eps=0.001) == 0
    assert ties(np.ones((2, 2)), two, 0.9) == 1


def test_a_recording_becomes_a_model_of_its_cells():
    rng = np.random.default_rng(0)
    places, actions = rng.integers(0, 2, 400), rng.integers(5, 7, 400)
    after = np.where(actions == 5, 1, 0)
    ends = (places == 1) & (actions == 5)
    obs = np.stack([places * 10 + rng.normal(0, 0.01, 400), rng.normal(0, 0.001, 400)], 1).astype(np.float32)
    batch = Transitions(
        obs=obs,
        action=actions,
        reward=ends.astype(np.float32),
        next_obs=np.stack([after * 10.0, after * 0.0], 1).astype(np.float32),
        terminated=ends,
        truncated=np.zeros(400, bool),
        valid=np.ones(400, bool),
        step=np.where(places == 0, 0, 1),
    )
    space = spaces.Box(-20, 20, (2,))
    layout = Layout(space, [], "code", channels=0, smallest_image=36)
    model = model_of_clusters(batch, layout, spaces.Discrete(2, start=5), states=2)
    order = np.argsort(model.states[:, 0])
    assert model.states[order, 0] == pytest.approx([0, 10], abs=0.1)
    transition = model.transition[order][:, :, order]
    assert transition == pytest.approx(CHAIN, abs=0.01)
    assert model.table(batch.reward)[order] == pytest.approx(SPARSE)
    assert model.start[order] == pytest.approx([1, 0], abs=0.01)
    with pytest.raises(ValueError, match=r"a finite model has discrete actions, not Box"):
        model_of_clusters(batch, layout, space)
