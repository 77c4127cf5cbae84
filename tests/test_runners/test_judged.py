"""What a run says of its judge when it ends: with labels, and without a single one."""

import json

import pytest
from model_server import ModelServer, hangs

from runners.evaluation.play import Scores, table
from runners.report.comparison import Comparison
from runners.report.read import find
from runners.run.judged import judge_sentences, no_label_sentences
from runners.train import main

DOOR = ["env=MiniGrid-DoorKey-5x5-v0", "env.captions=full", "reward=oni", "total_timesteps=256"]
SHORT = ["n_envs=2", "agent.n_steps=64", "agent.n_epochs=1", "eval_episodes=1", "eval_steps=50", "control=none"]
SHORT += ["video=false", "num_threads=1"]
NO_LABEL = "oni had no label of its judge: these scores are those of a run without that reward"
USE = {
    "asked": 8,
    "answered": 6,
    "cached": 2,
    "labels": 7,
    "captions": 20,
    "captions_labelled": 5,
    "rewarded": 0.125,
    "late": 30,
    "failure": "it broke off",
}


def train(folder, *settings):
    assert main([*DOOR, *SHORT, f"run_dir={folder}", *settings]) == 0
    return json.loads((folder / "result.json").read_text())


def test_a_run_without_a_single_label_says_so_everywhere(tmp_path, capsys):
    transcript = tmp_path / "labels.jsonl"
    with ModelServer(lambda text, images: "late") as server:
        server.plan = [hangs(60)] * 1000
        options = f'{{model: tiny, url: "{server.url}", goal: to open the door}}'
        asked = ["reward.oni.judge=openai", f"reward.oni.judge_options={options}"]
        scores = train(tmp_path / "run", *asked, f"reward.oni.transcript={transcript}")
    use = scores["this run"]["judges"]["oni"]
    assert (use["answered"], use["labels"], use["captions_labelled"], use["rewarded"]) == (0, 0, 0, 0.0)
    assert use["captions"] > 5 and use["captions_labelled_share"] == 0.0
    printed = capsys.readouterr().out
    asked_for = f"note: oni: labels are those of tiny at {server.url}, asked for: to open the door"
    assert asked_for in printed.splitlines(), "before training, although the judge's process came later"
    assert f"note: oni: 0 of {use['asked']} questions were answered, 0 of {use['captions']} captions met" in printed
    assert "this run*" in printed and f"* this run: {NO_LABEL}" in printed

    runs, _ = find([(tmp_path / "run", "")])
    assert any(NO_LABEL in problem for problem in Comparison(runs).problems)

    assert transcript.read_text() == ""
    replayed = ["reward.oni.clock=transcript", f"reward.oni.transcript={transcript}"]
    again = train(tmp_path / "again", *replayed)
    assert again["this run"]["task_return"] == scores["this run"]["task_return"]
    assert again["this run"]["judges"]["oni"]["labels"] == 0


def test_a_run_with_labels_says_how_many(tmp_path, capsys):
    use = train(tmp_path / "run", "reward.oni.judge=rules")["this run"]["judges"]["oni"]
    assert use["answered_share"] == use["captions_labelled_share"] == 1.0
    assert use["asked"] == use["answered"] == use["captions"] and 0 < use["rewarded"] < 1
    printed = capsys.readouterr().out
    assert "had no label" not in printed and "this run*" not in printed
    assert f"{use['asked']} of {use['asked']} questions were answered" in printed


def test_the_sentences_by_hand():
    assert judge_sentences({"judges": {"oni": USE}}) == [
        "oni: 6 of 8 questions were answered, 2 labels were there before, 5 of 20 captions met have a label, "
        "12.5% of the steps were rewarded, the labels of 30 steps came after them, the latest failure: it broke off"
    ]
    whole = {**USE, "asked": 6, "cached": 0, "captions": None, "rewarded": None, "late": None}
    assert judge_sentences({"judges": {"vlm": whole}}) == ["vlm: 6 of 6 questions were answered"]
    assert judge_sentences({}) == []


@pytest.mark.parametrize("scores", [{}, {"judges": 3}, {"judges": {"oni": None}}, {"judges": {"oni": USE}}])
def test_scores_with_labels_and_those_that_make_no_sense_are_not_marked(scores):
    assert no_label_sentences(scores) == []
    assert "*" not in table({"this run": {**Scores([1.0], [9]).to_dict(), **scores}})
