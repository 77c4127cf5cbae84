"""A state given back is the state: the same actions bring the same numbers, in the same and in a fresh environment."""

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, RescaleAction

from envs.make import make
from envs.snapshots.snapshots import from_json, get_state, set_state, to_json
from envs.wrappers import Observer

WORLDS = {
    "CartPole-v1": {},
    "MountainCar-v0": {},
    "MountainCarContinuous-v0": {},
    "Pendulum-v1": {},
    "Acrobot-v1": {},
    "lodestar/CartPoleUpright-v0": {},
    "lodestar/CartPoleSwingUp-v0": {},
    "lodestar/MountainCarGoal-v0": {},
    "lodestar/PendulumUpright-v0": {"torques": 5},
    "lodestar/MountainCarSparse-v0": {},
    "lodestar/PendulumSparse-v0": {},
    "lodestar/NoisyRooms-v0": {"noise": "brownian"},
    "lodestar/DeepSea-v0": {"stochastic": True},
    "lodestar/ProcMaze-v0": {},
    "lodestar/ButtonGrid-v0": {},
    "HalfCheetah-v5": {},
    "Hopper-v5": {},
    "Ant-v5": {},
    "Humanoid-v5": {},
    "HumanoidStandup-v5": {},
    "Reacher-v5": {},
    "Pusher-v5": {},
    "InvertedDoublePendulum-v5": {},
    "MiniGrid-DoorKey-8x8-v0": {},
    "MiniGrid-KeyCorridorS3R3-v0": {},
    "MiniGrid-ObstructedMaze-2Dlh-v0": {},
    "MiniGrid-MultiRoom-N4-S5-v0": {},
    "MiniGrid-LockedRoom-v0": {},
    "MiniGrid-FourRooms-v0": {},
    "MiniGrid-RedBlueDoors-6x6-v0": {},
    "MiniGrid-PutNear-6x6-N2-v0": {},
    "MiniGrid-MemoryS7-v0": {},
    "MiniGrid-Dynamic-Obstacles-6x6-v0": {},
}
WORLDS_DISTURBED = {
    "CartPole-v1": {"sticky": 0.3, "noisy_tv": "on_demand"},
    "Hopper-v5": {"sticky": 0.3, "noisy_tv": "always"},
    "MiniGrid-DoorKey-5x5-v0": {"sticky": 0.3, "noisy_tv": "always"},
    "MiniGrid-Empty-5x5-v0": {"adapt": False, "sticky": 0.3, "noisy_tv": "always"},
}


def _action(env: gym.Env, rng: np.random.Generator):
    space = env.action_space
    if isinstance(space, spaces.Discrete):
        return int(rng.integers(space.n))
    return rng.uniform(space.low, space.high).astype(space.dtype)


def _play(env: gym.Env, steps: int, seed: int) -> list:
    """What happens under random actions, resets included."""
    rng, happened = np.random.default_rng(seed), []
    for _ in range(steps):
        obs, reward, terminated, truncated, info = env.step(_action(env, rng))
        episode = info.get("episode", {})
        happened.append((obs, float(reward), terminated, truncated, episode.get("r"), episode.get("l")))
        if terminated or truncated:
            happened.append((env.reset()[0],))
    return happened


def _assert_same(first: list, second: list) -> None:
    assert len(first) == len(second)
    for a, b in zip(first, second):
        _assert_equal(a[0], b[0])
        assert a[1:] == b[1:]


def _assert_equal(a, b) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            _assert_equal(a[key], b[key])
    else:
        np.testing.assert_array_equal(a, b)


def _deep(env: gym.Env):
    """A hundred random steps; returns the observation there."""
    rng = np.random.default_rng(3)
    obs, _ = env.reset()
    for _ in range(100):
        obs, _, terminated, truncated, _ = env.step(_action(env, rng))
        if terminated or truncated:
            obs, _ = env.reset()
    return obs


@pytest.mark.parametrize(("env_id", "kwargs"), [*WORLDS.items(), *WORLDS_DISTURBED.items()])
def test_a_state_brings_the_same_and_a_fresh_environment_to_the_same_future(env_id: str, kwargs: dict) -> None:
    env = make(env_id, seed=1, **kwargs)
    obs = _deep(env)
    state = get_state(env, rng=True)
    expected = _play(env, 50, 5)

    _assert_equal(set_state(env, state), obs)
    _assert_same(_play(env, 50, 5), expected)

    fresh = make(env_id, seed=99, **kwargs)
    _assert_equal(set_state(fresh, from_json(to_json(state))), obs)
    _assert_same(_play(fresh, 50, 5), expected)


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "Hopper-v5", "MiniGrid-KeyCorridorS3R3-v0"])
def test_a_state_is_plain_data_that_later_steps_do_not_change(env_id: str) -> None:
    env = make(env_id, seed=1)
    _deep(env)
    state = get_state(env, rng=True)
    text = to_json(state)

    def check(value) -> None:
        assert type(value) in (dict, list, str, int, float, bool, np.ndarray, type(None))
        for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            check(one)

    check(state)
    _play(env, 30, 0)
    set_state(env, state)
    _play(env, 30, 0)
    assert to_json(state) == text
    assert to_json(from_json(text)) == text
    json.loads(text)


def test_without_the_generator_only_the_generator_is_left_alone() -> None:
    env = make("lodestar/NoisyRooms-v0", seed=1, noise="pixels")
    obs = _deep(env)
    state = get_state(env)
    assert "rng" not in state
    first = _play(env, 50, 5)
    np.testing.assert_array_equal(set_state(env, state), obs)
    second = _play(env, 50, 5)
    cells = [[row[0][:-8].argmax() for row in rows] for rows in (first, second)]
    assert cells[0] == cells[1]  # the walk again, with other noise
    assert any((a[0] != b[0]).any() for a, b in zip(first, second))


def test_the_time_that_has_passed_and_the_account_of_the_episode_come_back() -> None:
    env = make("Pendulum-v1", seed=0)
    env.reset()
    rewards = [env.step(np.array([1.0], np.float32))[1] for _ in range(197)]
    fresh = make("Pendulum-v1")
    set_state(fresh, get_state(env))
    for number in range(3):
        _, reward, _, truncated, info = fresh.step(np.array([1.0], np.float32))
        rewards.append(reward)
        assert truncated == (number == 2)
    assert info["episode"]["l"] == 200
    assert info["episode"]["r"] == sum(rewards)


def test_the_ball_to_fetch_is_the_ball_in_the_grid() -> None:
    env = make("MiniGrid-KeyCorridorS3R1-v0", seed=0)
    env.reset()
    fresh = make("MiniGrid-KeyCorridorS3R1-v0")
    set_state(fresh, get_state(env))
    inner = fresh.unwrapped
    assert sum(thing is inner.obj for thing in inner.grid.grid) == 1
    assert inner.obj is not env.unwrapped.obj
    room = inner.room_grid[0][0]
    assert room.neighbors[0] is inner.room_grid[0][1] and room.neighbors[0].neighbors[2] is room


def test_wrappers_that_were_not_there_stay_as_they_are() -> None:
    env = make("CartPole-v1", seed=0)
    env.reset()
    bare = gym.make("CartPole-v1").unwrapped
    np.testing.assert_array_equal(set_state(bare, get_state(env)), np.float32(env.unwrapped.state))
    modalities = make("MiniGrid-Empty-5x5-v0", seed=0, text=True, sticky=0.5)
    modalities.reset()
    assert isinstance(modalities, Observer)
    modalities.step(2)
    set_state(modalities, get_state(make_and_reset("MiniGrid-Empty-5x5-v0")))
    assert modalities.env.env.env.last_action == 2
    assert modalities.step(2)[4]["text"].startswith(
        "mission"
    )  # what was seen before is not compared with what is seen now


def make_and_reset(env_id: str, **kwargs) -> gym.Env:
    env = make(env_id, seed=0, **kwargs)
    env.reset()
    return env


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_a_wrapper_without_memory_is_walked_through() -> None:
    env = RescaleAction(make("Pendulum-v1", seed=0), -1.0, 1.0)
    env.reset()
    obs, *_ = env.step(np.array([0.5], np.float32))
    np.testing.assert_array_equal(set_state(RescaleAction(make("Pendulum-v1"), -1.0, 1.0), get_state(env)), obs)


def test_the_journal_takes_no_snapshot_of_an_episode_it_did_not_see_begin() -> None:
    env = make_and_reset("CartPole-v1")
    set_state(env, get_state(env))
    with pytest.raises(RuntimeError, match=r"there is no episode to take a snapshot of; call reset\(\) first"):
        env.get_wrapper_attr("snapshot")()
    env.reset()
    assert env.get_wrapper_attr("snapshot")()["actions"]["shape"] == [0]


def test_what_cannot_be_given_back_is_refused_in_a_sentence() -> None:
    for env_id in ("BabyAI-GoToRedBall-v0", "NetHackScore-v0", "lodestar/ProbeJoint-v0"):
        env = make_and_reset(env_id)
        with pytest.raises(ValueError, match=rf"{env_id} has no state that can be taken .* without BabyAI"):
            get_state(env)
    with pytest.raises(ValueError, match=r"what the wrapper FrameStackObservation remembers is unknown; take snap"):
        get_state(FrameStackObservation(make_and_reset("CartPole-v1"), 2))
    with pytest.raises(ValueError, match=r"the snapshot is of CartPole-v1, not of Pendulum-v1; make CartPole-v1"):
        set_state(make("Pendulum-v1"), get_state(make_and_reset("CartPole-v1")))
    with pytest.raises(RuntimeError, match=r"there is no episode to take a snapshot of; call reset\(\) first"):
        get_state(make("MountainCar-v0"))


def test_a_thing_of_unknown_kind_is_refused() -> None:
    env = make_and_reset("MiniGrid-Empty-5x5-v0")
    env.unwrapped.secret = object()
    with pytest.raises(ValueError, match=r"the state holds a object, neither plain data nor a thing of MiniGrid's"):
        get_state(env)
