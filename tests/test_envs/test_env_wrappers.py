"""The journal comes back to exactly the same state; observers and adapters say what is there."""

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from sample import mostly_at_night

from envs.make import make
from envs.observations import PlainObservation, plain_space
from envs.wrappers import Journal

JOURNALS = {
    "CartPole-v1": {},
    "Pendulum-v1": {"max_episode_steps": 50},
    "MiniGrid-DoorKey-5x5-v0": {"max_episode_steps": 60},
    "NetHackScore-v0": {"max_episode_steps": 80},
    "highway-fast-v0": {"config": {"vehicles_count": 2, "duration": 6, "simulation_frequency": 2}},
    "HalfCheetah-v5": {"max_episode_steps": 70},
}


def _play(env: gym.Env, steps: int, rng: np.random.Generator) -> list:
    """What happens under random actions, resets included, as comparable numbers."""
    happened = []
    for _ in range(steps):
        if isinstance(env.action_space, spaces.Discrete):
            action = int(rng.integers(env.action_space.n))
        else:
            action = rng.uniform(env.action_space.low, env.action_space.high).astype(np.float32)
        obs, reward, terminated, truncated, info = env.step(action)
        episode = info.get("episode", {})
        happened.append((np.array(obs), reward, terminated, truncated, episode.get("r"), episode.get("l")))
        if terminated or truncated:
            happened.append((np.array(env.reset()[0]),))
    return happened


def _assert_same(first: list, second: list) -> None:
    assert len(first) == len(second)
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a[0], b[0])
        assert a[1:] == b[1:]


# By day from a later episode, whose randomness was not seeded.
@pytest.mark.parametrize("seeded", mostly_at_night([True, False], False), ids=["reset with a seed", "reset without"])
@pytest.mark.parametrize("env_id", JOURNALS)
def test_a_restored_copy_goes_on_exactly_for_several_episodes(env_id: str, seeded: bool) -> None:
    env = make(env_id, seed=None if seeded else 7, **JOURNALS[env_id])
    env.reset(seed=7 if seeded else None)
    if not seeded:
        _play(
            env, 20 if env_id.startswith("highway") else 90, np.random.default_rng(0)
        )  # into a later episode, whose randomness was not seeded
        env.reset()
    for _ in range(3):
        env.step(np.zeros(env.action_space.shape, dtype=env.action_space.dtype)[()])
    saved = json.loads(json.dumps(env.get_wrapper_attr("snapshot")()))
    steps = 40 if env_id.startswith("highway") else 300
    expected = _play(env, steps, np.random.default_rng(1))
    assert sum(len(row) == 1 for row in expected) >= 3  # several episodes ended

    copy = make(env_id, **JOURNALS[env_id])
    copy.get_wrapper_attr("restore")(saved)
    _assert_same(_play(copy, steps, np.random.default_rng(1)), expected)


def test_restore_returns_the_observation_of_the_snapshot_and_can_be_saved_again() -> None:
    env = make("Pendulum-v1", seed=3)
    env.reset()
    for torque in (0.3, -1.7, 2.0):
        obs, *_ = env.step(np.array([torque], dtype=np.float32))
    saved = env.get_wrapper_attr("snapshot")()
    copy = make("Pendulum-v1")
    restored, _ = copy.get_wrapper_attr("restore")(saved)
    np.testing.assert_array_equal(restored, obs)
    assert copy.get_wrapper_attr("snapshot")() == saved


def test_a_finished_episode_restores_as_finished() -> None:
    env = make("lodestar/ProbeJoint-v0", seed=3)
    first, _ = env.reset()
    *_, info = env.step(1)
    copy = make("lodestar/ProbeJoint-v0")
    obs, restored = copy.get_wrapper_attr("restore")(env.get_wrapper_attr("snapshot")())
    np.testing.assert_array_equal(obs, first)
    assert restored["episode"]["r"] == info["episode"]["r"]
    np.testing.assert_array_equal(copy.reset()[0], env.reset()[0])


def test_the_journal_copies_actions_that_the_agent_overwrites() -> None:
    env = make("Pendulum-v1", seed=3)
    env.reset()
    buffer = np.zeros(1, dtype=np.float32)
    for torque in (1.0, -1.0):
        buffer[0] = torque
        obs, *_ = env.step(buffer)
    restored, _ = make("Pendulum-v1").get_wrapper_attr("restore")(env.get_wrapper_attr("snapshot")())
    np.testing.assert_array_equal(restored, obs)


def test_composite_actions_go_through_json() -> None:
    class Two(gym.Env):
        observation_space = spaces.Box(-1, 1, (1,), np.float32)
        action_space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (2,), np.float32)})

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.x = self.np_random.uniform(-1, 1)
            return np.array([self.x], np.float32), {}

        def step(self, action):
            self.x = float(np.clip(0.5 * self.x + action["a"] * action["b"].sum() / 9, -1, 1))
            return np.array([self.x], np.float32), 0.0, False, False, {}

    env, copy = Journal(Two()), Journal(Two())
    env.reset(seed=1)
    env.action_space.seed(0)
    for _ in range(5):
        obs, *_ = env.step(env.action_space.sample())
    restored, _ = copy.restore(json.loads(json.dumps(env.snapshot())))
    np.testing.assert_allclose(restored, obs, atol=1e-7)


@pytest.mark.filterwarnings("ignore:.*already returned terminated")
def test_a_journal_without_an_episode_and_one_from_elsewhere_are_refused() -> None:
    env = make("CartPole-v1")
    with pytest.raises(RuntimeError, match=r"there is no episode to take a snapshot of; call reset\(\) first"):
        env.get_wrapper_attr("snapshot")()
    env.reset(seed=0)
    for _ in range(20):
        env.step(1)  # on beyond the fall, as no agent would
    with pytest.raises(ValueError, match=r"the recorded episode has 20 steps but ended after .* in another env"):
        env.get_wrapper_attr("restore")(env.get_wrapper_attr("snapshot")())


def test_the_observer_shows_every_state_and_survives_a_restore() -> None:
    env = make("MiniGrid-DoorKey-5x5-v0", frame_size=48, text=True, seed=2)
    _, info = env.reset()
    assert info["text"] == "mission: use the key to open the door and then get to the goal"
    first = info["frame"]
    assert first.shape == (48, 48, 3) and first.dtype == np.uint8
    *_, info = env.step(0)
    assert info["text"] == "" and (info["frame"] != first).any()
    _stand_before_the_key(env)
    # A restore cannot know that we moved the agent by hand, so the event is one it must be told.
    *_, info = env.step(env.unwrapped.actions.pickup)
    assert info["text"] == "picked up the yellow key"
    copy = make("MiniGrid-DoorKey-5x5-v0", frame_size=48, text=True)
    _, restored = copy.restore(env.snapshot())
    assert restored["text"] == "picked up the yellow key" and restored["frame"].shape == (48, 48, 3)


def _stand_before_the_key(env: gym.Env) -> None:
    inner = env.unwrapped
    x, y = next((i % 5, i // 5) for i, thing in enumerate(inner.grid.grid) if thing is not None and thing.type == "key")
    for direction, (dx, dy) in enumerate([(1, 0), (0, 1), (-1, 0), (0, -1)]):
        if inner.grid.get(x - dx, y - dy) is None:
            inner.agent_pos, inner.agent_dir = (x - dx, y - dy), direction
            return


def test_observations_become_flat_float32_and_channel_first() -> None:
    space = spaces.Dict(
        {
            "table": spaces.Box(-2.0, 3.0, (2, 3), np.float64),
            "image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
            "pair": spaces.Tuple((spaces.Discrete(3), spaces.Box(0.0, 1.0, (2,), np.float32))),
            "kind": spaces.Discrete(4),
        }
    )
    plain = plain_space(space)
    assert plain["table"] == spaces.Box(-2.0, 3.0, (6,), np.float32)
    assert plain["image"] == spaces.Box(0, 255, (3, 4, 5), np.uint8)
    assert plain["pair"].shape == (5,) and plain["pair"].dtype == np.float32
    assert plain["kind"] == spaces.Discrete(4)

    class Shown(gym.Env):
        observation_space, action_space = space, spaces.Discrete(1)

    wrapped = PlainObservation(Shown())
    image = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    pair = (2, np.array([0.25, 0.5], np.float32))
    obs = wrapped.observation({"table": np.arange(6.0).reshape(2, 3) / 2, "image": image, "pair": pair, "kind": 1})
    assert obs in plain
    np.testing.assert_array_equal(obs["table"], np.float32([0, 0.5, 1, 1.5, 2, 2.5]))
    np.testing.assert_array_equal(obs["image"][2], image[:, :, 2])
    np.testing.assert_array_equal(obs["pair"], np.float32([0, 0, 1, 0.25, 0.5]))


def test_an_environment_that_suits_already_gets_no_adapter() -> None:
    env = make("CartPole-v1")
    while env is not env.unwrapped:
        assert not isinstance(env, PlainObservation)
        env = env.env
