"""Sticky actions and the noisy television: what they change, what they leave alone, and that they can be repeated."""

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from envs.make import make, make_vec
from envs.vector.in_process import InProcess
from envs.wrappers import EpisodicReward, NoisyTV, disturb


class World(gym.Env):
    """Shows an observation of a given space and remembers which actions reached it."""

    def __init__(self, modalities, actions=None):
        self.modalities, self.actions = modalities, []
        self.observation_space = (
            modalities if isinstance(modalities, spaces.Space) else spaces.Box(0.0, 1.0, (3,), np.float32)
        )
        self.action_space = actions or spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.actions = []
        return self._zeros(self.observation_space), {}

    def step(self, action):
        self.actions.append(action)
        return self._zeros(self.observation_space), 1.0, False, False, {}

    def _zeros(self, space):
        if isinstance(space, spaces.Dict):
            return {key: self._zeros(part) for key, part in space.spaces.items()}
        return np.zeros(space.shape, space.dtype)


FLAT = spaces.Box(0.0, 1.0, (3,), np.float32)


def test_sticky_actions_repeat_the_one_before_as_often_as_asked_and_never_at_first() -> None:
    world = World(FLAT)
    env = disturb(world, sticky=0.25)
    env.reset(seed=0)
    given = [i % 4 for i in range(4000)]  # never the same twice running, so each repeat can be seen
    for action in given:
        env.step(action)
    repeated = np.array(world.actions) != np.array(given)
    executed = np.array(world.actions)
    assert (executed[1:][repeated[1:]] == executed[:-1][repeated[1:]]).all()
    # The action executed before equals the one given now once in a while: after three repeats in a row.
    assert 0.24 < repeated.mean() + 0.25**4 < 0.27
    for seed in range(20):
        env.reset(seed=seed)
        env.step(3)
        assert world.actions == [3]


def test_no_stickiness_changes_nothing() -> None:
    world = World(FLAT)
    assert disturb(world) is world
    env = disturb(world, sticky=0.0)
    env.reset(seed=0)
    for action in range(4):
        env.step(action)
    assert world.actions == [0, 1, 2, 3]


def test_a_flat_television_appends_uniform_noise_that_is_always_fresh() -> None:
    env = NoisyTV(World(FLAT), size=5)
    assert env.observation_space == spaces.Box(0.0, 1.0, (8,), np.float32)
    seen = [env.reset(seed=0)[0], *(env.step(0)[0] for _ in range(2000))]
    assert all(obs in env.observation_space for obs in seen)
    noise = np.stack(seen)[:, 3:]
    assert (np.stack(seen)[:, :3] == 0).all()
    assert len(np.unique(noise[:, 0])) > 1900
    np.testing.assert_allclose(noise.mean(0), 0.5, atol=0.03)  # 4 standard errors of 0.0065
    np.testing.assert_allclose(noise.std(0), np.sqrt(1 / 12), atol=0.02)
    assert abs(np.corrcoef(noise[1:, 0], noise[:-1, 0])[0, 1]) < 0.1


@pytest.mark.parametrize(("shape", "patch"), [((3, 8, 9), np.s_[:, -4:, -4:]), ((8, 9, 3), np.s_[-4:, -4:])])
def test_the_television_of_an_image_is_its_lower_right_corner(shape, patch) -> None:
    env = NoisyTV(World(spaces.Box(0, 255, shape, np.uint8)), size=4)
    assert env.observation_space == spaces.Box(0, 255, shape, np.uint8)
    obs, _ = env.reset(seed=0)
    first = obs.copy()
    again, *_ = env.step(0)
    np.testing.assert_array_equal(obs, first)  # an observation that was given out stays
    for image in (first, again):
        assert image[patch].size == 48 and len(np.unique(image[patch])) > 30
        image[patch] = 0
        assert (image == 0).all()


def test_a_dict_gets_an_entry_of_its_own() -> None:
    env = NoisyTV(World(spaces.Dict({"a": FLAT})), size=2)
    obs, _ = env.reset(seed=0)
    assert obs in env.observation_space
    assert obs["tv"].shape == (2,) and (obs["tv"] > 0).all() and (obs["a"] == 0).all()
    assert not np.shares_memory(obs["tv"], env.screen)


def test_on_demand_there_is_noise_only_after_the_action_that_watches() -> None:
    world = World(FLAT, spaces.Discrete(4, start=1))
    env = NoisyTV(world, mode="on_demand", size=2)
    assert env.action_space == spaces.Discrete(5, start=1)
    assert (env.reset(seed=0)[0] == 0).all()
    modalities = [env.step(action)[0][3:] for action in (1, 5, 5, 4)]
    assert [bool((tv > 0).all()) for tv in modalities] == [False, True, True, False]
    assert (modalities[0] == 0).all() and (modalities[3] == 0).all() and (modalities[1] != modalities[2]).all()
    assert world.actions == [1, 1, 1, 4]  # to the world, watching is the first action


def test_the_button_of_the_television_never_sticks() -> None:
    env = disturb(World(FLAT), sticky=0.9, noisy_tv="on_demand")
    env.reset(seed=0)
    given = [4, 0, 1, 4, 2] * 20
    assert [bool(env.step(action)[0][3] > 0) for action in given] == [action == 4 for action in given]


def test_what_is_out_of_range_is_refused_in_a_sentence() -> None:
    flat, image = World(FLAT), World(spaces.Box(0, 255, (3, 8, 9), np.uint8))
    for make_it, message in [
        (lambda: disturb(flat, sticky=1.0), r"sticky=1.0 is out of range; give a probability of 0 or more and less"),
        (lambda: disturb(flat, noisy_tv="loud"), r"noisy_tv='loud' is unknown; give \"always\" or \"on_demand\""),
        (lambda: NoisyTV(flat, size=0), r"size=0 is too small for a television; give at least 1"),
        (lambda: NoisyTV(image, size=9), r"size=9 does not fit into pictures of 8 x 9; give 8"),
        (lambda: NoisyTV(World(FLAT, FLAT), mode="on_demand"), r"needs Discrete actions, not Box.*; use \"always\""),
        (lambda: NoisyTV(World(spaces.MultiBinary(3))), r"does not suit MultiBinary\(3\); it needs flat float"),
    ]:
        with pytest.raises(ValueError, match=message):
            make_it()


DISTURBED = {
    "CartPole-v1": {"sticky": 0.25, "noisy_tv": "on_demand"},
    "Pendulum-v1": {"sticky": 0.25, "noisy_tv": "always", "max_episode_steps": 50},
    "MiniGrid-DoorKey-5x5-v0": {"sticky": 0.25, "noisy_tv": "on_demand", "max_episode_steps": 60},
    "HalfCheetah-v5": {"sticky": 0.25, "noisy_tv": "always", "max_episode_steps": 70},
    "lodestar/MountainCarGoal-v0": {"noisy_tv": "on_demand"},
}


@pytest.mark.parametrize("env_id", DISTURBED)
def test_a_disturbed_environment_is_rebuilt_from_its_spec_and_restored_exactly(env_id: str) -> None:
    env = make(env_id, seed=5, **DISTURBED[env_id])
    env.reset()
    actions = np.random.default_rng(0)

    def play(env, steps, rng):
        seen = []
        for _ in range(steps):
            space = env.action_space
            action = rng.integers(space.n) if isinstance(space, spaces.Discrete) else rng.uniform(-1, 1, space.shape)
            obs, reward, terminated, truncated, _ = env.step(action if action.ndim == 0 else action.astype(np.float32))
            seen.append((*obs, reward, terminated, truncated))
            if terminated or truncated:
                seen.append((*env.reset()[0], 0, 0, 0))
        return np.array(seen)

    play(env, 130, actions)
    saved = json.loads(json.dumps(env.get_wrapper_attr("snapshot")()))
    copy = gym.make(env.spec)
    assert str(copy) == str(env)
    copy.get_wrapper_attr("restore")(saved)
    np.testing.assert_array_equal(play(copy, 130, np.random.default_rng(1)), play(env, 130, np.random.default_rng(1)))


def test_disturbances_keep_an_environment_away_from_the_array_programs() -> None:
    for options in ({"sticky": 0.25}, {"noisy_tv": "always"}):
        env = make_vec("CartPole-v1", 2, backend="auto", **options)
        assert isinstance(env, InProcess)
        env.close()
        with pytest.raises(ValueError, match=r"is not supported by the array program .* backend=\"gym\""):
            make_vec("CartPole-v1", 2, backend="batched", **options)
    env = make_vec("CartPole-v1", 2, backend="gym", noisy_tv="on_demand")
    obs, _ = env.reset(seed=0)
    assert obs.shape == (2, 20) and (obs[:, 4:] == 0).all()
    obs, *_ = env.step(np.array([2, 1]))
    assert (obs[0, 4:] > 0).all() and (obs[1, 4:] == 0).all()
    env.close()


def test_an_episodic_reward_is_the_sum_of_the_episode_at_its_last_step_and_the_task_return_stays() -> None:
    env = EpisodicReward(make("Pendulum-v1", max_episode_steps=5))
    plain = make("Pendulum-v1", max_episode_steps=5)
    for seed in range(2):  # the second episode owes nothing of the first
        env.reset(seed=seed)
        plain.reset(seed=seed)
        steps = [(env.step(np.ones(1, np.float32)), plain.step(np.ones(1, np.float32))) for _ in range(5)]
        assert [late[1] for late, _ in steps[:4]] == [0.0] * 4
        total = sum(float(soon[1]) for _, soon in steps)
        assert steps[4][0][1] == pytest.approx(total)
        assert steps[4][0][4]["episode"]["r"] == pytest.approx(total, abs=1e-4)
