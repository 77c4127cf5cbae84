"""Bounded tables of captions and labels."""

import json
import math

import numpy as np

from rewards.language.label_models import HELD_FROM, CaptionTable, LabelTable
from runners.run.checkpoint import pack, unpack


def test_the_least_recently_met_captions_are_forgotten():
    met = CaptionTable(3)
    met.see({"a": 5, "b": 1, "c": 1}, 10)
    met.see({"a": 1, "d": 2}, 4)
    assert met.counts == {"c": 1, "a": 6, "d": 2} and met.now == 14
    assert met.newest(2) == ["d", "a"]


def test_a_batch_larger_than_the_table_leaves_its_last():
    met = CaptionTable(2)
    met.see({str(i): 1 for i in range(9)}, 9)
    assert list(met.counts) == ["7", "8"]


def test_unsure_answers_are_known_but_not_learnt_from():
    labels = LabelTable()
    for text, value in (("good", 1.0), ("bad", 0.0), ("what", math.nan)):
        labels.add(text, value)
    items, values = labels.sure()
    assert items == ["good", "bad"] and values.tolist() == [1, 0]
    assert "what" in labels.values and labels.metrics() == {"labels": 2, "positives": 1}


def test_the_newest_answer_about_an_item_counts():
    labels = LabelTable()
    labels.add("door", 0.0), labels.add("door", 1.0)
    assert labels.values == {"door": 1.0}


def test_one_in_ten_is_held_out_but_none_of_the_first_hundred():
    labels = LabelTable()
    for i in range(3000):
        labels.add(f"text {i}", float(i % 2))
    learnt, held = labels.sure()[0], labels.sure(held=True)[0]
    assert set(learnt).isdisjoint(held) and len(learnt) + len(held) == 3000
    assert learnt[:HELD_FROM] == [f"text {i}" for i in range(HELD_FROM)]
    assert 0.08 < len(held) / 2900 < 0.12


def test_the_oldest_labels_go_first_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr("rewards.language.label_models.MOST", 2)
    labels = LabelTable()
    for text in "abc":
        labels.add(text, 1.0)
    assert list(labels.values) == ["b", "c"] and labels.texts == {"b", "c"}


def test_texts_and_pairs_survive_a_checkpoint():
    for items in (["a", "b", 'c "quoted"\n'], [("a", "b"), ("b", "c"), ("c", "d")]):
        labels, met = LabelTable(), CaptionTable(5)
        for item, value in zip(items, (1.0, 0.5, math.nan)):
            labels.add(item, value)
        met.see({"a": 3}, 7)
        tree, arrays = pack({"labels": labels.state_dict(), "met": met.state_dict()})
        state = unpack(json.loads(json.dumps(tree)), arrays)
        copy, again = LabelTable(), CaptionTable(5)
        copy.load_state_dict(state["labels"]), again.load_state_dict(state["met"])
        np.testing.assert_equal(copy.values, labels.values)
        assert copy.texts == labels.texts and (again.counts, again.now) == ({"a": 3}, 7)
