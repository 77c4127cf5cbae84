"""Judges of texts that need no server: rules, recorded labels, and another judge seen through an accuracy."""

import json
import sqlite3
import sys

import numpy as np
import pytest

from rewards.llm.judges import embedding
from rewards.llm.judges.base import Answers, make_judge

UNSURE = float("nan")


def labels(judge, *texts):
    answers = judge.label(texts)
    assert answers.value.dtype == np.float32 and not answers.failed.any()
    return answers.value.tolist()


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("version 1\n# comment\n- key of glass\n+ \\bkey\\b\n? perhaps\n\ndefault -\n")
    return path


def test_embeddings_without_their_model_are_refused_in_one_sentence(monkeypatch):
    embedding._load_model.cache_clear()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"sentences need .* tokenizers; pip install 'lodestar-rl\[sentences\]'$"):
        make_judge("embedding", family="nethack")


def test_embeddings_without_their_model_or_a_network_say_where_to_put_it(monkeypatch, tmp_path):
    pytest.importorskip("huggingface_hub")
    pytest.importorskip("tokenizers")
    embedding._load_model.cache_clear()
    monkeypatch.delenv("LODESTAR_MINILM", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match=r"not in the Hub's cache, and HF_HUB_OFFLINE .* LODESTAR_MINILM=<"):
        make_judge("embedding", family="nethack")


def test_the_first_rule_found_in_the_text_decides_whatever_its_case(book):
    judge = make_judge("rules", rulebook=str(book))
    texts = ("A KEY!", "a key of glass", "perhaps", "monkeys", "")
    np.testing.assert_array_equal(judge.label(texts).value, np.array([1, 0, np.nan, 0, 0], np.float32))


def test_a_text_is_read_only_until_the_agents_own_words_begin(book):
    book.write_text('version 1\nuntil called|"\n+ key\ndefault -\n')
    judge = make_judge("rules", rulebook=str(book))
    assert labels(judge, "a key called wall", "a wall Called key", 'it says "key"') == [1, 0, 0]


def test_pairs_are_compared_by_the_labels_and_unsure_stays_unsure(book):
    judge = make_judge("rules", rulebook=str(book))
    answers = judge.compare(["key", "no", "key", "perhaps"], ["no", "key", "a key", "key"])
    np.testing.assert_array_equal(answers.value, np.array([0, 1, 0.5, np.nan], np.float32))


def test_a_text_in_which_nothing_is_found_gets_the_default_label(book):
    for sign, value in (("+", 1.0), ("-", 0.0)):
        book.write_text(f"version 1\ndefault {sign}\n")
        assert labels(make_judge("rules", rulebook=str(book)), "anything") == [value]
    book.write_text("version 1\ndefault ?\n")
    assert np.isnan(labels(make_judge("rules", rulebook=str(book)), "anything")[0])


def test_the_identity_is_that_of_the_book_as_it_is_written(book):
    one, same = (make_judge("rules", rulebook=str(book)).identity for _ in range(2))
    book.write_text(book.read_text() + "+ gold\n")
    other = make_judge("rules", rulebook=str(book)).identity
    assert one == same != other and one.startswith("rules book ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("+ key\n", r"line 1 is '\+ key'; a rulebook begins with: version 1"),
        ("", r"line 1 is ''; a rulebook begins with: version 1"),
        ("version 1\ndefault -\nkey\n", r"line 3 is 'key'; begin it with"),
        ("version 1\ndefault -\n+\n", r"line 3 is '\+'; begin it with"),
        ("version 1\ndefault maybe\n", r"line 2 is 'default maybe'; begin it with"),
        ("version 1\ndefault -\n+ (key\n", r"line 3: '\(key' is no regular expression \(missing \)"),
        ("version 1\n+ key\n", r"has no label for a text without a rule; add a line: default -"),
    ],
)
def test_a_line_that_is_no_rule_is_named(book, text, words):
    book.write_text(text)
    with pytest.raises(ValueError, match=words):
        make_judge("rules", rulebook=str(book))


def test_a_family_without_a_rulebook_and_a_file_that_is_not_there_are_one_sentence():
    with pytest.raises(
        ValueError, match=r"family='chess' has no rulebook, classic, .*nethack have; give rulebook=PATH"
    ):
        make_judge("rules", family="chess")
    with pytest.raises(ValueError, match=r"family='' has no rulebook"):
        make_judge("rules")
    with pytest.raises(ValueError, match=r"rulebook='nowhere.txt' is no file"):
        make_judge("rules", rulebook="nowhere.txt")


HELPS = {
    "nethack": [
        "You climb down the stairs.",
        "Welcome to experience level 3.",
        "You kill the newt!",
        "You kick the kobold zombie.  You destroy the kobold zombie!",
        "You swap places with your kitten.  $ - 5 gold pieces.",
        "$ - a gold piece. [Dlvl 1, HP 12, XP 1, $ 1]",
        "k - a scroll labeled VENZAR BORGAVVE.",
        "The door opens. You swap places with your kitten. (x2)",
        "You swap places with your kitten. k - an iron wand. [Dlvl 1, HP 12, XP 1, $ 0]",
        "As you kick the door, it crashes open!",
        "You find a hidden passage.",
        "A trap door opens up under you!",
        "There is a staircase down here.",
    ],
    "minigrid": [
        "picked up the yellow key",
        "opened the blue door",
        "unlocked the yellow door (417 moves left)",
        "reached the goal",
        "sees the green goal",
    ],
    "driving": ["the car drives fast in the right lane, the road ahead is clear"],
    "classic": ["the pole is upright, the cart is in the middle", "the tip is above the line"],
    "mujoco": ["the robot is on its feet, moving forward", "the poles are upright", "the tip is on the target"],
    "crafter": ["collected wood", "placed a table; was hurt"],
    "exploration": ["the agent is in room 5 of 5", "the diver is in row 3 and column 3 of 10"],
}
DOES_NOT = {
    "nethack": [
        "It's a wall. [Dlvl 1, HP 12, XP 1, $ 0]",
        "This door is locked.",
        "Never mind.",
        "You see here a crude dagger.",
        "There is nothing here to pick up.",
        "The kitten bites the newt.  The newt is killed!",
        "You swap places with your kitten.",
        "You are beginning to feel hungry.",
        "The jackal bites!",
        "You die...",
        "You climb up the stairs.",
        'You read: "Welcome to experience level 3.".',
        "You see here a scroll called You kill the newt!",
        "What do you want to eat? [fgi or ?*]",
        "Really attack the kitten? [yn] (n)",
        "They say that you kill the newt!",
        "You see here an orange named $ - 7 gold pieces.",
    ],
    "minigrid": [
        "mission: use the key to open the door and then get to the goal",
        "bumped into a wall",
        "the yellow door is locked",
        "dropped the yellow key",
        "closed the blue door (3 moves left)",
        "fell into lava",
        "the screen shows picture 48213",
    ],
    "driving": ["the car has crashed", "the car drives fast in the left lane, another car is close ahead"],
    "classic": ["the pendulum hangs straight down", "the car is in the valley"],
    "mujoco": ["the robot has fallen over, moving forward", "the robot is upright but low", "the pole leans"],
    "crafter": ["was hurt", "fell asleep", "died"],
    "exploration": ["the agent is in room 1 of 5", "the diver is in row 1 and column 1 of 10"],
}


@pytest.mark.parametrize("family", HELPS)
def test_the_shipped_books_tell_what_helps_from_what_does_not(family):
    judge = make_judge("rules", family=family, goal="anything")
    helps, does_not = HELPS[family], DOES_NOT.get(family, [])
    assert dict(zip(helps, labels(judge, *helps))) == dict.fromkeys(helps, 1.0)
    assert dict(zip(does_not, judge.label(does_not).value.tolist())) == dict.fromkeys(does_not, 0.0)


@pytest.fixture
def transcript(tmp_path):
    rows = [
        {"now": 1, "text": "key", "other": None, "value": 0.0, "judge": "x"},
        {"text": "wall", "value": 0},
        {"text": "fog", "value": None},
        {"text": "goal", "value": 0.75},
        {"text": "key", "value": 1.0},
        {"text": "goal", "other": "wall", "value": 0.0},
    ]
    path = tmp_path / "labels.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_recorded_labels_are_found_by_the_text_and_the_last_line_counts(transcript):
    answers = make_judge("recorded", path=str(transcript)).label(["key", "goal", "wall", "fog", "newt", "Key"])
    np.testing.assert_array_equal(answers.value, np.array([1, 0.75, 0, np.nan, np.nan, np.nan], np.float32))
    assert answers.failed.tolist() == [False, False, False, False, True, True]
    assert answers.failure == "no label recorded"


def test_recorded_pairs_are_found_in_either_order_and_otherwise_by_their_labels(transcript):
    judge = make_judge("recorded", path=str(transcript))
    answers = judge.compare(["goal", "wall", "wall", "fog", "newt"], ["wall", "goal", "key", "key", "key"])
    np.testing.assert_array_equal(answers.value, np.array([0, 1, 1, np.nan, np.nan], np.float32))
    assert answers.failed.tolist() == [False, False, False, False, True]


def test_a_last_line_that_was_cut_off_is_passed_over(transcript):
    before = make_judge("recorded", path=str(transcript)).identity
    with transcript.open("a") as file:
        file.write('{"text": "newt", "val')
    assert make_judge("recorded", path=str(transcript)).identity == before


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[]",
        "{}",
        '{"text": "a"}',
        '{"text": 3, "value": 1}',
        '{"text": "a", "value": 2}',
        '{"text": "a", "value": true}',
        '{"text": "a", "value": NaN}',
        '{"text": "a", "value": "1"}',
        '{"text": "a", "other": 5, "value": 1}',
    ],
)
def test_a_bad_line_is_named_with_its_file_and_number(transcript, line):
    with transcript.open("a") as file:
        file.write(f"\n{line}\n")
    with pytest.raises(ValueError, match=r"labels\.jsonl, line 8: .* is no label; give text and a value in \[0, 1\]"):
        make_judge("recorded", path=str(transcript))


def cache(path, rows):
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE labels(key TEXT PRIMARY KEY, text TEXT, other TEXT, value REAL NULL, judge TEXT, raw TEXT, "
        "created REAL, latency REAL, tokens INTEGER)"
    )
    connection.executemany("INSERT INTO labels VALUES (?, ?, ?, ?, 'x', '', ?, 0, 0)", rows)
    connection.commit()
    connection.close()


def test_the_annotators_cache_is_read_and_its_newest_row_counts(tmp_path):
    path = tmp_path / "a cache.sqlite"
    rows = [("1", "key", None, 1.0, 5.0), ("2", "key", "", 0.0, 4.0), ("3", "fog", None, None, 1.0)]
    cache(path, [*rows, ("4", "key", "wall", 0.0, 1.0)])
    judge = make_judge("recorded", path=str(path))
    np.testing.assert_array_equal(judge.label(["key", "fog"]).value, np.array([1, np.nan], np.float32))
    assert judge.compare(["wall"], ["key"]).value.tolist() == [1.0]


def test_a_cache_that_is_torn_or_empty_and_a_missing_file_are_one_sentence(tmp_path):
    torn = tmp_path / "torn.sqlite"
    torn.write_bytes(b"SQLite format 3\0" + b"x" * 2000)
    with pytest.raises(ValueError, match=r"torn\.sqlite cannot be read as a file of answers"):
        make_judge("recorded", path=str(torn))
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(ValueError, match=r"empty\.jsonl holds no labels"):
        make_judge("recorded", path=str(empty))
    with pytest.raises(ValueError, match=r"path='nowhere\.jsonl' is no file"):
        make_judge("recorded", path="nowhere.jsonl")
    with pytest.raises(ValueError, match=r"the judge recorded needs path"):
        make_judge("recorded")


TEXTS = [f"you kill newt number {i}" if i % 2 else f"wall {i}" for i in range(10_000)]
TRUTH = np.arange(10_000) % 2


def test_a_simulated_judge_is_as_accurate_and_as_unsure_as_its_settings():
    value = make_judge("simulated", family="nethack", accuracy=0.9, unsure=0.2).label(TEXTS).value
    sure = ~np.isnan(value)
    assert sure.mean() == pytest.approx(0.8, abs=0.015)
    for truth in (0, 1):  # both kinds of answers are turned round alike
        assert (value == TRUTH)[sure & (truth == TRUTH)].mean() == pytest.approx(0.9, abs=0.015)


def test_a_simulated_judge_always_says_the_same_of_a_text_and_another_seed_errs_elsewhere():
    judge, again, other = (make_judge("simulated", family="nethack", accuracy=0.7, seed=seed) for seed in (1, 1, 2))
    value = judge.label(TEXTS[:500]).value
    np.testing.assert_array_equal(again.label(TEXTS[:500][::-1]).value[::-1], value)
    wrong, wrong_too = value != TRUTH[:500], other.label(TEXTS[:500]).value != TRUTH[:500]
    assert (wrong & wrong_too).mean() == pytest.approx(0.09, abs=0.03)  # independent: 0.3 times 0.3
    assert judge.identity == again.identity != other.identity


def test_a_perfect_simulation_is_the_judge_itself_and_one_of_accuracy_zero_its_opposite():
    rules = make_judge("rules", family="nethack").label(TEXTS).value
    np.testing.assert_array_equal(make_judge("simulated", family="nethack").label(TEXTS).value, rules)
    np.testing.assert_array_equal(make_judge("simulated", family="nethack", accuracy=0.0).label(TEXTS).value, 1 - rules)


def test_simulated_pairs_err_as_often_and_alike_in_both_orders():
    judge = make_judge("simulated", family="nethack", accuracy=0.8)
    first, second = TEXTS[0::2], TEXTS[1::2]  # a wall and a kill: the second is better
    value = judge.compare(first, second).value
    assert value.mean() == pytest.approx(0.8, abs=0.02)
    np.testing.assert_array_equal(judge.compare(second, first).value, 1 - value)
    assert judge.compare(["wall"] * 3, ["stone"] * 3).value.tolist() == [0.5] * 3


def test_shuffled_labels_are_as_often_positive_and_say_nothing_about_the_text():
    judge = make_judge("simulated", shuffle=True, positive=0.3)  # no rulebook is needed
    value = judge.label(TEXTS).value
    assert value[TRUTH == 1].mean() == pytest.approx(0.3, abs=0.015)
    assert value[TRUTH == 0].mean() == pytest.approx(0.3, abs=0.015)
    np.testing.assert_array_equal(judge.label(TEXTS).value, value)
    first, second = value[:100], value[100:200]
    np.testing.assert_array_equal(judge.compare(TEXTS[:100], TEXTS[100:200]).value, (1 + np.sign(second - first)) / 2)


def test_what_the_other_judge_did_not_answer_stays_unanswered(transcript):
    judge = make_judge("simulated", of="recorded", of_options={"path": str(transcript)}, accuracy=0.0)
    answers = judge.label(["key", "fog", "newt"])
    np.testing.assert_array_equal(answers.value, np.array([0, np.nan, np.nan], np.float32))
    assert answers.failed.tolist() == [False, False, True] and answers.failure == "no label recorded"


def test_no_simulation_passes_for_the_judge_it_simulates():
    judge = make_judge("simulated", family="nethack", accuracy=0.9)
    assert judge.notes()[0] == "a share of 0.1 of the labels is wrong on purpose, of 0 unsure"
    assert judge.notes()[1].endswith("(nethack.txt), no model gives them")
    assert "a control without meaning" in make_judge("simulated", shuffle=True).notes()[0]


def test_pairs_of_which_one_side_is_longer_are_refused(transcript):
    recorded = {"path": str(transcript)}
    for judge in (
        make_judge("recorded", **recorded),
        make_judge("simulated", of="recorded", of_options=recorded, accuracy=0.5),
        make_judge("openai", model="m", goal="g"),
    ):
        with pytest.raises(ValueError, match=r"zip\(\) argument 2 is longer than argument 1"):
            judge.compare(["key"], ["fog", "key", "newt"])


def test_a_simulation_closes_the_judge_it_simulates_if_there_is_one(transcript):
    judge, closed = make_judge("simulated", of="recorded", of_options={"path": str(transcript)}), []
    judge.other.close = lambda: closed.append(judge.other)
    judge.close()
    assert closed == [judge.other]
    make_judge("simulated", shuffle=True).close()


def test_a_judge_that_is_asked_elsewhere_is_not_simulated():
    with pytest.raises(ValueError, match=r"of='openai' is asked outside this process"):
        make_judge("simulated", of="openai", of_options={"model": "tiny", "goal": "to win"})


def test_unknown_judges_and_options_get_the_nearest():
    with pytest.raises(ValueError, match=r"there is no judge 'rule'; did you mean 'rules'\?"):
        make_judge("rule")
    with pytest.raises(ValueError, match=r"the judge rules has no option 'book'; did you mean 'rulebook'\?"):
        make_judge("rules", book="x")


def test_answers_that_did_not_fail_are_made_from_numbers():
    answers = Answers.of([1, 0.5, UNSURE])
    assert answers.value.dtype == np.float32 and answers.failed.tolist() == [False] * 3 and answers.tokens == 0
