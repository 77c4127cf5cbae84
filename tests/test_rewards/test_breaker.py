"""The breaker, by a clock that the test turns."""

from rewards.llm.client import Breaker


def test_five_failures_in_a_row_open_it_and_a_success_begins_the_count_again():
    breaker = Breaker(pause=30.0)
    assert [breaker.failed(0.0) for _ in range(4)] == [False] * 4
    assert breaker.succeeded(1.0) is False and breaker.room(1.0) is None
    assert [breaker.failed(2.0) for _ in range(5)] == [False] * 4 + [True]
    assert breaker.open and breaker.room(2.0) == 0


def test_one_probe_goes_after_the_wait_and_its_failure_begins_the_wait_again():
    breaker = Breaker(pause=30.0)
    for _ in range(5):
        breaker.failed(0.0)
    assert breaker.room(29.9) == 0 and breaker.room(30.0) == 1
    breaker.asked()
    assert breaker.room(31.0) == 0, "one probe at a time"
    assert breaker.failed(35.0) is False
    assert breaker.room(64.9) == 0 and breaker.room(65.0) == 1
    breaker.asked()
    assert breaker.succeeded(66.0) is True and breaker.room(66.0) is None


def test_what_was_on_its_way_when_it_opened_does_not_prolong_the_wait():
    breaker = Breaker(pause=30.0)
    for _ in range(5):
        breaker.failed(0.0)
    breaker.failed(20.0)
    assert breaker.room(30.0) == 1


def test_more_than_half_of_the_last_thirty_seconds_open_it():
    breaker = Breaker()
    for second in range(20):
        breaker.succeeded(second)
        assert not breaker.failed(second), "one of two is not more than half"
    assert breaker.failed(20.0), "21 of 41 are"
    assert breaker.streak == 2


def test_a_share_of_few_answers_means_nothing_and_old_ones_are_forgotten():
    breaker = Breaker()
    for second in (0.0, 1.0, 31.5):
        breaker.succeeded(second)
        assert [breaker.failed(second) for _ in range(3)] == [False] * 3
    assert len(breaker._recent) == 4, "those of the first two seconds are gone"
