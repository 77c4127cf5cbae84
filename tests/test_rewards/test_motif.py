"""Motif: fitted once to a file of labels, normalised by its captions, then frozen."""

import json
import sqlite3
from copy import deepcopy

import numpy as np
import pytest
from gymnasium import spaces
from rollouts import BAD, GOOD, rewards_of, rollout

from lodestar.state import pack
from rewards.check import check_reward
from rewards.language.motif import Motif, MotifConfig, _fit_labels

SPACES = spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(3)
NUMBERS = range(10)


def line(text, value, other=None):
    return json.dumps({"now": 0, "text": text, "other": other, "value": value, "judge": "rules 1"})


def numbered(text, number):
    return f"{text[:-1]} ({number})."


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Every good caption against every bad one, some ties, one unsure."""
    lines = [line(numbered(bad, n), 1.0, numbered(good, n)) for n in NUMBERS for good in GOOD for bad in BAD]
    lines += [line(numbered(GOOD[0], n), 0.5, numbered(GOOD[1], n)) for n in NUMBERS]
    lines += [line(GOOD[0], None, BAD[0]), line("a single one", 1.0)]
    path = tmp_path_factory.mktemp("motif") / "pairs.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def labels(tmp_path):
    path = tmp_path / "labels.jsonl"
    rows = [(text, 1.0) for text in GOOD] + [(text, 0.0) for text in BAD]
    path.write_text("".join(line(numbered(text, n), value) + "\n" for n in NUMBERS for text, value in rows))
    return str(path)


def make(data, seed=0, **options):
    return Motif(MotifConfig(data=data, **options), *SPACES, seed=seed)


def test_it_keeps_the_contract(pairs):
    check_reward(make(pairs))


def test_pairs_make_a_reward_for_the_better_half_of_the_captions(pairs):
    reward = make(pairs)
    texts = [numbered(text, n) for n in NUMBERS for text in GOOD + BAD]
    f = reward.model.predict(texts)
    z = (f - f.mean()) / f.std()  # every caption of the file once
    np.testing.assert_allclose(
        rewards_of(reward, texts), np.where(z > np.quantile(z, 0.5), np.maximum(z, 0), 0), rtol=1e-3
    )
    rewarded = np.array(rewards_of(reward, texts)).reshape(len(NUMBERS), -1)
    assert (rewarded[:, : len(GOOD)] > 0).all() and not rewarded[:, len(GOOD) :].any()


def test_captions_that_are_not_in_the_file_are_rated_all_the_same(pairs):
    assert (
        rewards_of(make(pairs), [numbered(GOOD[2], 417)])[0] > 0 == rewards_of(make(pairs), [numbered(BAD[1], 417)])[0]
    )


def test_a_higher_quantile_gives_fewer_captions_without_another_fit(pairs):
    misses = _fit_labels.cache_info().misses
    texts = [numbered(text, n) for n in NUMBERS for text in GOOD + BAD]
    counts = [np.count_nonzero(rewards_of(make(pairs, quantile=q), texts)) for q in (0.1, 0.7, 0.95)]
    assert counts[0] > counts[1] > counts[2] == 4  # 5 % of 70, rounded up
    assert _fit_labels.cache_info().misses <= misses + 1


def test_single_labels_will_do(labels):
    reward = make(labels)
    assert all(rewards_of(reward, GOOD)) and not any(rewards_of(reward, BAD))
    assert "70 labels of 70 captions" in reward.notes()[0] and "100% of the 14 held out" in reward.notes()[0]
    assert reward.model.steps == 100 and make(labels, batch_size=8, epochs=15).model.steps == 15 * 7


def test_a_cache_of_answers_will_do(tmp_path):
    path = str(tmp_path / "cache.sqlite")
    with sqlite3.connect(path) as cache:
        cache.execute(
            "CREATE TABLE labels(key TEXT PRIMARY KEY, text TEXT, other TEXT, value REAL, judge TEXT, raw TEXT, "
            "created REAL, latency REAL, tokens INTEGER)"
        )
        rows = [(f"{n} {text}", numbered(text, n), float(text in GOOD)) for n in NUMBERS for text in GOOD + BAD]
        cache.executemany("INSERT INTO labels VALUES (?, ?, '', ?, 'rules', '', 0, 0, 0)", rows)
    cache.close()
    reward = make(path)
    assert all(rewards_of(reward, GOOD)) and not any(rewards_of(reward, BAD))


def test_it_is_frozen(pairs):
    reward = make(pairs)
    before = deepcopy(reward.state_dict())
    assert reward.update(rollout(GOOD + BAD)) == {}
    assert pack(reward.state_dict())[0] == pack(before)[0]
    for one, two in zip(*(pack(state)[1].values() for state in (reward.state_dict(), before))):
        np.testing.assert_array_equal(one, two)


def test_it_is_fit_labels_once_in_a_process_and_anew_when_the_file_changes(tmp_path):
    path = tmp_path / "labels.jsonl"
    path.write_text("".join(line(text, float(text in GOOD)) + "\n" for text in GOOD + BAD))
    _fit_labels.cache_clear()
    one, two = make(str(path)), make(str(path))
    assert _fit_labels.cache_info().misses == 1 and rewards_of(one, GOOD + BAD) == rewards_of(two, GOOD + BAD)
    assert make(str(path), seed=1) and _fit_labels.cache_info().misses == 2
    path.write_text("".join(line(text, float(text in BAD)) + "\n" for text in GOOD + BAD))
    turned = make(str(path))
    assert _fit_labels.cache_info().misses == 3
    assert np.dot(rewards_of(turned, GOOD + BAD), rewards_of(one, GOOD + BAD)) == 0


def test_one_instance_does_not_move_another(pairs):
    one, two = make(pairs), make(pairs)
    before = rewards_of(two, GOOD)
    one.model.fit(GOOD, np.zeros(3), 5)
    assert rewards_of(two, GOOD) == before == rewards_of(make(pairs), GOOD)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (line("a", 1.0), r"holds 1 sure labels; give at least 2"),
        (
            "\n".join(line(text, 1.0) for text in "abcdef"),
            r"distinguish no caption; add others",
        ),
        ("\n".join(line(text, 0.5, "z") for text in "abcdef"), r"distinguish no caption"),
        ('{"text": "a", "value": 7}\n', r"line 1"),
    ],
)
def test_a_file_that_teaches_nothing_is_refused(tmp_path, content, sentence):
    path = tmp_path / "labels.jsonl"
    path.write_text(content + "\n")
    with pytest.raises(ValueError, match=sentence):
        make(str(path))


def test_a_missing_file_gets_a_sentence():
    with pytest.raises(ValueError, match=r"reward motif: data='' is no file"):
        make("")
