"""Environments side by side give what Gymnasium's vector gives, in arrays that are kept."""

import copy
import functools
import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import rewards
from agents.sb3.agent import make_venv
from envs.make import make, make_vec
from envs.steps import Cursor, from_vector_step, modalities_of
from envs.transitions import map_obs
from envs.vector.in_process import InProcess, SharedBuffers, Stepper
from envs.vector.workers import Workers
from rewards.adapters.gym import VectorRewardWrapper

WORLDS = {
    "CartPole-v1": {},
    "Pendulum-v1": {"max_episode_steps": 60},
    "MiniGrid-DoorKey-5x5-v0": {"max_episode_steps": 50},
    "NetHackScore-v0": {"max_episode_steps": 40, "adapt": False},  # a Dict of arrays
}


def _makers(env_id: str, n: int, seed: int = 0, **kwargs) -> list:
    return [functools.partial(make, env_id, seed=seed + i, **kwargs) for i in range(n)]


def _copying(maker) -> gym.Env:
    """NLE writes every observation into the same memory, and Gymnasium's vector hands out a reset as `final_obs`."""
    return gym.wrappers.TransformObservation(maker(), copy.deepcopy, None)


def _actions(space: gym.Space, steps: int, n: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.n, size=(steps, n))
    return rng.uniform(space.low, space.high, size=(steps, n, *space.shape)).astype(np.float32)


def _assert_equal(a, b) -> None:
    assert isinstance(a, dict) == isinstance(b, dict)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            _assert_equal(a[key], b[key])
    else:
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("env_id", WORLDS)
def test_every_step_is_that_of_gymnasiums_vector(env_id: str) -> None:
    ours = InProcess(_makers(env_id, 3, **WORLDS[env_id]))
    makers = [functools.partial(_copying, maker) for maker in _makers(env_id, 3, **WORLDS[env_id])]
    theirs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.action_space == theirs.action_space and ours.spec.id == env_id
    _assert_equal(ours.reset()[0], theirs.reset()[0])
    ends = 0
    # Four episodes of the longest in each environment.
    steps = 170 if "NetHack" in env_id else 250
    for actions in _actions(ours.single_action_space, steps, 3):
        obs, reward, terminated, truncated, infos = ours.step(actions)
        expected = theirs.step(actions)
        _assert_equal(obs, dict(expected[0]) if isinstance(expected[0], dict) else expected[0])
        assert reward.dtype == np.float32 and terminated.dtype == truncated.dtype == bool
        np.testing.assert_array_equal(reward, np.float32(expected[1]))
        np.testing.assert_array_equal(terminated, expected[2])
        np.testing.assert_array_equal(truncated, expected[3])
        ended = terminated | truncated
        if not ended.any():
            assert infos == {}
            continue
        np.testing.assert_array_equal(infos["_final_obs"], ended)
        final = infos["final_info"]
        assert ("is_success" in final) == ("is_success" in expected[4]["final_info"])
        for i in np.flatnonzero(ended):
            ends += 1
            _assert_equal(map_obs(lambda x, i=i: x[i], infos["final_obs"]), expected[4]["final_obs"][i])
            for key in ("r", "l"):
                assert final["episode"][key][i] == expected[4]["final_info"]["episode"][key][i]
            if "is_success" in final:
                assert final["is_success"][i] == expected[4]["final_info"]["is_success"][i]
    assert ends >= 12
    ours.close()
    theirs.close()


def test_arrays_are_kept_from_step_to_step() -> None:
    vec = InProcess(_makers("CartPole-v1", 2))
    first, _ = vec.reset()
    second, *_ = vec.step(np.array([0, 1]))
    assert second is first and second.shape == (2, 4)


def test_environments_get_numbers_as_pythons_own_and_arrays_that_nobody_overwrites() -> None:
    class Keeper(gym.Env):
        observation_space = spaces.Box(-1, 1, (1,), np.float32)

        def __init__(self, space: gym.Space) -> None:
            self.action_space, self.kept = space, []

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.kept.append(action)
            return np.zeros(1, np.float32), 0.0, False, False, {}

    vec = InProcess([lambda: Keeper(spaces.Discrete(3))])
    vec.step(np.array([2]))
    assert vec.envs[0].kept == [2] and type(vec.envs[0].kept[0]) is int
    vec = InProcess([lambda: Keeper(spaces.Box(-1, 1, (1,), np.float32))])
    for force in (0.5, -0.5):
        vec.step(np.array([[force]], np.float32))
    assert [float(action[0]) for action in vec.envs[0].kept] == [0.5, -0.5]


def test_seeds_are_one_number_or_one_each_and_a_mask_resets_only_its_rows() -> None:
    vec = InProcess(_makers("CartPole-v1", 3))
    counted = vec.reset(seed=5)[0].copy()
    np.testing.assert_array_equal(vec.reset(seed=[5, 6, 7])[0], counted)
    np.testing.assert_array_equal(counted[1], make("CartPole-v1").reset(seed=6)[0])
    stepped = vec.step(np.array([1, 1, 1]))[0].copy()
    options = {"reset_mask": np.array([False, True, False])}
    obs, _ = vec.reset(seed=5, options=options)
    np.testing.assert_array_equal(obs, [stepped[0], counted[1], stepped[2]])
    assert options["reset_mask"].sum() == 1  # the caller's dict stays whole


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "MiniGrid-DoorKey-5x5-v0"])
def test_a_restored_vector_goes_on_exactly(env_id: str) -> None:
    vec = InProcess(_makers(env_id, 3, **WORLDS[env_id]))
    vec.reset()
    script = _actions(vec.single_action_space, 300, 3)
    for actions in script[:73]:
        obs, *_ = vec.step(actions)
    before = obs.copy()
    saved = json.loads(json.dumps(vec.snapshot()))
    fresh = InProcess(_makers(env_id, 3, seed=99, **WORLDS[env_id]))
    np.testing.assert_array_equal(fresh.restore(saved), before)
    for actions in script[73:]:
        for mine, yours in zip(fresh.step(actions)[:4], vec.step(actions)[:4]):
            np.testing.assert_array_equal(mine, yours)
    with pytest.raises(ValueError, match="the snapshot is of 3 environments, not of 2"):
        InProcess(_makers(env_id, 2)).restore(saved)


def test_transitions_frames_and_texts_are_those_of_gymnasiums_vector() -> None:
    options = {"frame_size": 16, "text": True, "max_episode_steps": 12}
    vectors = [make_vec("MiniGrid-DoorKey-5x5-v0", 2, seed=3, backend=name, **options) for name in ("gym", "sync")]
    cursors, obs = [Cursor(2), Cursor(2)], []
    for vec, cursor in zip(vectors, cursors):
        first, infos = vec.reset()
        cursor.begin(modalities_of(infos))
        obs.append(first.copy())
    for actions in _actions(vectors[0].single_action_space, 40, 2):
        batches = []
        for i, (vec, cursor) in enumerate(zip(vectors, cursors)):
            after, reward, *rest = vec.step(actions)
            batches.append(from_vector_step(cursor, AutoresetMode.SAME_STEP, obs[i], actions, reward, after, *rest))
            obs[i] = after.copy()
        for name in ("obs", "next_obs", "reward", "truncated", "step", "frame", "obs_frame", "text", "obs_text"):
            np.testing.assert_array_equal(getattr(batches[0], name), getattr(batches[1], name), err_msg=name)


def test_the_vector_reward_wrapper_pays_the_same_as_around_gymnasiums_vector() -> None:
    paid = []
    for backend in ("gym", "sync"):
        vec = make_vec("CartPole-v1", 3, seed=1, backend=backend)
        mix = rewards.make(["task", "count"], vec.single_observation_space, vec.single_action_space)
        env = VectorRewardWrapper(vec, mix, update_every=30)
        env.reset()
        paid.append([env.step(actions)[1] for actions in _actions(vec.single_action_space, 120, 3)])
    np.testing.assert_array_equal(paid[0], paid[1])


def test_send_and_recv_are_step_in_two_halves() -> None:
    one, two = (InProcess(_makers("CartPole-v1", 2)) for _ in range(2))
    one.reset()
    two.reset()
    assert one.groups == (slice(0, 2),)
    one.send(np.array([0, 1]))
    _assert_equal(one.recv()[0], two.step(np.array([0, 1]))[0])


def test_what_makes_no_sense_is_refused_with_a_sentence() -> None:
    vec = InProcess(_makers("CartPole-v1", 2))
    vec.reset()
    with pytest.raises(ValueError, match=r"actions of shape \(3,\) do not fit; give \(2,\)"):
        vec.step(np.zeros(3, int))
    with pytest.raises(ValueError, match=r"3 seeds and a reset_mask of shape \(2,\) do not fit 2 environments"):
        vec.reset(seed=[1, 2, 3])
    with pytest.raises(RuntimeError, match=r"recv\(0\) has nothing to wait for: none has been sent"):
        vec.recv()
    vec.send(np.zeros(2, int))
    with pytest.raises(RuntimeError, match=r"group 0 has its actions already; call recv\(0\) first"):
        vec.send(np.zeros(2, int))
    with pytest.raises(RuntimeError, match=r"group 0 is stepping; call recv\(0\) before reset\(\)"):
        vec.reset()
    vec.close()
    vec.close()
    with pytest.raises(RuntimeError, match="these environments are closed; make new ones"):
        vec.step(np.zeros(2, int))
    with pytest.raises(ValueError, match='does not fit into an array; adapt the environment, or use backend="sync"'):
        InProcess(_makers("MiniGrid-DoorKey-5x5-v0", 1, adapt=False))


@pytest.mark.parametrize("build", [InProcess, functools.partial(Workers, processes=2)])
def test_environments_with_other_spaces_make_no_vector(build) -> None:
    makers = [functools.partial(make, f"FrozenLake{size}-v1") for size in ("", "8x8")]
    sentence = r"environment 1 has the observation space Discrete\(64\), the first one Discrete\(16\)"
    with pytest.raises((ValueError, RuntimeError), match=sentence):
        build(makers)


class Counted(gym.Env):
    """Knows which of it are open; the second one cannot be made."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    made, open = 0, 0

    def __init__(self, good: int = 1, words: bool = False) -> None:
        if words:
            self.observation_space = spaces.Text(3)
        if Counted.made == good:
            raise RuntimeError("the licence server says no")
        Counted.made += 1
        Counted.open += 1

    def close(self) -> None:
        Counted.open -= 1


gym.register("test/Counted-v0", Counted)


@pytest.mark.parametrize(
    ("build", "options", "sentence"),
    [
        (functools.partial(make_vec, backend="gym"), {}, "the licence server says no"),
        (functools.partial(make_vec, backend="sync"), {}, "the licence server says no"),
        (functools.partial(make_venv, seed=0), {}, "the licence server says no"),
        (functools.partial(make_vec, backend="gym"), {"good": 9, "words": True}, "does not fit into an array"),
        (functools.partial(make_vec, backend="workers"), {"good": 9, "words": True}, "does not fit into an array"),
        (lambda env_id, n, **wrong: make(env_id, **wrong), {"sticky": 2}, "sticky=2"),
    ],
)
def test_no_environment_stays_open_when_not_all_can_be_made(build, options: dict, sentence: str) -> None:
    Counted.made = Counted.open = 0
    with pytest.raises((RuntimeError, ValueError), match=sentence):
        build("test/Counted-v0", 3, **options)
    assert Counted.made >= 1 and Counted.open == 0


def test_the_step_after_a_loss_ends_the_lost_episode_and_begins_another() -> None:
    envs = dict(enumerate(make() for make in _makers("CartPole-v1", 2)))
    slots = SharedBuffers.like(envs[0], 2, np.zeros)
    stepper = Stepper(envs, slots, (slice(0, 2),), lost={1: 7})
    stepper.reset(0, 3, None)
    slots.obs[1], slots.reward[:], slots.success[:] = 9.0, 5.0, 2
    assert stepper.call(1, "snapshot", (), {}) == {"lost": 7} and "lost" not in stepper.call(0, "snapshot", (), {})
    first = make("CartPole-v1", seed=0).reset(seed=7)[0]
    assert stepper.step(0)
    assert slots.lost.tolist() == slots.truncated.tolist() == [False, True] and not slots.terminated.any()
    assert slots.reward.tolist() == [1, 0] and slots.success.tolist() == [2, 0] and (slots.final_obs[1] == 9).all()
    np.testing.assert_array_equal(slots.obs[1], first)
    assert not stepper.step(0)
    assert not slots.lost.any() and not slots.truncated.any() and slots.reward.tolist() == [1, 1]
    assert slots.turn.tolist() == [-1, 0]
    assert stepper.restore(1, {"lost": 8}) is None and stepper.call(1, "snapshot", (), {}) == {"lost": 8}
    stepper.reset(1, 3, None)
    np.testing.assert_array_equal(slots.obs[1], make("CartPole-v1", seed=0).reset(seed=3)[0])
    assert not stepper.step(0) and not slots.lost.any()


def test_closing_a_vector_closes_its_environments() -> None:
    Counted.made = Counted.open = 0
    vec = make_vec("test/Counted-v0", 3, backend="gym", good=9)
    assert Counted.open == 3
    vec.close()
    assert Counted.open == 0


def test_a_wrapper_is_found_around_each_environment() -> None:
    stepper = InProcess(_makers("CartPole-v1", 1))._stepper
    kinds = (gym.wrappers.TimeLimit, gym.Wrapper, gym.wrappers.ClipAction, gym.Env)
    assert [stepper.has_wrapper(0, kind) for kind in kinds] == [True, True, False, True]


def test_methods_and_attributes_are_called_in_every_environment() -> None:
    vec = InProcess(_makers("CartPole-v1", 2))
    assert vec.get_attr("gravity") == (9.8, 9.8)
    assert [type(state) for state in vec.call("has_wrapper_attr", "gravity")] == [bool, bool]


def test_backends_refuse_what_they_cannot_do() -> None:
    with pytest.raises(ValueError, match=r'backend="gym" resets in SAME_STEP mode, not .*NEXT_STEP'):
        make_vec("CartPole-v1", 1, backend="gym", autoreset_mode=AutoresetMode.NEXT_STEP)
    with pytest.raises(ValueError, match='processes=2 is for backend="workers", not "sync"; leave it out'):
        make_vec("CartPole-v1", 1, processes=2)
    with pytest.raises(ValueError, match=r'frame_size=32 is not supported by .* backend="gym"'):
        make_vec("MiniGrid-Empty-8x8-v0", 1, backend="batched", frame_size=32)


def test_auto_takes_the_array_program_where_it_answers_everything() -> None:
    assert type(make_vec("NetHackGold-v0", 1, backend="auto")) is InProcess
    assert type(make_vec("MiniGrid-Empty-8x8-v0", 1, backend="auto", frame_size=32)) is InProcess
    assert type(make_vec("CartPole-v1", 1, backend="auto", sutton_barto_reward=True)) is InProcess
    assert type(make_vec("CartPole-v1", 1, backend="auto", autoreset_mode=AutoresetMode.DISABLED)) is SyncVectorEnv
    batched = make_vec("CartPole-v1", 5, backend="auto", frame_size=None, text=False)
    assert not isinstance(batched, InProcess | SyncVectorEnv) and batched.num_envs == 5
