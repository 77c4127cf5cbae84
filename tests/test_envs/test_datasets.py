"""Data sets of others: what was collected comes back, every successor, end and type of number with it."""

import functools
import io
import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from envs.datasets import Dataset, StoredEpisode, from_sb3, lerobot, read
from envs.datasets.dataset import _cast, observation_converter
from envs.make import make
from envs.recording import episodes


class Keep(gym.Wrapper):
    """Keeps (obs, action, reward, next_obs, terminated, truncated) of every step."""

    def __init__(self, env):
        super().__init__(env)
        self.rows = []

    def reset(self, **options):
        self.obs, info = self.env.reset(**options)
        return self.obs, info

    def step(self, action):
        answer = self.env.step(action)
        self.rows.append((self.obs, action, answer[1], *answer[:1], *answer[2:4]))
        self.obs = answer[0]
        return answer


def same_as(batch, rows):
    for name, place in (("obs", 0), ("next_obs", 3), ("action", 1), ("terminated", 4), ("truncated", 5)):
        np.testing.assert_array_equal(getattr(batch, name), np.stack([row[place] for row in rows]), name)
    np.testing.assert_array_equal(batch.reward, np.array([row[2] for row in rows], np.float32))
    return True


def episode(obs, ends=("terminated",), action=(0, 0)):
    ended = {name: [False] * (len(action) - 1) + [name in ends] for name in ("terminated", "truncated")}
    return StoredEpisode(obs, np.array(action), np.arange(len(action)), **ended)


LINE = spaces.Box(-9, 9, (1,), np.float64)
COUNTED = np.array([[0.0], [1.0], [2.0]])


def test_an_episode_has_a_successor_for_every_observation_and_images_have_channels_first():
    space = spaces.Dict(
        {"at": LINE, "both": spaces.Tuple([LINE, LINE]), "image": spaces.Box(0, 255, (4, 5, 3), np.uint8)}
    )
    obs = {"at": COUNTED, "both": (COUNTED, -COUNTED), "image": np.zeros((3, 4, 5, 3), np.uint8)}
    batch = Dataset(lambda: [episode(obs), episode(obs, ends=())], space, spaces.Discrete(2, start=-1)).transitions()
    assert batch.obs["at"].ravel().tolist() == [0, 1, 0, 1] and batch.obs["at"].dtype == np.float32
    assert batch.next_obs["both"].tolist() == [[1, -1], [2, -2], [1, -1], [2, -2]]
    assert batch.obs["image"].shape == (4, 3, 4, 5)
    assert batch.action.tolist() == [1, 1, 1, 1]  # counted from 0
    assert batch.terminated.tolist() == [False, True, False, False] and not batch.truncated.any()
    assert batch.reward.tolist() == [0, 1, 0, 1] and batch.step.tolist() == [0, 1, 0, 1]
    assert episodes(batch) == [slice(0, 2), slice(2, 4)]


def test_an_end_within_a_stored_episode_begins_another_one():
    stored = StoredEpisode(np.arange(5.0)[:, None], np.zeros(4, int), np.zeros(4), [0, 1, 0, 0], [0, 0, 0, 1])
    batch = Dataset(lambda: [stored], LINE, spaces.Discrete(2)).transitions(most=3)
    assert batch.step.tolist() == [0, 1, 0] and batch.next_obs.ravel().tolist() == [1, 2, 3]


def test_observations_are_as_the_environment_of_that_name_gives_them():
    ours = make("MiniGrid-GoToDoor-5x5-v0")
    raw = gym.make("MiniGrid-GoToDoor-5x5-v0")
    stored = [raw.reset(seed=seed)[0] for seed in range(3)]
    obs = {key: [one[key] for one in stored] for key in stored[0]}
    space = spaces.Dict({**raw.observation_space.spaces, "mission": spaces.Text(99)})
    batch = Dataset(lambda: [episode(obs)], space, spaces.Discrete(7)).transitions(ours)
    np.testing.assert_array_equal(batch.obs, np.stack([ours.reset(seed=seed)[0] for seed in range(2)]))
    assert (
        observation_converter(ours, ours.observation_space)(batch.obs) is batch.obs
    )  # nothing to do for what is ours already


@pytest.mark.parametrize(
    ("obs", "action", "env", "words"),
    [
        (COUNTED[:2], (0, 0), "", r"2 rewards, 2 actions and \[2\] observations; an observation more than actions"),
        (["a", "b", "c"], (0, 0), "", r"observations such as 'a' are not numeric"),
        (
            COUNTED,
            (0, 1),
            "CartPole-v1",
            r"observations recorded, of shape \(1,\) and type float32, are not those of Cart",
        ),
        (
            np.zeros((3, 4)),
            (0, 2),
            "CartPole-v1",
            r"actions .* between 0 and 2, are not those of CartPole-v1, Discrete\(2\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_what_it_is(obs, action, env, words):
    space = spaces.Text(9) if isinstance(obs, list) else spaces.Box(-9, 9, obs.shape[1:])
    with pytest.raises(ValueError, match=words):
        Dataset(lambda: [episode(obs, action=action)], space, spaces.Discrete(3)).transitions(
            make(env) if env else None
        )


def test_values_fit_a_space_up_to_its_ends_and_choices_are_counted_from_zero():
    for space, fine, beyond in (
        (spaces.Discrete(3), [0, 2], [3]),
        (spaces.Discrete(3, start=2), [2, 4], [1]),
        (spaces.Discrete(3, start=2), [2, 4], [5]),
        (spaces.MultiDiscrete([2, 3]), [[1, 2], [0, 0]], [[1, 3]]),
    ):
        assert _cast(np.array(fine), space).tolist() == fine and _cast(np.array(beyond), space) is None
    assert _cast(np.zeros((2, 3)), spaces.Box(0, 1, (3,), np.float32)).dtype == np.float32
    assert _cast(np.zeros((2, 2)), spaces.Box(0, 1, (3,))) is None
    assert _cast(np.zeros(2), spaces.Discrete(3)) is None  # numbers with a point are no choices
    both = spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(2))
    assert _cast({"a": np.array([1]), "b": np.array([2])}, both) is None and _cast({"a": np.array([1])}, both) is None
    counted = Dataset(lambda: [episode(COUNTED, action=(2, 4))], LINE, spaces.Discrete(3, start=2)).transitions()
    assert counted.action.tolist() == [0, 2] and counted.valid.all() and counted.step.tolist() == [0, 1]


@pytest.mark.filterwarnings("ignore::UserWarning")  # what a data set should say of itself
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_data_set_of_minari_is_what_was_collected(env_id, tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    from minari.data_collector.episode_buffer import EpisodeBuffer

    env = Keep(gym.make(env_id, max_episode_steps=15))
    env.action_space.seed(0)
    buffers = []
    for i in range(3):
        first, before, ended = env.reset(seed=i)[0], len(env.rows), False
        while not ended:
            ended = any(env.step(env.action_space.sample())[2:4])
        _, action, reward, obs, *ends = zip(*env.rows[before:])
        buffers.append(EpisodeBuffer(i, None, None, [first, *obs], list(action), list(reward), *map(list, ends)))
    made = minari.create_dataset_from_buffers("test/kept-v0", buffers, env=env.env)
    named, placed = read("test/kept-v0"), read(tmp_path / "test" / "kept-v0")
    assert same_as(named.transitions(), env.rows) and same_as(placed.transitions(make(env_id)), env.rows)
    assert (named.env, named.env_options) == (env_id, {"max_episode_steps": 15})
    assert named.transitions(most=7).shape == (7,) and len(episodes(read("test/kept-v0").transitions())) == 3
    about = made.storage.data_path / "metadata.json"
    about.write_text(json.dumps({k: v for k, v in json.loads(about.read_text()).items() if k != "action_space"}))
    with pytest.raises(ValueError, match=r"does not say its spaces, for which Minari would run"):
        read("test/kept-v0")
    (about.parent / "main_data.hdf5").write_bytes(b"torn")
    with pytest.raises(ValueError, match=r"test/kept-v0 cannot be read \(OSError: "):
        named.transitions()


def test_a_file_of_ogbench_keeps_an_action_for_every_observation_but_the_last(tmp_path):
    """Two trajectories of three and two rows, and one that the file cuts short."""
    obs = np.arange(14, dtype=np.float32).reshape(7, 2)
    action, terminals = np.linspace(-1, 1, 7, dtype=np.float32)[:, None], np.array([0, 0, 1, 0, 1, 0, 0], np.float32)
    place = tmp_path / "cube-single-play-v0.npz"
    np.savez_compressed(place, observations=obs, actions=action, terminals=terminals, qpos=np.zeros((7, 3)))
    found = read(place)
    batch, kept = found.transitions(), np.array([0, 1, 3, 5])
    np.testing.assert_array_equal(batch.obs, obs[kept])
    np.testing.assert_array_equal(batch.next_obs, obs[kept + 1])
    np.testing.assert_array_equal(batch.action, action[kept])
    assert batch.truncated.tolist() == [False, True, True, True] and not batch.terminated.any()
    assert batch.step.tolist() == [0, 1, 0, 0] and not batch.reward.any() and "has no rewards" in found.notes[0]
    pixels, whole = np.zeros((7, 4, 4, 3), np.uint8), np.arange(7)
    np.savez(place, observations=pixels, actions=whole, terminals=terminals, rewards=np.arange(7.0))
    batch = read(place).transitions()
    assert batch.obs.shape == (4, 3, 4, 4) and batch.action.tolist() == batch.reward.tolist() == [0, 1, 3, 5]
    np.savez(place, observations=obs, actions=action[:5], terminals=terminals)
    with pytest.raises(ValueError, match=r"v0.npz has rows of .*'actions': 5.*; OGBench has as many"):
        read(place)
    torn = place.read_bytes()[:-40]
    for content in (torn, b"no archive", b""):
        place.write_bytes(content)
        with pytest.raises(ValueError, match=r"v0.npz cannot be read \(.*\); fetch it again"):
            read(place)


@pytest.mark.parametrize(("algorithm", "env_id"), [("SAC", "Pendulum-v1"), ("DQN", "CartPole-v1")])
def test_a_replay_buffer_of_sb3_holds_the_actions_that_were_taken_oldest_first(algorithm, env_id):
    import stable_baselines3

    venv = stable_baselines3.common.env_util.make_vec_env(env_id, 2, wrapper_class=Keep, seed=0)
    kind = getattr(stable_baselines3, algorithm)
    options = {
        "buffer_size": 440,
        "learning_starts": 1000,
        "seed": 0,
        "device": "cpu",
        "policy_kwargs": {"net_arch": [4]},
    }
    model = kind("MlpPolicy", venv, **options)
    with pytest.raises(ValueError, match="the replay buffer is empty"):
        from_sb3(model.replay_buffer)
    model.learn(500)
    batch = from_sb3(model.replay_buffer)
    assert batch.shape == (440,)  # of the 250 steps of each, the last 220
    assert same_as(batch, [row for rows in venv.get_attr("rows") for row in rows[-220:]])
    assert batch.step[0] == 1  # the episode began earlier
    model.replay_buffer.optimize_memory_usage = True
    with pytest.raises(ValueError, match="optimize_memory_usage=True has overwritten the last observations"):
        from_sb3(model.replay_buffer)


# LeRobot's format ----------------------------------------------------------------------------------------------------

LENGTHS, SUCCEEDS = (5, 4, 6), (True, False, True)


def lerobot_columns():
    rng = np.random.default_rng(0)
    total, number = sum(LENGTHS), np.repeat(np.arange(3), LENGTHS)
    last = np.isin(np.arange(total), np.cumsum(LENGTHS) - 1)
    return {
        "observation.state": rng.normal(size=(total, 2)).astype(np.float32),
        "action": rng.normal(size=(total, 2)).astype(np.float32),
        "next.reward": rng.random(total).astype(np.float32),
        "next.done": last,
        "next.success": last & np.array(SUCCEEDS)[number],
        "episode_index": number,
        "frame_index": np.concatenate([np.arange(n) for n in LENGTHS]),
    }


def write_lerobot(folder, version, camera):
    """Three episodes in the layout of a version, with images of one colour in Parquet or in videos."""
    import imageio
    import pyarrow as arrow
    from pyarrow import parquet

    columns = lerobot_columns()
    images = [np.full((32, 48, 3), (10 * i, 100, 0), np.uint8) for i in range(sum(LENGTHS))]
    listed = {"observation.state": 2, "action": 2}
    arrays = {
        k: arrow.FixedSizeListArray.from_arrays(arrow.array(v.ravel()), listed[k]) if k in listed else arrow.array(v)
        for k, v in columns.items()
    }
    if camera == "image":
        cells = []
        for image in images:
            Image.fromarray(image).save(file := io.BytesIO(), "PNG")
            cells.append({"bytes": file.getvalue(), "path": "0.png"})
        arrays["observation.image"] = arrow.array(cells)
    table, begins = arrow.table(arrays), np.cumsum((0, *LENGTHS))
    chunk = "videos/observation.image/chunk-000" if version == "v3.0" else "videos/chunk-000/observation.image"
    for name in ("data/chunk-000", "meta/episodes/chunk-000" if version == "v3.0" else "meta", chunk):
        (folder / name).mkdir(parents=True)
    if version == "v3.0":
        parquet.write_table(table, folder / "data/chunk-000/file-000.parquet")
        places = {"chunk_index": [0] * 3, "file_index": [0] * 3, "from_timestamp": begins[:-1] / 10}
        about = {f"videos/observation.image/{key}": value for key, value in places.items()}
        about = arrow.table({"episode_index": range(3), "length": LENGTHS, **about})
        parquet.write_table(about, folder / "meta/episodes/chunk-000/file-000.parquet")
        tasks = arrow.table({"task_index": [0], "__index_level_0__": ["push the T"]})
        parquet.write_table(tasks, folder / "meta/tasks.parquet")
        videos = {"file-000": images}
    else:
        for i, (begin, length) in enumerate(zip(begins, LENGTHS)):
            parquet.write_table(table.slice(begin, length), folder / f"data/chunk-000/episode_{i:06d}.parquet")
        (folder / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "push the T"}\n')
        videos = {f"episode_{i:06d}": images[begins[i] : begins[i + 1]] for i in range(3)}
    for name, shown in videos.items() if camera == "video" else ():
        imageio.mimwrite(folder / chunk / f"{name}.mp4", shown, fps=10, macro_block_size=16)
    kinds = {name: (str(value.dtype), [*value.shape[1:]] or [1]) for name, value in columns.items()}
    kinds["observation.image"] = camera, [32, 48, 3]
    features = {name: {"dtype": kind, "shape": shape} for name, (kind, shape) in kinds.items()}
    info = {"codebase_version": version, "fps": 10, "total_frames": sum(LENGTHS), "features": features}
    (folder / "meta/info.json").write_text(json.dumps(info))
    return columns


@pytest.mark.parametrize(("version", "camera"), [("v2.1", "video"), ("v2.0", "image"), ("v3.0", "video")])
def test_a_folder_of_lerobot_keeps_every_action_whose_outcome_is_known(version, camera, tmp_path):
    pytest.importorskip("pyarrow")
    columns = write_lerobot(tmp_path / "pusht", version, camera)
    found = read(tmp_path / "pusht", frame_size=8)
    batch = found.transitions()
    kept = np.setdiff1d(np.arange(15), [8])  # the second episode fails: what its last action led to is not stored
    after = np.array([1, 2, 3, 4, 4, 6, 7, 8, 10, 11, 12, 13, 14, 14])
    np.testing.assert_array_equal(batch.obs, columns["observation.state"][kept])
    np.testing.assert_array_equal(batch.next_obs, columns["observation.state"][after])
    np.testing.assert_array_equal(batch.action, columns["action"][kept])
    np.testing.assert_array_equal(batch.reward, columns["next.reward"][kept])
    assert batch.terminated.nonzero()[0].tolist() == [4, 13] and batch.truncated.nonzero()[0].tolist() == [7]
    assert batch.frame.shape == (14, 8, 8, 3)
    assert np.abs(batch.frame[:, 4, 4, 0] - 10.0 * after).max() <= 3  # what videos lose
    assert np.abs(batch.obs_frame[:, 4, 4, 0] - 10.0 * kept).max() <= 3
    assert found.about == {"dataset": "pusht", "tasks": ["push the T"]} and "next.success" in found.notes[0]


def test_rows_of_lerobot_become_episodes_whose_last_action_needs_an_outcome():
    rows = {"episode_index": np.array([1, 0, 1, 0, 0, 2]), "frame_index": np.array([1, 2, 0, 0, 1, 0])}
    rows |= {"action": np.arange(6.0)[:, None], "observation.state": 10 * np.arange(6.0)[:, None]}
    rows |= {"next.done": np.arange(6) == 0, "next.reward": np.arange(6.0)}

    shown = []

    def look(number, obs_rows):
        shown.append((number, obs_rows.tolist()))
        return np.zeros((len(obs_rows), 1, 1, 3), np.uint8)

    def found(end, seen=("observation.state",), rows=rows):
        return list(lerobot._episodes(rows, [*seen], end, [look]))

    first, second = found("next.done")
    assert shown == [(0, [3, 4, 1]), (1, [2, 0, 0])]
    assert [each.obs.ravel().tolist() for each in (first, second)] == [[30, 40, 10], [20, 0, 0]]
    assert [each.action.ravel().tolist() for each in (first, second)] == [[3, 4], [2, 0]]
    assert [each.reward.tolist() for each in (first, second)] == [[3, 4], [2, 0]]
    assert [each.terminated.tolist() for each in (first, second)] == [[False, False], [False, True]]
    assert [each.truncated.tolist() for each in (first, second)] == [[False, True], [False, False]]
    few = {name: values for name, values in rows.items() if not name.startswith("next")} | {
        "observation.b": np.zeros(6)
    }
    first, second = found("", ("observation.state", "observation.b"), few)
    assert first.obs.keys() == {"state", "b"} and len(second.action) == 1 and second.truncated.tolist() == [True]
    assert not first.reward.any() and not second.terminated.any()


def test_frames_of_lerobot_are_those_of_the_rows_or_of_a_part_of_a_video(tmp_path, monkeypatch):
    def png(grey):
        Image.fromarray(np.full((4, 4, 3), grey, np.uint8)).save(file := io.BytesIO(), "PNG")
        return {"bytes": file.getvalue()}

    given = lerobot._frames_in_rows(4, [png(10), png(20)], 7, np.array([1, 0, 0]))
    assert given[:, 0, 0, 0].tolist() == [20, 10, 10] and given.shape == (3, 4, 4, 3)
    cameras = [functools.partial(lerobot._frames_in_rows, 4, [png(grey)] * 2) for grey in (10, 30)]
    columns = {"episode_index": np.zeros(2, int), "frame_index": np.arange(2)}
    columns |= {"observation.state": np.zeros((2, 1)), "action": np.zeros((2, 1))}
    [beside] = lerobot._episodes(columns, ["observation.state"], "", cameras)
    assert beside.frame.shape == (2, 4, 8, 3) and beside.frame[0, 0, :, 0].tolist() == [10] * 4 + [30] * 4
    [blind] = lerobot._episodes(columns, ["observation.state"], "", [])
    assert blind.frame is None
    with pytest.raises(ValueError, match="not in the Parquet file but apart"):
        lerobot._frames_in_rows(4, [{"path": "0.png"}], 7, np.array([0]))
    (video := tmp_path / "videos" / "chunk-000" / "eye" / "episode_000007.mp4").parent.mkdir(parents=True)
    video.touch()
    (tmp_path / "videos" / "chunk-000" / "eye" / "episode_000008.mp4").touch()
    assert lerobot._video_places(tmp_path, "ear", 10) == {}
    places = lerobot._video_places(tmp_path, "eye", 10)
    assert places[7] == (video, 0) and len(places) == 2
    monkeypatch.setattr(lerobot, "_read_video", lambda path, size: np.arange(8) + size)
    for first, rows, images in ((0, [5, 6, 7], [4, 5, 6]), (4, [5, 6, 6], [8, 9, 9])):
        frame = lerobot._frames_in_videos(4, {7: (video, first)}, 7, np.array(rows))
        assert frame.tolist() == images
    with pytest.raises(ValueError, match=r"episode_000007.mp4 has 2 of the 3 images of episode 7"):
        lerobot._frames_in_videos(4, {7: (video, 6)}, 7, np.arange(3))
    with pytest.raises(ValueError, match=r"the video of episode 9 has 0 of the 1 images"):
        lerobot._frames_in_videos(4, {}, 9, np.array([0]))


def test_recorded_numbers_say_the_space_they_are_in_and_sentences_the_task(tmp_path):
    for values, space in (
        (np.zeros((5, 2), np.float32), spaces.Box(-np.inf, np.inf, (2,), np.float32)),
        (np.array([3, 0]), spaces.Discrete(4)),
        (np.array([[True, False]]), spaces.Box(0, 1, (2,), np.int64)),
        (np.array([[3, -4], [1, 0]]), spaces.Box(-4, 3, (2,), np.int64)),
    ):
        assert lerobot._box(values) == space
    assert lerobot._tasks(tmp_path) == []
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "tasks.jsonl").write_text('{"task": "push"}\n\n{"task": "pull"}\n')
    assert lerobot._tasks(tmp_path) == ["push", "pull"]


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({"codebase_version": "v1.6"}, {}, r"is of LeRobot's version v1.6; versions 2 and 3 are read"),
        ({"fps": "often"}, {}, r"info.json is not LeRobot's \(ValueError: "),
        (
            {"features": {"action": {"dtype": "float32", "shape": [2]}}},
            {},
            r"has the features action; it needs an observation",
        ),
        ({}, {"frame_size": 8, "camera": "left"}, r"camera=left is none of .*, which has observation.image"),
        ({}, {}, r"data has no Parquet file; is the data set whole\?"),
    ],
)
def test_a_folder_that_is_not_lerobots_says_what_is_wrong(change, options, words, tmp_path):
    features = {name: {"dtype": "float32", "shape": [2]} for name in ("action", "observation.state")}
    features["observation.image"] = {"dtype": "video", "shape": [4, 4, 3]}
    info = {"codebase_version": "v3.0", "fps": 10, "total_frames": 1, "features": features}
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "info.json").write_text(json.dumps(info | change))
    with pytest.raises(ValueError, match=words):
        read(tmp_path, **options)


def test_what_is_no_data_set_says_what_is_read(tmp_path):
    (tmp_path / "text").write_text("a")
    for source, error, words in (
        ("nowhere", FileNotFoundError, "nowhere does not exist; give a folder of Minari"),
        (tmp_path, ValueError, "holds no data set; give a folder"),
        (tmp_path / "text", ValueError, "is no data set; give a folder"),
    ):
        with pytest.raises(error, match=words):
            read(source)
    with pytest.raises(ValueError, match="frames are read from LeRobot's format only"):
        read("test/kept-v0", frame_size=8)
