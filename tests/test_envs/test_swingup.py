"""The pole that starts hanging: its equations, what is paid, its walls, and what random play finds."""

import math

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from envs.classic.family import pose
from envs.classic.tasks import swing_up_reward
from envs.make import families, goals, make, make_batched, spec_of, termination

SMOOTH, SPARSE = "lodestar/CartPoleSwingUp-v0", "lodestar/CartPoleSwingUpSparse-v0"


def push(force):
    return np.array([force], np.float32)


@pytest.mark.parametrize("env_id", [SMOOTH, SPARSE])
def test_it_is_an_environment_that_starts_hanging_still(env_id):
    env = make(env_id, seed=0)
    check_env(env.unwrapped, skip_render_check=True)
    starts = np.stack([env.reset()[0] for _ in range(50)])
    assert abs(starts[:, [0, 1, 4]]).max() <= 0.05 and starts[:, 2].max() < -0.998
    assert env.spec.max_episode_steps == 500 and env.observation_space.shape == (5,)
    assert goals(env_id)[0].name == "upright" and not goals(env_id)[0].truth(env)
    assert make(env_id, text=True, seed=0).reset()[1]["text"].startswith("the pole hangs straight down")
    assert spec_of(env_id).id in families()["classic"].ids


def test_the_cart_moves_as_the_equations_say():
    env = make(SMOOTH, seed=0)
    env.reset()
    pose(env, angle=math.pi)
    obs, paid, *_ = env.step(push(0.5))
    # Hanging: 5 N on 1.1 kg push the pole the other way round, theta'' = 5/1.1 / (0.5 (4/3 - 0.1/1.1)) = 7.317073,
    # x'' = 5/1.1 + 0.05 theta''/1.1 = 4.878049, each for 0.02 s
    np.testing.assert_allclose(obs, [0.0, 0.0975610, -1.0, 0.0, 0.1463415], atol=1e-6)
    assert paid == pytest.approx(0.0, abs=1e-12)
    pose(env, angle=math.pi)
    assert env.step(push(7.0))[0][1] == pytest.approx(0.195122, abs=1e-6)  # no more than 10 N


def test_pay_by_hand():
    assert swing_up_reward(0.0, 1.0, 0.0, 0.0) == 1.0
    assert swing_up_reward(0.0, -1.0, 0.0, 0.0) == 0.0
    assert swing_up_reward(2.0, 1.0, 0.0, 0.0) == pytest.approx(0.55)  # a tenth of the bonus for the middle
    assert swing_up_reward(0.0, 1.0, 5.0, 0.0) == pytest.approx(0.55)
    assert swing_up_reward(0.0, 1.0, 0.0, 1.0) == pytest.approx(0.8)
    assert swing_up_reward(2.0, 0.0, 5.0, 1.0) == pytest.approx(0.5 * 0.55 * 0.55 * 0.8)


@pytest.mark.parametrize(
    ("position", "degrees", "reward"),
    [(0, 0, 1), (0.49, 17, 1), (-0.49, -17, 1), (0.51, 0, 0), (0, 19, 0), (0, 180, 0)],
)
def test_sparse_pay_is_for_upright_poles_near_the_middle(position, degrees, reward):
    env = make(SPARSE, seed=0)
    env.reset()
    pose(env, position=position, angle=math.radians(degrees))
    assert env.step(push(0.0))[1] == reward


def test_a_wall_stops_the_cart_and_ends_nothing():
    env = make(SMOOTH, seed=0)
    env.reset()
    steps = [env.step(push(1.0)) for _ in range(500)]
    assert max(obs[0] for obs, *_ in steps) == pytest.approx(2.2)
    assert not any(terminated for _, _, terminated, _, _ in steps)
    assert [truncated for *_, truncated, _ in steps] == [False] * 499 + [True]
    assert all(0 <= reward <= 1 for _, reward, *_ in steps)
    assert not termination(SMOOTH)(None, None, np.zeros((2, 5), np.float32)).any()


def test_random_play_is_paid_little_and_mostly_nothing_where_pay_is_sparse():
    found = {}
    for env_id in (SMOOTH, SPARSE):
        env = make_batched(env_id, 100, seed=0)
        rng, total = np.random.default_rng(0), np.zeros(100)
        env.reset()
        for _ in range(499):
            total += env.step(rng.uniform(-1, 1, (100, 1)).astype(np.float32))[1]
        found[env_id] = total
    assert 5 < found[SMOOTH].mean() < 60 and found[SMOOTH].min() >= 0
    assert (found[SPARSE] == 0).mean() >= 0.9


def swing(obs):
    """Pump energy, then balance: the textbook's controller."""
    x, x_dot, cos, sin, theta_dot = obs
    if cos > 0.85:
        return push(np.clip(0.1 * x + 0.25 * x_dot + 3.0 * sin + 0.8 * theta_dot, -1, 1))
    energy = theta_dot**2 / 2 + 14.7 * (cos - 1)  # per inertia; 3 g / (2 * 1 m) = 14.7
    return push(np.clip(0.4 * energy * theta_dot * cos / 3 - 0.4 * x - 0.2 * x_dot, -1, 1))


@pytest.mark.parametrize("env_id", [SMOOTH, SPARSE])
def test_a_controller_from_the_textbook_succeeds(env_id):
    env = make(env_id, seed=1)
    obs, _ = env.reset()
    total, info = 0.0, {}
    for _ in range(500):
        obs, reward, _, _, info = env.step(swing(obs))
        total += reward
    assert info["is_success"] and total >= env.unwrapped.SOLVED
