"""Recordings: what is written comes back to the last bit, and an episode is told from the next."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from safetensors.numpy import safe_open, save_file

from envs import recording
from envs.make import make, make_vec
from envs.transitions import Transitions


class Counter(gym.Env):
    """Counts its steps; an episode ends at the third, and all that is shown is the count."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.seen()

    def seen(self):
        frame = np.full((2, 2, 3), self.count, np.uint8)
        info = {"frame": frame, "text": f"at {self.count}", "signals": np.array([self.count / 2], np.float32)}
        return np.array([self.count], np.float32), info

    def step(self, action):
        self.count += 1
        obs, info = self.seen()
        return obs, float(action), self.count == 3, False, info


def same(one, two):
    if isinstance(one, dict):
        return set(one) == set(two) and all(same(one[key], two[key]) for key in one)
    if one is None or two is None:
        return one is two
    return one.dtype == two.dtype and np.array_equal(one, two)


def rows(steps, **changes):
    """Transitions between counted states; `steps` are the rows' steps in their episodes."""
    n = len(steps)
    step = np.array(steps)
    flat = {
        "obs": np.arange(n, dtype=np.float32)[:, None],
        "action": np.zeros(n, np.int64),
        "reward": np.zeros(n, np.float32),
        "next_obs": np.arange(1, n + 1, dtype=np.float32)[:, None],
        "terminated": np.zeros(n, bool),
        "truncated": np.zeros(n, bool),
        "valid": np.ones(n, bool),
        "step": step,
    }
    return Transitions(**{**flat, **changes})


def test_a_record_holds_true_successors_and_what_was_shown_before_and_after_each_action():
    batch = recording.record(Counter(), lambda obs, begins: obs[:, 0].astype(int) + 1, steps=7)
    assert batch.step.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert batch.obs[:, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert batch.next_obs[:, 0].tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert batch.action.tolist() == batch.reward.tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert batch.terminated.tolist() == [False, False, True, False, False, True, False]
    assert batch.text.tolist() == [f"at {i}" for i in (1, 2, 3, 1, 2, 3, 1)]
    assert batch.obs_text.tolist() == [f"at {i}" for i in (0, 1, 2, 0, 1, 2, 0)]
    assert batch.frame[:, 0, 0, 0].tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert batch.obs_signals[:, 0].tolist() == [0, 0.5, 1, 0, 0.5, 1, 0]


def test_the_policy_hears_when_an_episode_begins():
    heard = []

    def act(obs, begins):
        heard.append(bool(begins[0]))
        return [0]

    recording.record(Counter(), act, steps=5)
    assert heard == [True, False, False, True, False]


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
def test_a_vector_is_recorded_one_environment_after_the_other_without_the_steps_that_only_reset(mode):
    envs = gym.vector.SyncVectorEnv([Counter, Counter], autoreset_mode=gym.vector.AutoresetMode[mode])
    batch = recording.record(envs, None, steps=8)
    once = [0, 1, 2, 0] if mode == "SAME_STEP" else [0, 1, 2]
    assert batch.step.tolist() == once * 2
    assert batch.valid.all()
    expected = (
        [slice(0, 3), slice(3, 4), slice(4, 7), slice(7, 8)] if mode == "SAME_STEP" else [slice(0, 3), slice(3, 6)]
    )
    assert recording.episodes(batch) == expected


def test_the_same_seed_records_the_same():
    one, two, other = (recording.record(make("Pendulum-v1"), None, 30, seed) for seed in (3, 3, 4))
    assert same(vars(one), vars(two))
    assert not np.array_equal(one.obs, other.obs)


def test_what_is_saved_comes_back_to_the_last_bit(tmp_path):
    batch = recording.record(Counter(), None, steps=10)
    extras = {"clip": np.random.default_rng(0).normal(size=(10, 4)).astype(np.float16)}
    nested = {"at": batch.obs, "more": {"twice": 2 * batch.obs}}
    batch = batch.replace(extras=extras, obs=nested, next_obs={"at": batch.next_obs, "more": {"twice": batch.next_obs}})
    recording.save(tmp_path / "a.safetensors", batch, {"env": "Counter", "return": 1.5})
    back, meta = recording.load(tmp_path / "a.safetensors")
    assert same(vars(back), vars(batch))
    assert meta == {"env": "Counter", "return": 1.5}


def test_a_vector_with_frames_texts_and_signals_comes_back(tmp_path):
    envs = make_vec("MiniGrid-Empty-5x5-v0", 2, frame_size=16, text=True, backend="gym", max_episode_steps=4)
    batch = recording.record(envs, None, steps=20)
    assert batch.frame is not None and batch.text is not None
    assert len(recording.episodes(batch)) == 6
    recording.save(tmp_path / "a.safetensors", batch, {})
    assert same(vars(recording.load(tmp_path / "a.safetensors")[0]), vars(batch))


def test_what_was_shown_twice_is_stored_once(tmp_path):
    batch = recording.record(Counter(), None, steps=9)
    recording.save(tmp_path / "a.safetensors", batch, {})
    with safe_open(tmp_path / "a.safetensors", "np") as file:
        assert file.get_tensor("obs").tolist() == [[0], [0], [0]]
        assert len(file.get_tensor("obs_frame")) == len(file.get_tensor("obs_signals")) == 3
        assert file.metadata()["texts"] == '["at 1", "at 2", "at 3", "at 0"]'


def test_states_that_do_not_follow_from_each_other_are_stored_whole(tmp_path):
    batch = rows([0, 1, 2], obs=np.array([[7.0], [8.0], [np.nan]]))
    recording.save(tmp_path / "a.safetensors", batch, {})
    back = recording.load(tmp_path / "a.safetensors")[0]
    np.testing.assert_array_equal(back.obs, batch.obs)


def test_episodes_begin_at_step_0_after_an_end_and_where_a_step_is_missing():
    truncated = np.array([False, True, False, False, False, False])
    batch = rows([0, 1, 2, 0, 1, 7], truncated=truncated)
    assert recording.episodes(batch) == [slice(0, 2), slice(2, 3), slice(3, 5), slice(5, 6)]


def test_a_recording_that_ships_is_read_by_its_name():
    batch, meta = recording.load("pendulum")
    assert batch.shape == (20_000,) and meta["env"] == "Pendulum-v1"


def test_what_is_no_recording_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    with pytest.raises(ValueError, match=r"steps=0 record nothing; give at least 1"):
        recording.record(Counter(), None, 0)
    with pytest.raises(ValueError, match=r"shape \(2, 3\) is no recording; give a flat one"):
        recording.save(path, rows([0] * 6).map(lambda x: x.reshape(2, 3, *x.shape[1:])), {})
    with pytest.raises(ValueError, match=r"the key 'a/b' of obs has a slash"):
        recording.save(path, rows([0], obs={"a/b": np.zeros((1, 1))}), {})
    with pytest.raises(FileNotFoundError, match=r"'nowhere' is no file, nor a recording that ships \(mountaincar, "):
        recording.load("nowhere")
    path.write_bytes(b"<html>")
    with pytest.raises(ValueError, match=r"is no recording \("):
        recording.load(path)
    save_file({"step": np.zeros(1)}, path)
    with pytest.raises(ValueError, match=r"no recording of this format \(None\)"):
        recording.load(path)
