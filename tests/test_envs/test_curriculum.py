"""Episodes begin where returns differ most, in states of the agent's own; a seed fixes them, a run keeps them."""

import json

import numpy as np
import pytest

from envs.make import make, make_vec
from envs.snapshots import curriculum
from envs.snapshots.curriculum import Branches, StartCurriculum, add_starts, chances
from envs.snapshots.s3rl import SnapshotReset, record
from runners.train import main


def play(env, steps, seed=0):
    """Play random actions; returns every first observation, and every observation with its reward."""
    rng, firsts, seen = np.random.default_rng(seed), [], []
    obs, _ = env.reset()
    firsts.append(obs)
    for _ in range(steps):
        obs, reward, terminated, truncated, info = env.step(int(rng.integers(2)))
        seen.append((*obs, reward, info.get("episode", {}).get("r", 0.0)))
        if terminated or truncated:
            obs, _ = env.reset()
            firsts.append(obs)
    return np.array(firsts), np.array(seen)


def test_starts_are_chosen_by_how_much_their_returns_differ():
    np.testing.assert_allclose(chances([[0, 1], [1, 1], [0, 0], [1]]), [0.475, 0.025, 0.025, 0.475])
    np.testing.assert_allclose(chances([[0, 0], [3, 3], [1, 1]]), [1 / 3] * 3)  # nothing differs
    np.testing.assert_allclose(chances([[5]]), [1])


def test_an_episode_leaves_one_of_its_states_with_the_return_that_followed():
    env = StartCurriculum(make("CartPole-v1", seed=1))
    env.reset()
    visited, ended = [], False
    while not ended:
        visited.append(env.step(1)[0])
        ended = len(env._pool) > 0 or len(visited) > 50
    [kept] = env._pool
    age = int(np.flatnonzero((np.array(visited) == kept["obs"]).all(axis=1))[0]) + 1
    assert kept["returns"] == [len(visited) - age] and 0 < age < len(visited)


def test_an_episode_that_is_cut_short_leaves_no_state_to_the_next():
    env = StartCurriculum(make("CartPole-v1", seed=1))
    env.reset()
    env.step(1)
    assert env._found is not None
    env.reset()
    assert env._found is None and not env._pool


def test_half_of_the_episodes_begin_in_kept_states_and_their_returns_are_remembered(monkeypatch):
    monkeypatch.setattr(curriculum, "MAX_POOL_STATES", 5)
    env = StartCurriculum(make("CartPole-v1", seed=0))
    firsts, _ = play(env, 4000)
    fresh = (np.abs(firsts) <= 0.05).all(axis=1)  # where CartPole itself begins
    assert 0.4 < fresh.mean() < 0.75 and len(env._pool) == 5
    assert 3 <= max(len(one["returns"]) for one in env._pool) <= curriculum.MEMORY


def test_a_file_of_snapshots_may_say_how_it_is_drawn_from(tmp_path):
    record(make("CartPole-v1", seed=0), lambda obs: 1, episodes=2, seed=0).save(tmp_path / "seen")
    env = add_starts(make("CartPole-v1", seed=0), f"{tmp_path / 'seen'}:clusters=2:until=9")
    assert (env.until, env.truncate, len(env._clusters)) == (9, 100, 2)
    with pytest.raises(ValueError, match="seen:cluster=2 is unknown; give clusters=, until= or truncate="):
        add_starts(make("CartPole-v1", seed=0), f"{tmp_path / 'seen'}:cluster=2")


def test_branches_begin_twice_in_a_row_in_a_kept_state():
    env = add_starts(make("CartPole-v1", seed=0), "branches")
    firsts, _ = play(env, 1000)
    fresh = (np.abs(firsts) <= 0.05).all(axis=1)
    # Before each start of CartPole's own there are whole pairs; the last one may be cut off.
    kept = firsts[~fresh]
    assert len(kept) > 10
    pairs = len(kept) // 2
    np.testing.assert_array_equal(kept[0 : 2 * pairs : 2], kept[1 : 2 * pairs : 2])


def test_branches_are_restored_between_two_of_a_pair():
    env = Branches(make("CartPole-v1", seed=3))
    play(env, 300)
    while env._twin_start is None:
        env.reset()
    copy = Branches(make("CartPole-v1", seed=9))
    copy.restore(json.loads(json.dumps(env.snapshot())))
    np.testing.assert_array_equal(copy.reset()[0], env.reset()[0])


@pytest.mark.parametrize("by", curriculum.BY)
def test_a_curriculum_is_restored_exactly(by):
    env = StartCurriculum(make("CartPole-v1", seed=3), by)
    play(env, 300)
    saved = json.loads(json.dumps(env.get_wrapper_attr("snapshot")()))
    expected, _ = play(env, 200, seed=2)
    copy = StartCurriculum(make("CartPole-v1", seed=9), by)
    copy.restore(saved)
    np.testing.assert_array_equal(play(copy, 200, seed=2)[0], expected)


def test_the_state_whose_returns_tell_least_makes_room(monkeypatch):
    monkeypatch.setattr(curriculum, "MAX_POOL_STATES", 3)
    monkeypatch.setattr(curriculum, "LEAVES", 1.0)
    env = StartCurriculum(make("CartPole-v1", seed=0))
    env.reset()
    env._pool = [{"state": {}, "obs": np.zeros(4), "returns": each} for each in ([0, 4], [2, 2], [1])]
    env._found, env._return = {"state": {}, "obs": np.ones(4), "before": 2.0}, 9.0
    env._update_pool()
    assert [one["returns"] for one in env._pool] == [[0, 4], [1], [7.0]]


def test_what_cannot_be_a_start_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"starts=varience is no file .*; give variance, .*, or a file of snapshots"):
        make("CartPole-v1", starts="varience")
    with pytest.raises(ValueError, match="starts='variance' is not supported by the array program of CartPole-v1"):
        make_vec("CartPole-v1", 2, backend="batched", starts="variance")
    with pytest.raises(ValueError, match="has no state that can be taken"):
        make("lodestar/ProbeJoint-v0", starts="uniform")


def test_a_teachers_file_is_s3rl(tmp_path):
    record(make("CartPole-v1"), lambda obs: 1, episodes=2, seed=0).save(tmp_path / "teacher.safetensors")
    env = make("CartPole-v1", starts=str(tmp_path / "teacher.safetensors"), text=True)
    assert isinstance(env.env, SnapshotReset) and "cart" in env.reset(seed=0)[1]["text"]


def test_a_run_trains_with_a_curriculum_and_is_evaluated_without(tmp_path):
    run = [f"run_dir={tmp_path / 'run'}", "env=CartPole-v1", "reward=task", "starts=variance", "n_envs=2"]
    small = ["total_timesteps=256", "agent.n_steps=64", "agent.batch_size=64", "eval_episodes=2", "video=false"]
    assert main([*run, *small, "logger=[]"]) == 0
    assert "starts: variance" in (tmp_path / "run" / "config.yaml").read_text()
