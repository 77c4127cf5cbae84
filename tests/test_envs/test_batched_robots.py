"""Robots as array programs: Gymnasium's own to the last bit, on one thread and on two, compiled and not."""

import gc
import sys
import threading
import time

import gymnasium as gym
import mujoco
import numpy as np
import pytest
import torch
from test_batched import play
from test_batched_originals import ROBOTS, assert_in_step

from envs.batched import mujoco as robots
from envs.make import make, make_batched, make_vec

HALF = "exclude_current_positions_from_observation"
HURT = {"healthy_reward": 0.3, "healthy_z_range": (0.6, 1.9)}


@pytest.mark.parametrize("env_id", ROBOTS)
@pytest.mark.parametrize("threads", [1, 2])
def test_robots_move_as_gymnasium_has_them(env_id, threads):
    """One thread moves them in Python, two in a compiled loop."""
    env = make_batched(env_id, 4, max_episode_steps=25, num_threads=threads)
    originals = [make(env_id, seed=i, max_episode_steps=25) for i in range(4)]
    played = np.zeros(3, int)
    while played[0] < 160:
        played += assert_in_step(env, originals, np.random.default_rng(played[0]), 25, 0.0)
    assert played[1:].sum() > 0
    env.close()


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("HalfCheetah-v5", {HALF: False, "ctrl_cost_weight": 0.7, "frame_skip": 2}),
        ("Hopper-v5", {HALF: False, **HURT, "healthy_state_range": (-3.0, 3.0), "forward_reward_weight": 2.0}),
        ("Walker2d-v5", {"healthy_angle_range": (-0.05, 0.05), "terminate_when_unhealthy": False}),
        ("Ant-v5", {"main_body": 4, "contact_force_range": (-0.5, 2.0), "include_cfrc_ext_in_observation": False}),
        ("Humanoid-v5", {"contact_cost_range": (0.1, 0.2), **HURT, HALF: False, "include_cvel_in_observation": False}),
    ],
)
def test_options_are_the_originals(env_id, options):
    env = make_batched(env_id, 3, max_episode_steps=30, **options)
    originals = [make(env_id, seed=i, max_episode_steps=30, **options) for i in range(3)]
    for seed in range(2):
        assert_in_step(env, originals, np.random.default_rng(seed), 30, 0.0)


@pytest.mark.parametrize(("env_id", "normal"), [("HalfCheetah-v5", True), ("Hopper-v5", False)])
def test_episodes_begin_as_gymnasium_s_do(env_id, normal):
    env = make_batched(env_id, 500, seed=3)
    env.reset()
    inner, scale = env.world, env.world._reset_noise_scale
    positions = env.state["physics"][:, env._positions] - inner.init_qpos
    velocities = env.state["physics"][:, env._velocities] - inner.init_qvel
    spread = 1.0 if normal else 1 / np.sqrt(3)  # of a uniform number in [-1, 1]
    assert 0.98 * scale < abs(positions).max() <= scale
    assert velocities.std() == pytest.approx(scale * spread, rel=0.05)
    assert (abs(velocities).max() > scale) == normal
    assert not env.state["physics"][:, env._control].any()


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Humanoid-v5"])
def test_a_snapshot_continues_bit_for_bit_compiled_or_not(env_id, monkeypatch):
    env = make_batched(env_id, 3, seed=1, max_episode_steps=8)
    env.reset()
    play(env, 5)
    state = env.snapshot()
    expected = play(env, 9, seed=1)
    monkeypatch.setattr(robots, "COMPILE_AFTER_STEPS", 0)
    other = make_batched(env_id, 3, max_episode_steps=8)
    other.restore(state)
    assert all(np.array_equal(a, b) for a, b in zip(play(other, 9, seed=1), expected))
    with pytest.raises(ValueError, match=r"single environments, .*backend=gym"):
        other.restore({"envs": []})


def test_torch_shares_the_memory_that_mujoco_moves():
    one, other = (make_batched("Ant-v5", 3, max_episode_steps=5, array=array) for array in ("numpy", "torch"))
    one.reset(), other.reset()
    for mine, its in zip(play(one, 12), play(other, 12)):
        np.testing.assert_allclose(its, mine, atol=1e-6, rtol=1e-6)
    assert isinstance(other.state["physics"], torch.Tensor)


def test_auto_takes_them_unless_frames_or_another_body_are_wanted():
    kinds = [make_vec("Hopper-v5", 2, backend="auto"), make_vec("Hopper-v5", 2, backend="auto", text=True)]
    kinds.append(make_vec("Hopper-v5", 2, backend="auto", xml_file="hopper.xml"))
    assert [isinstance(envs, robots.BatchedRobot) for envs in kinds] == [True, False, False]
    for envs in kinds:
        envs.close()


def test_bad_input_is_answered():
    with pytest.raises(ValueError, match="num_threads=0 is out of range"):
        make_batched("Hopper-v5", 2, num_threads=0)
    with pytest.raises(ValueError, match=r"xml_file='mine.xml' is not supported by the array"):
        make_batched("Hopper-v5", 2, xml_file="mine.xml")
    with pytest.raises(ValueError, match="device='meta' needs its own physics"):
        make_batched("Hopper-v5", 2, array="torch", device="meta")


def test_without_numba_there_is_one_thread_which_is_said(monkeypatch):
    def missing(name):
        raise ImportError("No module named 'numba'")

    monkeypatch.setattr(robots.importlib, "import_module", missing)
    with pytest.warns(RuntimeWarning, match=r"one thread, not 2 .*'numba'\); pip install 'lodestar-rl\[fast\]', or"):
        assert robots._import_compiled.__wrapped__(2) is None
    assert robots._import_compiled.__wrapped__(1) is None


@pytest.mark.parametrize("forgotten", [False, True])
def test_threads_sleep_between_steps_are_woken_and_end_with_the_environments(forgotten):
    pytest.importorskip("numba")
    envs = [make_batched("HalfCheetah-v5", 3, num_threads=threads) for threads in (1, 3)]
    for env in envs:
        env.reset(seed=0)
    before = set(threading.enumerate())
    for number, action in enumerate(np.random.default_rng(0).uniform(-1, 1, (80, 3, 6)).astype(np.float32)):
        envs[1].use_threads(number % 4)
        expected, found = (env.step(action)[0] for env in envs)
        np.testing.assert_array_equal(found, expected)
    threads, beds = set(threading.enumerate()) - before, envs[1]._beds
    while not beds[1:, 0].all():  # both fall asleep
        time.sleep(0.001)
    assert len(threads) == 2
    if not forgotten:
        envs[1].close()
        envs[1].use_threads(3)  # as one that still learns may ask
        np.testing.assert_array_equal(envs[1].step(action)[0], envs[0].step(action)[0])  # by this thread alone
    del envs[1], env
    gc.collect()
    assert not any(thread.is_alive() for thread in threads)


def test_more_threads_than_environments_are_not_started():
    env = make_batched("HalfCheetah-v5", 2, num_threads=5)
    assert env.num_threads == 2
    assert isinstance(env.single_action_space, gym.spaces.Box)


def test_backend_device_is_torch_s_and_says_what_robots_need(monkeypatch):
    carts = make_vec("CartPole-v1", 2, backend="device")
    assert isinstance(carts.reset()[0], torch.Tensor)
    monkeypatch.setitem(sys.modules, "mujoco_warp", None)
    with pytest.raises(ImportError, match=r"needs the package mujoco-warp .*pip install 'lodestar-rl\[device\]'"):
        make_vec("Hopper-v5", 2, backend="device")


@pytest.mark.nightly
@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Humanoid-v5"])
def test_physics_on_the_device_agrees_while_contacts_leave_it_equal(env_id):
    pytest.importorskip("mujoco_warp")  # which compiles its kernels for minutes
    device = make_vec(env_id, 2, backend="device", frame_skip=1, max_episode_steps=5)
    host = make_batched(env_id, 2, frame_skip=1, max_episode_steps=5)
    host.world.model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    device.reset(), host.reset()
    for theirs, mine in zip(play(device, 8), play(host, 8)):
        np.testing.assert_allclose(theirs, mine, atol=2e-3, rtol=2e-3)
    state = device.snapshot()
    (expected, *_), _ = play(device, 3), device.restore(state)
    assert np.array_equal(play(device, 3)[0], expected)
