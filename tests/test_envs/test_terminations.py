"""When episodes end, by observation alone, against what the simulators say."""

import numpy as np
import pytest
import torch

from envs.make import families, make, spec_of, termination

EXACT = (
    "CartPole-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Acrobot-v1",
    "Pendulum-v1",
    "lodestar/CartPoleUpright-v0",
    "lodestar/MountainCarGoal-v0",
    "lodestar/PendulumUpright-v0",
    "lodestar/MountainCarSparse-v0",
    "lodestar/PendulumSparse-v0",
    "lodestar/CartPoleSwingUp-v0",
    "lodestar/CartPoleSwingUpSparse-v0",
    *families()["probe"].ids,
)
ROBOTS = families()["mujoco"].ids
OLD = ("Hopper-v4", "Walker2d-v4", "Ant-v4", "Humanoid-v4", "InvertedPendulum-v4", "InvertedDoublePendulum-v4")


def transitions(env_id, count, **options):
    """`count` real ones: at random, pushed one way for a while, and from states scattered over the world."""
    env = make(env_id, seed=0, **options)
    family, rng = families(), np.random.default_rng(0)
    scatter = next(f for f in family.values() if f.knows(spec_of(env_id))).scatter
    rows, episode = [], 0
    while len(rows) < count:
        obs, _ = env.reset()
        episode += 1
        if episode % 3 == 0:
            scatter(env, rng)
        action, over, hold = env.action_space.sample(), False, 0
        while not over and len(rows) < count:
            if hold == 0:
                action, hold = env.action_space.sample(), 1 if episode % 2 else int(rng.integers(1, 40))
            next_obs, _, terminated, truncated, _ = env.step(action)
            rows.append((obs, np.atleast_1d(action), next_obs, terminated))
            obs, over, hold = next_obs, terminated or truncated, hold - 1
    env.close()
    return [np.stack(column) for column in zip(*rows)]


def agreement(env_id, count, **options):
    obs, action, next_obs, terminated = transitions(env_id, count, **options)
    ends = termination(env_id, **options)(obs, action, next_obs)
    assert ends.shape == terminated.shape and ends.dtype == bool
    by_torch = termination(env_id, **options)(*(torch.as_tensor(x) for x in (obs, action, next_obs)))
    assert by_torch.dtype == torch.bool and np.array_equal(by_torch.numpy(), ends)
    return (ends == terminated).mean(), terminated.mean()


@pytest.mark.parametrize("env_id", EXACT)
def test_classic_control_ends_exactly_where_it_says(env_id):
    assert agreement(env_id, 2000)[0] == 1.0


@pytest.mark.parametrize("env_id", ROBOTS)
def test_robots_fall_where_their_observations_say(env_id):
    assert agreement(env_id, 300)[0] >= 0.998


@pytest.mark.learn
@pytest.mark.parametrize("env_id", (*EXACT, *ROBOTS, *OLD))
def test_ends_agree_on_ten_thousand_transitions(env_id):
    same, share = agreement(env_id, 10_000)
    print(f"{env_id}: {same:.4%} agree, {share:.2%} end")
    assert same >= (1.0 if env_id in EXACT else 0.999)


def test_limits_of_what_is_healthy_are_heeded():
    changed = [
        ("Hopper-v5", {"healthy_angle_range": (-0.05, 0.05), "healthy_state_range": (-3.0, 3.0)}),
        ("Walker2d-v5", {"healthy_z_range": (1.2, 2.0), "exclude_current_positions_from_observation": False}),
        ("Ant-v5", {"healthy_z_range": (0.4, 0.7), "include_cfrc_ext_in_observation": False}),
        ("Ant-v5", {"healthy_z_range": (0.4, 0.7), "exclude_current_positions_from_observation": False}),
        ("Humanoid-v5", {"healthy_z_range": (1.3, 2.0), "exclude_current_positions_from_observation": False}),
        ("MountainCar-v0", {"goal_velocity": 0.02}),
    ]
    for env_id, options in changed:
        same, share = agreement(env_id, 500, **options)
        assert same >= 0.999, env_id
        assert share > 0 or env_id == "MountainCar-v0"
    walker = termination("Walker2d-v5", terminate_when_unhealthy=False)
    assert not walker(None, None, np.zeros((3, 17), np.float32)).any()


def test_a_number_that_is_none_ends_an_ant_and_no_cheetah():
    row = np.zeros((1, 105), np.float32)
    row[0, 0] = 0.5
    assert not termination("Ant-v5")(row, None, row)
    row[0, 20] = np.nan
    assert termination("Ant-v5")(row, None, row)
    assert not termination("HalfCheetah-v5")(row, None, row)


def test_ends_by_hand():
    def row(*numbers):
        return np.array([numbers], np.float32)

    hopper, cart, car = termination("Hopper-v5"), termination("CartPole-v1"), termination("MountainCar-v0")
    standing = [1.25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    assert not hopper(None, None, row(*standing))
    assert hopper(None, None, row(0.69, *standing[1:]))
    assert hopper(None, None, row(1.25, 0.21, *standing[2:]))
    assert hopper(None, None, row(*standing[:-1], 101))
    assert not cart(None, None, row(2.39, 9, 0.209, 9)) and cart(None, None, row(2.41, 0, 0, 0))
    assert cart(None, None, row(0, 0, -0.21, 0))
    assert car(None, None, row(0.5, 0.0)) and not car(None, None, row(0.5, -0.01)) and not car(None, None, row(0.49, 1))


def test_nothing_is_claimed_where_observations_do_not_tell():
    unknown = ("MiniGrid-Empty-5x5-v0", "lodestar/NoisyRooms-v0", "Hopper-v3", "Blackjack-v1")
    assert [termination(env_id) for env_id in unknown] == [None] * 4
    assert termination("Hopper-v5", xml_file="mine.xml") is None
    assert termination("CartPole-v1", noisy_tv="always") is None
    assert termination("CartPole-v1", max_episode_steps=9, frame_size=32) is not None
