"""The queue of what waits, is asked and is answered."""

import json
import math

import pytest

from rewards.llm.annotation import asking
from rewards.llm.annotation.asking import AnnotationQueue


def test_what_is_drawn_counts_against_the_budget_until_it_fails():
    pending = AnnotationQueue(budget=3)
    pending.offer(list("abcde"))
    drawn = pending.draw(2)
    assert drawn == ["e", "d"] and pending.draw(9) == ["c"] and pending.draw(9) == []
    pending.fail("e", tries=3)
    assert pending.draw(9) == ["b"], "what failed waits behind all others"
    for item in "dcb":
        pending.answer(item, 1.0)
    assert pending.draw(9) == [] and pending.spent_message() != "" and pending.spent_message() == ""


def test_a_text_is_given_up_after_so_many_failures_that_are_its_own():
    pending = AnnotationQueue()
    pending.offer(["a"])
    for blame in (True, False, False, True, False, True):
        assert pending.draw(1) == ["a"]
        pending.fail("a", 3, blame)
    assert pending.draw(1) == [] and pending.offer(["a"]) == 0
    assert (pending.counts["failed"], pending.counts["dropped"]) == (6, 1)


def test_a_text_that_failed_waits_behind_newer_and_less_urgent_ones_until_it_is_met_again():
    pending = AnnotationQueue()
    pending.offer(["a", "b", "c"], [5.0, 1.0, 1.0])
    assert pending.draw(1) == ["a"]
    pending.fail("a", 3)
    pending.offer(["d"], [0.0])
    assert pending.draw(2) == ["c", "b"]
    pending.offer(["a"], [5.0])
    assert pending.draw(9) == ["a", "d"]


def test_an_answer_from_a_cache_costs_neither_budget_nor_rate():
    pending = AnnotationQueue(budget=1, rate=1.0)
    pending.offer(["a", "b"])
    pending.tick(1000)
    assert pending.draw(1) == ["b"]
    pending.answer("b", math.nan, cached=True)
    assert pending.draw(1) == ["a"]
    pending.count_asked(["a"])
    pending.answer("a", 1.0)
    assert [item for item, _ in pending.take(0)] == ["b", "a"]
    assert (pending.counts["cached"], pending.counts["answered"], pending.counts["unsure"]) == (1, 1, 1)


def test_what_a_cache_has_not_been_asked_for_is_bounded_like_what_waits():
    pending = AnnotationQueue(capacity=3)
    for i in range(100):
        pending.offer([str(i)])
    assert pending.fresh == ["97", "98", "99"] and pending.counts["dropped"] == 97


def test_only_so_many_answered_texts_are_remembered(monkeypatch):
    monkeypatch.setattr(asking, "MAX_ANSWERED_ITEMS", 3)
    pending = AnnotationQueue()
    for item in "abcd":
        pending.offer([item])
        pending.answer(pending.draw(1)[0], 1.0)
    assert pending.offer(list("abcd")) == 1, "the first one was forgotten"


@pytest.mark.parametrize("pairs", [False, True])
def test_the_state_is_plain_and_what_was_being_asked_waits_again(pairs):
    a, b, c, d = (("x" + letter, letter) if pairs else letter for letter in "abcd")
    pending = AnnotationQueue()
    pending.offer([a, b, c, d])
    pending.draw(3)
    pending.answer(d, math.nan, due=7)
    pending.fail(c, 3)
    state = json.loads(json.dumps(pending.state_dict()))
    again = AnnotationQueue()
    again.load_state_dict(state)
    assert again.state_dict() == pending.state_dict()
    assert again.take(6) == [] and [item for item, _ in again.take(7)] == [d]
    assert again.draw(9) == [b, a, c] and again.fresh == [c, a, b]
