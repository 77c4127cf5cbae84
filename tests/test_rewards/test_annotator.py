"""The annotator by the clock of steps and in replay: what is asked when, what comes when, what a resumed run knows."""

import json
import math
import shutil

import numpy as np
import pytest

from rewards.llm.annotation.annotator import Annotator
from rewards.llm.annotation.worker import _reply, ask_judge
from rewards.llm.judges import base as judge
from rewards.llm.judges.base import Answers, TextJudge


class Letters(TextJudge):
    """A text is as good as its share of the letter a; "?" makes unsure, "!" gives no answer. Counts what it costs."""

    name = "letters"
    local = True

    def __init__(self, goal="", family="", tokens=0):
        self.tokens, self.asked = tokens, []

    def label(self, texts):
        self.asked.append(list(texts))
        value = [math.nan if "?" in text else text.count("a") / len(text) for text in texts]
        answers = Answers.of(value)
        answers.failed[:] = ["!" in text for text in texts]
        answers.tokens = self.tokens * len(texts)
        return answers

    def notes(self):
        return ["letters are counted"]


class Far(Letters):
    local = False


@pytest.fixture(autouse=True)
def table(monkeypatch):
    monkeypatch.setitem(judge.JUDGES["texts"], "letters", f"{__name__}:Letters")
    monkeypatch.setitem(judge.JUDGES["texts"], "far", f"{__name__}:Far")


def by_steps(**options):
    return Annotator("letters", options.pop("judge_options", {}), clock="steps", **options)


def test_without_a_delay_an_answer_is_there_at_once():
    annotator = by_steps()
    assert annotator.offer(["a", "ab", "x"], 0) == 3
    assert annotator.take(0) == [("x", 0.0), ("ab", 0.5), ("a", 1.0)], "the newest first"
    assert annotator.take(0) == []


def test_answers_come_exactly_delay_steps_after_the_question():
    annotator = by_steps(delay=100)
    annotator.offer(["a"], 0)
    annotator.offer(["b"], 60)
    assert annotator.take(99) == []
    assert annotator.take(100) == [("a", 1.0)]
    assert annotator.take(159) == []
    assert annotator.take(160) == [("b", 0.0)]


def test_known_texts_those_in_the_air_and_empty_ones_are_not_taken_in():
    annotator = by_steps(delay=10)
    assert annotator.offer(["a", "", "a", "b?"], 0) == 2
    assert annotator.offer(["a", "b?"], 5) == 0
    assert [text for text, _ in annotator.take(10)] == ["b?", "a"]
    assert annotator.offer(["a", "b?", ""], 11) == 0, "unsure is an answer"
    assert annotator.metrics()["asked"] == 2


def test_the_rate_allows_so_many_questions_per_thousand_steps_and_the_newest_go_first():
    annotator = by_steps(rate=2)
    assert annotator.offer(["a", "b", "c", "d", "e"], 1000) == 5
    assert [text for text, _ in annotator.take(1000)] == ["e", "d"]
    assert [text for text, _ in annotator.take(1500)] == ["c"]
    assert annotator.take(1600) == []
    annotator.offer(["f"], 1900)
    assert annotator.take(1999) == []
    assert [text for text, _ in annotator.take(2000)] == ["f"]


def test_what_the_rate_allowed_and_was_not_used_is_lost():
    annotator = by_steps(rate=2)
    for now in range(0, 50_001, 1000):
        annotator.take(now)
    annotator.offer(list("abcdefg"), 51_000)
    assert len(annotator.take(51_000)) == 3, "two of this stretch, and one that was begun"


def test_priority_goes_before_age_and_a_text_that_is_met_again_is_new_again():
    annotator = by_steps(rate=1)
    annotator.offer(["a", "b", "c"], 0, priority=[0.1, 0.9, 0.5])
    annotator.offer(["a"], 1, priority=[0.6])
    asked = [annotator.take(1000 * i + 1000) for i in range(3)]
    assert [text for [(text, _)] in asked] == ["b", "a", "c"]


def test_oldest_first_on_request():
    annotator = by_steps(rate=1, order="oldest")
    annotator.offer(["a", "b"], 0)
    assert [annotator.take(now)[0][0] for now in (1000, 2000)] == ["a", "b"]


def test_a_full_queue_lets_the_oldest_go_and_counts_them():
    annotator = by_steps(rate=1, queue=2)
    assert annotator.offer(["a", "b", "c"], 0) == 2
    assert annotator.metrics()["dropped"] == 1 and annotator.metrics()["queued"] == 2
    assert annotator.offer(["a"], 0) == 1, "what was let go of may come again"
    assert [annotator.take(now)[0][0] for now in (1000, 2000)] == ["a", "c"]


def test_the_budget_is_a_number_of_answers_and_is_announced_once(capsys):
    annotator = by_steps(budget=2)
    annotator.offer(["a", "b", "c"], 0)
    assert len(annotator.take(0)) == 2
    annotator.offer(["d"], 1)
    assert annotator.take(10**9) == []
    assert capsys.readouterr().err == ("annotator: the budget of 2 labels is spent, nothing is asked any more\n")
    assert annotator.notes() == ["letters are counted", "the budget of 2 labels is spent, nothing is asked any more"]


def test_the_budget_of_tokens_ends_the_questions_too():
    annotator = by_steps(token_budget=50, rate=1, judge_options={"tokens": 30})
    annotator.offer(["a", "b", "c"], 0)
    assert [len(annotator.take(now)) for now in (1000, 2000, 3000)] == [1, 1, 0]
    assert annotator.metrics()["tokens"] == 60


def test_no_usable_answer_is_no_label():
    annotator = by_steps()
    annotator.offer(["a!", "a"], 0)
    assert annotator.take(0) == [("a", 1.0)]
    metrics = annotator.metrics()
    assert (metrics["asked"], metrics["answered"], metrics["failed"], metrics["dropped"]) == (2, 1, 1, 1)


def test_unsure_is_delivered_as_nan():
    annotator = by_steps()
    annotator.offer(["a?"], 0)
    [(text, value)] = annotator.take(0)
    assert text == "a?" and math.isnan(value) and annotator.metrics()["unsure"] == 1


def test_pairs_are_compared():
    annotator = by_steps(pairs=True)
    assert annotator.offer([("a", "b"), ("b", "a"), ("c", "d"), ("a", "")], 0) == 3
    assert sorted(annotator.take(0)) == [(("a", "b"), 0.0), (("b", "a"), 1.0), (("c", "d"), 0.5)]


def trace(annotator, begin=0, end=40, save=None):
    """What a run of 100 steps an update delivers, and the state before update `save`."""
    delivered, state = [], None
    for i in range(begin, end):
        if i == save:
            state = json.loads(json.dumps(annotator.state_dict()))
        now = 100 * (i + 1)
        annotator.offer([f"{'a' * (i % 5)}b{i}", f"a{i // 2}", f"{i}?" if i % 7 == 0 else ""], now)
        delivered += [(now, text, None if math.isnan(value) else value) for text, value in annotator.take(now)]
    return delivered, state


@pytest.mark.parametrize("save", [1, 13, 39])
def test_a_resumed_run_asks_and_gets_what_the_whole_one_did(save):
    options = {"delay": 250, "rate": 15, "queue": 4}
    whole = by_steps(**options)
    expected, state = trace(whole, save=save)
    resumed = by_steps(**options)
    resumed.load_state_dict(state)
    assert trace(resumed, begin=save)[0] == [row for row in expected if row[0] > 100 * save]
    assert resumed.metrics() == whole.metrics()
    assert resumed.state_dict() == whole.state_dict()


def test_a_run_replayed_from_its_transcript_gets_the_same_at_the_same_steps(tmp_path):
    file = str(tmp_path / "deep" / "transcript.jsonl")
    expected, _ = trace(by_steps(delay=250, rate=15, transcript=file))
    replay = Annotator("letters", {}, clock="transcript", transcript=file)
    assert trace(replay)[0] == expected and expected
    assert replay.notes() == [f"labels are those of a recorded run, {len(expected)} in all; no judge is asked"]
    line = json.loads((tmp_path / "deep" / "transcript.jsonl").read_text().splitlines()[0])
    assert line == {"now": 400, "text": "0?", "other": None, "value": None, "judge": "letters"}


def test_a_replay_needs_no_judge_at_all(tmp_path):
    file = tmp_path / "transcript.jsonl"
    file.write_text('{"now": 5, "text": "é", "value": null}\n{"now": 5, "text": "b", "value": 1}\n{"now": 6, "tex')
    replay = Annotator("no such judge", {"nor": "options"}, clock="transcript", transcript=str(file))
    assert replay.offer(["é", "b"], 0) == 0 and replay.take(4) == []
    (first, unsure), second = replay.take(5)
    assert first == "é" and math.isnan(unsure) and second == ("b", 1.0)
    assert replay.take(10**9) == []


def test_a_replay_continues_where_it_was(tmp_path):
    file = str(tmp_path / "transcript.jsonl")
    expected, _ = trace(by_steps(delay=250, rate=15, transcript=file))
    one, other = (Annotator("letters", {}, clock="transcript", transcript=file) for _ in range(2))
    _, state = trace(one, save=20)
    other.load_state_dict(state)
    assert trace(other, begin=20)[0] == [row for row in expected if row[0] > 2000]


def test_a_resumed_run_cuts_from_its_transcript_what_came_after_the_checkpoint(tmp_path):
    file = tmp_path / "transcript.jsonl"
    options = {"delay": 250, "rate": 15, "transcript": str(file)}
    _, state = trace(by_steps(**options), save=20)
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])  # killed in the middle of a line
    resumed = by_steps(**options)
    resumed.load_state_dict(state)
    trace(resumed, begin=20)
    assert file.read_bytes() == whole


def test_the_transcript_of_an_earlier_run_is_kept(tmp_path, capsys):
    file = tmp_path / "transcript.jsonl"
    for _ in range(3):
        annotator = by_steps(transcript=str(file))
        annotator.offer(["a"], 0)
        annotator.take(0)
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name, f"{file.name}.1", f"{file.name}.2"]
    assert capsys.readouterr().err.splitlines()[1] == (
        f"annotator: the transcript of an earlier run was moved to {file}.2"
    )


def test_a_transcript_that_is_removed_while_it_is_written_is_written_anew(tmp_path, capsys):
    path = tmp_path / "deep" / "transcript.jsonl"
    annotator = by_steps(transcript=str(path))
    for now, text in enumerate(("a", "b", "c")):
        annotator.offer([text], now)
        annotator.take(now)
        if text == "b":
            shutil.rmtree(path.parent)
    annotator.close()
    assert [json.loads(line)["text"] for line in path.read_text().splitlines()] == ["a", "b", "c"]
    assert "was removed while it was in use; it was written anew" in capsys.readouterr().err


def test_a_value_that_is_none_is_no_label_and_an_absurd_cost_no_crash(monkeypatch):
    def label(self, texts):
        return Answers(np.array([1e9, -1, np.inf, 0.5], np.float32), np.zeros(4, bool), tokens=10**400)

    monkeypatch.setattr(Letters, "label", label)
    annotator = by_steps()
    annotator.offer(["a", "b", "c", "d"], 0)
    assert [value for _, value in annotator.take(0)] == [0.5]
    assert (annotator.metrics()["failed"], annotator.metrics()["answered"]) == (3, 1)


def test_a_transcript_that_cannot_be_written_is_reported_once_and_labels_continue(tmp_path, capsys):
    annotator = by_steps(transcript=str(tmp_path))  # a folder
    for now in range(3):
        annotator.offer([f"a{now}"], now)
        assert len(annotator.take(now)) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"judge": "letter"}, r"no judge 'letter'; did you mean 'letters'"),
        ({"judge_options": {"gaol": ""}}, r"no option 'gaol'; did you mean 'goal'"),
        ({"clock": "wall", "delay": 5}, r"delay=5 counts steps, and clock=wall"),
        ({"clock": "wall", "probe": 0}, r"probe=0 is out of range; give a number above 0"),
        ({"cache": "labels.sqlite"}, r"cache='labels.sqlite' would change what clock=steps delivers"),
        ({"clock": "transcript"}, r"transcript is empty; give the file"),
        ({"clock": "transcript", "transcript": "/no/such"}, r"/no/such cannot be read: No such file"),
        ({"judge": "far"}, r"judge=far answers when it likes; use clock=wall"),
    ],
)
def test_what_cannot_be_is_refused(options, sentence):
    given = {"judge": "letters", "judge_options": {}, "clock": "steps", **options}
    with pytest.raises(ValueError, match=sentence):
        Annotator(**given)


@pytest.mark.parametrize(
    ("items", "value", "failed", "failure"),
    [
        (["a", "b?", "b!"], [1, None, 0], [False, False, True], ""),
        ([["b", "a"], ["a", "a"]], [1, 0.5], [False, False], ""),
        (["", "a"], [None, None], [True, True], "the judge raised ZeroDivisionError: division by zero"),
    ],
)
def test_the_judges_process_answers_in_json(items, value, failed, failure):
    replies = []
    _reply(Letters(tokens=5), {"id": 3, "items": items}, replies.append)
    [reply] = json.loads(json.dumps(replies))
    assert 0 <= reply.pop("seconds") < 60 and reply.pop("raw") == [failure] * len(items) * bool(failure)
    texts = 2 * len(items) if isinstance(items[0], list) else len(items)
    tokens = 0 if failure else 5 * texts
    assert reply == {"id": 3, "tokens": tokens, "value": value, "failed": failed, "failure": failure}


def test_another_number_of_answers_than_of_questions_is_a_failure(monkeypatch):
    monkeypatch.setattr(Letters, "label", lambda self, texts: Answers.of([1.0]))
    replies = []
    _reply(Letters(), {"id": 0, "items": ["a", "b"]}, replies.append)
    assert replies[0]["failure"] == "the judge raised ValueError: (1,) answers to 2 questions"


def test_a_value_beyond_0_and_1_is_a_failure_and_costs_stay_within_reason(monkeypatch):
    given = Answers.of([-0.01, 0.0, 1.0, 1.01])
    given.tokens = -5
    monkeypatch.setattr(Letters, "label", lambda self, texts: given)
    answers = ask_judge(Letters(), list("abcd"))
    np.testing.assert_array_equal(answers.value, np.float32([np.nan, 0, 1, np.nan]))
    assert answers.failed.tolist() == [True, False, False, True] and answers.tokens == 0
    assert answers.failure == "the judge gave a value outside [0, 1]"


def test_texts_where_pairs_were_agreed_on_are_refused():
    with pytest.raises(ValueError, match=r"pairs=True and the first item is 'a'"):
        by_steps(pairs=True).offer(["a"], 0)


def test_a_broken_line_of_a_transcript_is_named(tmp_path):
    file = tmp_path / "transcript.jsonl"
    good = '{"now": 5, "text": "a", "value": 1}\n'
    for bad in (
        "{}",
        "nonsense",
        '{"now": 5, "text": "a", "value": 2}',
        '{"now": 5, "text": "a", "other": "b", "value": 1}',
    ):
        file.write_text(f"{good}{bad}\n{good}")
        with pytest.raises(ValueError, match=r"transcript.jsonl, line 2: .* is no label of a text"):
            Annotator("letters", {}, clock="transcript", transcript=str(file))
