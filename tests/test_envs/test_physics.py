"""Masses and frictions that are drawn anew at every episode."""

import numpy as np
import pytest

from envs.make import make


def test_factors_stay_in_range_differ_between_episodes_and_follow_the_seed():
    env = make("Pendulum-v1", physics=0.5)
    masses = []
    for seed in (3, None, 3):
        env.reset(seed=seed)
        masses.append(env.unwrapped.m)
    first, second, again = masses
    assert first == again != second
    assert all(0.5 < mass < 1.5 for mass in masses)
    # Gymnasium's equation, at rest: a torque of 1 for 0.05 s with the drawn mass and a length of 1.
    env.unwrapped.state = np.zeros(2)
    assert env.step(np.array([1.0]))[0][2] == pytest.approx(3.0 / again * 0.05)


def test_what_cart_pole_derives_from_its_masses_follows_them():
    env = make("CartPole-v1", physics=0.3)
    env.reset(seed=0)
    world = env.unwrapped
    assert world.masscart != 1.0 and world.masspole != 0.1
    assert world.total_mass == world.masscart + world.masspole
    assert world.polemass_length == world.masspole * 0.5


def test_bodies_and_geometries_of_a_robot_have_factors_of_their_own():
    pytest.importorskip("mujoco")
    plain = make("HalfCheetah-v5").unwrapped.model
    env = make("HalfCheetah-v5", physics=0.2)
    model = env.unwrapped.model
    for _ in range(2):
        # Factors do not multiply up from one episode to the next.
        env.reset()
        factors = model.body_mass[1:] / plain.body_mass[1:]
        assert len(set(factors.round(6))) == len(factors) and np.all(abs(factors - 1.0) <= 0.2)
        assert np.allclose(model.body_inertia[1:], plain.body_inertia[1:] * factors[:, None])
        assert np.all(abs(model.geom_friction / plain.geom_friction - 1.0) <= 0.2)
        assert model.body_subtreemass[0] == pytest.approx(model.body_mass.sum())


def test_a_saved_episode_continues_with_its_physics():
    env = make("Pendulum-v1", seed=0, physics=0.5)
    action = np.ones(1, np.float32)
    env.reset()
    # The second episode has no seed of its own.
    env.reset()
    env.step(action)
    copy = make("Pendulum-v1", seed=1, physics=0.5)
    copy.get_wrapper_attr("restore")(env.get_wrapper_attr("snapshot")())
    assert copy.unwrapped.m == env.unwrapped.m
    for _ in range(3):
        assert np.array_equal(copy.step(action)[0], env.step(action)[0])


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(ValueError, match="give a share of more than 0 and less than 1"):
        make("Pendulum-v1", physics=share)


def test_an_environment_without_known_masses_is_refused():
    with pytest.raises(ValueError, match=r"of MuJoCo's robots and of CartPole, Pendulum, Acrobot; MountainCarEnv has"):
        make("MountainCar-v0", physics=0.1)
