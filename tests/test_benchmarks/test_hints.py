"""Sentences about mistakes on a command line: they name what was meant."""

import pytest

from benchmarks.checks.repairs3 import hints

MISTAKES = hints.read_mistakes()


def test_there_are_fifty_mistakes():
    assert len(MISTAKES) == 50


def test_the_sentence_about_a_mistake_names_what_was_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    hints.write_own_file(tmp_path)
    every_tenth = {command: MISTAKES[command] for command in [*MISTAKES][::10]}
    # The forks inherit what this process has imported, which a process of their own would do once more.
    assert hints.wrong_hints(every_tenth, hints.answers_in_forks(every_tenth)) == {}


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_sentence_about_every_mistake_names_what_was_meant():
    assert hints.wrong_hints(MISTAKES, hints.answers_in_process(MISTAKES)) == {}
