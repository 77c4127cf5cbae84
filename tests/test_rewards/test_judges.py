"""Judges: the table and its refusals; what each of them answers, computed by hand."""

import json
import math

import numpy as np
import pytest
from gymnasium import spaces

from envs.transitions import Transitions
from rewards.check import random_rollout
from rewards.llm.judges.base import JUDGES, SegmentJudge
from rewards.preference.judges import (
    ClipJudge,
    Heron,
    RecordedPreferences,
    Scripted,
    fingerprint,
    lexicographic_preference,
    make_segment_judge,
)

BOX, PUSH = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(3)


def segments(rewards=None, signals=None, length=2, pairs=3, seed=0):
    """Made-up segments (L, B) with these rewards (L, B) or signals (L, B, K)."""
    shape = np.shape(rewards) if rewards is not None else np.shape(signals)[:2] if signals is not None else None
    length, pairs = shape or (length, pairs)
    made = random_rollout(BOX, PUSH, steps=length, envs=pairs, seed=seed)
    if rewards is not None:
        made = made.replace(reward=np.array(rewards, np.float32))
    if signals is not None:
        made = made.replace(signals=np.array(signals, np.float32))
    return made


class Always(SegmentJudge):
    """Gives one answer always, and counts how often it is asked."""

    name = "always"
    requires = frozenset({"text"})

    def __init__(self, answer=1.0):
        self.answer, self.asked = answer, 0

    def compare(self, first, second):
        self.asked += first.shape[1]
        return np.full(first.shape[1], self.answer, np.float32)


# The table


def test_every_judge_of_the_table_but_the_far_one_is_made_by_name():
    options = {"heron": {"order": ["speed"]}, "clip": {"goal": "pole vertically upright on top of the cart"}}
    for name in ("scripted", "heron", "clip"):
        judge = make_segment_judge(name, seed=1, **options.get(name, {}))
        assert isinstance(judge, SegmentJudge)
        assert judge.name == name
    assert set(JUDGES["segments"]) == {"scripted", "heron", "clip", "recorded", "vlm", "human", "circle"}


def test_an_unknown_judge_or_option_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"no judge 'scriptd'; did you mean 'scripted'\?"):
        make_segment_judge("scriptd")
    with pytest.raises(ValueError, match=r"scripted has no option 'mistake'; did you mean 'mistakes'\?"):
        make_segment_judge("scripted", mistake=0.1)
    with pytest.raises(ValueError, match=r"clip needs goal"):
        make_segment_judge("clip")


def test_a_teacher_without_sense_is_refused():
    with pytest.raises(ValueError, match=r"rationality=0 must be above 0"):
        Scripted(rationality=0)


# scripted


def test_the_higher_sum_of_the_tasks_reward_is_better_and_equal_sums_are_equal():
    first, second = segments([[1, 1, 2], [1, 1, 0]]), segments([[3, 0, 0], [0, 1, 2]])
    assert Scripted().compare(first, second).tolist() == [1.0, 0.0, 0.5]  # 3 > 2, 1 < 2, 2 = 2
    assert Scripted(margin=1.0).compare(first, second).tolist() == [0.5, 0.5, 0.5]


def test_a_myopic_teacher_looks_at_the_end():
    first, second = segments([[3.0], [0.0]]), segments([[0.0], [2.0]])
    assert Scripted().compare(first, second).tolist() == [0.0]  # 3 against 2
    assert Scripted(myopia=0.5).compare(first, second).tolist() == [1.0]  # 1.5 against 2


def test_mistakes_skips_and_rationality_happen_as_often_as_they_should():
    many = 10_000
    first, second = segments(np.zeros((1, many))), segments(np.full((1, many), 2.0))
    assert np.mean(Scripted(mistakes=0.1).compare(first, second) == 0) == pytest.approx(0.1, abs=0.015)
    assert np.isnan(Scripted(skip=0.3).compare(first, second)).mean() == pytest.approx(0.3, abs=0.015)
    chance = 1 / (1 + math.exp(-0.5 * 2))
    assert Scripted(rationality=0.5).compare(first, second).mean() == pytest.approx(chance, abs=0.015)


def test_a_teacher_of_the_same_seed_makes_the_same_mistakes_and_continues_where_it_was_saved():
    first, second = segments(np.zeros((1, 50))), segments(np.ones((1, 50)))
    one, two = Scripted(mistakes=0.5, seed=3), Scripted(mistakes=0.5, seed=3)
    assert np.array_equal(one.compare(first, second), two.compare(first, second))
    fresh = Scripted(mistakes=0.5, seed=9)
    fresh.load_state_dict(one.state_dict())
    assert np.array_equal(fresh.compare(first, second), two.compare(first, second))


def test_a_skip_rate_does_not_shift_the_mistakes():
    first, second = segments(np.zeros((1, 200))), segments(np.ones((1, 200)))
    plain = Scripted(mistakes=0.5, seed=0).compare(first, second)
    some = Scripted(mistakes=0.5, skip=0.5, seed=0).compare(first, second)
    answered = ~np.isnan(some)
    assert 0 < answered.sum() < 200
    assert np.array_equal(some[answered], plain[answered])


def test_made_up_labels_are_called_synthetic():
    assert "synthetic" in Scripted().notes()[0]
    assert "synthetic" in Heron(["speed"]).notes()[0]


# heron


def test_the_most_important_signal_that_differs_decides():
    first = np.array([[1.0, 5.0], [1.0, 5.0], [1.0, 5.0], [1.0, 5.0]])
    second = np.array([[2.0, 0.0], [1.2, 9.0], [1.2, 0.0], [1.2, 5.5]])
    label = lexicographic_preference(first, second, margins=(0.5, 1.0), signs=(1, 1))
    assert label.tolist() == [1.0, 1.0, 0.0, 0.5]  # by the first; by the second, twice; by none
    assert label.dtype == np.float32
    assert lexicographic_preference(first, second, (0.5, 1.0), (1, -1)).tolist() == [1.0, 0.0, 1.0, 0.5]


def test_exchanging_the_segments_turns_every_answer_round():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 100, 3))
    there = lexicographic_preference(first, second, (0.5, 0.5, 0.5), (1, -1, 1))
    back = lexicographic_preference(second, first, (0.5, 0.5, 0.5), (1, -1, 1))
    assert np.array_equal(there, 1 - back)


def test_heron_reads_names_numbers_and_signs_and_means_over_the_segment():
    first = segments(signals=[[[0.0, 4.0]], [[2.0, 0.0]]])  # means 1 and 2
    second = segments(signals=[[[1.0, 1.0]], [[1.0, 1.0]]])  # means 1 and 1
    for order in (["height", "-spin"], [0, "-1"]):
        judge = Heron(order, margins=0.1, unit="own", names=["height", "spin"])
        assert judge.compare(first, second).tolist() == [1.0]  # equally high, slower
    assert Heron(["spin"], 0.1, "own", ["height", "spin"]).compare(first, second).tolist() == [0.0]
    # the means of spin differ by 1, the sums by 2
    assert Heron(["spin"], 1.5, "own", ["height", "spin"]).compare(first, second).tolist() == [0.5]


def test_margins_in_deviations_are_those_of_the_segments_seen_so_far():
    first, second = segments(signals=[[[0.0], [0.0]]]), segments(signals=[[[4.0], [1.0]]])
    judge = Heron([0], margins=1.0, names=["x"])
    assert judge.compare(first, second).tolist() == [1.0, 0.5]  # deviation of 0, 0, 4, 1 is 1.64
    assert judge.statistics.std.tolist() == pytest.approx([np.std([0, 0, 4, 1])])
    fresh = Heron([0], margins=1.0, names=["x"])
    fresh.load_state_dict(judge.state_dict())
    assert fresh.statistics.count == 4


def test_signals_without_a_name_each_are_refused():
    three = segments(signals=np.zeros((2, 1, 3)))
    with pytest.raises(ValueError, match=r"there are 3 signals, and names for 9; name them"):
        Heron(["speed"]).compare(three, three)
    with pytest.raises(ValueError, match=r"there are no signals"):
        Heron(["speed"]).compare(segments(), segments())


def test_vehicles_have_names_of_their_own():
    assert Heron(["-crashed", "speed"]).columns == [4, 0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"order": []}, r"order is empty"),
        ({"order": ["sped"]}, r"'sped', which is no signal; choose among speed"),
        ({"order": [9]}, r"'9', which is no signal"),
        ({"order": ["speed"], "margins": [1, 2]}, r"2 margins for 1 signals"),
    ],
)
def test_an_order_without_sense_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Heron(**options)


# clip


def test_clip_prefers_the_segment_that_looks_more_like_the_sentence():
    judge = ClipJudge("pole vertically upright on top of the cart", margin=0.0)
    goal = judge.reward.goal
    away = -goal
    seen = np.stack([goal, away]).astype(np.float32)  # two embeddings: at the goal, and as far as can be
    first, second = (
        segments(np.zeros((2, 2))).replace(extras={judge.embedding: seen[[i, j]]})
        for i, j in (([0, 1], [0, 1]), ([1, 1], [0, 1]))
    )
    assert judge.compare(first, second).tolist() == [0.0, 0.5]  # (at, at) against (away, at); (away, away) twice
    assert ClipJudge("pole vertically upright on top of the cart", margin=2.0).compare(first, second).tolist() == [
        0.5,
        0.5,
    ]


# recorded


def test_each_pair_is_asked_once_and_a_run_is_replayed_without_the_judge(tmp_path):
    path = tmp_path / "labels.sqlite"
    first, second = segments(seed=1), segments(seed=2)
    judge = Always(1.0)
    asked = RecordedPreferences(str(path), judge)
    assert asked.requires == {"text"}
    assert asked.compare(first, second).tolist() == [1.0, 1.0, 1.0]
    assert asked.compare(first, second).tolist() == [1.0, 1.0, 1.0]
    assert judge.asked == 3
    alone = RecordedPreferences(str(path))
    assert alone.compare(first, second).tolist() == [1.0, 1.0, 1.0]
    assert alone.compare(second, first).tolist() == [0.0, 0.0, 0.0]  # the other way round
    assert np.isnan(alone.compare(first, segments(seed=3))).all()


def test_what_is_not_answered_is_asked_again(tmp_path):
    judge = Always(math.nan)
    asked = RecordedPreferences(str(tmp_path / "labels.sqlite"), judge)
    first, second = segments(seed=1), segments(seed=2)
    assert np.isnan(asked.compare(first, second)).all()
    judge.answer = 0.5
    assert asked.compare(first, second).tolist() == [0.5, 0.5, 0.5]
    assert judge.asked == 6


def test_only_unknown_pairs_are_asked(tmp_path):
    judge = Always(1.0)
    asked = RecordedPreferences(str(tmp_path / "labels.sqlite"), judge)
    first, second = segments(seed=1), segments(seed=2)
    asked.compare(first[:, :1], second[:, :1])
    judge.answer = 0.0
    assert asked.compare(first, second).tolist() == [1.0, 0.0, 0.0]
    assert judge.asked == 3


def test_labels_that_a_person_wrote_are_read_as_lines_of_json_or_as_a_table(tmp_path):
    first, second = segments(seed=1), segments(seed=2)
    rows = [{"first": a, "second": b, "label": 1} for a, b in zip(fingerprint(first), fingerprint(second))]
    lines, table = tmp_path / "labels.jsonl", tmp_path / "labels.csv"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table.write_text("first,second,label\n" + "".join(f"{row['first']},{row['second']},1\n" for row in rows))
    for path in (lines, table):
        assert RecordedPreferences(str(path)).compare(first, second).tolist() == [1.0, 1.0, 1.0]


def test_labels_without_segments_and_those_of_a_judge_are_of_the_pairs_that_are_asked(tmp_path):
    first, second = segments(np.zeros((2, 3))), segments(np.ones((2, 3)), seed=1)
    (path := tmp_path / "labels.jsonl").write_text(
        "".join(
            json.dumps({"first": a, "second": b, "label": 0.25}) + "\n"
            for a, b in zip(fingerprint(first[:, :2]), fingerprint(second[:, :2]))
        )
    )
    for judge, expected in (
        (RecordedPreferences(str(path)), [0.25, 0.25, np.nan]),
        (make_segment_judge("scripted", cached=str(tmp_path / "a.sqlite")), [1, 1, 1]),
    ):
        one, two, label = judge.ask(first, second, 1)
        np.testing.assert_array_equal(label, np.float32(expected))
        assert one is first and two is second


def test_a_file_that_holds_something_else_is_refused(tmp_path):
    path = tmp_path / "labels.jsonl"
    with pytest.raises(ValueError, match=r"there is no file"):
        RecordedPreferences(str(path))
    for line in ('{"first": "a", "second": "b", "label": 3}', "1, 2"):
        path.write_text(line + "\n")
        with pytest.raises(ValueError, match=r"line 1: .* is no label; it needs first, second and a label in \[0, 1\]"):
            RecordedPreferences(str(path))


def test_a_name_with_a_cache_writes_the_file(tmp_path):
    path = tmp_path / "below" / "labels.sqlite"
    judge = make_segment_judge("scripted", cached=str(path), mistakes=0.0)
    pair = segments([[0, 1], [0, 1]]), segments([[1, 0], [1, 0]], seed=1)
    assert judge.compare(*pair).tolist() == [1.0, 0.0]
    assert RecordedPreferences(str(path)).compare(*pair).tolist() == [1.0, 0.0]
    assert any("synthetic" in note for note in judge.notes())


def test_a_fingerprint_is_of_states_and_actions_and_of_nothing_else():
    one = segments(seed=1)
    assert fingerprint(one) == fingerprint(
        one.replace(reward=one.reward + 1, frame=np.zeros((2, 3, 4, 4, 3), np.uint8))
    )
    other = one.replace(action=(one.action + 1) % 3)
    assert not set(fingerprint(one)) & set(fingerprint(other))
    assert fingerprint(one[:, 1:]) == fingerprint(one)[1:]


def test_fingerprints_are_those_of_the_files_written_so_far():
    x, no = np.arange(8, dtype=np.float32).reshape(2, 2, 2), np.zeros((2, 2), bool)
    known = Transitions(x, x[..., :1], x[..., 0], x + 1, no, no, ~no, no.astype(int))
    assert fingerprint(known) == ["501308d0a0b4f150", "ec1c4528aeec4fbd"]


def test_segments_of_dict_observations_have_fingerprints_too():
    one = segments(seed=1)
    as_dict = Transitions(**{**vars(one), "obs": {"x": one.obs}, "next_obs": {"x": one.next_obs}})
    assert fingerprint(as_dict) == fingerprint(one)
