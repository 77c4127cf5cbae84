"""The page of a person who judges, in a real browser: keys, two tabs, a closed one, a kill, scripts as texts."""

import json
import subprocess
import sys

import numpy as np
import pytest

from rewards.preference.human import Human
from tests.browser import CHROMIUM, Browser
from tests.test_rewards.test_human import CHILD, pairs

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not CHROMIUM, reason="there is no chromium on this machine to show the page in"),
]
COUNTS = "document.getElementById('counts').textContent"
MESSAGE = "document.getElementById('message').textContent"


@pytest.fixture
def browser(tmp_path):
    made = Browser(tmp_path / "profile")
    yield made
    made.close()


def shown(tab):
    """The question of a tab, once there is one."""
    return tab.until("!document.getElementById('pair').hidden && shown")


def labels(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["label"] for row in rows]


def test_keys_answer_skip_and_take_back(browser, tmp_path):
    path = tmp_path / "answers.jsonl"
    judge = Human(answers=str(path), show="obs")
    judge.ask(*pairs(count=6), 4)
    tab = browser.open(judge.page.address)
    before = shown(tab)
    for key, count in (("ArrowLeft", "1 of 4"), ("ArrowRight", "2 of 4"), ("ArrowDown", "3 of 4")):
        tab.press(key)
        tab.until(f"{COUNTS}.startsWith('{count}') && shown != '{before}'")
        before = shown(tab)
    tab.press("u")
    tab.until(f"{COUNTS}.startsWith('2 of 4') && {MESSAGE}.includes('Taken back')")
    tab.press("=")
    tab.until(f"{COUNTS}.startsWith('3 of 4')")
    tab.press(" ")
    tab.until(f"{COUNTS}.includes('1 skipped')")
    tab.press("ArrowRight")
    tab.until("document.getElementById('title').textContent.startsWith('All answers are given')")
    assert labels(path) == [0.0, 1.0, 0.5, None, 0.5, None, 1.0]
    judge.close()
    tab.until(f"{MESSAGE}.includes('does not answer')")


def test_two_tabs_never_answer_one_question_twice_and_a_closed_one_loses_nothing(browser, tmp_path):
    path = tmp_path / "answers.jsonl"
    judge = Human(answers=str(path), show="obs")
    judge.ask(*pairs(count=6), 10)
    one, two = browser.open(judge.page.address), browser.open(judge.page.address)
    question = shown(one)
    assert shown(two) == question
    one.press("ArrowLeft")
    one.until(f"{COUNTS}.startsWith('1 of')")
    two.value(f"ask('/answer', {{id: '{question}', answer: 'right'}})")  # as if it had been pressed at the same time
    two.until(f"shown !== '{question}' && {MESSAGE}.includes('answered already')")
    assert labels(path) == [0.0]
    following = shown(two)
    one.close()
    assert shown(browser.open(judge.page.address)) == following
    two.press("ArrowRight")
    two.until(f"{COUNTS}.startsWith('2 of')")
    assert labels(path) == [0.0, 1.0]
    judge.close()


def test_texts_of_an_environment_are_texts(browser, tmp_path):
    judge = Human(answers=str(tmp_path / "answers.jsonl"), show="text")
    bad = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
    first, second = (side.replace(text=np.full(side.shape, bad, object)) for side in pairs(count=2))
    judge.ask(first, second, 10)
    tab = browser.open(judge.page.address)
    shown(tab)
    assert bad in tab.text()
    assert tab.value("document.title") == "Which is better?"
    assert tab.value("document.querySelectorAll('img, #pair script').length") == 0
    judge.close()


def test_a_run_that_is_killed_and_continued_loses_no_answer(browser, tmp_path):
    path, known = tmp_path / "answers.jsonl", set()
    for run in range(2):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)
        tab = browser.open(child.stdout.readline().removeprefix("questions: ").strip())
        assert shown(tab) not in known
        known.add(shown(tab))
        tab.press("ArrowRight")
        tab.until(f"{COUNTS}.startsWith('{run + 1} of')")
        child.kill()
        child.communicate()
        tab.until(f"{MESSAGE}.includes('No answer is lost')")
    assert labels(path) == [1.0, 1.0]
