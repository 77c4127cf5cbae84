"""The book of what waits, is asked and is answered."""

import json
import math

import pytest

from rewards.llm.annotation import queue as ledger
from rewards.llm.annotation.queue import Ledger


def test_what_is_drawn_counts_against_the_budget_until_it_fails():
    book = Ledger(budget=3)
    book.offer(list("abcde"))
    drawn = book.draw(2)
    assert drawn == ["e", "d"] and book.draw(9) == ["c"] and book.draw(9) == []
    book.fail("e", tries=3)
    assert book.draw(9) == ["b"], "what failed waits behind all others"
    for item in "dcb":
        book.answer(item, 1.0)
    assert book.draw(9) == [] and book.spent() != "" and book.spent() == ""


def test_a_text_is_given_up_after_so_many_failures_that_are_its_own():
    book = Ledger()
    book.offer(["a"])
    for blame in (True, False, False, True, False, True):
        assert book.draw(1) == ["a"]
        book.fail("a", 3, blame)
    assert book.draw(1) == [] and book.offer(["a"]) == 0
    assert (book.counts["failed"], book.counts["dropped"]) == (6, 1)


def test_a_text_that_failed_waits_behind_newer_and_less_urgent_ones_until_it_is_met_again():
    book = Ledger()
    book.offer(["a", "b", "c"], [5.0, 1.0, 1.0])
    assert book.draw(1) == ["a"]
    book.fail("a", 3)
    book.offer(["d"], [0.0])
    assert book.draw(2) == ["c", "b"]
    book.offer(["a"], [5.0])
    assert book.draw(9) == ["a", "d"]


def test_an_answer_from_a_cache_costs_neither_budget_nor_rate():
    book = Ledger(budget=1, rate=1.0)
    book.offer(["a", "b"])
    book.tick(1000)
    assert book.draw(1) == ["b"]
    book.answer("b", math.nan, cached=True)
    assert book.draw(1) == ["a"]
    book.sent(["a"])
    book.answer("a", 1.0)
    assert [item for item, _ in book.take(0)] == ["b", "a"]
    assert (book.counts["cached"], book.counts["answered"], book.counts["unsure"]) == (1, 1, 1)


def test_what_a_cache_has_not_been_asked_for_is_bounded_like_what_waits():
    book = Ledger(queue=3)
    for i in range(100):
        book.offer([str(i)])
    assert book.fresh == ["97", "98", "99"] and book.counts["dropped"] == 97


def test_only_so_many_answered_texts_are_remembered(monkeypatch):
    monkeypatch.setattr(ledger, "KNOWN", 3)
    book = Ledger()
    for item in "abcd":
        book.offer([item])
        book.answer(book.draw(1)[0], 1.0)
    assert book.offer(list("abcd")) == 1, "the first one was forgotten"


@pytest.mark.parametrize("pairs", [False, True])
def test_the_state_is_plain_and_what_was_being_asked_waits_again(pairs):
    a, b, c, d = (("x" + letter, letter) if pairs else letter for letter in "abcd")
    book = Ledger()
    book.offer([a, b, c, d])
    book.draw(3)
    book.answer(d, math.nan, due=7)
    book.fail(c, 3)
    state = json.loads(json.dumps(book.state_dict()))
    again = Ledger()
    again.load_state_dict(state)
    assert again.state_dict() == book.state_dict()
    assert again.take(6) == [] and [item for item, _ in again.take(7)] == [d]
    assert again.draw(9) == [b, a, c] and again.fresh == [c, a, b]
