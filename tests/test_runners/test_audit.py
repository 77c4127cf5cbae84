"""How far a judge agrees with itself, with another wording, with another order and with another judge."""

import json
from pathlib import Path

import numpy as np
import pytest
from model_server import ModelServer
from test_annotate import by_rules, openai

from rewards.llm.judges.rules import Rules
from runners.annotate.__main__ import main
from runners.annotate.audit import agreement, audit
from runners.annotate.labels import AnnotateConfig

TEXTS = ["picked up the yellow key", "opened the yellow door", "reached the goal", "dropped the yellow key", "fell"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


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
