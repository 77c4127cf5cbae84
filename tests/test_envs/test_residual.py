"""A frozen policy in the environment: the sum by hand, its clock, ends of episodes, snapshots, refusals."""

import gymnasium as gym
import numpy as np
import pytest

from envs.make import make, make_vec, termination
from envs.residual import Residual, ResidualVector

PEG = "lodestar/Peg-v0"


class Counting:
    """Acts by how old its episode is: 0, 0.01, 0.02 ... in each number."""

    def predict(self, obs, state=None, episode_start=None, deterministic=False):
        assert deterministic
        age = np.where(episode_start, 0, 0 if state is None else state["age"])
        return np.tile(0.01 * age[:, None], (1, 3)).astype(np.float32), {"age": age + 1}


def test_base_and_residual_are_added_in_units_of_the_range_and_cut_after_the_sum():
    env = make("Pendulum-v1", base=lambda obs: np.full((len(obs), 1), 1.0), base_scale=0.1, seed=0)  # 0.5 of 2
    obs, _ = env.reset()
    assert env.observation_space.shape == (4,) and obs[3] == pytest.approx(0.5)
    layer = env
    while not isinstance(layer, Residual):
        layer = layer.env
    given = layer.env.step
    layer.env.step = lambda action: (taken.append(action.tolist()), given(action))[1]
    taken = []
    for residual in (2.0, 0.0, 8.0):
        env.step(np.array([residual], np.float32))
    assert taken == [[pytest.approx(1.4)], [pytest.approx(1.0)], [pytest.approx(2.0)]]  # 0.7, 0.5 and 1.3 cut
    assert layer.base.clipped == pytest.approx(0.01)


@pytest.mark.parametrize("backend", ["batched", "gym"])
def test_a_vector_shows_what_it_will_add_and_its_clocks_begin_with_episodes(backend):
    envs = make_vec(PEG, 3, seed=0, backend=backend, base=Counting(), base_scale=0.5, max_episode_steps=4)
    obs, _ = envs.reset(seed=0)
    assert obs.shape == (3, 9) and (obs[:, 6:] == 0).all()
    shown = []
    for _ in range(6):
        obs, *_, truncated, infos = envs.step(np.zeros((3, 3), np.float32))
        shown.append(round(float(obs[0, 6]), 3))
        if truncated.any():
            assert infos["final_obs"][:, 6:] == pytest.approx(0.04)  # what would have followed
            assert not np.allclose(infos["final_obs"][:, :3], obs[:, :3])
    assert shown == [0.01, 0.02, 0.03, 0.0, 0.01, 0.02]
    held = envs.snapshot()
    expected = [envs.step(np.zeros((3, 3), np.float32))[0].copy() for _ in range(3)]
    assert np.array_equal(envs.restore(held)[:, 6:], np.full((3, 3), np.float32(0.02)))
    for wanted in expected:
        np.testing.assert_array_equal(envs.step(np.zeros((3, 3), np.float32))[0], wanted)
    assert envs.take_metrics() == {"residual/clipped": 0.0}
    envs.close()


def test_a_vector_of_gymnasium_whose_final_observations_are_objects_has_a_base_too():
    mode = gym.vector.AutoresetMode.SAME_STEP
    vector = gym.make_vec("Pendulum-v1", 2, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})
    envs = ResidualVector(vector, lambda obs: np.full((len(obs), 1), 1.0, np.float32), 0.1)
    envs.reset(seed=0)
    for _ in range(199):
        envs.step(np.zeros((2, 1), np.float32))
    obs, _, _, truncated, infos = envs.step(np.zeros((2, 1), np.float32))
    assert truncated.all()
    assert infos["final_obs"].shape == obs.shape == (2, 4)
    assert infos["final_obs"][:, 3] == pytest.approx(0.5)
    assert not np.allclose(infos["final_obs"][:, :3], obs[:, :3])
    envs.close()


def test_one_environment_is_replayed_with_its_base():
    env = make(PEG, seed=0, base=Counting())
    env.reset()
    for _ in range(3):
        obs, *_ = env.step(np.ones(3, np.float32))
    held = env.get_wrapper_attr("snapshot")()
    expected = env.step(np.ones(3, np.float32))[0]
    again, _ = env.get_wrapper_attr("restore")(held)
    assert np.array_equal(again, obs) and np.array_equal(env.step(np.ones(3, np.float32))[0], expected)
    assert termination("MountainCarContinuous-v0", base=Counting()) is None


def test_what_no_residual_fits_is_a_sentence():
    with pytest.raises(ValueError, match=r"base= needs flat observations and bounded actions, not .* Discrete"):
        make("CartPole-v1", base=lambda obs: obs)
    with pytest.raises(ValueError, match=r"base_scale=0 is out of range; give a number above 0, such as 0.1"):
        make("Pendulum-v1", base=lambda obs: obs, base_scale=0)
    other = make("lodestar/PointMaze-v0").observation_space
    base = type("Of", (), {"predict": None, "observation_space": other})()
    with pytest.raises(ValueError, match=r"has the observation_space Box\(-1.0, 1.0, \(2,\).*; give one of its own"):
        make("Pendulum-v1", base=base)
