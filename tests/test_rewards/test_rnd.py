# ruff: noqa: NPY002 - that the global generators stay as they are is tested here
"""RND: a hand-set linear network, the paper's invariants, and that nothing global is touched."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rewards.check import check_reward
from rewards.exploration.rnd import RND, RNDConfig
from rewards.made_up import make_up

BOX, ACTIONS = spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(2)
GREY = spaces.Box(0, 255, (4, 40, 40), np.uint8)
MANY = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (3, 40, 48), np.uint8),
        "small": spaces.Box(0, 255, (3, 7, 7), np.uint8),
        "pose": BOX,
        "key": spaces.Discrete(3, start=1),
        "dice": spaces.MultiDiscrete([3, 4]),
        "bits": spaces.MultiBinary(5),
    }
)


def make(space=BOX, seed=0, **options):
    return RND(RNDConfig(**options), space, ACTIONS, seed=seed)


def rows(next_obs, space=BOX):
    """Transitions that end in `next_obs` (N, 2)."""
    next_obs = np.asarray(next_obs, np.float32)
    batch = make_up(space, ACTIONS, steps=len(next_obs), envs=1).flatten()
    return batch.replace(obs=next_obs, next_obs=next_obs)


def points(count, centre, seed=0):
    return rows(np.random.default_rng(seed).normal(centre, 1.0, (count, 2)))


@pytest.mark.parametrize("space", [None, spaces.Discrete(5), GREY, MANY], ids=["box", "discrete", "image", "dict"])
def test_rnd_keeps_the_contract(space):
    check_reward(make(space) if space else RND, seeds_differ=True)


def test_the_score_is_the_mean_squared_difference_of_hand_set_linear_networks():
    rnd = make(features=2)
    rnd.statistics.mean, rnd.statistics.var, rnd.statistics.count = np.array([1.0, 0.0]), np.array([4.0, 1.0]), 1
    for net, matrix in ((rnd.target, [[1.0, 0.0], [0.0, 1.0]]), (rnd.predictor, [[0.0, 0.0], [0.0, 3.0]])):
        net.dense = nn.Linear(2, 2, bias=False)
        net.dense.weight.data = torch.tensor(matrix)
    # x = (s' - (1, 0)) / (2, 1), clipped to 5; the difference is (x_0, -2 x_1)
    score = rnd.score(rows([[1, 0], [5, 0], [1, 3], [21, -9]]))
    np.testing.assert_allclose(score, [0, 4 / 2, 36 / 2, (25 + 100) / 2])


def test_it_falls_where_it_has_been_and_stays_high_where_it_has_not():
    rnd = make(learning_rate=1e-3)
    here, there = points(256, 0.0), points(256, 4.0)
    rnd.update(here)
    before = rnd.score(here).mean(), rnd.score(there).mean()
    losses = [rnd.update(here)["loss"] for _ in range(150)]
    assert losses[-1] < 0.1 * losses[0]
    assert rnd.score(here).mean() < 0.1 * before[0]
    assert rnd.score(there).mean() > 5 * rnd.score(here).mean()


def test_statistics_are_those_of_all_valid_rows_and_move_only_in_update():
    rnd = make()
    data = points(64, 3.0)
    rnd.score(data)
    assert rnd.statistics.count == 0
    rnd.update(data.replace(valid=np.arange(64) < 40))
    rnd.update(data.replace(valid=np.arange(64) >= 40))
    np.testing.assert_allclose(rnd.statistics.mean, data.next_obs.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(rnd.statistics.var, data.next_obs.var(axis=0), rtol=1e-5)


def test_before_the_first_update_the_bounds_of_the_space_whiten():
    bounded = make(spaces.Box(np.float32([0, -np.inf]), np.float32([12, np.inf])))
    np.testing.assert_allclose(bounded.statistics.mean, [6, 0])
    np.testing.assert_allclose(bounded.statistics.var, [12, 1])  # 12 squared / 12, and 1 where there is no bound
    bounded.update(rows([[100, 100], [102, 104]]))
    np.testing.assert_allclose(bounded.statistics.mean, [101, 102])  # nothing of the stand-in is left


def test_update_proportion_is_the_share_of_each_minibatch_that_is_learnt_from(monkeypatch):
    learnt = []
    rnd = make(update_proportion=0.25, batch_size=100, epochs=2)
    learn = rnd.loss
    monkeypatch.setattr(rnd, "loss", lambda x, y: learnt.append(len(x)) or learn(x, y))
    rnd.update(points(1000, 0.0))
    assert len(learnt) == 20  # as many steps as without it
    assert sum(learnt) / 2000 == pytest.approx(0.25, abs=0.04)
    learnt.clear()
    whole = make(batch_size=100)
    learn_whole = whole.loss
    monkeypatch.setattr(whole, "loss", lambda x, y: learnt.append(len(x)) or learn_whole(x, y))
    whole.update(points(250, 0.0))
    assert learnt == [100, 100, 50]


def test_the_target_never_learns_and_the_predictors_gradient_is_shortened():
    rnd = make(max_grad_norm=0.01)
    before = copy.deepcopy(rnd.target.state_dict())
    rnd.update(points(64, 0.0))
    assert all(torch.equal(before[key], value) for key, value in rnd.target.state_dict().items())
    norm = torch.cat([p.grad.flatten() for p in rnd.predictor.parameters()]).norm()
    assert float(norm) == pytest.approx(0.01, rel=1e-3)


def test_two_updates_after_loading_are_those_of_the_uninterrupted_reward():
    rnd, data = make(update_proportion=0.5, batch_size=32), points(128, 0.0)
    rnd.update(data)
    other = make(update_proportion=0.5, batch_size=32, seed=5)
    other.load_state_dict(copy.deepcopy(rnd.state_dict()))
    for _ in range(2):
        assert rnd.update(data) == other.update(data)
    for one, two in zip(rnd.predictor.parameters(), other.predictor.parameters()):
        assert torch.equal(one, two)


def test_torchs_and_numpys_global_generators_are_neither_read_nor_moved():
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    rnd, data = make(GREY), make_up(GREY, ACTIONS)
    rnd.update(data)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])
    torch.manual_seed(2)
    again = make(GREY)
    again.update(data)
    assert np.array_equal(rnd.score(data.flatten()), again.score(data.flatten()))


def test_one_row_and_equal_rows_give_finite_scores():
    for data in (rows([[3, 3]]), rows([[3, 3]] * 16)):
        rnd = make()
        assert np.isfinite(rnd.update(data)["loss"])
        assert np.isfinite(rnd.score(rows([[3, 3], [3.001, 3], [1e9, -1e9]]))).all()


def test_with_channels_only_the_last_frames_of_a_stack_matter():
    rnd, data = make(GREY, channels=1), make_up(GREY, ACTIONS).flatten()
    assert rnd.layout.images == {"": (1, 40, 40)}
    older, newest = data.next_obs.copy(), data.next_obs.copy()
    older[:, :3] = 0
    newest[:, 3] = 0
    score = rnd.score(data)
    assert np.array_equal(rnd.score(data.replace(next_obs=older)), score)
    assert not np.array_equal(rnd.score(data.replace(next_obs=newest)), score)


def test_a_dict_is_laid_out_with_vectors_first_and_large_images_through_convolutions():
    layout = make(MANY).layout
    assert layout.order == ["bits", "dice", "key", "pose", "small", "image"]
    assert layout.vector == 5 + 2 + 3 + 2 + 3 * 7 * 7
    assert layout.images == {"image": (3, 40, 48)}
    data = make_up(MANY, ACTIONS).flatten()
    flat = layout.flatten(data.next_obs)
    assert flat.shape == (24, layout.size)
    assert flat.dtype == np.float32
    assert np.array_equal(flat[:, 7:10].argmax(axis=1) + 1, data.next_obs["key"])  # one-hot
    assert np.array_equal(flat[0, layout.vector :].reshape(3, 40, 48), data.next_obs["image"][0])
    assert make(MANY, keys=["pose"]).layout.size == 2


def test_many_images_are_scored_in_pieces_with_the_same_result():
    data = make_up(GREY, ACTIONS, steps=65, envs=8).flatten()  # 520 rows, more than one piece
    rnd = make(GREY)
    np.testing.assert_allclose(rnd.score(data)[510:], rnd.score(data[510:]), rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "space", "sentence"),
    [
        ({"update_proportion": 0}, BOX, "update_proportion=0 is no share; give a number in (0, 1]"),
        ({"update_proportion": 1.5}, BOX, "update_proportion=1.5 is no share; give a number in (0, 1]"),
        ({"learning_rate": 0.0}, BOX, "learning_rate=0.0 must be above 0 and finite"),
        ({"features": 0}, BOX, "features=0 must be at least 1"),
        ({"channels": -1}, BOX, "channels=-1 must be at least 0"),
        ({"channels": 5}, GREY, "channels=5, but the image has 4; give at most that, or 0"),
        ({"keys": ["poze"]}, MANY, "names 'poze', which the observation does not have"),
        ({}, spaces.Dict({"words": spaces.Text(5)}), "(entry 'words'); it takes Box, Discrete, MultiDiscrete"),
    ],
)
def test_bad_settings_are_refused_when_it_is_built(options, space, sentence):
    with pytest.raises(ValueError, match="reward rnd") as error:
        make(space, **options)
    assert sentence in str(error.value)
