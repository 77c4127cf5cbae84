"""Early episodes begin evenly over the clusters of a teacher's states and are cut short; later ones are untouched."""

import functools
import json

import numpy as np
import pytest

from envs.make import make
from envs.snapshots import s3rl
from envs.snapshots.s3rl import SnapshotReset, Snapshots, kmeans, record
from envs.snapshots.snapshots import get_state, to_json
from envs.vector.in_process import InProcess
from envs.wrappers import Observer


def _push(obs):
    return int(obs[2] > 0)  # keeps CartPole up for a while


@pytest.fixture(scope="module")
def snapshots() -> Snapshots:
    return record(make("CartPole-v1"), _push, episodes=3, seed=0)


def test_an_episode_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3rl, "MAX_RECORDED_STEPS", 50)
    with pytest.raises(ValueError, match="an episode has not ended after 50 steps; give max_episode_steps= to make"):
        record(make("Pendulum-v1"), lambda obs: np.zeros(1, np.float32), episodes=1)
    short = make("Pendulum-v1", max_episode_steps=50)
    assert len(record(short, lambda obs: np.zeros(1, np.float32), episodes=1).states) == 50


def test_a_record_holds_every_state_that_the_policy_acted_in() -> None:
    env = make("CartPole-v1")
    taken = record(env, _push, episodes=1, every=3, seed=4)
    again, _ = env.reset(seed=4)
    seen, ended = [], False
    while not ended:
        seen.append(again)
        again, _, ended, _, _ = env.step(_push(again))
    np.testing.assert_array_equal(taken.observations, np.stack(seen[::3]))
    assert len(taken.states) == len(seen[::3])
    np.testing.assert_array_equal(np.float32(taken.states[2]["variables"]["state"]), seen[6])


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MiniGrid-DoorKey-5x5-v0"])
def test_what_was_saved_is_loaded(env_id: str, tmp_path) -> None:
    taken = record(make(env_id, max_episode_steps=20), lambda obs: 1, episodes=2, seed=1)
    taken.save(tmp_path / "teacher.safetensors")
    loaded = Snapshots.load(tmp_path / "teacher.safetensors")
    assert to_json(loaded.states) == to_json(taken.states)
    np.testing.assert_array_equal(loaded.observations, taken.observations)
    student = SnapshotReset(make(env_id), loaded, clusters=2)
    assert (student.reset(seed=0)[0] == taken.observations).all(axis=1).any()


def test_another_file_is_refused(tmp_path) -> None:
    (tmp_path / "x").write_bytes(b"no snapshots")
    with pytest.raises(ValueError, match=r"x holds no snapshots .*; write it with Snapshots.save"):
        Snapshots.load(tmp_path / "x")


def test_kmeans_finds_separate_heaps_whatever_their_size() -> None:
    rng = np.random.default_rng(0)
    heaps = [rng.normal(centre, 0.1, (n, 2)) for centre, n in (((0, 0), 200), ((5, 0), 10), ((0, 5), 40))]
    labels = kmeans(np.concatenate(heaps), 3)
    kinds = [set(labels[a:b].tolist()) for a, b in ((0, 200), (200, 210), (210, 250))]
    assert sorted(map(len, kinds)) == [1, 1, 1] and len(set.union(*kinds)) == 3


def test_kmeans_ends_where_every_point_is_nearest_to_the_mean_of_its_own() -> None:
    points = np.random.default_rng(1).normal(size=(300, 3))
    labels = kmeans(points, 5)
    centres = np.stack([points[labels == label].mean(axis=0) for label in range(5)])
    np.testing.assert_array_equal(np.square(points[:, None] - centres).sum(axis=2).argmin(axis=1), labels)


def test_equal_points_make_fewer_clusters_and_constant_features_do_no_harm() -> None:
    assert set(kmeans(np.ones((7, 2)), 3)) == {0}
    observations = np.float32([[1, 0], [1, 0], [1, 0], [1, 9]])
    clusters = Snapshots([{}] * 4, observations).clusters(3)
    assert sorted(map(list, clusters)) == [[0, 1, 2], [3]]


def test_features_count_alike_whatever_their_unit() -> None:
    observations = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    metres, millimetres = (
        Snapshots([{}] * 100, observations * np.float32([1, unit])).clusters(3) for unit in (1, 1024)
    )
    for one, other in zip(metres, millimetres):
        np.testing.assert_array_equal(one, other)


def test_resets_are_even_over_clusters_not_over_states(snapshots: Snapshots) -> None:
    clusters = snapshots.clusters(4)
    sizes = np.array([len(members) for members in clusters])
    assert abs(sizes / sizes.sum() - 0.25).max() > 0.08  # else this test would show nothing
    env = SnapshotReset(make("CartPole-v1"), snapshots, clusters=4)
    env.reset(seed=0)
    drawn = np.array([(snapshots.observations == env.reset()[0]).all(axis=1).argmax() for _ in range(2000)])
    shares = np.array([np.isin(drawn, members).mean() for members in clusters])
    np.testing.assert_allclose(shares, 0.25, atol=0.04)  # 4 standard errors of 0.0097
    largest = clusters[sizes.argmax()]
    counts = np.array([(drawn == number).sum() for number in largest])
    assert abs(counts - counts.mean()).max() < 5 * np.sqrt(counts.mean())


def test_a_seed_fixes_where_episodes_begin(snapshots: Snapshots) -> None:
    first, second = (SnapshotReset(make("CartPole-v1"), snapshots) for _ in range(2))
    for seed in (3, None, None, 3):
        np.testing.assert_array_equal(first.reset(seed=seed)[0], second.reset(seed=seed)[0])


def test_an_episode_from_a_snapshot_is_cut_and_counts_only_the_students_part() -> None:
    teacher = make("Pendulum-v1", seed=0)
    taken = record(teacher, lambda obs: np.zeros(1, np.float32), episodes=1, every=50)
    env = SnapshotReset(make("Pendulum-v1"), taken, clusters=1, truncate=60)
    begun = set()
    for seed in range(12):
        obs, info = env.reset(seed=seed)
        begun.add(50 * int((taken.observations == obs).all(axis=1).argmax()))
        assert info == {}
        rewards, truncated = [], False
        while not truncated:
            _, reward, terminated, truncated, info = env.step(np.zeros(1, np.float32))
            assert not terminated and ("episode" in info) == truncated
            rewards.append(reward)
        assert info["episode"]["l"] == len(rewards) == 60
        assert info["episode"]["r"] == pytest.approx(sum(rewards))
    assert 150 in begun  # 50 steps before the limit of 200, which is extended
    env = SnapshotReset(make("Pendulum-v1"), taken, clusters=1, truncate=300)
    env.reset(seed=0)
    ends = [env.step(np.zeros(1, np.float32))[3] for _ in range(200)]
    assert ends == [False] * 199 + [True]  # the student's own steps are limited as every episode's


def test_a_fall_at_the_limit_is_a_fall(snapshots: Snapshots) -> None:
    env = SnapshotReset(make("CartPole-v1"), snapshots, truncate=9, clusters=1)
    ends = []
    for seed in range(60):
        env.reset(seed=seed)
        ended = False
        while not ended:
            *_, terminated, truncated, info = env.step(1)
            ended = terminated or truncated
        ends.append((info["episode"]["l"], terminated, truncated))
    assert (9, True, False) in ends and (9, False, True) in ends
    assert all(truncated == (length == 9 and not terminated) for length, terminated, truncated in ends)


def test_after_the_early_phase_nothing_is_left_of_it(snapshots: Snapshots) -> None:
    env = SnapshotReset(make("CartPole-v1"), snapshots, until=5, truncate=2)
    begun = []
    for _ in range(5):
        obs, _ = env.reset(seed=11)
        begun.append((snapshots.observations == obs).all(axis=1).any())
        for _ in range(2):
            truncated = env.step(0)[3]
    assert begun == [True, True, True, False, False] and not truncated
    plain = make("CartPole-v1")
    np.testing.assert_array_equal(env.reset(seed=11)[0], plain.reset(seed=11)[0])
    ended = False
    while not ended:
        mine, theirs = env.step(0), plain.step(0)
        np.testing.assert_array_equal(mine[0], theirs[0])
        assert mine[1:4] == theirs[1:4]
        ended = mine[2]
    assert mine[4]["episode"]["l"] == theirs[4]["episode"]["l"] > 2


def test_probability_mixes_ordinary_resets_in(snapshots: Snapshots) -> None:
    env = SnapshotReset(make("CartPole-v1"), snapshots, probability=0.3)
    env.reset(seed=0)
    found = [(snapshots.observations == env.reset()[0]).all(axis=1).any() for _ in range(1000)]
    assert 0.24 < np.mean(found) < 0.36  # 4 standard errors of 0.0145


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MiniGrid-DoorKey-5x5-v0", "Hopper-v5"])
def test_a_student_is_restored_exactly(env_id: str) -> None:
    def act(env):
        return env.action_space.sample()

    teacher = make(env_id, seed=0, max_episode_steps=30)
    taken = record(teacher, lambda obs: act(teacher), episodes=2, every=2)
    env = SnapshotReset(make(env_id, seed=1), taken, clusters=3, until=150, truncate=20)
    env.action_space.seed(0)
    env.reset()

    def play(env, steps, actions):
        seen = []
        for action in actions[:steps]:
            obs, reward, terminated, truncated, info = env.step(action)
            seen.append((*obs, reward, terminated, truncated, info.get("episode", {}).get("r", 0.0)))
            if terminated or truncated:
                seen.append((*env.reset()[0], 0, 0, 0, 0))
        return np.array(seen)

    actions = [act(env) for _ in range(250)]
    play(env, 93, actions)
    saved = json.loads(json.dumps(env.get_wrapper_attr("snapshot")()))
    state = to_json(get_state(env.env))
    expected = play(env, 250, actions)
    copy = SnapshotReset(make(env_id), taken, clusters=3, until=150, truncate=20)
    copy.restore(saved)
    assert to_json(get_state(copy.env)) == state and copy.steps == 93
    np.testing.assert_array_equal(play(copy, 250, actions), expected)


def _student(snapshots: Snapshots, seed: int):
    return SnapshotReset(make("CartPole-v1", seed=seed), snapshots, truncate=5)


def test_students_step_side_by_side(snapshots: Snapshots) -> None:
    env = InProcess([functools.partial(_student, snapshots, seed) for seed in range(3)])
    obs, _ = env.reset()
    assert all((snapshots.observations == row).all(axis=1).any() for row in obs)
    assert len(np.unique(obs, axis=0)) == 3
    lengths = []
    for _ in range(20):
        _, _, terminated, truncated, infos = env.step(np.zeros(3, np.int64))
        ended = terminated | truncated
        lengths += [int(length) for length in infos["final_info"]["episode"]["l"][ended]] if ended.any() else []
    assert max(lengths) == 5 and len(lengths) >= 12
    env.close()


def test_an_observer_around_a_student_shows_where_it_begins(snapshots: Snapshots) -> None:
    student = _student(snapshots, 0)
    modalities = Observer(student, text=True)
    _, info = modalities.reset()
    assert info["text"] == modalities.caption(student, {}) and "cart" in info["text"]


def test_what_is_out_of_range_is_refused_in_a_sentence(snapshots: Snapshots) -> None:
    env, n = make("CartPole-v1"), len(snapshots.states)
    for options, message in [
        ({"clusters": 0}, rf"clusters=0 is out of range; {n} snapshots make 1 to {n} clusters"),
        ({"clusters": n + 1}, rf"clusters={n + 1} is out of range"),
        ({"until": -1}, r"until=-1 is out of range; give 0 steps or more"),
        ({"truncate": 0}, r"truncate=0 is out of range; give at least 1 step"),
        ({"probability": 1.5}, r"probability=1.5 is out of range; give a number in \[0, 1\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            SnapshotReset(env, snapshots, **options)
    with pytest.raises(ValueError, match=r"the snapshot is of CartPole-v1, not of Pendulum-v1; make CartPole-v1"):
        SnapshotReset(make("Pendulum-v1"), snapshots)
    with pytest.raises(ValueError, match=r"put it around this"):
        SnapshotReset(make("CartPole-v1", text=True), snapshots)
    with pytest.raises(ValueError, match=r"lodestar/ProbeJoint-v0 has no state that can be taken"):
        record(make("lodestar/ProbeJoint-v0"), lambda obs: 0, episodes=1)
    with pytest.raises(ValueError, match=r"episodes=0 is out of range; give at least 1"):
        record(env, _push, episodes=0)
