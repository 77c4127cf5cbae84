"""Multi-fidelity Monte Carlo by hand, its interval, and cut episodes that begin as the whole ones do."""

import numpy as np
import pytest
from gymnasium import spaces
from sample import mostly_at_night

from runners.evaluate import EvaluateConfig, mfmc_summary, play
from runners.report.statistics import mfmc
from runners.run.config import TrainConfig


def test_the_mean_of_four_whole_and_six_cut_episodes_by_hand():
    found = mfmc([1, 2, 3, 4], [0, 1, 2, 3, -1, 1])  # a = 1, the cheap mean is 1, so every term is 2
    assert found.value == pytest.approx(2.0) and found.correlation == pytest.approx(1.0)
    assert found.ratio == pytest.approx(1 - (1 - 4 / 6))
    half = 4.302653 * np.sqrt(0 / 4 + 1**2 * (16 / 6 - 1) / 6)  # t of 2 degrees of freedom
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), abs=1e-5)
    # The slopes without one point each: of the corners of a square, -1/2 or 1/2, by hand.
    square = mfmc([0, 0, 1, 1], [0, 1, 0, 1, 1, 1])
    slopes, gaps = np.array([-0.5, 0.5, 0.5, -0.5]), 2 / 3 - np.array([0, 1, 0, 1])
    terms = np.array([0, 0, 1, 1]) + slopes * gaps
    half = 4.302653 * np.sqrt(terms.var(ddof=1) / 4 + slopes.mean() ** 2 * (2 / 9) / 6)
    assert square.value == pytest.approx(terms.mean()) and square.high - square.value == pytest.approx(half, abs=1e-5)


def test_the_variance_falls_with_the_correlation_and_the_share_of_cheap_ones():
    rng = np.random.default_rng(0)
    cheap = rng.normal(size=1000)
    dear = 0.9 * cheap[:100] + np.sqrt(1 - 0.9**2) * rng.normal(size=100)
    assert mfmc(dear, cheap).ratio == pytest.approx(0.271, abs=0.06)  # 1 - 0.81 (1 - 0.1)
    unrelated = mfmc(rng.normal(size=100), cheap)
    assert unrelated.ratio > 0.9 and mfmc([1, 2, 4, 4], [5, 5, 5, 5, 5]).value == pytest.approx(11 / 4)


def test_the_interval_covers_and_is_shorter_than_that_of_whole_episodes_alone():
    rng = np.random.default_rng(1)
    covered, error, plain = 0, [], []
    for _ in range(400):
        cheap = rng.normal(size=200)
        dear = 3 + cheap[:20] + 0.5 * rng.normal(size=20)
        found = mfmc(dear, cheap)
        covered += found.low <= 3 <= found.high
        error.append(found.value - 3)
        plain.append(dear.mean() - 3)
    assert 0.90 < covered / 400 < 0.98 and np.std(error) < 0.65 * np.std(plain)
    assert abs(np.mean(error)) < 3 * np.std(error) / 20


@pytest.mark.parametrize("n", mostly_at_night([4, 6, 20], 4))
def test_the_interval_covers_for_few_whole_episodes_too(n):
    rng = np.random.default_rng(n)
    covered = 0
    for _ in range(1000):
        cheap = rng.normal(size=400)
        dear = 2.3 + 2 * cheap[:n] + rng.normal(size=n)
        found = mfmc(dear, cheap)
        covered += found.low <= 2.3 <= found.high
    assert 0.93 < covered / 1000 < 0.98


def test_too_few_episodes_are_refused_before_any_is_played():
    with pytest.raises(ValueError, match="makes no interval of episodes=3 and cheap_episodes=400; give 4 episodes"):
        EvaluateConfig(run="none", estimator="mfmc", episodes=3)
    for dear, cheap in ((3, 9), (5, 5)):
        with pytest.raises(ValueError, match=f"{dear} whole episodes and {cheap} cheap ones make no estimate"):
            mfmc([0.0] * dear, [0.0] * cheap)


class Still:
    """A policy that does nothing."""

    action_space = spaces.Box(-2, 2, (1,), np.float32)

    def predict(self, obs, **options):
        return np.zeros(1, np.float32), None


def test_a_run_is_evaluated_by_whole_and_cut_episodes_that_begin_alike():
    trained = TrainConfig(env="Pendulum-v1", reward={}, agent=None)
    config = EvaluateConfig(run="none", estimator="mfmc", cheap=100, cheap_episodes=24)
    dear = play("Pendulum-v1", lambda obs, begins: np.zeros(1, np.float32), 6).returns
    said = mfmc_summary(config, trained, Still(), None, dear)
    assert "from 6 whole episodes and 24 of 100 steps; correlation 0.9" in said or "correlation 1.0" in said, said
