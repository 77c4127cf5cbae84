"""Sentences about mistakes on a command line: they name what was meant."""

import pytest

from benchmarks.checks.repairs3 import hints

MISTAKES = hints.read_mistakes()


def test_there_are_fifty_mistakes():
    assert len(MISTAKES) == 50


@pytest.mark.timeout(300)
def test_the_sentence_about_a_mistake_names_what_was_meant():
    every_tenth = [*MISTAKES][::10]
    assert hints.wrong_hints({command: MISTAKES[command] for command in every_tenth}) == {}


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_sentence_about_every_mistake_names_what_was_meant():
    assert hints.wrong_hints(MISTAKES) == {}
