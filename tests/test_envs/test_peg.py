"""The peg and its hole: contact by hand, a script that always succeeds, and random actions that never do."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from envs.exploration import peg
from envs.make import make, make_vec

PEG = "lodestar/Peg-v0"
HERE = np.float32([0.0, 0.0, 0.0])  # a hole that is not turned


def pushed(pose, action, eps=0.02, hole=HERE):
    return peg.next_pose(np, np.float32(pose), hole, np.float32(action), eps).round(6).tolist()


def test_contact_stops_a_peg_that_does_not_fit_and_lets_it_slide():
    assert pushed([0.03, 0.01, 0.0], [0, -1, 0]) == [pytest.approx(0.03), 0.0, 0.0]
    assert pushed([0.03, 0.0, 0.0], [-0.4, -1, 0]) == [pytest.approx(0.01), pytest.approx(-0.05), 0.0]
    assert pushed([0.0, 0.01, 0.03], [0, -1, 0])[1] == 0  # askew
    assert pushed([0.01, -0.02, 0.0], [1, 0, 1]) == [pytest.approx(0.02), pytest.approx(-0.02), pytest.approx(0.02)]
    assert pushed([0.5, 0.5, 0.0], [9, 0, 0])[0] == pytest.approx(0.55)  # speed is limited
    turned = pushed([0.0, 0.05, 0.0], [1, 0, 0], hole=np.float32([0, 0, np.pi / 2]))
    assert turned == [
        0.0,
        pytest.approx(0.0, abs=1e-6),
        0.0,
    ]  # a step to the right goes down into a hole that looks left


def test_the_demonstrator_inserts_every_peg_and_random_actions_none():
    envs = make_vec(PEG, 64, seed=0, backend="batched", eps=0.01)
    rng = np.random.default_rng(0)
    for act, succeeds in ((peg.demonstrator, True), (lambda obs: rng.uniform(-1, 1, (64, 3)), False)):
        obs, _ = envs.reset(seed=1)
        first, ended = np.zeros(64, bool), np.zeros(64, bool)
        for _ in range(60):
            obs, rewards, *_, infos = envs.step(act(obs))
            if "final_info" in infos:
                first |= infos["final_info"]["is_success"] & ~ended
                ended |= infos["_final_info"]
            assert set(rewards.tolist()) <= {0.0, 1.0}
        assert ended.all() and first.all() == succeeds and first.any() == succeeds


def test_gymnasium_accepts_a_peg_that_is_drawn():
    env = make(PEG, render_mode="rgb_array", seed=0)
    check_env(env.unwrapped, skip_render_check=True)
    env.reset()
    colours = {tuple(colour) for colour in env.render().reshape(-1, 3).tolist()}
    assert colours == {peg.WALL_RGB, peg.FLOOR_RGB, peg.AGENT}
    with pytest.raises(ValueError, match="eps=0 is out of range; give half the play of the hole"):
        make(PEG, eps=0)
