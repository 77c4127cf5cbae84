"""Memories of an episode against plain Python, step by step against all at once, and values done by hand."""

import numpy as np
import pytest

from envs.transitions import Transitions
from rewards.exploration import memories
from rewards.exploration.memories import CountMemory, EllipticalMemory, NeighbourMemory, Visits, values_at_both


def roll(shape, seed=0, end=0.1, invalid=0.1):
    """Made-up `valid` and `ended` (T, N); a row that is no transition follows some ends."""
    rng = np.random.default_rng(seed)
    valid = rng.random(shape) >= invalid
    return valid, (rng.random(shape) < end) & valid


def stepwise(kind, x, valid, ended):
    """The walk, one row at a time, as a driver of `score` does it: invalid rows restored, ended ones reset."""
    memory, answers = kind.initial(x.shape[1]), []
    yes = np.ones((1, x.shape[1]), bool)
    for t in range(len(x)):
        answer, after = kind.walk(memory, x[t : t + 1], yes, ~yes)
        fresh = kind.initial(x.shape[1])
        for key, values in after.items():
            values[~valid[t]] = memory[key][~valid[t]]
            values[ended[t]] = fresh[key][ended[t]]
        memory = after
        answers.append(answer[0])
    return np.stack(answers), memory


def samples(kind, shape, seed=0):
    rng = np.random.default_rng(seed)
    if isinstance(kind, CountMemory):
        return rng.integers(1, 8, shape).astype(np.uint64)
    return rng.normal(size=(*shape, kind.features)).astype(np.float32)


KINDS = [
    CountMemory(5),
    CountMemory(100),
    EllipticalMemory(3, 0.1),
    NeighbourMemory(4, 3, 2),
    NeighbourMemory(64, 3, 5),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{type(kind).__name__}-{getattr(kind, 'capacity', '')}")
@pytest.mark.parametrize("end", [0.0, 0.1, 0.6])
def test_a_rollout_at_once_is_its_rows_one_by_one(monkeypatch, kind, end):
    monkeypatch.setattr(memories, "PIECE_STEPS", 32)
    x, (valid, ended) = samples(kind, (75, 3)), roll((75, 3), end=end)
    start = stepwise(kind, samples(kind, (9, 3), 1), *roll((9, 3), 1))[1]
    given = {key: values.copy() for key, values in start.items()}
    kind.initial = lambda n: {key: values.copy() for key, values in start.items()}
    one, one_after = stepwise(kind, x, valid, np.zeros_like(ended))
    del kind.initial
    whole, after = kind.walk(start, x, valid, np.zeros_like(ended))
    for key in given:
        assert np.array_equal(start[key], given[key])  # not written into
        np.testing.assert_allclose(after[key], one_after[key], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(whole[valid], one[valid], rtol=1e-9)
    one, one_after = stepwise(kind, x, valid, ended)
    whole, after = kind.walk(kind.initial(3), x, valid, ended)
    np.testing.assert_allclose(whole[valid], one[valid], rtol=1e-9)
    for key in given:
        np.testing.assert_allclose(after[key], one_after[key], rtol=1e-9, atol=1e-9)


def test_neighbours_agree_with_a_list_per_environment():
    kind = NeighbourMemory(6, 2, 3)
    x, (valid, ended) = samples(kind, (60, 2)), roll((60, 2), end=0.05)
    whole, _ = kind.walk(kind.initial(2), x, valid, ended)
    for n in range(2):
        held = []
        for t in range(60):
            if not valid[t, n]:
                continue
            near = sorted(float(np.square(x[t, n] - y).sum(dtype=np.float64)) for y in held)[:3]
            np.testing.assert_allclose(whole[t, n], near + [np.inf] * (3 - len(near)), rtol=1e-5)
            held = [] if ended[t, n] else [*held, x[t, n]][-6:]


def test_neighbours_on_a_line_have_the_distances_one_reads_off_a_ruler():
    kind, no = NeighbourMemory(2, 1, 2), np.zeros((5, 1), bool)
    x = np.float32([0, 3, 4, 4, 0]).reshape(5, 1, 1)  # the ring holds two: 0 is forgotten when the last 0 comes
    inf = np.inf
    whole, memory = kind.walk(kind.initial(1), x, ~no, no)
    assert whole[:, 0].tolist() == [[inf, inf], [9, inf], [1, 16], [0, 1], [16, 16]]
    assert sorted(memory["ring"].ravel().tolist()) == [0, 4]
    assert memory["filled"].tolist() == [5]


def test_the_nth_visit_of_one_direction_answers_one_over_ridge_plus_n_minus_one():
    no, x = np.zeros((6, 1), bool), np.zeros((6, 1, 2))
    x[[0, 1, 3, 5], 0, 0] = x[[2, 4], 0, 1] = 1
    for ridge in (1.0, 0.1):
        n = np.array([1, 2, 1, 3, 2, 4])
        answers, memory = EllipticalMemory(2, ridge).walk(EllipticalMemory(2, ridge).initial(1), x, ~no, no)
        np.testing.assert_allclose(answers[:, 0], 1 / (ridge + n - 1))
        np.testing.assert_allclose(memory["inverse"][0], np.diag([1 / (ridge + 4), 1 / (ridge + 2)]), atol=1e-12)


def test_five_thousand_rows_do_not_drift_from_sherman_and_morrison():
    kind, shape = EllipticalMemory(8, 0.1), (5000, 1)
    x = samples(kind, shape)
    valid, ended = np.ones(shape, bool), np.zeros(shape, bool)
    ended[[1000, 1003]] = True
    answers, memory = kind.walk(kind.initial(1), x, valid, ended)
    inverse, expected = np.eye(8) / 0.1, []
    for phi, ends in zip(x[:, 0].astype(np.float64), ended[:, 0]):
        u = inverse @ phi
        expected.append(phi @ u)
        inverse = np.eye(8) / 0.1 if ends else inverse - np.outer(u, u) / (1 + phi @ u)
    np.testing.assert_allclose(answers[:, 0], expected, rtol=1e-4)
    np.testing.assert_allclose(memory["inverse"][0], inverse, rtol=1e-4, atol=1e-10)


def test_the_same_row_forever_stays_finite():
    x, no = np.ones((600, 1, 2)), np.zeros((600, 1), bool)
    answers, _ = EllipticalMemory(2, 1.0).walk(EllipticalMemory(2, 1.0).initial(1), x, ~no, no)
    np.testing.assert_allclose(answers[:, 0], 2 / (1 + 2 * np.arange(600)))
    near, _ = NeighbourMemory(3, 2, 2).walk(NeighbourMemory(3, 2, 2).initial(1), x.astype(np.float32), ~no, no)
    assert (near[2:] == 0).all()


def rollout(obs, next_obs, step, valid=None, ended=None):
    shape = np.shape(step)
    no = np.zeros(shape, bool)
    return Transitions(
        np.asarray(obs), no, no, np.asarray(next_obs), no if ended is None else np.array(ended, bool), no,
        ~no if valid is None else np.array(valid, bool), np.asarray(step),
    )  # fmt: skip


def test_an_episode_visits_the_state_it_begins_in_and_then_every_successor():
    # environment 0: 1 -> 2 -> 3 (end), 4 -> 5; environment 1: (an episode that goes on) 7 -> 8, nothing, 9 -> 10
    batch = rollout(
        [[1, 7], [2, 0], [4, 9]], [[2, 8], [3, 0], [5, 10]], [[0, 5], [1, 0], [0, 0]],
        valid=[[1, 1], [1, 0], [1, 1]], ended=[[0, 1], [1, 0], [0, 0]],
    )  # fmt: skip
    visits = Visits(batch)
    assert visits.apply(lambda obs: obs).tolist() == [[1, 0], [2, 8], [3, 0], [4, 9], [5, 10]]
    assert visits.valid.astype(int).tolist() == [[1, 0], [1, 1], [1, 0], [1, 1], [1, 1]]
    assert visits.ended.astype(int).tolist() == [[0, 0], [0, 1], [1, 0], [0, 0], [0, 0]]
    assert visits.rows.tolist() == [1, 2, 4]


def test_the_state_before_is_the_state_after_of_the_row_before_and_is_asked_for_only_where_that_is_missing():
    batch = rollout(
        [[1, 7], [2, 0], [4, 9]], [[2, 8], [3, 0], [5, 10]], [[0, 5], [1, 0], [0, 1]], valid=[[1, 1], [1, 0], [1, 1]]
    )
    asked = []
    before, after = values_at_both(lambda obs: asked.append(obs.tolist()) or 10 * obs, batch)
    assert before.tolist() == (10 * batch.obs).tolist()
    assert after.tolist() == (10 * batch.next_obs).tolist()
    assert asked == [[2, 8, 3, 0, 5, 10], [1, 7, 0, 4, 9]]
