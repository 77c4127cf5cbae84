"""Segments: cut by hand-computed rules, across updates, never across episodes; the pool is saved whole."""

import numpy as np

from envs.transitions import Transitions
from rewards.preference.segments import Segments, cut


def rollout(steps, ended=None, valid=None, start=0, **more):
    """A rollout (T, N) whose observations count up: obs = 100 * env + time."""
    steps = np.array(steps)
    length, envs = steps.shape
    now = 100.0 * np.arange(envs) + start + np.arange(length)[:, None]
    nothing = np.zeros(steps.shape, bool)
    return Transitions(
        obs=now[..., None].astype(np.float32),
        action=np.zeros(steps.shape, np.int64),
        reward=now.astype(np.float32),
        next_obs=now[..., None].astype(np.float32) + 1,
        terminated=nothing if ended is None else np.array(ended, bool),
        truncated=nothing,
        valid=~nothing if valid is None else np.array(valid, bool),
        step=steps,
        **more,
    )


def seen(segments):
    """The pool as lists of obs."""
    return [segment.obs[:, 0].astype(int).tolist() for segment in segments.pool]


def test_a_rollout_is_cut_side_by_side_and_one_after_the_other():
    batch = rollout([[0, 0], [1, 1], [2, 2], [3, 3], [4, 4]])
    found, left = cut(batch, batch.valid, 2)
    assert found.obs[..., 0].T.astype(int).tolist() == [[0, 1], [100, 101], [2, 3], [102, 103]]
    assert left.tolist() == [[False, False]] * 4 + [[True, True]]


def test_episodes_are_never_crossed_and_ragged_tails_are_dropped():
    segments = Segments(2, 10)
    segments.add(rollout([[0], [1], [2], [0], [1]], ended=[[0], [0], [1], [0], [0]]))
    assert seen(segments) == [[0, 1], [3, 4]]
    assert segments.tail is None


def test_a_segment_may_be_completed_by_the_next_rollouts():
    segments = Segments(4, 10)
    segments.add(rollout([[0, 5], [1, 6]]))
    segments.add(rollout([[2, 7]], ended=[[0, 1]], start=2))  # environment 1 ends here
    assert len(segments) == 0
    segments.add(rollout([[3, 0], [4, 1]], start=3))
    assert seen(segments) == [[0, 1, 2, 3]]
    segments.add(rollout([[5, 2], [6, 3], [7, 4]], start=5))
    assert seen(segments) == [[0, 1, 2, 3], [103, 104, 105, 106], [4, 5, 6, 7]]


def test_cutting_in_pieces_gives_the_same_segments_as_cutting_at_once():
    rng = np.random.default_rng(0)
    steps, ended = np.zeros((60, 3), int), rng.random((60, 3)) < 0.08
    for t in range(1, 60):
        steps[t] = np.where(ended[t - 1], 0, steps[t - 1] + 1)
    batch = rollout(steps, ended)
    whole, pieces = Segments(5, 1000), Segments(5, 1000)
    whole.add(batch)
    for t in range(0, 60, 7):
        pieces.add(batch[t : t + 7])
    assert sorted(seen(whole)) == sorted(seen(pieces))
    assert len(whole) > 15


def test_rows_that_are_no_transitions_break_a_segment():
    segments = Segments(2, 10)
    segments.add(rollout([[0], [1], [0], [0], [1]], valid=[[1], [1], [0], [1], [1]]))
    assert seen(segments) == [[0, 1], [3, 4]]


def test_rows_whose_steps_do_not_follow_are_no_segment():
    segments = Segments(2, 10)
    segments.add(rollout([[0], [5], [6]]))
    assert seen(segments) == [[1, 2]]


def test_a_flat_batch_is_one_environment_in_time_order():
    segments = Segments(3, 10)
    segments.add(rollout([[0], [1], [2], [3]])[:, 0])
    assert seen(segments) == [[0, 1, 2]]


def test_one_step_is_a_segment_too():
    segments = Segments(1, 10)
    segments.add(rollout([[0, 0], [1, 1]]))
    assert seen(segments) == [[0], [100], [1], [101]]


def test_the_pool_keeps_the_newest():
    segments = Segments(1, 3)
    segments.add(rollout([[0], [1], [2], [3], [4]]))
    assert seen(segments) == [[2], [3], [4]]
    assert segments.pick(np.array([2, 0])).obs[..., 0].tolist() == [[4.0, 2.0]]


def test_another_number_of_environments_starts_afresh():
    segments = Segments(2, 10)
    segments.add(rollout([[0, 0]]))
    segments.add(rollout([[1], [2]], start=1))
    assert seen(segments) == [[1, 2]]


def test_only_fields_that_are_read_are_kept():
    frames = np.zeros((2, 1, 4, 4, 3), np.uint8)
    texts = np.full((2, 1), "word", object)
    extras = {"clip": np.ones((2, 1, 3), np.float16), "other": np.ones((2, 1, 3))}
    segments = Segments(2, 10, frozenset({"text"}), ("clip",))
    segments.add(rollout([[0], [1]], frame=frames, text=texts, extras=extras))
    kept = segments.pick(np.array([0]))
    assert kept.frame is None
    assert kept.text.tolist() == [["word"], ["word"]]
    assert list(kept.extras) == ["clip"]


def test_a_saved_pool_continues_where_it_was():
    one, two = (Segments(2, 10, frozenset({"text"})) for _ in range(2))
    one.add(rollout([[0, 0], [1, 1], [2, 2]], text=np.full((3, 2), "word", object)))
    two.load_state_dict(one.state_dict())
    for segments in (one, two):
        segments.add(rollout([[3, 3]], start=3, text=np.full((1, 2), "next", object)))
    assert seen(one) == seen(two) == [[0, 1], [100, 101], [2, 3], [102, 103]]
    assert one.pool[2].text.tolist() == two.pool[2].text.tolist() == ["word", "next"]
