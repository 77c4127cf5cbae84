"""ONI: labels that one can follow by hand, three models and a control, tables that stay small, relabelled replay."""

import itertools
import json
import re
import time
from collections import Counter
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces
from model_server import ModelServer
from rollouts import BAD, GOOD, rewards_of, rollout
from sample import mostly_at_night
from stable_baselines3.common.buffers import ReplayBuffer

from agents.sb3.agent import _buffer_state, load_buffer
from lodestar.settings import declarations
from lodestar.state import pack, unpack
from rewards.adapters.sb3 import relabelling
from rewards.base import JudgeUse
from rewards.check import check_reward
from rewards.language import oni
from rewards.language.oni import ONI, ONIConfig, chance
from rewards.mix.mix import Mix, Stream

SPACES = spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(3)
BOOK = "version 1\ndefault -\n? perhaps\n- locked\n+ pick up\n+ open\n+ reach\n"


@pytest.fixture
def make(tmp_path):
    book = tmp_path / "book.txt"
    book.write_text(BOOK)

    def build(model="retrieval", seed=0, **options):
        judged = {"judge": "rules", "judge_options": {"rulebook": str(book)}} if "judge" not in options else {}
        return ONI(ONIConfig(model=model, **judged, **options), *SPACES, seed=seed)

    return build


PAIRS = list(itertools.product(declarations(ONIConfig)["model"].choices, ["novelty", "frequency", "uncertainty"]))
# What has no probability is never unsure.
PAIRS.remove(("retrieval", "uncertainty"))
BY_DAY = [("retrieval", "novelty"), ("classification", "uncertainty"), ("ranking", "frequency"), ("count", "novelty")]


@pytest.mark.parametrize(("model", "select"), mostly_at_night(PAIRS, *BY_DAY))
def test_every_model_keeps_the_contract(model, select):
    options = {"judge": "simulated", "judge_options": {"shuffle": True, "positive": 0.5, "seed": 0}}
    check_reward(ONI(ONIConfig(model=model, select=select, min_labels=1, steps=2, **options), *SPACES))


def test_the_defaults_keep_the_contract():
    check_reward(ONI)


def test_retrieval_gives_the_label_once_it_is_there(make):
    reward = make(delay=4)
    batch = rollout(["You open the door.", "You bump into it.", "", "perhaps"])
    assert reward.update(batch)["labels"] == 0
    scored, _ = reward.score(batch[:, 0], reward.initial_memory(4))
    assert scored.value.tolist() == [0, 0, 0, 0] and scored.ready.tolist() == [False, False, True, False]
    metrics = reward.update(batch)  # 8 transitions: 4 after the question
    scored, _ = reward.score(batch[:, 0], reward.initial_memory(4))
    assert scored.value.tolist() == [1, 0, 0, 0] and scored.ready.all()
    assert (metrics["labels"], metrics["positives"], metrics["unsure"], metrics["asked"]) == (2, 1, 1, 3)
    assert (metrics["coverage"], metrics["rewarded"], metrics["met"]) == (1, 0.25, 3)


def test_a_label_in_between_gives_in_between(tmp_path):
    file = tmp_path / "labels.jsonl"
    file.write_text('{"text": "a coin", "value": 0.3}\n{"text": "a sword", "value": 0.9}\n')
    reward = ONI(ONIConfig(judge="recorded", judge_options={"path": str(file)}), *SPACES)
    metrics = reward.update(rollout(["a coin", "a sword", "a dragon"]))
    assert rewards_of(reward, ["a coin", "a sword", "a dragon"]) == pytest.approx([0.3, 0.9, 0])
    assert metrics["coverage"] == pytest.approx(2 / 3) and metrics["failed"] == 1


def test_a_repeated_caption_fades_with_the_power_beta(make):
    reward = make(beta=2.0)
    reward.update(rollout(["You open the door."]))
    rewarded, _ = reward.scan(rollout(["You open the door."] * 3), reward.initial_memory(1))
    np.testing.assert_allclose(rewarded[:, 0], [1, 1 / 4, 1 / 9])


def test_captions_that_differ_in_numbers_alone_fade_together_where_asked_for(make):
    said = ["7 gold pieces (12 moves left).", "7 gold pieces (3 moves left).", "a key (3 moves left)."]
    for alike, expected in (("exact", [1, 1, 1]), ("numbers", [1, 1 / 8, 1])):
        rewarded, _ = make(model="count", alike=alike).scan(rollout(said), make().initial_memory(1))
        np.testing.assert_allclose(rewarded[:, 0], expected)


def test_the_control_rewards_every_caption_and_asks_no_judge(make):
    settings = ONIConfig(model="classification", select="uncertainty", judge="rules", transcript="never written")
    assert ONI(replace(settings, **ONI.control), *SPACES).annotator is None
    reward = make(**ONI.control)
    assert reward.annotator is None and rewards_of(reward, [*GOOD, *BAD, ""]) == [1] * 7 + [0]
    assert reward.update(rollout([*GOOD, ""])) == {"met": 3, "rewarded": 0.75}


def test_classification_gives_nothing_before_it_has_met_both_kinds(make):
    reward = make("classification", min_labels=2)
    reward.update(rollout(GOOD + BAD[:1]))
    scored, _ = reward.score(rollout([GOOD])[0], reward.initial_memory(3))
    assert not scored.ready.any() and not scored.value.any()
    reward.update(rollout(BAD[1:]))
    assert rewards_of(reward, GOOD + BAD) == [1] * 3 + [0] * 4


def test_classification_rewards_captions_without_a_label(make):
    reward = make("classification", budget=30)
    numbered = [f"{text[:-1]} ({number} moves left)." for number in range(100, 120) for text in GOOD + BAD]
    for start in range(0, len(numbered), 14):
        metrics = reward.update(rollout(numbered[start : start + 14]))
    assert metrics["labels"] == 30 and metrics["met"] == 140
    unseen = [f"{text[:-1]} (417 moves left)." for text in GOOD + BAD]
    assert rewards_of(reward, unseen) == [1] * 3 + [0] * 4


def test_a_higher_eta_gives_less_often(make):
    texts = GOOD + BAD
    rewarded = []
    for eta in (0.01, 0.5, 0.999):
        reward = make("classification", eta=eta, steps=4)
        reward.update(rollout(texts))
        p = chance(reward.model.predict(texts))
        assert rewards_of(reward, texts) == (p > eta).astype(float).tolist()
        rewarded.append(sum(rewards_of(reward, texts)))
    assert rewarded[0] > rewarded[1] > rewarded[2] == 0


def test_ranking_gives_the_better_captions_normalised_and_never_below_zero(make):
    reward = make("ranking", pairs=40, quantile=0.5)
    metrics = reward.update(rollout(GOOD + BAD))
    assert 7 < metrics["labels"] <= 21  # pairs of seven captions
    f = reward.model.predict(GOOD + BAD)
    assert f[:3].min() > f[3:].max()
    z = (f - f.mean()) / f.std()
    expected = np.where(z > np.median(z), np.maximum(z, 0), 0)
    np.testing.assert_allclose(rewards_of(reward, GOOD + BAD), expected, rtol=1e-4, atol=1e-6)
    assert (expected > 0).sum() == 3


def test_no_pair_is_asked_twice_and_none_is_of_one_caption(make):
    reward = make("ranking", pairs=30)
    for _ in range(5):
        metrics = reward.update(rollout(GOOD))
    pairs = list(reward.labels.values)
    assert {frozenset(pair) for pair in pairs} == {frozenset((GOOD[i], GOOD[j])) for i, j in ((0, 1), (0, 2), (1, 2))}
    assert len(pairs) == metrics["asked"] == 3
    assert reward.model.steps == 0  # all three are ties: nothing to learn from


@pytest.mark.parametrize(("select", "first"), [("novelty", "You open b."), ("frequency", "You open a.")])
def test_who_is_asked_first_is_chosen(make, select, first):
    reward = make(select=select, budget=1)
    reward.update(rollout(["You open a.", "You open a.", "You open b."]))
    assert list(reward.labels.values) == [first]


def test_uncertainty_asks_where_the_model_is_least_sure(make):
    reward = make("classification", select="uncertainty", budget=8, steps=8)
    reward.update(rollout(GOOD + BAD))
    candidates = ["You reach the wall.", *(f"{text} Again." for text in GOOD + BAD)]
    distance = np.abs(chance(reward.model.predict(candidates)) - 0.5)
    reward.update(rollout(candidates))
    assert list(reward.labels.values)[-1] == candidates[int(distance.argmin())]


def test_pairs_are_chosen_by_frequency_and_by_uncertainty(make):
    reward = make("ranking", select="frequency", pairs=9, budget=1)
    reward.update(rollout([GOOD[0]] * 5 + [BAD[0]] * 5 + [GOOD[1], BAD[1]]))
    assert set(next(iter(reward.labels.values))) == {GOOD[0], BAD[0]}
    counts = Counter({GOOD[0]: 9, BAD[0]: 5, GOOD[1]: 2, BAD[1]: 1})
    reward = make("ranking", select="frequency", pairs=3)
    reward.met.count_captions(counts, 17)
    pairs, priority = reward.choose_questions(list(counts))
    assert len(pairs) == 3 and set(pairs[0]) == {GOOD[0], BAD[0]} and priority == sorted(priority, reverse=True)
    reward = make("ranking", select="uncertainty", pairs=2, min_labels=1)
    for _ in range(6):
        metrics = reward.update(rollout(GOOD + BAD))
    assert metrics["asked"] <= 12 and reward.model.steps > 0


def test_some_labels_are_held_out_to_measure_with(make):
    reward = make("classification")
    numbered = [f"{text[:-1]}, {number}." for number in range(60) for text in GOOD + BAD]
    reward.update(rollout(numbered[:140]))
    metrics = reward.update(rollout(numbered[140:]))
    held, labels = reward.labels.labelled_items(held=True)
    assert 10 < len(held) < 80 and not set(held) & set(reward.labels.labelled_items()[0])
    assert metrics["accuracy"] == reward.model.accuracy(held, labels) == 1


def test_ties_do_not_count_in_the_accuracy_of_pairs(make):
    reward = make("ranking", pairs=40)
    reward.update(rollout(GOOD + BAD))
    pairs = [(BAD[0], GOOD[0]), (GOOD[1], BAD[1]), (GOOD[1], GOOD[2])]
    assert reward.model.accuracy(pairs, np.array([1.0, 1.0, 0.5])) == 0.5
    assert reward.model.accuracy(pairs[2:], np.array([0.5])) is None


def test_the_table_of_captions_stays_small_and_labels_outlive_it(make):
    reward = make(capacity=10)
    reward.update(rollout(["You open the door."]))
    metrics = reward.update(rollout([f"picture {i}" for i in range(50)]))
    assert metrics["met"] == 10 and metrics["labels"] == 51
    assert rewards_of(reward, ["You open the door."]) == [1]


def test_rows_that_are_no_transitions_and_empty_captions_are_not_asked_about(make):
    reward = make()
    metrics = reward.update(rollout(["You open it.", "You reach it.", ""], valid=[[True], [False], [True]]))
    assert metrics["asked"] == 1 and reward.met.now == 2
    assert reward.update(rollout(["You reach it."], valid=[[False]])) == {}


@pytest.mark.parametrize("model", ["retrieval", "classification", "ranking"])
def test_a_run_that_was_saved_continues_equally(make, model):
    rounds = [rollout([f"{text[:-1]} {number}." for text in GOOD + BAD]) for number in range(6)]
    reward = make(model, delay=7, rate=300)
    for batch in rounds[:3]:
        reward.update(batch)
    tree, arrays = pack(reward.state_dict())
    copy = make(model, delay=7, rate=300, seed=5)
    copy.update(rollout(GOOD + BAD))
    copy.load_state_dict(deepcopy(unpack(json.loads(json.dumps(tree)), arrays)))
    for batch in rounds[3:]:
        one, two = reward.update(batch), copy.update(batch)
        assert one == two
        assert rewards_of(reward, batch.text[:, 0].tolist()) == rewards_of(copy, batch.text[:, 0].tolist())
    assert reward.labels.values.keys() == copy.labels.values.keys() and one["labels"] > 3


@pytest.mark.parametrize("model", ["retrieval", "classification", "ranking"])
def test_a_recorded_run_is_replayed_without_a_judge(make, tmp_path, model):
    file = str(tmp_path / "said.jsonl")
    rounds = [rollout([f"{text[:-1]} {number}." for text in GOOD + BAD]) for number in range(4)]
    reward = make(model, delay=9, transcript=file)
    texts = [text for batch in rounds for text in batch.text[:, 0]]
    rewarded = []
    for batch in rounds:
        reward.update(batch)
        rewarded.append(rewards_of(reward, texts))
    reward.close()
    replay = make(model, judge="auto", clock="transcript", transcript=file)
    for batch, before in zip(rounds, rewarded):
        assert replay.update(batch)["asked"] == 0
        assert rewards_of(replay, texts) == before
    assert not any(rewarded[0]) and any(map(any, rewarded))


STORY = [["You open it.", "perhaps"], ["You open it.", ""], ["a wall", "You open it."], ["You open it.", "b"]]
REWARDED = [[1, 0], [1 / 8, 0], [0, 1], [1 / 27, 0]]  # the second environment's episode ends after the third row


def replay_of(reward):
    """A buffer of ten rows in two environments, and the rewards of its first rows."""
    mix = Mix([Stream("oni", reward, gamma=0.9)])
    assert mix.relabelable
    buffer = relabelling(ReplayBuffer)(20, *SPACES, device="cpu", n_envs=2, mix=mix, update_every=4)

    def rewarded(rows):
        return buffer.rewards[np.broadcast_arrays(np.arange(rows)[:, None], np.arange(2))[0], np.arange(2)]

    return buffer, rewarded


def add(buffer, pair, ends=(0, 0)):
    zeros = np.zeros((2, 4), np.float32)
    infos = [{"text": text} for text in pair]
    buffer.add(zeros, zeros, np.zeros((2, 1)), np.zeros(2), np.array(ends), infos)


def test_old_transitions_are_relabelled_with_labels_that_came_later(make):
    buffer, rewarded = replay_of(make(delay=6, weight=1.0))
    for t, pair in enumerate(STORY):
        add(buffer, pair, ends=(0, t == 2))
        if t == 1:
            assert not rewarded(2).any()  # asked at 4 transitions, answered at 10
    for _ in range(2):
        add(buffer, ["", ""])
    np.testing.assert_allclose(rewarded(4), REWARDED, rtol=1e-6)
    assert buffer.columns["caption_visits"][:4].tolist() == [[1, 1], [2, 0], [1, 1], [3, 1]]


def test_a_saved_replay_buffer_counts_on(make):
    buffer, rewarded = replay_of(make(weight=1.0))
    for pair in STORY[:2]:
        add(buffer, pair)
    tree, arrays = pack({"buffer": _buffer_state(buffer), "mix": buffer.mix.state_dict()})
    state = unpack(json.loads(json.dumps(tree)), arrays)
    copy, rewarded = replay_of(make(weight=1.0))
    copy.mix.load_state_dict(state["mix"])
    load_buffer(copy, state["buffer"])
    for t, pair in enumerate(STORY[2:]):
        add(copy, pair, ends=(0, t == 0))
    np.testing.assert_allclose(rewarded(4), REWARDED, rtol=1e-6)


def test_a_judge_in_a_process_of_its_own_labels_while_training_continues(make):
    reward = make(clock="wall")
    batch = rollout(GOOD + BAD + [""])
    try:
        deadline = time.monotonic() + 120
        while (metrics := reward.update(batch))["labels"] < 7 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert rewards_of(reward, GOOD + BAD) == [1] * 3 + [0] * 4
        assert metrics["asked"] == metrics["answered"] == 7
    finally:
        reward.close()


def test_without_a_goal_or_a_family_no_judge_is_asked_and_the_note_says_so(make):
    reward = make(judge="auto")
    assert reward.annotator is None and reward.update(rollout(GOOD)) == {"met": 3, "rewarded": 0}
    assert "no judge labels the captions" in reward.notes()[0]
    assert "without a judge" in make("count").notes()[0]


def test_labels_come_by_the_clock_unless_the_judge_is_here_and_no_cache_is_shared(make, tmp_path):
    assert make().annotator.clock == "steps" and make(cache=str(tmp_path / "a.sqlite")).annotator.clock == "wall"


def test_the_notes_name_the_judge(make):
    assert "rule" in make().notes()[0]


def test_a_familys_rulebook_judges_unless_a_goal_is_given(make):
    assert make(judge="auto", family="nethack").annotator.judge == "rules"
    assert make(judge="auto", family="nethack", goal="find gold").annotator.judge == "embedding"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"select": "uncertainty"}, r"model=retrieval is never unsure; use ranking"),
        ({"ask": "at_once", "model": "ranking"}, r"of which model=ranking is learnt later; use model=retrieval"),
        ({"ask": "at_once", "rate": 5}, r"cannot wait for rate=5; leave rate at 0"),
        ({"ask": "at_once", "delay": 5}, r"cannot wait for delay=5; leave delay at 0"),
        ({"judge": "oracle9"}, r"there is no judge 'oracle9'"),
        ({"judge": "rules", "judge_options": {"book": "x"}}, r"the judge rules has no option 'book'"),
    ],
)
def test_a_setting_out_of_range_gets_a_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        ONI(ONIConfig(**options), *SPACES)


def test_a_run_without_the_judges_server_stops_waits_or_takes_rules_as_it_is_told():
    def build(absent, url="http://127.0.0.1:9/v1"):
        options = {"model": "tiny", "url": url}
        config = ONIConfig(judge="openai", judge_options=options, family="minigrid", goal="g", absent=absent)
        return ONI(config, *SPACES)

    began = time.monotonic()
    missing = r"http://127.0.0.1:9/v1 cannot be reached: .*; start the server, or correct url"
    stops, waits, rules = build("stop"), build("wait"), build("rules")
    assert re.fullmatch(rf"{missing}; or give reward.oni.absent=wait, or absent=rules", stops.preflight())
    assert waits.preflight() == rules.preflight() == "" and time.monotonic() - began < 3
    assert re.fullmatch(rf"{missing}; the run waits for it", waits.notes()[-1])
    assert re.fullmatch(rf"{missing}; the labels of this run are those of rules", rules.notes()[-1])
    rules.annotator.offer(["picked up the yellow key", "bumped into a wall"], 0)
    assert dict(rules.annotator.take(0)) == {"picked up the yellow key": 1.0, "bumped into a wall": 0.0}
    with ModelServer(lambda text, images: "") as server:
        assert build("stop", server.url).preflight() == ""


def test_what_came_of_the_questions_is_counted_over_the_whole_run(make):
    reward = make(delay=4)
    batch = rollout(["You open the door.", "You bump into it.", "", "perhaps"])
    assert reward.judge_use() == JudgeUse(asked=0, answered=0, captions=0, rewarded=0.0, late=0)
    reward.update(batch)
    use = reward.judge_use()
    assert (use.asked, use.answered, use.labels, use.captions, use.captions_labelled) == (3, 3, 0, 3, 0)
    reward.update(batch)  # the labels come, after these steps were rewarded
    assert reward.judge_use().rewarded == 0.0
    reward.update(batch)
    use = reward.judge_use()
    assert (use.asked, use.answered, use.labels, use.captions_labelled) == (3, 3, 2, 3)
    assert use.rewarded == pytest.approx(1 / 12)

    other = make(delay=4)
    other.load_state_dict(reward.state_dict())
    assert other.judge_use() == use
    old = reward.state_dict()
    del old["met"]["rewarded"]  # as 0.4.0 saved it
    other.load_state_dict(old)
    assert other.judge_use().rewarded == 0.0


def test_steps_that_were_rewarded_before_their_label_came_are_counted(make):
    reward = make(delay=8)
    reward.update(rollout(["You open the door.", "You open the door.", "You bump into it.", ""]))
    reward.update(rollout(["You open the door.", "", "", ""]))
    assert reward.judge_use().late == 0
    reward.update(rollout(["You open the door.", "", "", ""]))  # the labels of both captions come
    assert reward.judge_use().late == 5
    reward.update(rollout(["You open the door.", "", "", ""]))
    assert reward.judge_use().late == 5
    other = make(delay=8)
    other.load_state_dict(reward.state_dict())
    assert other.judge_use().late == 5


def test_at_once_a_step_waits_for_its_label(make):
    reward = make(ask="at_once")
    batch = rollout(GOOD + BAD)
    scored, _ = reward.score(batch[:, 0], reward.initial_memory(7))
    assert scored.value.tolist() == [1] * 3 + [0] * 4 and scored.ready.all()
    reward.update(batch)
    use = reward.judge_use()
    assert (use.asked, use.labels, use.late, use.rewarded) == (7, 7, 0, pytest.approx(3 / 7))


def test_at_once_a_server_is_waited_for_and_not_once_it_fails(make):
    def think(text, images):
        label = "helpful" if re.search("pick up|open|reach", text.rpartition("Message:")[2]) else "neutral"
        return json.dumps({"reason": "", "label": label})

    captions = GOOD + BAD
    batch = rollout(captions)
    with ModelServer(think) as server:
        options = {"model": "tiny", "url": server.url, "attempts": 1}
        given = {"judge": "openai", "goal": "to get out", "judge_options": options}
        reward = make(ask="at_once", budget=7, **given)
        gone = make(ask="at_once", **{**given, "judge_options": {**options, "url": "http://127.0.0.1:9/v1"}})
        try:
            scored, _ = reward.score(batch[:, 0], reward.initial_memory(7))
            assert scored.value.tolist() == [1] * 3 + [0] * 4
            scored, _ = reward.score(rollout(["one more"])[:, 0], reward.initial_memory(1))
            assert not scored.ready.any()  # the budget is spent, so nothing is waited for
            scored, _ = gone.score(batch[:, 0], gone.initial_memory(7))
            assert not scored.ready.any() and "cannot be reached" in gone.annotator.failure
        finally:
            reward.close()
            gone.close()


def test_without_phrases_a_model_in_a_file_judges_where_there_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr(oni, "find_spec", lambda name: object())
    monkeypatch.setattr(oni, "small_model", lambda: tmp_path / "small.gguf")
    config = ONIConfig(goal="to find the key")
    assert oni._choose_judge(config) == "embedding"
    (tmp_path / "small.gguf").touch()
    assert oni._choose_judge(config) == "offline"
    assert oni._choose_judge(replace(config, family="minigrid")) == "embedding"
    assert oni._choose_judge(replace(config, judge_options={"goals": "a key"})) == "embedding"
    assert oni._choose_judge(ONIConfig(family="minigrid")) == "rules"


def test_the_control_has_no_judge_and_a_reward_without_one_has_no_label(make):
    assert make(**ONI.control).judge_use() is None
    without = ONI(ONIConfig(), *SPACES)
    without.update(rollout(GOOD))
    use = without.judge_use()
    assert (use.asked, use.labels, use.captions, use.rewarded) == (0, 0, 3, 0.0)


def test_a_run_without_labels_leaves_an_empty_transcript_which_can_be_replayed(make, tmp_path):
    path = tmp_path / "labels.jsonl"
    reward = make(delay=1000, transcript=str(path))
    reward.update(rollout(GOOD))
    reward.close()
    assert path.read_text() == ""
    again = ONI(ONIConfig(clock="transcript", transcript=str(path)), *SPACES)
    assert again.update(rollout(GOOD))["labels"] == 0
