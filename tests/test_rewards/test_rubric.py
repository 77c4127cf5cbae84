"""Reward rubric: values by hand, answers of a server that other weights do not ask for again, files, proposals."""

import json
import re

import numpy as np
import pytest
from gymnasium import spaces
from model_server import ModelServer
from rollouts import rewards_of, rollout

from rewards.check import check_reward
from rewards.language.principles import Principle, read_principles, write_principles
from rewards.language.proposals import PrincipleRecord, keep, read_comparisons
from rewards.language.rubric import Rubric, RubricConfig
from rewards.llm.judges.base import make_judge
from rewards.llm.judges.principles import item_of
from runners.rubric import main as rubric
from runners.train import main as train

SPACES = spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(3)
# 2 for a key, 1 for a door, and -1 for lava: at best 3.
THREE = "2: A key. | key ; A door. | door;-1: Lava. | lava"
NOTHING_VISUAL = ["agent.n_epochs=1", "n_envs=2", "eval_episodes=1", "video=false", "control=none"]


def build(principles=THREE, **options):
    return Rubric(RubricConfig(principles=principles, **options), *SPACES)


def think(text, images):
    """A model that finds the last word of a principle in the caption; it proposes doors and locks."""
    if "principles, what makes" in text:
        return json.dumps({"principles": ["About a door", "About a lock", "about a door."]})
    caption = re.findall(r'^Message: "(.*)"', text, re.MULTILINE)[-1]
    principle = re.findall(r"^Statement: (.*)", text, re.MULTILINE)[-1]
    holds = principle.rstrip(".").split()[-1] in caption
    if "JSON schema" in text:
        return json.dumps({"reason": "so", "holds": "unsure" if "fog" in caption else "yes" if holds else "no"})
    return {"Yes": -0.1, "No": -3.0} if holds else {"Yes": -3.0, "No": -0.1}


@pytest.fixture
def server():
    with ModelServer(think) as server:
        server.turns = True
        yield server


def test_the_score_is_the_weighted_mean_of_the_principles_that_hold_and_never_negative():
    reward = build(ask="at_once", beta=1.0)
    captions = ["a key", "key, door", "a key in lava", "lava", "a wall", ""]
    assert rewards_of(reward, captions) == pytest.approx([2 / 3, 1, 1 / 3, 0, 0, 0])
    # The second key of the episode is worth half.
    twice, _ = reward.scan(rollout(["a key"] * 2), reward.initial_memory(1))
    assert twice[:, 0] == pytest.approx([2 / 3, 1 / 3])
    batch = rollout(["key, door", "a wall"])
    assert reward.reasons(batch[:, 0], []) == ["A key. (2) A door. (1)", "no principle holds"]


def test_answers_come_beside_training_and_a_caption_counts_when_all_of_its_principles_are_answered():
    reward = build(delay=4)
    batch = rollout(["a key", "a wall", "a door", "a wall"])
    assert reward.update(batch)["coverage"] == 0
    scored, _ = reward.score(batch[:, 0], reward.initial_memory(4))
    assert not scored.ready.any() and not scored.value.any()
    metrics = reward.update(batch)
    assert (metrics["asked"], metrics["labels"], metrics["positives"], metrics["met"]) == (9, 9, 2, 3)
    assert (metrics["coverage"], metrics["rewarded"]) == (1, 0)
    assert reward.update(batch)["rewarded"] == 0.5
    use = reward.judge_use()
    assert (use.captions, use.captions_labelled, use.labels) == (3, 3, 9)


@pytest.mark.parametrize("judge", ["rules", "simulated"])
def test_the_contract_is_kept(judge):
    options = {"shuffle": True, "positive": 0.5, "seed": 0} if judge == "simulated" else {}
    check_reward(build("2: A third step. | step 3; Begun. | episode 1", judge=judge, judge_options=options))


def test_other_weights_of_the_same_principles_ask_nothing(server, tmp_path):
    model = {"model": "m", "url": server.url}
    common = {"ask": "at_once", "cache": str(tmp_path / "answers.sqlite"), "judge_options": model}
    captions = ["a key", "a door", "a wall"]
    reward = build("3: There is a key; There is a door", **common)
    assert rewards_of(reward, captions) == pytest.approx([3 / 4, 1 / 4, 0])
    reward.close()
    asked = len(server.seen)
    # One question finds out whether the server gives log-probabilities.
    assert asked == 6 + 1
    other = build("There is a key; 4: There is a door", **common)
    assert rewards_of(other, captions) == pytest.approx([1 / 5, 4 / 5, 0])
    other.close()
    assert len(server.seen) == asked


def test_a_server_without_log_probabilities_is_asked_for_json_and_an_unsure_principle_does_not_hold(server):
    server.turns = False
    judge = make_judge("openai", "principles", model="m", url=server.url)
    items = [item_of("A door.", caption) for caption in ("a door", "a wall", "fog")]
    assert judge.label(items).value.tolist() == pytest.approx([1, 0, np.nan], nan_ok=True)
    judge.close()


def test_principles_survive_a_text_file_and_the_form_of_openenv(tmp_path):
    principles = read_principles(THREE)
    assert principles[1:] == [Principle("A door.", 1.0, "door"), Principle("Lava.", -1.0, "lava")]
    file = tmp_path / "rubric.txt"
    file.write_text("# a comment\n\n" + write_principles(str(file), principles))
    assert read_principles(str(file)) == principles
    positive = [Principle("In {braces}.", 3.0), Principle("Else.", 1.0)]
    path = tmp_path / "rubric.json"
    path.write_text(write_principles(str(path), positive))
    assert read_principles(str(path)) == [Principle("In {braces}.", 0.75), Principle("Else.", 0.25)]
    judge = json.loads(path.read_text())["rubrics"][0]
    shown = judge["prompt_template"].format(action="none", observation="a caption")
    assert shown.startswith("In {braces}.\n\na caption\n\nAnswer with one number")
    path.write_text('{"weights": [1.0], "rubrics": [{"prompt_template": "Is it short?\\n{action}\\nScore:"}]}')
    assert read_principles(str(path)) == [Principle("Is it short?")]
    with pytest.raises(ValueError, match="no negative weights, and one is -1"):
        write_principles("rubric.json", principles)


def test_principles_are_kept_that_a_coin_would_not_match(tmp_path):
    five = PrincipleRecord("five", 5, 0)
    assert five.chance == 1 / 32 and five.weight == pytest.approx(1.79)
    # (C(8, 7) + C(8, 8)) / 2^8
    assert PrincipleRecord("seven", 7, 1).chance == pytest.approx(9 / 256)
    kept = keep(
        [PrincipleRecord("four", 4, 0), PrincipleRecord("seven", 7, 1), five, PrincipleRecord("none", 0, 0)], 0.05
    )
    assert [principle.text for principle in kept] == ["five", "seven"]
    assert kept[1].weight == pytest.approx(1.39)


def comparisons(path, count=12):
    """Pieces with a door are better; a lock stands in half of either."""
    rows = []
    for k in range(count):
        better = f"bumped {k}\nopened a door {k}" + "\nsaw a lock" * (k % 2)
        worse = f"turned {k}" + "\nsaw a lock" * (k // 2 % 2)
        rows.append({"text": worse, "other": better, "value": 1})
    rows.append({"text": "a", "other": "b", "value": 0.5})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_command_proposes_principles_and_keeps_those_that_predict_held_out_pairs(server, tmp_path, capsys):
    pairs = tmp_path / "pairs.jsonl"
    comparisons(pairs)
    assert len(read_comparisons(str(pairs))) == 12
    out = tmp_path / "rubric.txt"
    common = [f"comparisons={pairs}", f"out={out}", f"cache={tmp_path}/answers.sqlite"]
    assert rubric([*common, "judge.model=m", f"judge.url={server.url}"]) == 0
    assert "6 right    0 wrong  p=0.016  About a door" in capsys.readouterr().out
    # log(7 / 1), and the lock was dropped.
    assert out.read_text() == "1.95: About a door\n"
    assert rubric([*common, "judge=rules", "principles=A lock. | lock"]) == 2
    assert "none of 1 principles predicts 12 held-out pairs better than chance" in capsys.readouterr().err
    assert rubric([*common, "judge=recorded", f"judge.path={pairs}"]) == 2
    assert "judge=recorded proposes nothing; give principles=" in capsys.readouterr().err
    assert rubric([f"principles={out}", f"out={tmp_path / 'rubric.json'}"]) == 0
    assert json.loads((tmp_path / "rubric.json").read_text())["weights"] == [1.0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"principles": ""}, "reward.rubric.principles: '' holds no principle; write one a line"),
        ({"principles": "nowhere.txt"}, r"nowhere.txt cannot be read \(FileNotFoundError\); give a file of principles"),
        ({"principles": "0: A key. | key"}, "has the weight '0' in '0: A key. | key'; give a number that is not 0"),
        ({"principles": "-1: A key. | key"}, "negative weights alone"),
        ({"principles": "A key.; A key."}, "has the principle 'A key.' twice"),
        ({"principles": "A key. | ("}, r"the pattern '\(' of 'A key.' is no regular expression"),
        (
            {"principles": "A key.", "judge": "rules"},
            "judge=rules finds no pattern of 'A key.'; write one behind a bar",
        ),
        ({"principles": "A key.", "judge": "opnai"}, "there is no judge 'opnai'; did you mean 'openai'"),
        ({"principles": "A key."}, "the judge openai needs model"),
        ({"ask": "at_once", "delay": 3}, "ask=at_once cannot wait for delay=3; leave delay at 0"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(**{"principles": THREE, **options})


def test_an_environment_without_captions_is_refused_before_training(tmp_path, capsys):
    code = train(["env=Taxi-v3", "reward=rubric", f"reward.rubric.principles={THREE}", *NOTHING_VISUAL])
    assert code == 2
    assert "reward=rubric reads captions, and Taxi-v3 writes none; choose an environment" in capsys.readouterr().err
