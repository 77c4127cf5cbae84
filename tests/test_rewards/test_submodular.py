"""Submodular bonus: cells of discs one can count, and gains that add up to F."""

import numpy as np
import pytest
from gymnasium import spaces
from paths import LINE, MANY, PLANE, TWO, path, scan_rewards

from rewards.check import check_reward, random_rollout
from rewards.exploration.submodular import Submodular, SubmodularConfig

ROOM = spaces.Box(0, 9, (2,), np.float32)


def make(space=LINE, **options):
    return Submodular(SubmodularConfig(**options), space, TWO)


def test_discs_keep_the_contract():
    check_reward(make(spaces.Box(-1, 1, (2,), np.float32), kind="cover", radius=1.5))
    check_reward(make(MANY, kind="cover", keys=["pose"], radius=2))


def test_a_cell_counts_once_where_an_additive_reward_would_count_each_time():
    there_and_back = path([1, 2, 3, 2, 3, 2])
    assert scan_rewards(make(kind="cover", bin=1.0), there_and_back) == [1, 1, 0, 0, 0]


def test_on_a_line_a_step_adds_the_cells_that_come_into_reach():
    # discs of three cells: around 5, then 6 adds 7; 8 adds 8 and 9; 8 again nothing; 4 adds 3
    assert scan_rewards(make(kind="cover", bin=1.0, radius=1), path([5, 6, 8, 8, 4])) == [1, 2, 0, 1]
    assert scan_rewards(make(kind="cover", bin=1.0, radius=1), path([5, 6], [5, 6])) == [1, 1]


def test_on_a_plane_a_disc_is_round_and_ends_at_the_bounds():
    states = [[5, 5], [6, 5], [0, 0]]
    # radius 1 is a cross of 5 cells; its neighbour shares two of them; in the corner two of five lie outside
    assert scan_rewards(make(ROOM, kind="cover", bin=1.0, radius=1), path(states)) == [3, 3]
    # radius 1.5 is a square of 9 cells
    assert scan_rewards(make(ROOM, kind="cover", bin=1.0, radius=1.5), path(states)) == [3, 4]


def test_gains_of_cover_do_not_depend_on_the_way_and_add_up_to_what_is_covered():
    rng = np.random.default_rng(0)
    reward = make(ROOM, kind="cover", bin=1.0, radius=2)
    states = rng.integers(0, 10, (30, 2))
    cells = {(x, y) for a, b in states for x in range(10) for y in range(10) if (x - a) ** 2 + (y - b) ** 2 <= 4}
    first = {(x, y) for x in range(10) for y in range(10) if (x - states[0, 0]) ** 2 + (y - states[0, 1]) ** 2 <= 4}
    for order in (np.arange(1, 30), rng.permutation(np.arange(1, 30))):
        assert sum(scan_rewards(reward, path([states[0], *states[order]]))) == len(cells) - len(first)


def test_gains_of_logdet_add_up_to_the_log_determinant_of_the_kernel():
    reward = make(PLANE, noise=0.2)
    states = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    phi = reward._phi(states).astype(np.float64)
    kernel = phi @ phi.T
    expected = np.linalg.slogdet(np.eye(20) + kernel / 0.2)[1] - np.log1p(kernel[0, 0] / 0.2)
    assert sum(scan_rewards(reward, path(states))) == pytest.approx(expected, rel=1e-5)


def test_the_features_make_a_gaussian_kernel():
    reward = make(PLANE, features=20_000, length=0.5)
    x = np.float32([[0, 0], [0.5, 0], [1, 1]])
    phi = reward._phi(x)
    squares = np.square(x[:, None] - x).sum(axis=2) / 2  # mean over the two numbers
    np.testing.assert_allclose(phi @ phi.T, np.exp(-squares / (2 * 0.5**2)), atol=0.03)


def test_a_second_look_is_worth_less_and_less():
    bonus = scan_rewards(make(PLANE), path([[0, 0], [3, 3], [3, 3], [3, 3], [3, 3]]))
    assert (np.diff(bonus) < 0).all()
    assert bonus[1] < 0.3 * bonus[0]


def test_observations_that_never_change_stay_finite():
    for kind in ("logdet", "cover"):
        reward, data = make(kind=kind), path(np.full(300, 7.0))
        reward.update(data)
        bonus = scan_rewards(reward, data)
        assert np.isfinite(bonus).all()
        assert bonus[-1] < 0.01


@pytest.mark.parametrize("kind", ["logdet", "cover"])
def test_an_observation_that_is_not_a_number_is_refused(kind):
    with pytest.raises(FloatingPointError, match=r"reward submodular was given an observation with nan"):
        scan_rewards(make(kind=kind), path([0, np.nan, 1]))


def test_it_learns_nothing_but_the_whitening():
    assert make(PLANE).update(random_rollout(PLANE, TWO)) == {}


@pytest.mark.parametrize(
    ("options", "space", "sentence"),
    [
        ({"kind": "cover", "radius": 1}, MANY, "name one short vector in keys, or give radius=0"),
        ({"kind": "cover", "radius": 20}, PLANE, "radius=20 makes no disc of at most 1000 cells"),
        ({}, spaces.Text(5), "cannot read the observation space Text"),
    ],
)
def test_bad_settings_are_refused_when_it_is_built(options, space, sentence):
    with pytest.raises(ValueError, match=r"reward[. ]submodular") as error:
        make(space, **options)
    assert sentence in str(error.value)
