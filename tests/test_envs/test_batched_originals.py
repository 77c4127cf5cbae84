"""Step by step beside the originals: the same states and actions give the same observations, rewards and ends."""

import numpy as np
import pytest
import torch
from originals import load
from sample import mostly_at_night

from envs.batched import PROGRAMS
from envs.make import make, make_batched

ROBOTS = [name for name in PROGRAMS if PROGRAMS[name].is_robot]
OTHERS = [*ROBOTS, *(name for name in PROGRAMS if name.startswith(("MiniGrid", "highway")) or "NetHack" in name)]
CLASSIC = [name for name in PROGRAMS if name not in OTHERS]
GRIDS = [name for name in PROGRAMS if name.startswith("MiniGrid")]
# One or two sizes of each kind of level.
FAST_GRIDS = [
    *("MiniGrid-Empty-5x5-v0", "MiniGrid-Empty-Random-6x6-v0", "MiniGrid-DoorKey-5x5-v0", "MiniGrid-DoorKey-8x8-v0"),
    *("MiniGrid-FourRooms-v0", "MiniGrid-KeyCorridorS3R1-v0", "MiniGrid-KeyCorridorS4R3-v0"),
    *("MiniGrid-MultiRoom-N2-S4-v0", "MiniGrid-MultiRoom-N4-S5-v1", "MiniGrid-LockedRoom-v0"),
    *("MiniGrid-ObstructedMaze-1Dlhb-v0", "MiniGrid-ObstructedMaze-2Dlh-v0"),
]
N = 4


def urge(original, rng):
    """A random action that likes to pick up keys and balls, open boxes and doors, and go through these to the goal."""
    inner = original.unwrapped
    if not hasattr(inner, "grid"):
        return original.action_space.sample()
    ahead = inner.grid.get(*inner.front_pos)
    if ahead is not None and rng.random() < 0.9:
        if ahead.type == "goal" or (ahead.type == "door" and ahead.is_open):
            return 2
        if ahead.type == "door":
            return 5
        if ahead.type in ("key", "ball") and inner.carrying is None:
            return 3
        if ahead.type == "box":
            return rng.choice([3, 5])
    return rng.choice(7, p=[0.15, 0.15, 0.35, 0.1, 0.03, 0.2, 0.02])


def assert_in_step(env, originals, rng, steps, tolerance):
    """Play at most `steps` steps or until an episode ends; the number of environment steps, and the ends seen."""
    firsts = [original.reset(seed=int(rng.integers(1 << 30)))[0] for original in originals]
    for original in originals:
        if env.spec.id == "MountainCarContinuous-v0":  # the original rounds its state only after the first step
            original.unwrapped.state = original.unwrapped.state.astype(np.float32)
    np.testing.assert_allclose(load(env, originals), np.stack(firsts), atol=tolerance, rtol=tolerance)
    for step in range(1, steps + 1):
        actions = np.array([urge(original, rng) for original in originals])
        obs, rewards, terminations, truncations, infos = env.step(actions)
        for row, original in enumerate(originals):
            expected, reward, terminated, truncated, info = original.step(actions[row])
            mine = infos["final_obs"][row] if terminated or truncated else obs[row]
            np.testing.assert_allclose(mine, expected, atol=tolerance, rtol=tolerance)
            np.testing.assert_allclose(rewards[row], np.float32(reward), atol=tolerance, rtol=tolerance)
            assert (terminations[row], truncations[row]) == (terminated, truncated)
            if terminated or truncated:
                final = infos["final_info"]
                assert final["episode"]["l"][row] == info["episode"]["l"] == step
                np.testing.assert_allclose(final["episode"]["r"][row], info["episode"]["r"], rtol=1e-5)
                assert ("is_success" in final) == ("is_success" in info)
                assert "is_success" not in info or final["is_success"][row] == info["is_success"]
        if "final_obs" in infos:
            assert np.array_equal(infos["_final_obs"], terminations | truncations)
            return N * step, terminations.sum(), truncations.sum()
    return N * steps, 0, 0


@pytest.mark.parametrize("env_id", CLASSIC)
def test_classic_control_moves_as_gymnasium_has_it(env_id):
    rng = np.random.default_rng(0)
    env, originals = make_batched(env_id, N), [make(env_id, seed=i) for i in range(N)]
    # Acrobot's chaos makes the last bit of a cosine visible; the others are equal to the last bit.
    tolerance = 2e-6 if env_id == "Acrobot-v1" else 1e-7
    played = np.array([0, 0, 0])
    while played[0] < 600:
        played += assert_in_step(env, originals, rng, env.max_steps, tolerance)
    assert played[1:].sum() > 0


@pytest.mark.parametrize("env_id", mostly_at_night(GRIDS, *FAST_GRIDS))
def test_minigrid_is_played_by_its_own_rules(env_id):
    rng = np.random.default_rng(1)
    env, originals = make_batched(env_id, N), [make(env_id) for _ in range(N)]
    seen = np.zeros(1)
    for _ in range(3):
        assert_in_step(env, originals, rng, 40, 0.0)
        seen = np.concatenate([seen, env.state["hands"]])
    if "DoorKey-5x5" in env_id or "KeyCorridorS3R1" in env_id:
        assert (seen > 0).any()  # keys were picked up


@pytest.mark.parametrize("env_id", ["MiniGrid-DoorKey-5x5-v0", "MiniGrid-MultiRoom-N2-S4-v0", "MiniGrid-FourRooms-v0"])
def test_minigrid_ends_and_pays_by_its_own_rules(env_id):
    rng = np.random.default_rng(0)
    env, originals = make_batched(env_id, N), [make(env_id) for _ in range(N)]
    ends = sum(np.array(assert_in_step(env, originals, rng, 300, 0.0)[1:]) for _ in range(3))
    assert ends.sum() >= 3


def test_the_wanted_ball_in_hand_ends_keycorridor_and_a_key_does_not():
    env = make_batched("MiniGrid-KeyCorridorS3R1-v0", 2)
    originals = [make("MiniGrid-KeyCorridorS3R1-v0", seed=i) for i in range(2)]
    for original in originals:
        original.reset()
        inner = original.unwrapped
        kind = "ball" if original is originals[0] else "key"
        thing = next(thing for thing in inner.grid.grid if thing is not None and thing.type == kind)
        inner.grid.grid[inner.grid.grid.index(thing)] = None
        inner.grid.set(*inner.front_pos, thing)
    load(env, originals)
    *_, infos = answers = env.step([3, 3])
    expected = [original.step(3) for original in originals]
    assert answers[1].tolist() == [np.float32(1 - 0.9 / 270), 0.0] == [np.float32(x[1]) for x in expected]
    assert answers[2].tolist() == [True, False] == [x[2] for x in expected]
    assert np.array_equal(infos["final_obs"][0], expected[0][0])
    assert np.array_equal(answers[0][1], expected[1][0])
    assert infos["final_info"]["is_success"].tolist() == [True, False]


def test_a_box_is_carried_put_down_and_opened_and_its_key_leads_to_the_ball():
    env_id = "MiniGrid-ObstructedMaze-1Dlhb-v0"
    env, original = make_batched(env_id, 1), make(env_id, seed=0)
    original.reset()
    inner = original.unwrapped
    things = {(thing.type, thing is inner.obj): thing for thing in inner.grid.grid if thing is not None}
    # From the agent to the right: the box, the locked door, and behind it the blue ball. Above the agent, a green one.
    inner.agent_pos, inner.agent_dir = (1, 2), 0
    places = {("box", False): (2, 2), ("door", False): (4, 2), ("ball", True): (5, 2), ("ball", False): (1, 1)}
    for name in places:
        inner.grid.grid[inner.grid.grid.index(things[name])] = None
    for name, place in places.items():
        inner.grid.set(*place, things[name])
    load(env, [original])
    # The green ball ends nothing, and with it in hand nothing else is picked up; the box is carried to the door,
    actions = [0, 3, 1, 3, 0, 4, 1, 3, 4, 3, 2, 4]
    # and opened; its key opens the door, and is put down before the blue ball is picked up.
    actions += [5, 3, 2, 5, 4, 0, 0, 4, 0, 0, 2, 3]
    for step, action in enumerate(actions, 1):
        obs, rewards, terminations, _, infos = env.step([action])
        expected, reward, terminated, *_ = original.step(action)
        assert np.array_equal(infos["final_obs"][0] if terminated else obs[0], expected)
        assert (rewards[0], terminations[0]) == (np.float32(reward), terminated)
        assert terminated == (step == len(actions))
    assert rewards[0] == np.float32(1 - 0.9 * len(actions) / 288)


@pytest.mark.parametrize("mission", ["words", "drop"])
@pytest.mark.parametrize("env_id", ["MiniGrid-DoorKey-5x5-v0", "MiniGrid-KeyCorridorS3R2-v0", "MiniGrid-FourRooms-v0"])
def test_missions_are_words_or_nothing_as_the_adapter_says(env_id, mission):
    env, originals = make_batched(env_id, N, mission=mission), [make(env_id, mission=mission) for _ in range(N)]
    assert env.single_observation_space.shape == (984 + 64 * (mission == "words"),)
    assert_in_step(env, originals, np.random.default_rng(0), 30, 0.0)


def test_a_shorter_time_limit_truncates_but_leaves_the_reward():
    env = make_batched("MiniGrid-DoorKey-5x5-v0", N, max_episode_steps=20)
    originals = [make("MiniGrid-DoorKey-5x5-v0", max_episode_steps=20) for _ in range(N)]
    ends = sum(np.array(assert_in_step(env, originals, np.random.default_rng(s), 20, 0.0)[1:]) for s in range(8))
    assert (ends > 0).all()  # some at the goal, some by the clock


@pytest.mark.parametrize("env_id", [*CLASSIC, *GRIDS[::4], "MiniGrid-KeyCorridorS3R2-v0"])
def test_torch_computes_what_numpy_does(env_id):
    one, other = (make_batched(env_id, 6, seed=2, array=array, max_episode_steps=25) for array in ("numpy", "torch"))
    one.action_space.seed(0)
    obs, alike = one.reset()[0], other.reset()[0]
    for _ in range(60):
        np.testing.assert_allclose(alike.numpy(), obs, atol=1e-6, rtol=1e-6)
        actions = one.action_space.sample()
        (obs, *answers, infos), (alike, *tensors, others) = one.step(actions), other.step(torch.as_tensor(actions))
        for answer, tensor in zip(answers, tensors):
            np.testing.assert_allclose(tensor.numpy(), answer, atol=1e-6, rtol=1e-6)
        assert infos.keys() == others.keys()
        if "final_obs" in infos:
            ended = infos["_final_obs"]
            np.testing.assert_allclose(others["final_obs"].numpy()[ended], infos["final_obs"][ended], atol=1e-6)
            for key in ("r", "l"):
                mine, its = infos["final_info"]["episode"][key], others["final_info"]["episode"][key]
                assert str(its.dtype) == f"torch.{mine.dtype}"
                np.testing.assert_allclose(its.numpy(), mine, rtol=1e-5)
            assert others["final_info"]["is_success"].tolist() == infos["final_info"]["is_success"].tolist()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("env_id", ["CartPole-v1", "MiniGrid-KeyCorridorS3R2-v0"])
def test_a_gpu_computes_what_numpy_does(env_id):
    one, other = make_batched(env_id, 64, seed=2), make_batched(env_id, 64, seed=2, array="torch", device="cuda")
    one.action_space.seed(0)
    obs, alike = one.reset()[0], other.reset()[0]
    for _ in range(60):
        assert alike.is_cuda
        np.testing.assert_allclose(alike.cpu().numpy(), obs, atol=1e-5)
        actions = one.action_space.sample()
        obs, alike = one.step(actions)[0], other.step(actions)[0]
    state = other.snapshot()
    expected = other.step(actions)[0].clone()
    other.restore(state)
    assert torch.equal(other.step(actions)[0], expected)
