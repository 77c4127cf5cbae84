"""Reward code: components by hand, what is refused and in which words, authors that answer badly."""

import numpy as np
import pytest
from gymnasium import spaces
from model_server import ModelServer, status

from envs.transitions import Transitions
from rewards.check import check_reward, random_rollout
from rewards.design.authors import SHIPPED_ANSWERS, Brief, ModelAuthor, RandomAuthor, RecordedAuthor, formula, record
from rewards.design.code import FORM, Code, CodeConfig, translate, try_code
from rewards.language.lare import code_in
from rewards.llm.client import JudgeError
from rewards.llm.sandbox.process import SandboxError

BOX, PUSH = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(3)
GAIN = (
    "def square(x):\n    return x[:, 0] ** 2\n\n"
    "def reward(obs, action, next_obs):\n    gain = square(next_obs) - square(obs)\n"
    '    return {"gain": gain, "push": 0.5 * action[:, 0]}\n'
)
BRIEF = Brief("stand", "obs[:, 0]: height", 2, 1)


@pytest.fixture
def code(tmp_path):
    def write(source=GAIN, **options):
        path = tmp_path / "mine.py"
        path.write_text(source)
        return Code(CodeConfig(file=str(path), **options), BOX, PUSH)

    return write


def test_the_reward_is_the_sum_of_its_components_and_each_is_logged(code):
    made = code()
    rows = {"reward": np.zeros(2, np.float32), "step": np.arange(2)}
    flags = {name: np.zeros(2, bool) for name in ("terminated", "truncated")}
    obs, after = np.float32([[1, 5], [2, 5]]), np.float32([[3, 5], [1, 5]])
    batch = Transitions(obs=obs, action=np.array([0, 2]), next_obs=after, valid=np.array([True, True]), **rows, **flags)
    assert made.score(batch).tolist() == [8, -3 + 1]  # 9 - 1, and 1 - 4 + 0.5 * 2
    assert made.update(batch) == {"gain": 2.5, "push": 0.5}
    assert made.update(batch.replace(valid=np.array([True, False]))) == {"gain": 8, "push": 0}
    assert "gain + push" in made.notes()[0]
    long = batch[np.arange(1200) % 2]
    assert made.update(long.replace(action=np.arange(1200) % 3 % 2 * 1.0))["push"] == 0  # of every third row alone


def test_code_may_read_signals_behind_the_action(code):
    made = code(
        "def reward(obs, action, next_obs, signals):\n"
        '    return {"far": next_obs[:, 0] - obs[:, 0], "lit": 10 * signals[:, 1] + action[:, 0]}\n'
    )
    assert made.requires == {"obs", "action", "next_obs", "signals"} and Code.requires == {"obs", "action", "next_obs"}
    rows = {"reward": np.zeros(2, np.float32), "step": np.arange(2), "valid": np.ones(2, bool)}
    flags = {name: np.zeros(2, bool) for name in ("terminated", "truncated")}
    batch = Transitions(
        obs=np.float32([[1, 5], [2, 5]]),
        action=np.array([0, 2]),
        next_obs=np.float32([[3, 5], [1, 5]]),
        **rows,
        **flags,
    )
    with pytest.raises(ValueError, match=r"the code reads signals, and this environment has none; write reward\(obs"):
        made.score(batch)
    lit = batch.replace(signals=np.float32([[0, 1, 0], [7, 0, 7]]))
    # 3 - 1 + 10 * 1 + 0, and 1 - 2 + 10 * 0 + 2.
    assert made.score(lit).tolist() == [12, 1]
    obs, action = np.float32([[1, 5, 3, 5], [2, 5, 1, 5]]), np.float32([[0], [2]])
    with pytest.raises(SandboxError, match="there are no signals; write"):
        try_code("def reward(obs, action, next_obs, signals):\n    return {'a': obs[:, 0]}\n", 2, [(obs, action)])


def test_it_keeps_the_contract(code):
    check_reward(code())


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("    return obs[:, 0]", "must end with its components"),
        ('    return {"Very bad": obs[:, 0]}', "different names of small letters"),
        ("    return {}", "1 to 12 different names"),
        ('    return {"a": obs[:, 0], "a": obs[:, 1]}', "different names"),
        ('    return {"a": np.load(obs)}', r"np\.load is not among"),
        ('    x = open("/etc/passwd")\n    return {"a": obs[:, 0]}', "a str has no place|name 'open' is not known"),
        ('    return {"a": obs[:, 7]}', "IndexError: index 7 is out of bounds"),
        ('    return {"a": obs}', "ValueError: .*broadcast"),
        ('    return {"a": np.log(obs[:, 0])}', "reward gave values that are not finite"),
        ('    return {"a": obs[:, 0] - obs[:, 0].mean()}', "a row of reward depends on other rows"),
        ('    return {"a": obs[:, 0], "b": 1 - obs[:, 0]}', "the sum of the components is the same"),
        ('    return {"a": 3}', "reward gave the same for all rows"),
    ],
)
def test_code_that_does_not_do_is_refused_with_a_sentence_for_its_author(body, said):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(8, 4)).astype(np.float32), np.zeros((8, 1), np.float32)
    with pytest.raises(SandboxError, match=said):
        try_code(f"def reward(obs, action, next_obs):\n{body}\n", 2, [(rows[0][:2], rows[1][:2]), rows], timeout=20.0)


@pytest.mark.parametrize(
    "source", ["def reward(obs):\n    return {}", "x = 1", "def reward(", GAIN + "y = " + "(" * 500]
)
def test_what_is_no_reward_function_is_refused_before_it_is_run(source):
    with pytest.raises(SandboxError, match=r"must define one function reward|is no Python"):
        translate(source, 2)


def test_a_file_that_is_missing_or_refused_and_images_are_one_sentence(code, tmp_path):
    with pytest.raises(ValueError, match=r"reward.code.file='' names no file; give a file with reward\("):
        Code(CodeConfig(), BOX, PUSH)
    with pytest.raises(ValueError, match=r"mine.py' was refused: .*Lambda is not allowed"):
        code('def reward(obs, action, next_obs):\n    f = lambda x: x\n    return {"a": f(obs[:, 0])}')
    with pytest.raises(ValueError, match="reads numbers, not the images"):
        Code(CodeConfig(file=str(tmp_path / "mine.py")), spaces.Box(0, 255, (3, 64, 64), np.uint8), PUSH)


def test_the_last_block_that_defines_reward_is_taken_however_much_is_said():
    talk = "Let me think. " * 1000
    assert code_in(f"{talk}\n```python\nx = 1\n```\n```python\n{GAIN}```\n{talk}", FORM) == GAIN
    assert code_in(f"```python\n{GAIN}```\n```\nprint(1)\n```", FORM) == GAIN
    with pytest.raises(SandboxError, match="no block of code that defines reward"):
        code_in(talk, FORM)


def test_a_model_is_told_the_form_and_the_feedback_and_a_failed_answer_is_its_sentence():
    answer = f"```python\n{GAIN}```"
    with ModelServer(lambda text, images: answer) as server:
        server.plan = [status(404)]
        author = ModelAuthor("m", server.url, attempts=1, concurrency=1)
        brief = Brief("stand", "obs[:, 0]: height", 2, 1, feedback="It fell.")
        found = author.propose(brief, 2, 1)
        author.close()
    assert isinstance(found[0], JudgeError) and "404" in str(found[0]) and found[1] == answer
    asked = server.seen[0][1]["messages"][0]["content"]
    assert "The task: stand" in asked and "(B, 2)" in asked and asked.endswith("It fell.")
    assert 'return {"height": height, "speed": 0.1 * speed}' in asked and " arctan2, " in asked


def test_random_formulas_are_the_same_again_and_mostly_pass_the_check():
    author = RandomAuthor(seed=3)
    first = author.propose(BRIEF, 4, 2)
    assert first == RandomAuthor(seed=3).propose(BRIEF, 4, 2) != author.propose(BRIEF, 4, 1)
    rng = np.random.default_rng(0)
    drawn = [formula(BRIEF, rng) for _ in range(200)]
    assert len(set(drawn)) > 190
    assert all(1 <= len(translate(each, 2)[0]) <= 4 for each in drawn)


def test_answers_of_a_search_can_be_repeated_and_what_ships_has_three_rounds(tmp_path):
    record(tmp_path / "kept.txt", [["one\n=== 7\nstill one", "two"], [], ["three"]])
    author = RecordedAuthor(str(tmp_path / "kept.txt"))
    assert [list(author.propose(BRIEF, 9, n)) for n in (1, 2, 3)] == [
        ["one\n === 7\nstill one\n", "two\n"], [], ["three\n"],
    ]  # fmt: skip
    for path in SHIPPED_ANSWERS.glob("*.txt"):
        shipped = RecordedAuthor(path.stem)
        assert min(len(shipped.propose(BRIEF, 9, number)) for number in (1, 2, 3)) >= 2
    (tmp_path / "kept.txt").write_text("no heading")
    with pytest.raises(ValueError, match="has no answers; each begins with a line as === 1"):
        RecordedAuthor(str(tmp_path / "kept.txt"))
    with pytest.raises(ValueError, match=r"'nowhere' does not exist; give a file of answers, or mountaincar, pendulum"):
        RecordedAuthor("nowhere")


def test_rollouts_and_flat_batches_of_dicts_are_read(tmp_path):
    space = spaces.Dict({"b": spaces.Box(-1, 1, (1,)), "a": spaces.Box(-1, 1, (1,))})
    path = tmp_path / "mine.py"
    path.write_text('def reward(obs, action, next_obs):\n    return {"a": next_obs[:, 0], "b": 2 * next_obs[:, 1]}')
    made = Code(CodeConfig(file=str(path)), space, PUSH)
    batch = random_rollout(space, PUSH).flatten()
    expected = batch.next_obs["a"][:, 0] + 2 * batch.next_obs["b"][:, 0]
    np.testing.assert_allclose(made.score(batch), expected, rtol=1e-6)
