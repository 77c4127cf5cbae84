import numpy as np
import pytest

from rewards.base import ReturnStd, RewardEma, RunningMeanStd, make_scale

ON = np.ones((1, 1), bool)


def test_running_statistics_equal_those_of_all_data_at_once():
    rng = np.random.default_rng(0)
    data = rng.normal(3, 2, (1000, 4))
    running = RunningMeanStd((4,))
    assert running.mean.tolist() == [0] * 4 and running.std.tolist() == [1] * 4  # before the first row
    for part in np.array_split(data, [1, 7, 400]):
        running.update(part)
    np.testing.assert_allclose(running.mean, data.mean(0))
    np.testing.assert_allclose(running.var, data.var(0))
    assert running.count == 1000


def test_one_row_and_no_row_are_harmless():
    running = RunningMeanStd((2,))
    running.update(np.zeros((0, 2)))
    running.update(np.array([[1.0, 2.0]]))
    assert np.isfinite(running.std).all()
    assert running.mean.tolist() == [1, 2]


def test_return_scale_filters_along_time_and_never_across_environments():
    scale = ReturnStd(gamma=0.5, episodic=False)
    rewards = np.array([[1.0, 0.0], [1.0, 0.0]])  # environment 0 earns, environment 1 does not
    no = np.zeros((2, 2), bool)
    scale.update(rewards, no, ~no)
    # returns by hand: environment 0: 1, 1.5; environment 1: 0, 0
    assert scale.value == pytest.approx(np.std([1, 0, 1.5, 0]))
    scale.update(np.array([[0.0, 4.0]]), no[:1], ~no[:1])  # 0.5 * 1.5 = 0.75 and 4
    assert scale.value == pytest.approx(np.std([1, 0, 1.5, 0, 0.75, 4]))


def test_return_scale_restarts_with_the_episode_only_if_the_stream_does():
    ended = np.array([[True], [False]])
    rewards = np.ones((2, 1))
    episodic, lasting = ReturnStd(0.5, True), ReturnStd(0.5, False)
    episodic.update(rewards, ended, np.ones((2, 1), bool))
    lasting.update(rewards, ended, np.ones((2, 1), bool))
    assert episodic.running.tolist() == [1]
    assert lasting.running.tolist() == [1.5]


def test_rows_that_are_no_transitions_leave_the_filter_alone():
    scale = ReturnStd(0.5, False)
    valid = np.array([[True], [False], [True]])
    scale.update(np.array([[2.0], [0.0], [0.0]]), ~valid, valid)
    assert scale.running.tolist() == [1.0]  # 2, then 0.5 * 2: the middle row did not discount
    assert scale.count == 2


RETURNS, REWARDS = np.std([1, 0.5 * 1 + 1, 3]), np.std([1, 1, 3])


@pytest.mark.parametrize(("name", "expected"), [("return", RETURNS), ("ema", REWARDS), ("std", REWARDS)])
def test_no_scale_learns_from_rows_that_are_no_transitions(name, expected):
    scale = make_scale(name, 0.5, False)
    reward = np.array([[1.0, 1.0], [99.0, -99.0], [1.0, 3.0]])
    valid = np.array([[True, False], [False, False], [True, True]])
    scale.update(reward, np.zeros((3, 2), bool), valid)
    assert scale.count == 3
    assert scale.value == pytest.approx(expected)


def test_ema_scale_is_unbiased_from_its_first_update():
    scale = RewardEma(decay=0.9)
    scale.update(np.array([[0.0], [2.0]]), np.zeros((2, 1), bool), np.ones((2, 1), bool))
    assert scale.value == pytest.approx(1.0)
    scale.update(np.array([[0.0], [6.0]]), np.zeros((2, 1), bool), np.ones((2, 1), bool))
    assert scale.value == pytest.approx((0.9 * 0.1 * 1 + 0.1 * 3) / (1 - 0.81))


@pytest.mark.parametrize("name", ["ema", "std"])
def test_a_constant_reward_is_divided_by_a_tenth_of_its_size(name):
    scale = make_scale(name, 0.5, True)
    for _ in range(3):
        scale.update(np.full((4, 2), -2.0, np.float32), np.zeros((4, 2), bool), np.ones((4, 2), bool))
    assert scale.value == pytest.approx(0.2)


@pytest.mark.parametrize("name", ["return", "ema", "std"])
def test_a_reward_that_was_always_0_is_divided_by_1(name):
    scale = make_scale(name, 0.5, True)
    scale.update(np.zeros((4, 2)), np.zeros((4, 2), bool), np.ones((4, 2), bool))
    assert scale.count == 8
    assert scale.value == 1.0


def test_updates_without_a_reward_leave_the_moving_average_alone():
    scale = RewardEma(decay=0.5)
    scale.update(np.array([[0.0], [2.0]]), np.zeros((2, 1), bool), np.ones((2, 1), bool))
    for _ in range(100):
        scale.update(np.zeros((2, 1)), np.zeros((2, 1), bool), np.ones((2, 1), bool))
    assert scale.value == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["none", "return", "ema", "std"])
def test_a_saved_scale_continues_equally(name):
    rng = np.random.default_rng(1)
    one, two = make_scale(name, 0.9, True), make_scale(name, 0.9, True)
    no = np.zeros((5, 2), bool)
    one.update(rng.normal(size=(5, 2)), no, ~no)
    two.load_state_dict(one.state_dict())
    more = rng.normal(size=(5, 2))
    one.update(more, no, ~no)
    two.update(more, no, ~no)
    assert one.value == two.value
    assert one.count == two.count


def test_with_a_window_what_is_older_fades():
    statistics = RunningMeanStd(window=10)
    statistics.update(np.zeros(1000))
    assert statistics.count == 10
    statistics.update(np.ones(10))
    assert (float(statistics.mean), float(statistics.var)) == (0.5, 0.25)
    statistics.update(np.ones(10))
    assert float(statistics.mean) == 0.75
