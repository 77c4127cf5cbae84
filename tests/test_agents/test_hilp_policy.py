"""A policy for every direction: what its minibatches hold, where it goes for a goal, and what its file keeps."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from paths import IMAGE, LINE, TWO

from agents.offline.hilp import HILP, HILPConfig, on_sphere
from agents.offline.iql import IQL
from envs.transitions import Transitions

SMALL = {"features": 2, "net_arch": [32], "batch_size": 64, "learning_rate": 1e-2}


def phi(x):
    """Places on a line as they are, and a number that says nothing."""
    return np.concatenate([x, np.zeros_like(x)], axis=1)


@pytest.fixture(scope="module")
def walk():
    """Steps to the right (1) and left (0) at random, on a line of nine places."""
    rng, place = np.random.default_rng(0), 4
    rows = []
    for step in range(600):
        action = int(rng.integers(2))
        after = int(np.clip(place + 2 * action - 1, 0, 8))
        rows.append((place, action, after, step))
        place = after
    obs, action, after, step = np.array(rows).T
    none = np.zeros(len(rows), bool)
    line = [x[:, None].astype(np.float32) for x in (obs, after)]
    return Transitions(line[0], action, np.zeros(len(rows), np.float32), line[1], none, none, ~none, step)


def made(walk, **options):
    return HILP(HILPConfig(**SMALL | options), LINE, TWO, walk, phi)


def test_vectors_are_put_on_the_sphere():
    assert on_sphere(torch.tensor([[3.0, 4.0]])).tolist() == [pytest.approx([3 / 5 * 2**0.5, 4 / 5 * 2**0.5])]


def test_each_row_of_a_minibatch_is_rewarded_for_what_of_its_step_goes_along_a_z_of_its_own(walk, monkeypatch):
    model, seen = made(walk), []
    monkeypatch.setattr(IQL, "_step", lambda self, rows: seen.append(rows) or {})
    model.learn(1)
    (rows,) = seen
    z, unit = rows[:, 1:3], float(np.sqrt(np.mean(np.square(walk.next_obs - walk.obs))))
    assert all(min(x, abs(x - 2**0.5)) < 1e-5 for x in z.norm(dim=1).tolist())  # 0: it is there already
    assert (rows[:, 4:6] == z).all() and len(z.unique(dim=0)) > 32
    move = (rows[:, 3] - rows[:, 0]) * model.net.std[0]
    assert rows[:, -2].numpy() == pytest.approx((move * z[:, 0] / unit).numpy(), abs=1e-4)
    assert (rows[:, -1] == 1).all() and rows.shape[1] == 2 * 3 + 2 + 2


def test_it_goes_to_any_goal_and_a_policy_of_another_prompt_goes_elsewhere(walk, tmp_path):
    model = made(walk)
    model.learn(400)
    places = np.float32([[1], [4], [7]])
    for goal, wanted in ((8.0, [1, 1, 1]), (0.0, [0, 0, 0]), (5.5, [1, 1, 0])):
        model.prompt = lambda x, goal=goal: on_sphere(torch.from_numpy(phi(np.float32([[goal]])) - phi(x))).numpy()
        assert model.predict(places)[0].tolist() == wanted
    assert int(model.predict(np.float32([7]))[0]) == 0
    model.kept = {"sizes": [1, 2, 8]}
    model.save(file := str(tmp_path / "policy.safetensors"))
    again = HILP.load(file, LINE, TWO)
    again.prompt = model.prompt
    assert again.kept == model.kept and again.predict(places)[0].tolist() == [1, 1, 0]
    with pytest.raises(ValueError, match="holds no IQL"):
        IQL.load(file, LINE, TWO)


def test_images_and_actions_that_cannot_be_chosen_are_refused():
    with pytest.raises(ValueError, match="HILP cannot read images"):
        HILP(HILPConfig(), IMAGE, TWO)
    with pytest.raises(ValueError, match=r"HILP cannot choose actions from MultiDiscrete"):
        HILP(HILPConfig(), LINE, spaces.MultiDiscrete([2, 2]))
    with pytest.raises(ValueError, match=r"agent\.features=0 is out of range"):
        HILPConfig(features=0)
