"""Code from a language model: asked for, weighed, mended with its own errors, kept; over a real HTTP server."""

import numpy as np
import pytest
from model_server import ModelServer, status

from rewards.language.lare import Author, code_in, question, verify_code
from rewards.llm.sandbox.process import SandboxError

GOOD = "def factors(obs, action):\n    return obs ** 2\n"
ROWS = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
BATCHES = [(ROWS[:2], ROWS[:2, :1]), (ROWS, ROWS[:, :1])]


def verify(source):
    return verify_code(source, BATCHES, timeout=20)


def fenced(code):
    return f"This is it:\n```python\n{code}```\nGood luck."


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (fenced(GOOD), GOOD),
        (GOOD, GOOD),
        (fenced("x = 1\n") + fenced(GOOD), GOOD),
        (fenced("def factors(obs, action):\n    return obs\n") + fenced(GOOD), GOOD),
        (f"```\n{GOOD}```", GOOD),
    ],
)
def test_the_last_block_that_defines_factors_is_taken(answer, code):
    assert code_in(answer) == code


def test_an_answer_without_code_says_what_is_missing():
    with pytest.raises(SandboxError, match=r"no block of code that defines factors"):
        code_in("I would use the angle.")


def test_the_question_says_what_the_numbers_are_and_what_the_code_may_use():
    asked = question("to stand", "obs[:, 0]: height", 1, 3)
    assert "The task: to stand" in asked
    assert "obs[:, 0]: height" in asked
    assert "shape\n(B, 3)" in asked or "(B, 3)" in asked
    assert " arctan2, " in asked
    assert "{" not in asked


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("obs - obs.mean(axis=0)", r"a row of factors depends on other rows"),
        ("obs * 0 + 3", r"gave the same for all rows"),
        ("np.log(obs)", r"not finite"),
        ("obs[:, 4]", r"IndexError: index 4 is out of bounds"),
        ("np.load(1)", r"np\.load is not among"),
    ],
)
def test_code_that_does_not_do_is_refused_with_a_sentence_for_its_author(body, said):
    with pytest.raises(SandboxError, match=said):
        verify(f"def factors(obs, action):\n    return {body}")


def test_errors_are_handed_back_until_the_code_runs():
    answers = [
        "no code at all",
        fenced("def factors(obs, action):\n    return obs[:, 7:8] / obs[:, 7]\n"),
        fenced(GOOD),
    ]
    asked = []

    def think(text, images):
        asked.append(text)
        return answers[len(asked) - 1]

    with ModelServer(think) as server:
        author = Author("m", server.url, candidates=1)
        sandbox = author.write("What counts?", verify)
    assert sandbox.source == GOOD
    assert "no block of code that defines factors" in asked[1]
    assert "IndexError: index 7 is out of bounds" in asked[2]
    assert "obs[:, 7:8]" in asked[2]
    assert asked[2].count("What counts?") == 1


def test_code_that_never_runs_ends_with_the_last_error_after_five_attempts():
    with (
        ModelServer(lambda text, images: "nothing") as server,
        pytest.raises(
            ValueError, match=r"m wrote no factors that run in 5 attempts, the last: the answer has no block"
        ),
    ):
        Author("m", server.url, candidates=1).write("?", verify)
    assert len(server.seen) == 5


def test_candidates_that_fail_are_left_out_and_a_server_that_is_gone_is_reported(tmp_path):
    with ModelServer(lambda text, images: fenced(GOOD)) as server:
        server.plan = [status(404), None, status(404)]
        author = Author("m", server.url, candidates=3, attempts=1)
        assert author.write("?", verify).source == GOOD
        assert len(server.seen) == 3  # one candidate was left, nothing to weigh
    with pytest.raises(ValueError, match=r"no factors without the model m: .* cannot be reached: .*; start it"):
        Author("m", server.url, attempts=1).write("?", verify)


def test_answers_of_another_model_or_question_are_not_taken(tmp_path):
    path = tmp_path / "kept" / "answers.sqlite"
    with ModelServer(lambda text, images: fenced(GOOD)) as server:
        Author("m", server.url, answers=str(path), candidates=1).write("?", verify)
        Author("m", server.url, answers=str(path), candidates=1).write("?", verify)
        assert len(server.seen) == 1
        Author("other", server.url, answers=str(path), candidates=1).write("?", verify)
        Author("m", server.url, answers=str(path), candidates=1).write("another?", verify)
        assert len(server.seen) == 3
