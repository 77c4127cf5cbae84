"""What is learnt from labels and pairs: losses one can compute by hand, order, state, generators."""

import json
import math
from copy import deepcopy

import numpy as np
import pytest
import torch

from lodestar.state import pack, unpack
from rewards.check import generator_states
from rewards.language.label_models import (
    ENCODERS,
    LABELS_BEFORE_HOLDOUT,
    NGRAM_BUCKETS,
    CaptionTable,
    LabelModel,
    LabelTable,
    Normaliser,
    buckets,
    characters,
)

GOOD = ["You pick up the yellow key.", "You open the yellow door.", "You reach the green goal."]
BAD = ["You bump into the wall.", "The door is locked.", "You drop the yellow key.", "Nothing happens."]
TEXTS, LABELS = GOOD + BAD, np.array([1.0] * 3 + [0.0] * 4)


def make(encoder="ngrams", **options):
    return LabelModel(encoder, **{"learning_rate": 3e-3, "seed": 0, **options})


def test_texts_that_differ_by_a_number_differ_by_a_word():
    one, two = set(buckets("The screen shows picture 48213.")), set(buckets("The screen shows picture 90127."))
    assert len(one - two) == len(two - one) == 1


def test_buckets_are_distinct_numbers_in_range_and_case_means_nothing():
    found = buckets("You kill the newt! The newt is dead.")
    assert found[0] == 0 and (np.diff(found.astype(int)) > 0).all() and found[-1] < NGRAM_BUCKETS
    assert len(buckets("")) >= 1
    np.testing.assert_array_equal(buckets("DOOR"), buckets("door"))
    assert buckets("A 7").tolist() == [
        0,
        994,
        2226,
        2467,
        2750,
        3026,
        3125,
        3239,
        3755,
    ]  # as in the models saved so far


def test_characters_are_cut_and_filled_up():
    assert characters("ab").tolist()[:3] == [97, 98, 0] and len(characters("x" * 999)) == 256
    assert characters("\u4e2d").tolist()[0] == ord("?")


@pytest.mark.parametrize("encoder", ENCODERS)
def test_labels_are_learnt_in_one_update(encoder):
    model = make(encoder)
    model.fit(TEXTS, LABELS, 32)
    np.testing.assert_array_equal(model.predict(TEXTS) > 0, LABELS > 0.5)
    assert model.steps == 32


@pytest.mark.parametrize("encoder", ENCODERS)
def test_an_order_is_learnt_from_pairs(encoder):
    model = make(encoder)
    worst, middle, best = "a wall", "a key", "the goal"
    model.fit([(worst, middle), (middle, best), (best, middle)], np.array([1.0, 1.0, 0.0]), 40)
    one, two, three = model.predict([worst, middle, best])
    assert one < two < three  # best and worst were never compared


def test_unseen_captions_are_classified_by_what_they_share_with_seen_ones():
    model = make()
    model.fit([f"{t[:-1]} ({k} moves left)." for t in TEXTS for k in range(100, 110)], LABELS.repeat(10), 96)
    unseen = [f"{t[:-1]} ({k} moves left)." for t in TEXTS for k in range(300, 310)]
    assert ((model.predict(unseen) > 0) == (LABELS.repeat(10) > 0.5)).mean() == 1


def test_both_classes_count_alike_however_rare_one_is():
    texts = [f"caption number {i}" for i in range(8)]
    # f = 0 everywhere at the start, so each label costs ln 2 times its weight: 2 for 2 of 8, 2/3 for 6 of 8
    assert make().fit(texts, np.array([1.0] * 2 + [0.0] * 6), 1) == pytest.approx(np.log(2), rel=1e-5)
    # 1 of 200 would weigh 100 and weighs 10
    labels = np.array([1.0] + [0.0] * 199)
    expected = np.log(2) * (10 + 199 * 0.5 / (199 / 200)) / 200
    assert make().fit([f"caption {i}" for i in range(200)], labels, 1) == pytest.approx(expected, rel=1e-5)


def test_a_tie_between_equals_costs_ln_2_and_moves_nothing():
    model = make()
    assert model.fit([("a", "b")], np.array([0.5]), 1) == pytest.approx(np.log(2))
    assert model.predict(["a", "b"]).tolist() == [0, 0]


def test_two_seeds_differ_and_one_repeats():
    def learnt(seed):
        model = make(seed=seed)
        model.fit(TEXTS, LABELS, 4)
        return model.predict(TEXTS).tolist()

    assert learnt(0) == learnt(0) != learnt(1)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_global_generators_stay_where_they_are(encoder):
    before = generator_states()
    make(encoder).fit(TEXTS, LABELS, 2)
    after = generator_states()
    assert before[0] == after[0] and torch.equal(before[2], after[2])
    np.testing.assert_equal(before[1], after[1])


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_saved_model_learns_on_equally(encoder):
    model, copy = make(encoder, batch_size=3), make(encoder, batch_size=3, seed=9)
    model.fit(TEXTS, LABELS, 3)
    copy.load_state_dict(deepcopy(model.state_dict()))
    assert copy.steps == 3
    for one in (model, copy):
        one.fit(TEXTS, LABELS, 3)
    assert model.predict(TEXTS).tolist() == copy.predict(TEXTS).tolist()


def test_predicting_nothing_is_fine_and_pieces_do_not_matter(monkeypatch):
    model = make()
    model.fit(TEXTS, LABELS, 8)
    assert model.predict([]).shape == (0,)
    alone = np.concatenate([model.predict([text]) for text in TEXTS])
    np.testing.assert_allclose(model.predict(TEXTS), alone, rtol=1e-5)
    monkeypatch.setattr("rewards.language.label_models.PREDICTION_BATCH", 3)
    np.testing.assert_allclose(model.predict(TEXTS), alone, rtol=1e-5)
    labels = np.where(np.arange(7) < 3, alone < 0, alone > 0).astype(float)  # the first three wrong
    labels[3] = 0.5
    assert model.accuracy(TEXTS, labels) == 0.5
    monkeypatch.setattr("rewards.language.label_models.MAX_HOLDOUT_LABELS", 4)
    assert model.accuracy(TEXTS, labels) == 0.75


def test_rewards_are_what_stands_above_mean_and_quantile():
    normaliser = Normaliser()
    normaliser.set(np.array([0.0, 1.0, 2.0, 3.0]), 0.5)
    np.testing.assert_allclose(normaliser(np.array([0.0, 1.0, 2.0, 3.0])), [0, 0, 0.5 / 1.25**0.5, 1.5 / 1.25**0.5])
    normaliser.set(np.array([0.0, 1.0, 2.0, 3.0]), 0.8)  # z at the quantile: that of 2.4
    np.testing.assert_allclose(normaliser(np.array([2.0, 2.5])), [0, 1 / 1.25**0.5], rtol=1e-6)


def test_no_reward_is_negative_and_equal_scores_pay_nothing():
    normaliser = Normaliser()
    normaliser.set(np.array([0.0, 1.0, 2.0, 9.0]), 0.1)
    assert normaliser(np.array([-5.0, 0.5, 2.5])).tolist() == [0, 0, 0]  # below the mean, above the quantile
    normaliser.set(np.full(4, 7.0), 0.5)
    assert normaliser(np.full(4, 7.0)).tolist() == [0] * 4


def test_the_least_recently_met_captions_are_forgotten():
    met = CaptionTable(3)
    met.count_captions({"a": 5, "b": 1, "c": 1}, 10)
    met.count_captions({"a": 1, "d": 2}, 4)
    assert met.counts == {"c": 1, "a": 6, "d": 2} and met.now == 14
    assert met.newest(2) == ["d", "a"]


def test_a_batch_larger_than_the_table_leaves_its_last():
    met = CaptionTable(2)
    met.count_captions({str(i): 1 for i in range(9)}, 9)
    assert list(met.counts) == ["7", "8"]


def test_unsure_answers_are_known_but_not_learnt_from():
    labels = LabelTable()
    for text, value in (("good", 1.0), ("bad", 0.0), ("what", math.nan)):
        labels.add(text, value)
    items, values = labels.labelled_items()
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
    learnt, held = labels.labelled_items()[0], labels.labelled_items(held=True)[0]
    assert set(learnt).isdisjoint(held) and len(learnt) + len(held) == 3000
    assert learnt[:LABELS_BEFORE_HOLDOUT] == [f"text {i}" for i in range(LABELS_BEFORE_HOLDOUT)]
    assert 0.08 < len(held) / 2900 < 0.12
    copy = LabelTable()
    copy.add("a label of before", 1.0)
    copy.load_state_dict(labels.state_dict())
    assert copy.texts == labels.texts
    assert (copy.labelled_items()[0], copy.labelled_items(held=True)[0]) == (
        learnt,
        held,
    )  # else they would be learnt after a resume


def test_the_oldest_labels_go_first_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr("rewards.language.label_models.MAX_LABELS", 2)
    labels = LabelTable()
    for text in "abc":
        labels.add(text, 1.0)
    assert list(labels.values) == ["b", "c"] and labels.texts == {"b", "c"}


def test_texts_and_pairs_survive_a_checkpoint():
    for items in (["a", "b", 'c "quoted"\n'], [("a", "b"), ("b", "c"), ("c", "d")]):
        labels, met = LabelTable(), CaptionTable(5)
        for item, value in zip(items, (1.0, 0.5, math.nan)):
            labels.add(item, value)
        met.count_captions({"a": 3}, 7)
        tree, arrays = pack({"labels": labels.state_dict(), "met": met.state_dict()})
        state = unpack(json.loads(json.dumps(tree)), arrays)
        copy, again = LabelTable(), CaptionTable(5)
        copy.load_state_dict(state["labels"]), again.load_state_dict(state["met"])
        np.testing.assert_equal(copy.values, labels.values)
        assert copy.texts == labels.texts and (again.counts, again.now) == ({"a": 3}, 7)
