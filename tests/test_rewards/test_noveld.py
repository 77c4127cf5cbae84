"""NovelD: rises of a hand-set novelty, paid once an episode for each state."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from paths import LINE, PLANE, TWO, path, scan_rewards
from torch import nn

from rewards.exploration.noveld import NovelD, NovelDConfig


def make(space=LINE, **options):
    return NovelD(NovelDConfig(**options), space, TWO)


def known(novelty, **options):
    """A NovelD whose novelty of a state on the line is `novelty(x)`."""
    noveld = make(**options)
    noveld.novelty = lambda obs: novelty(np.asarray(obs)[:, 0]).astype(np.float32)
    return noveld


def test_it_gives_the_rise_of_novelty_above_a_share_of_what_it_was():
    states = [1, 4, 2, 7]
    np.testing.assert_allclose(scan_rewards(known(np.abs), path(states)), [3.5, 0, 6])
    np.testing.assert_allclose(scan_rewards(known(np.abs, alpha=0.0), path(states)), [4, 2, 7])
    np.testing.assert_allclose(scan_rewards(known(np.abs, alpha=1.0), path(states)), [3, 0, 5])


def test_a_state_is_rewarded_once_an_episode_and_the_one_that_it_begins_in_never():
    episode = [1, 4, 1, 4, 1]
    assert scan_rewards(known(np.abs, alpha=0.0), path(episode, episode)) == [4, 0, 0, 0, 4, 0, 0, 0]


def test_novelty_is_the_length_of_the_error_of_hand_set_linear_networks():
    noveld = make(PLANE, features=2)
    for net, matrix in ((noveld.target, [[1.0, 0.0], [0.0, 1.0]]), (noveld.predictor, [[0.0, 0.0], [0.0, 3.0]])):
        net.dense = nn.Linear(2, 2, bias=False)
        net.dense.weight.data = torch.tensor(matrix)
    np.testing.assert_allclose(noveld.novelty(np.float32([[0, 0], [3, 2], [-1, 0]])), [0, 5, 1])  # |(x_0, -2 x_1)|


def test_novelty_falls_where_it_has_been():
    noveld, data = make(learning_rate=1e-3), path(np.sin(np.arange(400)))
    before = noveld.novelty(data.flatten().next_obs).mean()
    for _ in range(60):
        noveld.update(data)
    assert noveld.novelty(data.flatten().next_obs).mean() < 0.3 * before


def test_observations_that_never_change_give_no_reward():
    noveld, data = make(), path(np.full(50, 7.0))
    noveld.update(data)
    assert scan_rewards(noveld, data) == [0] * 49


@pytest.mark.parametrize(
    ("options", "space", "sentence"),
    [
        ({"bin": [1.0]}, PLANE, "bin=[1.0] has 1 numbers, the observation has 2"),
        ({}, spaces.Text(5), "cannot read the observation space Text"),
    ],
)
def test_bad_settings_are_refused_when_it_is_built(options, space, sentence):
    with pytest.raises(ValueError, match=r"reward[. ]noveld") as error:
        make(space, **options)
    assert sentence in str(error.value)
