"""What every array program promises: SAME_STEP resets, seeds, snapshots, masks, and sentences about bad input."""

import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import registry
from gymnasium.vector import AutoresetMode

import rewards
from envs.batched import PROGRAMS
from envs.batched.minigrid_levels import GENERATORS
from envs.family import entry
from envs.make import make, make_batched
from envs.steps import Cursor, from_vector_step
from rewards.adapters.gym import VectorRewardWrapper

ROOT = Path(__file__).resolve().parent.parent.parent
SOME = ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MiniGrid-DoorKey-5x5-v0", "MiniGrid-KeyCorridorS3R2-v0"]
FAST = "MiniGrid-MultiRoom-N2-S4-v0"


def play(env, steps, seed=0):
    """Random steps; the observations, rewards and flags of each, copied."""
    rng = np.random.default_rng(seed)
    space, rows = env.single_action_space, []
    for _ in range(steps):
        if isinstance(space, gym.spaces.Discrete):
            actions = rng.integers(space.n, size=env.num_envs)
        else:
            actions = rng.uniform(space.low, space.high, env.action_space.shape).astype(np.float32)
        rows.append([np.array(x) for x in env.step(actions)[:4]])
    return [np.stack(column) for column in zip(*rows)]


def test_all_registered_sizes_of_the_grid_families_are_known():
    make("MiniGrid-Empty-5x5-v0").close()  # registers them
    classes = [f"minigrid.envs:{name}" for name in GENERATORS]
    registered = {name for name, spec in registry.items() if entry(spec) in classes}
    # MiniHack registers one more, in a process that has imported it.
    registered.discard("MiniGrid-MultiRoom-N10-v0")
    assert {name for name in PROGRAMS if name.startswith("MiniGrid")} == registered


def test_asking_what_is_known_imports_neither_torch_nor_a_simulator():
    script = (
        "import sys, envs.batched\n"
        "assert 'CartPole-v1' in envs.batched.PROGRAMS\n"
        "print([m for m in ('torch', 'minigrid', 'pygame', 'numba') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert answer.stdout.strip() == "[]", answer.stdout + answer.stderr


def test_classic_control_is_known_by_its_name_and_one_pendulum_by_its_torques():
    known = {env_id: PROGRAMS[env_id] for env_id in ("CartPole-v1", "lodestar/PendulumUpright-v0")}
    assert [program.path.partition(":")[2] for program in known.values()] == [
        "BatchedCartPole",
        "BatchedPendulumUpright",
    ]
    assert [set(program.arguments) for program in known.values()] == [set(), {"torques"}]


@pytest.mark.parametrize("env_id", SOME)
@pytest.mark.parametrize("array", ["numpy", "torch"])
def test_a_step_answers_in_the_shapes_and_types_of_a_vector_environment(env_id, array):
    env, one = make_batched(env_id, 3, array=array), make(env_id)
    assert env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert env.single_observation_space == one.observation_space
    assert env.single_action_space == one.action_space
    assert env.spec.id == env_id
    obs, infos = env.reset()
    assert infos == {}
    assert np.array(obs) in env.observation_space
    obs, paid, terminations, truncations, infos = env.step(env.action_space.sample())
    kinds = {type(x) for x in (obs, paid, terminations, truncations)}
    assert kinds == {torch.Tensor if array == "torch" else np.ndarray}
    answers = [np.array(x) for x in (obs, paid, terminations, truncations)]
    assert [x.dtype for x in answers] == [np.float32, np.float32, bool, bool]
    assert [x.shape for x in answers] == [env.observation_space.shape, (3,), (3,), (3,)]
    assert infos == {}


@pytest.mark.parametrize("env_id", SOME)
def test_the_same_seed_makes_the_same_run_and_another_seed_another(env_id):
    runs = []
    for first, second in ((5, None), (0, 5), (6, None)):
        env = make_batched(env_id, 4, seed=first, max_episode_steps=20)
        start, _ = env.reset(seed=second)
        runs.append([start.copy(), *play(env, 60)])
    assert all(np.array_equal(a, b) for a, b in zip(runs[0], runs[1]))
    assert not np.array_equal(runs[0][1], runs[2][1])


@pytest.mark.parametrize("env_id", [*SOME, "MountainCarContinuous-v0", FAST])
@pytest.mark.parametrize("array", ["numpy", "torch"])
def test_a_snapshot_continues_bit_for_bit_over_resets_and_fresh_levels(env_id, array):
    env = make_batched(env_id, 150, seed=1, array=array, max_episode_steps=4)
    env.reset()
    play(env, 6)
    state = env.snapshot()
    here = np.array(env.step(env.action_space.sample() * 0)[0])
    env.restore(state)
    expected = play(env, 9)  # 300 episodes begin, so the pool is made anew
    for other in (env, make_batched(env_id, 150, array=array, max_episode_steps=4)):
        other.restore(state)
        assert np.array_equal(np.array(other.step(other.action_space.sample() * 0)[0]), here)
        other.restore(state)
        assert all(np.array_equal(a, b) for a, b in zip(play(other, 9), expected))


def test_a_masked_reset_begins_only_those_episodes():
    env = make_batched("CartPole-v1", 3)
    env.reset()
    before = env.step(np.ones(3, int))[0].copy()
    after, _ = env.reset(options={"reset_mask": np.array([False, True, False])})
    assert np.array_equal(after[[0, 2]], before[[0, 2]])
    assert abs(after[1]).max() <= 0.05 < abs(before[1]).max()
    assert env.snapshot()["steps"].tolist() == [1, 0, 1]


@pytest.mark.parametrize("array", ["numpy", "torch"])
def test_where_time_runs_out_the_last_observation_is_in_the_infos(array):
    env = make_batched("Pendulum-v1", 2, max_episode_steps=3, array=array)
    free = make_batched("Pendulum-v1", 2, array=array)
    env.reset()
    free.reset()
    total = 0.0
    for step in range(3):
        obs, paid, terminations, truncations, infos = env.step(np.ones((2, 1), np.float32))
        after, alike, *_ = free.step(np.ones((2, 1), np.float32))
        assert np.array_equal(paid, alike)
        total = total + np.array(paid, np.float64)
        assert truncations.tolist() == [step == 2] * 2
        assert terminations.tolist() == [False] * 2
        assert bool(infos) == (step == 2)
    assert np.array_equal(infos["final_obs"], after)
    assert not np.array_equal(np.array(obs), np.array(after))
    assert infos["_final_obs"].tolist() == [True, True]
    np.testing.assert_allclose(infos["final_info"]["episode"]["r"], total, rtol=1e-6)
    assert infos["final_info"]["episode"]["l"].tolist() == [3, 3]
    assert infos["final_info"]["is_success"].tolist() == [False, False]


def test_rows_whose_episode_goes_on_are_untouched_by_the_reset_of_others():
    env, alone = make_batched("CartPole-v1", 2, seed=0), make_batched("CartPole-v1", 2, seed=0)
    env.reset()
    alone.reset()
    env.state["x"][0] = [2.5, 1.0, 0.0, 0.0]  # the next step leaves the track
    obs, _, terminations, _, infos = env.step(np.array([1, 0]))
    expected, *_ = alone.step(np.array([1, 0]))
    assert terminations.tolist() == [True, False]
    assert np.array_equal(obs[1], expected[1])
    assert infos["final_obs"][0, 0] > 2.4 > obs[0, 0]
    assert infos["final_info"]["is_success"].tolist() == [False, False]


def test_transitions_and_rewards_read_it_as_any_vector_environment():
    env = make_batched("CartPole-v1", 3, seed=0, max_episode_steps=5)
    obs, _ = env.reset()
    obs, cursor = obs.copy(), Cursor(3)
    for step in range(1, 12):
        actions = env.action_space.sample()
        next_obs, *rest = env.step(actions)
        batch = from_vector_step(cursor, AutoresetMode.SAME_STEP, obs, actions, rest[0], next_obs, *rest[1:])
        # One Euler step: the cart moves by its velocity times 0.02 s, also where the episode ends.
        np.testing.assert_allclose(batch.next_obs[:, 0], obs[:, 0] + 0.02 * obs[:, 1], atol=1e-6)
        assert batch.step.tolist() == [(step - 1) % 5] * 3
        assert batch.truncated.tolist() == [step % 5 == 0] * 3
        obs = next_obs.copy()
    space = env.single_observation_space, env.single_action_space
    paid = VectorRewardWrapper(env, rewards.make(["task", "rnd"], *space))
    paid.reset(seed=1)
    for step in range(1, 11):
        _, total, _, truncations, infos = paid.step(env.action_space.sample())
        assert np.array_equal(infos["reward/task"], np.ones(3))
        assert infos["reward/rnd"].shape == total.shape == (3,)
        assert ("final_obs" in infos) == truncations.any() == (step % 5 == 0)


def test_bad_input_is_answered_with_what_to_give_instead():
    bad = [
        (("CartPole-v2", 4), {}, "no array program knows 'CartPole-v2'.*CartPole-v1"),
        (("CartPole-v1", 0), {}, "n=0 environments.*at least 1"),
        (("CartPole-v1", 1), {"array": "jax"}, "array='jax' is unknown.*numpy.*torch"),
        (("CartPole-v1", 1), {"device": "cuda"}, "device='cuda' holds no NumPy arrays.*torch"),
        (("CartPole-v1", 1), {"array": "torch", "device": "cuda:99"}, "device='cuda:99' is not there"),
        (("CartPole-v1", 1), {"max_episode_steps": 0}, "max_episode_steps=0 is out of range"),
        (("MiniGrid-Empty-5x5-v0", 1), {"frame_size": 64}, 'frame_size=64 is not supported .*"gym"'),
        (("CartPole-v1", 1), {"sticky": 0.25}, "sticky=0.25 is not supported"),
        (("lodestar/DeepSea-v0", 1), {"noisy_tv": "always"}, "noisy_tv='always' is not supported"),
        (("MiniGrid-Empty-5x5-v0", 1), {"mission": "sung"}, "mission='sung' is unknown"),
        (
            ("MiniGrid-Empty-5x5-v0", 1),
            {"size": 9},
            r"size=9 is not supported by .*, captions, chatter, mission, varied\); leave it out",
        ),
        (("CartPole-v1", 1), {"sutton_barto_reward": True}, r"sutton_barto_reward=True is not supported .*, none\)"),
        (("lodestar/DeepSea-v0", 1), {"depth": 3}, r"depth=3 .*, mapping_seed, size, stochastic\); .*\"gym\""),
    ]
    for arguments, options, sentence in bad:
        with pytest.raises(ValueError, match=sentence):
            make_batched(*arguments, **options)


def test_misuse_is_answered_too():
    env = make_batched("CartPole-v1", 2)
    for call in (lambda: env.step([0, 0]), env.snapshot, lambda: env.reset(options={"reset_mask": [True, False]})):
        with pytest.raises(RuntimeError, match="call reset"):
            call()
    env.reset()
    with pytest.raises(ValueError, match=r"actions have shape \(2, 1\); give \(2,\)"):
        env.step([[0], [1]])
    with pytest.raises(ValueError, match=r"shape \(3,\); give one bool for each of 2"):
        env.reset(options={"reset_mask": np.ones(3, bool)})
    with pytest.raises(ValueError, match="option 'low' is unknown"):
        env.reset(options={"low": 0.0})
    with pytest.raises(ValueError, match="holds 2 environments, not 3"):
        make_batched("CartPole-v1", 3).restore(env.snapshot())
