"""Which rows are drawn, and how often."""

import numpy as np
import pytest
import torch

from agents.replay.replay import Sampler

CPU = torch.device("cpu")


def filled(sampling, rows=10, n=4):
    sampler = Sampler(20, n, sampling, CPU, 0)
    for pos in range(rows):
        sampler.add(pos, np.ones(n, bool))
    return sampler


def test_transitions_come_in_the_order_they_came_however_often_the_ring_turns():
    rng = np.random.default_rng(0)
    sampler, kept = Sampler(7, 3, "uniform", CPU, 0), []
    for t in range(60):
        pos = t % 7
        valid = rng.random(3) < (1.0 if t < 10 else 0.6)
        kept = [row for row in kept if row // 3 != pos] + [3 * pos + i for i in np.flatnonzero(valid)]
        sampler.add(pos, valid)
        assert sampler.count == len(kept) and sampler.in_order().tolist() == kept
        late = [row for row in kept if row // 3 in {pos, (pos - 1) % 7}]
        assert sampler.newest(pos + 1, 2) == len(late)
        assert sampler.in_order(1, 3).tolist() == kept[1:3] or len(kept) < 3
    drawn = np.bincount(sampler.draw(20_000), minlength=21)
    assert set(np.flatnonzero(drawn)) == set(kept)
    assert np.abs(drawn[kept] - 20_000 / len(kept)).max() < 5 * (20_000 / len(kept)) ** 0.5
    assert set(sampler.draw(500, 3).tolist()) == set(kept[:3])


def test_a_forgotten_row_is_drawn_no_more():
    sampler = filled("uniform")
    sampler.forget(0)
    assert sampler.count == 36 and sampler.in_order().tolist() == list(range(4, 40))


@pytest.mark.parametrize("sampling", ["uniform", "lap", "dfs"])
def test_among_draws_only_the_oldest(sampling):
    sampler = filled(sampling)
    assert set(sampler.draw(2000, 8).tolist()) == set(range(8))


def test_rows_are_drawn_by_the_power_of_their_error_and_new_ones_by_the_largest():
    sampler = filled("lap")
    sampler.set_priority(torch.arange(40), torch.full((40,), 0.5))  # errors below 1 count as 1
    sampler.set_priority(torch.tensor([7]), torch.tensor([-32.0]))  # 32 ^ 0.4 = 4
    share = (sampler.draw(20_000) == 7).float().mean()
    assert share == pytest.approx(4 / 43, abs=0.01)
    sampler.add(10, np.array([True, False, True, True]))
    assert sampler.weights(torch.tensor([6, 7, 40, 42])).tolist() == [1, 4, 4, 4]
    assert 41 not in sampler.draw(5000).tolist()


def test_the_model_trains_on_what_it_has_rarely_seen():
    sampler = filled("dfs")
    sampler.count_uses(torch.arange(20), 2.0)
    weights = sampler.weights(torch.arange(40))
    np.testing.assert_allclose(weights[[0, 30]], [np.exp(-2.0), 1.0])
    share = (sampler.draw(20_000) < 20).float().mean()
    assert share == pytest.approx(np.exp(-2) / (1 + np.exp(-2)), abs=0.01)


def test_imagination_begins_where_the_model_was_trained_and_not_too_often_at_one_place():
    sampler = filled("dfs")
    sampler.count_uses(torch.arange(30), 3.0)  # v = 3 at 30 rows
    sampler.count_uses(torch.arange(10), 30.0, imagine=True)  # b = 30 at 10 rows; b' = 30 * 90 / 300 = 9
    weights = sampler.weights(torch.arange(40), imagine=True)
    np.testing.assert_allclose(weights[[0, 20, 35]], [np.exp(-6.0), 1.0, 1e-12], rtol=1e-5)
    drawn = sampler.draw(5000, imagine=True)
    assert drawn.max() < 30 and (drawn < 10).float().mean() < 0.01


def test_nothing_trained_yet_means_that_imagination_begins_anywhere():
    drawn = filled("dfs").draw(5000, imagine=True)
    assert len(set(drawn.tolist())) == 40


def test_a_new_row_has_no_past():
    sampler = filled("dfs", rows=20)
    sampler.count_uses(torch.arange(80))
    sampler.count_uses(torch.arange(80), imagine=True)
    sampler.add(0, np.ones(4, bool))
    assert sampler.trained.sum() == sampler.imagined.sum() == 76
