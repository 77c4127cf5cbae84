"""NGU: the episodic half times a clipped factor that is done by hand."""

import numpy as np
import pytest
from paths import LINE, PLANE, TWO, path, scan_rewards

from rewards.check import random_rollout
from rewards.exploration.ngu import NGU, NGUConfig
from rewards.exploration.pseudocount import PseudoCount, PseudoCountConfig


def make(space=LINE, **options):
    return NGU(NGUConfig(**options), space, TWO)


def test_the_factor_is_one_plus_deviations_above_the_mean_between_one_and_five():
    ngu = make()
    ngu.error.mean, ngu.error.var, ngu.error.count = np.array(2.0), np.array(4.0), 10
    np.testing.assert_allclose(ngu.factor(np.float32([0, 2, 3, 6, 9, 100])), [1, 1, 1.5, 3, 4.5, 5])
    assert make(max_factor=1.0).factor(np.float32([7])).tolist() == [1]


def test_before_it_has_learnt_it_gives_the_pseudocount():
    data = path([0, 2, 3, 3], [1, 0])
    same = PseudoCount(PseudoCountConfig(), LINE, TWO)
    np.testing.assert_allclose(scan_rewards(make(), data), scan_rewards(same, data))


def test_it_gives_the_pseudocount_times_the_factor_of_what_the_step_led_to():
    data = path([0, 2, 3, 3], [1, 0])
    ngu, same = make(), PseudoCount(PseudoCountConfig(), LINE, TWO)
    ngu.error.mean, ngu.error.var, ngu.error.count = np.array(2.0), np.array(4.0), 10
    ngu.rnd.score = lambda batch: np.asarray(batch.next_obs)[:, 0] * 2
    # errors 4, 6, 6, 0 in deviations of 2 around 2
    np.testing.assert_allclose(scan_rewards(ngu, data), np.array([2, 3, 3, 1]) * scan_rewards(same, data), rtol=1e-6)


def test_the_errors_mean_and_deviation_are_those_of_valid_rows_and_move_only_in_update():
    ngu, data = make(PLANE), random_rollout(PLANE, TWO)
    valid = np.ones(data.shape, bool)
    valid[2] = False
    errors = ngu.rnd.score(data.flatten()).reshape(data.shape)[valid]
    assert ngu.error.count == 0
    metrics = ngu.update(data.replace(valid=valid))
    assert float(ngu.error.mean) == pytest.approx(errors.mean(), rel=1e-5)
    assert float(ngu.error.var) == pytest.approx(errors.var(), rel=1e-4)
    assert set(metrics) == {"inverse_loss", "rnd_loss"}


def test_a_place_that_it_knows_is_rewarded_less_than_one_it_does_not():
    ngu = make(rnd_learning_rate=1e-3)
    here = path(np.sin(np.arange(400.0)))
    for _ in range(40):
        ngu.update(here)
    factors = [ngu.factor(ngu.rnd.score(path(np.sin(np.arange(50.0)) + x).flatten())).mean() for x in (0, 6)]
    assert factors[0] < 1.2
    assert factors[1] > 1.6


def test_observations_that_never_change_stay_finite():
    ngu, data = make(), path(np.full(20, 7.0))
    for _ in range(2):
        ngu.update(data)
    assert np.isfinite(scan_rewards(ngu, data)).all()
    assert np.isfinite(scan_rewards(ngu, path([7.0, 8.0, 1e6]))).all()
