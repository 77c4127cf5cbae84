"""Statistics of a few runs: values by hand, agreement with rliable, and intervals that cover."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.checks import coverage
from runners.report import statistics


def test_iqm_leaves_out_the_lowest_and_the_highest_quarter():
    assert statistics.iqm([1.0, 100.0, 2.0, 3.0, -50.0]) == pytest.approx(2.0)  # of 1, 2, 3
    np.testing.assert_allclose(statistics.iqm(np.array([[1, 5], [2, 6], [3, 7], [4, 80]]), axis=0), [2.5, 6.5])


def test_one_sample_of_two_has_the_interval_that_can_be_computed_by_hand():
    # Means of two draws from {0, 1}: 0, 1/2, 1 with shares 1/4, 1/2, 1/4; the 2.5 % quantiles are 0 and 1.
    found = statistics.aggregate([np.array([0.0, 1.0])])
    stretch = np.sqrt(2) * stats.t.ppf(0.975, 1) / stats.norm.ppf(0.975)
    assert found.value == 0.5
    assert (found.low, found.high) == pytest.approx((0.5 - 0.5 * stretch, 0.5 + 0.5 * stretch))


def test_the_stretch_goes_to_one_as_runs_are_added():
    generator = np.random.default_rng(0)
    scores = [generator.normal(size=400), generator.normal(size=400)]
    found = statistics.aggregate(scores)
    low, high = statistics.percentiles(scores, lambda parts: statistics.iqm(np.concatenate(parts, 1)))
    assert (found.high - found.low) / (high - low) == pytest.approx(1, abs=1e-2)


def test_the_jackknife_whose_memory_grows_with_the_square_of_the_runs_is_for_several_tasks(monkeypatch):
    monkeypatch.setattr(statistics, "_jackknife", None)
    found = statistics.aggregate([np.arange(100.0)])
    assert found.low < found.value < found.high


def test_tasks_that_scatter_alike_share_their_degrees_of_freedom():
    scores = [np.arange(5.0), np.arange(5.0)]  # the same jackknife variance in both: 2 * (5 - 1) degrees
    mean = lambda parts: np.mean([part.mean(1) for part in parts], 0)  # noqa: E731
    low, high = statistics.percentiles(scores, mean)
    found = statistics.interval(scores, mean)
    stretch = np.sqrt(5 / 4) * stats.t.ppf(0.975, 8) / stats.norm.ppf(0.975)
    assert found.high - found.low == pytest.approx((high - low) * stretch)


def test_the_same_numbers_give_the_same_interval_and_one_run_gives_none():
    scores = [np.array([1.0, 3.0, 4.0])]
    assert statistics.aggregate(scores) == statistics.aggregate(scores)
    alone = statistics.aggregate([np.array([2.0])])
    assert alone.value == 2 and np.isnan(alone.low) and np.isnan(alone.high)


def test_a_curve_has_a_band_at_each_point():
    values = np.array([[0.0, 1, 2], [0, 2, 4], [0, 3, 9]])
    found = statistics.aggregate([values])
    np.testing.assert_allclose(found.value, values.mean(0))  # of three values nothing is cut
    assert found.low[0] == found.high[0] == 0
    assert (found.low[1:] < found.value[1:]).all() and (found.high[1:] > found.value[1:]).all()
    for point in range(3):
        one = statistics.aggregate([values[:, point]])
        assert (one.low, one.high) == pytest.approx((found.low[point], found.high[point]))


def test_probability_of_improvement_counts_pairs_and_halves_ties():
    found = statistics.probability_of_improvement([np.array([1.0, 2.0])], [np.array([1.0, 0.0])])
    assert found.value == pytest.approx((0.5 + 1 + 1 + 1) / 4)
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_a_paired_difference_forgets_what_seeds_have_in_common():
    common = np.array([0.0, 100, -50, 20, 7])
    found = statistics.paired_difference([common + np.array([1.0, 2, 3, 2, 2])], [common])
    assert found.value == pytest.approx(2)
    assert 0.9 < found.low < found.high < 3.1
    with pytest.raises(ValueError, match=r"5 and 4 runs cannot be paired"):
        statistics.paired_difference([common], [common[:4]])


def test_steps_to_a_threshold_lie_on_the_line_between_two_points():
    steps, values = np.array([0, 100, 200, 300]), np.array([0.0, 1, 3, 2])
    assert statistics.steps_to_threshold(steps, values, 2) == 150
    assert statistics.steps_to_threshold(steps, values, 0) == 0
    assert statistics.steps_to_threshold(steps, values, 5) == float("inf")


def two_arms():
    generator = np.random.default_rng(3)
    return generator.normal(size=(10, 4)) * 0.3 + 0.5, generator.normal(size=(10, 4)) * 0.3 + 0.4  # runs x tasks


def test_values_agree_with_rliable():
    metrics = pytest.importorskip("rliable.metrics")
    x, y = two_arms()
    assert statistics.aggregate(list(x.T)).value == pytest.approx(metrics.aggregate_iqm(x))
    ours = statistics.probability_of_improvement(list(x.T), list(y.T))
    assert ours.value == pytest.approx(metrics.probability_of_improvement(x, y))


def test_profiles_and_percentiles_agree_with_rliable():
    from rliable import metrics

    try:
        from rliable import library
    except TypeError as error:  # the arch that it pins does not import beside pandas 3
        pytest.skip(f"rliable does not import here ({error})")
    x, _ = two_arms()
    limits = np.linspace(0, 1, 11)
    theirs, _ = library.create_performance_profile({"x": x}, limits, reps=2)
    np.testing.assert_allclose(statistics.profile(list(x.T), limits).value, theirs["x"])
    _, intervals = library.get_interval_estimates({"x": x}, lambda s: np.array([metrics.aggregate_iqm(s)]), reps=4000)
    mine = statistics.percentiles(list(x.T), lambda parts: statistics.iqm(np.concatenate(parts, 1)), resamples=4000)
    np.testing.assert_allclose(np.ravel(intervals["x"]), mine, atol=0.02)


def test_percentiles_agree_with_scipy():
    x, _ = two_arms()
    theirs = stats.bootstrap(
        (x[:, 0],), lambda s, axis: stats.trim_mean(s, 0.25, axis), method="percentile", n_resamples=20000, rng=0
    )
    mine = statistics.percentiles([x[:, 0]], lambda parts: statistics.iqm(parts[0]), resamples=20000)
    np.testing.assert_allclose(mine, theirs.confidence_interval, atol=0.01)


def test_a_profile_is_the_share_of_runs_above_each_threshold():
    found = statistics.profile([np.array([0.0, 1.0]), np.array([1.0, 1.0, 1.0, 3.0])], np.array([-1.0, 0.5, 2]))
    np.testing.assert_allclose(found.value, [1, (0.5 + 1) / 2, (0 + 0.25) / 2])
    assert found.low[0] == found.high[0] == 1


@pytest.mark.parametrize(
    ("scores", "sentence"),
    [
        ([], r"a task without runs"),
        ([np.array([])], r"a task without runs"),
        ([np.array([1.0, np.nan])], r"nan or infinite"),
    ],
)
def test_what_is_no_score_is_refused(scores, sentence):
    with pytest.raises(ValueError, match=sentence):
        statistics.aggregate(scores)


def test_intervals_of_normal_scores_cover_the_truth_where_percentiles_do_not():
    rates = coverage.rates("normal", tasks=4, seeds=3, experiments=200, generator=np.random.default_rng(0))
    assert rates["ours"] >= 0.91
    assert rates["percentile"] <= 0.87
