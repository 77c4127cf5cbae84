"""Labels and audits from the command line, with real recordings and a real server."""

import json
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import pytest
from model_server import ModelServer, says, status

from envs import recording
from rewards.llm.judges.base import make_judge
from rewards.llm.judges.local import Rules
from runners.annotate.__main__ import AnnotateConfig, agreement, annotate, audit, draw_pairs, labels, main, read
from runners.record import RecordConfig, record
from runners.run.config import UsageError
from tests.faults.faulty_server import quotations

WORDS = {1.0: "helpful", 0.0: "harmful"}


def by_rules(family):
    """A server's answers: what the rules of a family say of the caption in the question."""
    rules = Rules(family=family)

    def think(text, images):
        values = rules.label(quotations(text)).value
        if len(values) == 2:
            better = "equal" if values[0] == values[1] else "second" if values[1] > values[0] else "first"
            return json.dumps({"reason": "so", "better": better})
        return json.dumps({"reason": "so", "label": WORDS.get(float(values[0]), "unsure")})

    return think


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    """A recording of MiniGrid with texts."""
    path = tmp_path_factory.mktemp("recordings") / "play.safetensors"
    record(RecordConfig(env="MiniGrid-DoorKey-5x5-v0", steps=400, text=True, seed=1, out=str(path)))
    return str(path)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def openai(server, **more):
    return {"judge": "openai", "judge_options": {"model": "m", "url": server.url, "backoff": 0.01}, **more}


# labels


def test_a_model_labels_a_minigrid_recording_from_start_to_finish(play, capsys):
    with ModelServer(by_rules("minigrid")) as server:
        arguments = [f"record={play}", "judge=openai", "judge.model=m", f"judge.url={server.url}", "out=labels.jsonl"]
        assert main(arguments) == 0
        texts = read(play).texts
        rows = labels("labels.jsonl")
        expected = dict(zip(texts, Rules(family="minigrid").label(texts).value.tolist()))
        got = {row["text"]: float("nan") if row["value"] is None else row["value"] for row in rows}
        np.testing.assert_equal(got, expected)
        assert all(row["other"] is None and row["judge"].startswith("openai m") for row in rows)
        assert len(server.seen) == len(texts) + 1  # and the first question, before all others
        printed = capsys.readouterr().out
        assert f"labels.jsonl: {len(texts)} labels" in printed and "0 from labels.sqlite, 0 failed questions" in printed
        # once more: all is there; without the file, all is in the cache, and only the first question is asked
        assert main(arguments) == 0 and "holds all labels already" in capsys.readouterr().out
        os.remove("labels.jsonl")
        assert main(arguments) == 0 and len(server.seen) == len(texts) + 2
    assert f"{len(texts)} from labels.sqlite" in capsys.readouterr().out
    recorded = make_judge("recorded", path="labels.jsonl").label(texts)
    np.testing.assert_array_equal(recorded.value, list(expected.values()))


def test_a_model_compares_pairs_of_a_nethack_recording():
    record(RecordConfig(env="NetHackScore-v0", steps=300, text=True, out="nethack.safetensors"))
    known = read("nethack.safetensors")
    assert known.family == "nethack" and len(known.texts) > 5
    with ModelServer(by_rules("nethack")) as server:
        config = AnnotateConfig(record="nethack.safetensors", out="pairs.jsonl", pairs=20, cache="", **openai(server))
        assert annotate(config)["labels"] == 20
    rows = labels("pairs.jsonl")
    one, two = [row["text"] for row in rows], [row["other"] for row in rows]
    value = Rules(family="nethack").label([*one, *two]).value
    expected = np.nan_to_num(np.sign(value[20:] - value[:20]) / 2 + 0.5, nan=0.5)
    answered = np.array([row["value"] for row in rows], float)
    sure = ~np.isnan(value[20:] - value[:20])
    np.testing.assert_array_equal(answered[sure], expected[sure])


def test_pairs_are_different_and_all_of_them_if_more_are_asked_for():
    texts = list("abcdef")
    every = draw_pairs(texts, 99, seed=0)
    assert len(every) == 15 and {frozenset(pair) for pair in every} == {
        frozenset((a, b)) for a in texts for b in texts if a != b
    }
    assert draw_pairs(texts, 5, seed=3) == draw_pairs(texts, 5, seed=3) != draw_pairs(texts, 5, seed=4)
    assert len({frozenset(pair) for pair in draw_pairs([str(i) for i in range(2000)], 3000, 0)}) == 3000


def test_a_local_judge_needs_no_server_and_a_dry_run_asks_nothing(play, capsys):
    counts = annotate(AnnotateConfig(record=play, out="labels.jsonl"))
    assert counts["labels"] == len(read(play).texts) == len(labels("labels.jsonl")) and counts["tokens"] == 0
    capsys.readouterr()
    with ModelServer(by_rules("minigrid")) as server:
        found = annotate(AnnotateConfig(record=play, out="more.jsonl", dry_run=True, **openai(server)))
        assert not server.seen and not os.path.exists("more.jsonl")
    assert found["asked"] == found["items"] == len(read(play).texts)
    printed = capsys.readouterr().out
    assert f"{len(read(play).texts)} different texts" in printed and "tokens and" in printed
    assert 200 < found["tokens"] / found["asked"] < 1000  # a question is a page


def test_a_budget_ends_it_and_the_rest_comes_the_next_time(play):
    with ModelServer(by_rules("minigrid")) as server:
        config = AnnotateConfig(record=play, out="labels.jsonl", budget=2, **openai(server))
        assert annotate(config)["labels"] == 2
        config.budget = 0
        assert annotate(config)["labels"] == len(read(play).texts) - 2


def test_after_kill_9_nothing_is_asked_again(tmp_path):
    texts = [f"opened door number {number}" for number in range(40)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": t, "value": None}) + "\n" for t in texts))
    rules = by_rules("minigrid")

    def slowly(text, images):
        time.sleep(0.05)
        return rules(text, images)

    with ModelServer(slowly) as server:
        arguments = ["record=texts.jsonl", "out=labels.jsonl", "goal=to open doors", "family=minigrid", "concurrency=1"]
        arguments += ["judge=openai", "judge.model=m", f"judge.url={server.url}"]
        process = multiprocessing.get_context("fork").Process(target=lambda: os._exit(main(arguments)))
        process.start()
        until = time.monotonic() + 60
        while not (os.path.exists("labels.jsonl") and len(labels("labels.jsonl")) >= 5):
            assert time.monotonic() < until and process.is_alive()
            time.sleep(0.01)
        process.kill()
        process.join()
        with open("labels.jsonl", "a") as file:
            file.write('{"now": 0, "text": "torn')
        asked = [quotations(body["messages"][0]["content"])[0] for _, body in server.seen]
        assert len(asked) < 35
        assert main(arguments) == 0
        every = [quotations(body["messages"][0]["content"])[0] for _, body in server.seen]
    assert sorted(row["text"] for row in labels("labels.jsonl")) == sorted(texts)
    # the first questions, and what was in the air when it died, may be asked a second time
    assert len(every) <= len(texts) + 2 + 2


# refusals


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("out=a.jsonl", r"give either record=, a recording to label, or audit="),
        ("record=PLAY", r"out= is missing"),
        ("record=nowhere out=a.jsonl", r"nowhere is no file"),
        ("record=PLAY out=a.jsonl judge=rulse", r"there is no judge 'rulse'; did you mean 'rules'\?"),
        ("record=PLAY out=a.jsonl judge.rulebok=7", r"judge rules has no option 'rulebok'"),
        ("record=PLAY out=a.jsonl pairs=-1", r"pairs=-1 is out of range; give a number at least 0"),
        ("record=PLAY out=a.jsonl patience=0", r"patience=0.0 is out of range"),
        ("record=empty.jsonl out=a.jsonl", r"empty.jsonl holds no text"),
        ("record=bad.jsonl out=a.jsonl", r"bad.jsonl, line 1: .\{\"text\": 3\}. is no label; give text and value"),
        ("record=silent.safetensors out=a.jsonl", r"silent.safetensors holds no texts; record it again with text=true"),
        ("record=PLAY out=other.jsonl", r"other.jsonl holds labels of 'somebody', this judge is 'rules"),
        (
            "record=PLAY out=a.jsonl judge=openai judge.model=m judge.url=http://127.0.0.1:9/v1",
            r"first question: .*9/v1",
        ),
    ],
)
def test_what_cannot_be_labelled_is_refused_with_a_sentence(arguments, words, play, capsys, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "bad.jsonl").write_text('{"text": 3}\n')
    (tmp_path / "other.jsonl").write_text('{"now": 0, "text": "a", "other": null, "value": 1, "judge": "somebody"}\n')
    if "silent" in arguments:
        batch, meta = recording.load(play)
        recording.save("silent.safetensors", batch.replace(text=None, obs_text=None), meta)
    assert main(arguments.replace("PLAY", play).split()) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ") and printed.count("\n") == 1
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(printed)


def test_a_server_that_talks_nonsense_fails_at_the_first_question(play):
    with ModelServer(by_rules("minigrid")) as server:
        for plan in (says("I cannot say"), status(404, "no such model")):
            server.plan = [plan]
            with pytest.raises(UsageError, match=r"the judge openai gave no usable answer to a first question: "):
                annotate(AnnotateConfig(record=play, out="labels.jsonl", **openai(server)))
        assert not os.path.exists("labels.jsonl")


def test_a_server_that_dies_in_the_middle_is_waited_for_as_long_as_patience_lasts(play):
    with ModelServer(by_rules("minigrid")) as server:
        server.plan = [None] * 3 + [status(500)] * 1000
        config = AnnotateConfig(
            record=play, out="labels.jsonl", cache="", concurrency=1, patience=1.0, **openai(server)
        )
        config.judge_options |= {"attempts": 1, "answer": "json"}
        with pytest.raises(UsageError, match=r"no answer came for 1 s; labels.jsonl: 2 labels"):
            annotate(config)
        assert len(labels("labels.jsonl")) == 2


def test_the_command_explains_itself(capsys):
    assert main(["--help"]) == 0 and "patience=" in capsys.readouterr().out and main([]) == 2


# audits

TEXTS = ["picked up the yellow key", "opened the yellow door", "reached the goal", "dropped the yellow key", "fell"]


@pytest.fixture
def file(tmp_path):
    """The rules' labels of five texts."""
    values = Rules(family="minigrid").label(TEXTS).value.tolist()
    rows = [{"text": text, "value": value} for text, value in zip(TEXTS, values)]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "labels.jsonl"


def test_agreement_is_a_share_and_cohens_kappa_of_what_both_answered():
    one, two = np.array([1, 1, 0, 0, np.nan, 1]), np.array([1, 0, 0, 0, 1, np.nan])
    found = agreement("x", one, two)
    assert found["x: same"] == 0.75 and found["x: compared"] == 4
    assert found["x: kappa"] == pytest.approx((0.75 - 0.5) / (1 - 0.5))  # by chance: 1/2 * 1/4 + 1/2 * 3/4
    rare = np.zeros(100)
    rare[0] = 1
    found = agreement("x", rare, np.zeros(100))
    assert found["x: same"] == 0.99 and found["x: kappa"] == 0
    assert np.isnan(agreement("x", one[:0], two[:0])["x: same"])


def test_an_audit_of_a_model_that_follows_the_rules_finds_nothing(file, capsys):
    with ModelServer(by_rules("minigrid")) as server:
        options = [
            f"judge.url={server.url}",
            "judge=openai",
            "judge.model=m",
            "against=rules",
            "family=minigrid",
            "out=audit.json",
        ]
        assert main([f"audit={file}", "n=5", *options]) == 0
    found = json.loads(Path("audit.json").read_text())
    assert found["texts"] == 5 and found["pairs"] == 5 and found["failed"] == 0
    for name in ("asked twice", "reworded", "against"):
        assert found[f"{name}: same"] == 1
    assert found["order swapped: same"] == 1 and found["seconds an answer"] > 0
    assert "order swapped: same" in capsys.readouterr().out


def test_an_audit_finds_a_judge_that_prefers_the_first_place_and_one_that_changes_its_mind(file):
    turns = []

    def first_place(text, images):
        turns.append(text)
        if "better" in text.splitlines()[-1]:
            return json.dumps({"reason": "so", "better": "first"})
        return json.dumps({"reason": "so", "label": "helpful" if len(turns) % 2 else "neutral"})

    with ModelServer(first_place) as server:
        config = AnnotateConfig(audit=file, family="minigrid", out="audit.json", n=3, **openai(server))
        config.judge_options["concurrency"] = 1
        found = audit(config)
    assert found["order swapped: same"] == 0 and found["asked twice: same"] == 0  # three texts: an odd number of turns
    assert found["tokens an answer"] == 0 and 0 < found["positive"] < 1


def test_an_audit_of_a_file_of_labels_compares_with_it(file):
    wrong = {"judge": "simulated", "judge_options": {"accuracy": 0.0}}
    found = audit(AnnotateConfig(audit=file, family="minigrid", out="audit.json", **wrong))
    assert found["file: same"] == 0 and found["asked twice: same"] == 1
    assert not any(name.startswith(("reworded", "against")) for name in found)
