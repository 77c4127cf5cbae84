"""The report card: it works for every reward, separates good from bad, and reports so in one page and one sentence."""

import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scripted import JUDGED, coded, labels, staged, tabled

import rewards
from agents.effective_horizon import EffectiveHorizon
from envs.make import goals, make
from envs.recording import record, save
from envs.transitions import Transitions
from rewards.base import Reward, RewardConfig
from rewards.compare import epic, starc
from runners.compare import __main__ as compare
from runners.compare import candidate as compare_candidate
from runners.compare import card as compare_card
from runners.compare import page as compare_page
from runners.compare import sample as compare_sample
from runners.compare.card import (
    DO_NOT,
    NOT_JUDGED,
    USABLE,
    WEAK,
    Candidate,
    effective_horizon,
    horizon_text,
    measures,
    verdict,
)
from runners.compare.epic import distances_between
from runners.compare.page import extremes, lines
from runners.compare.sample import SOURCES, SampleSpec, enumerate_mdp, load_or_enumerate, load_or_take, take
from runners.run.config import UsageError

CARTPOLE, PENDULUM = "lodestar/CartPoleUpright-v0", "lodestar/PendulumUpright-v0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cards")


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


def cards(*arguments):
    """What `compare` finds: name -> (candidate, card)."""
    config = compare.main.parse(list(arguments))
    found = {}
    for candidate, goal in compare.candidates(config, compare.compose(config)):
        found[candidate.name] = candidate, compare_card.card(candidate, goal)
    return found


def test_a_sample_covers_the_world_and_is_the_same_again():
    sample = take(SampleSpec(CARTPOLE, frames=60))
    assert [int((sample.source == i).sum()) for i in range(4)] == [30, 30, 0, compare_sample.POSES]
    assert sample.batch.frame.shape == (121, 64, 64, 3) and not sample.blank.any()
    again = take(SampleSpec(CARTPOLE, frames=60))
    np.testing.assert_array_equal(sample.batch.frame, again.batch.frame)
    np.testing.assert_array_equal(sample.batch.next_obs, again.batch.next_obs)
    # The truth is that of the next state, and every scattered state is an episode of its own.
    np.testing.assert_allclose(sample.degree[:, 0], sample.batch.next_obs[:, 2], atol=1e-6)
    np.testing.assert_array_equal(sample.truth[:, 0], sample.batch.reward == 1)
    assert (sample.batch.ended[sample.source != 1]).all() and (sample.batch.step[sample.source != 1] == 0).all()
    other = take(SampleSpec(CARTPOLE, frames=60, seed=1))
    assert not np.array_equal(other.batch.next_obs, sample.batch.next_obs)


def test_scattered_transitions_are_true_transitions():
    sample = take(SampleSpec("Pendulum-v1", frames=40, frame_size=None))
    batch = sample.batch
    # Gymnasium's pendulum: the angle moves by the new velocity times 0.05 s.
    turned = np.arctan2(batch.next_obs[:, 1], batch.next_obs[:, 0]) - np.arctan2(batch.obs[:, 1], batch.obs[:, 0])
    wrapped = (turned + np.pi) % (2 * np.pi) - np.pi
    np.testing.assert_allclose(wrapped, 0.05 * batch.next_obs[:, 2], atol=1e-4)


def test_a_sample_comes_back_from_its_file_as_it_was(folder):
    spec = SampleSpec("MiniGrid-DoorKey-5x5-v0", frames=30, text=True)
    first, second = load_or_take(spec), load_or_take(spec)
    assert (spec.folder / f"sample-{spec.key}.safetensors").exists()
    for name in ("source", "place", "truth", "degree", "blank"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    np.testing.assert_array_equal(first.batch.frame, second.batch.frame)
    assert first.batch.text.tolist() == second.batch.text.tolist()
    assert first.truth.shape == (30, 2)


def test_every_state_of_a_small_environment_is_visited_once():
    mdp = load_or_enumerate(SampleSpec("MiniGrid-Empty-5x5-v0", frames=20, frame_size=None))
    # Eight of nine cells, four directions, seven actions; a step onto the ninth, the goal, ends it.
    assert mdp.successors.shape == (32, 7)
    batch, states = mdp.sample.batch, 32
    ends = mdp.successors.ravel() == states
    assert ends.sum() == 2 and (ends == batch.terminated).all() and (mdp.sample.truth[:, 0] == ends).all()
    assert (batch.reward[ends] > 0.98).all()  # the clock stands still
    assert not batch.truncated[~ends].all() or len(batch.step) == 224
    assert (mdp.successors[:, 3:] == np.arange(states)[:, None]).all()  # nothing to pick up, drop or toggle
    again = load_or_enumerate(SampleSpec("MiniGrid-Empty-5x5-v0", frames=20, frame_size=None))
    np.testing.assert_array_equal(mdp.successors, again.successors)


def test_a_dive_has_a_state_for_each_cell_it_can_reach():
    mdp = enumerate_mdp(SampleSpec("lodestar/DeepSea-v0", options={"size": 4}, frames=20, frame_size=None))
    assert mdp.successors.shape == (4 * 5 // 2, 2) and (mdp.successors == 10).sum() == 8
    assert mdp.sample.batch.reward.max() == pytest.approx(1 - 0.01 / 4)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "BabyAI-GoToRedBall-v0", "lodestar/NoisyRooms-v0"])
def test_an_environment_that_is_large_continuous_or_closed_is_not_enumerated(env_id):
    assert load_or_enumerate(SampleSpec(env_id, frames=20, frame_size=None)) is None or env_id.startswith(
        "lodestar/Noisy"
    )
    noisy = SampleSpec("lodestar/NoisyRooms-v0", options={"noise": "pixels"}, frames=20, frame_size=None)
    assert enumerate_mdp(noisy) is None


@pytest.fixture(scope="module")
def demos(folder):
    """Recorded episodes that hold the pole up, by a controller."""

    def act(obs, begins):
        return (obs[:, 3] + 0.5 * obs[:, 4] + 0.1 * obs[:, 0] + 0.15 * obs[:, 1] > 0).astype(np.int64)

    path = folder / "demos.safetensors"
    save(path, record(make(CARTPOLE), act, 400), {})
    return path


OPTIONS = {
    "contrast": {"negative": "the pole is hanging down"},
    "progress": {"of": "obs", "steps": 50},
    "self_reference": {"of": "obs"},
    "oni": {"judge": "simulated", "judge_options": {"shuffle": True}},
    "motif": {"data": labels()},
    "rubric": {"principles": JUDGED},
    "code": {"file": coded()},
    "hilp": {"steps": 50},
    "success": {"which": "all", "online": True},
    "table": {"file": tabled(5, 2)},
    "stages": {"file": staged()},
    "signal": {"of": "obs", "column": 2},
}


def ask(name, env_id=CARTPOLE, frames=60, warm=None, **options):
    """A reward about a sample, without the command line."""
    cls, env = rewards.get(name), make(env_id)
    if hasattr(cls.Config, "goal") and "goal" not in options:
        options["goal"] = goals(env_id)[0].prompt
    config = cls.Config(**OPTIONS.get(name, {}), **options)
    spec = SampleSpec(env_id, frames=frames, text="text" in cls.requires)
    return Candidate(name, config, (env.observation_space, env.action_space), spec, load_or_take(spec), warm=warm)


# One of each kind: the task, frames, a trained bonus, memories of an episode, goals and data of recordings, texts.
QUICK = ("task", "clip", "rnd", "e3b", "success", "hilp", "oni")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n in QUICK else pytest.mark.nightly)
        for n in sorted({*rewards.TABLE} - {"synthesis"})
    ],
)
def test_there_is_a_card_for_every_reward(name, demos):
    named = {"success": "goals", "hilp": "data"}.get(name, "demos")
    reads = {named} & set(vars(rewards.get(name).Config()))
    candidate = ask(name, **dict.fromkeys(reads, str(demos)))
    made = compare_card.card(candidate, 0)
    assert made["verdict"] in (USABLE, WEAK, DO_NOT) and made["reasons"]
    assert np.isfinite(made["range"]).all() and 0 <= made["nonzero"] <= 1 and made["rows"] == 60
    assert -1 <= made["truth"]["pearson"] <= 1 and -1 <= made["task"]["pearson"] <= 1
    assert made["epic"] is None or (0 <= made["epic"]["distance"] <= 1 and 0 <= made["epic"]["goal"] <= 1)
    assert len(made["landscape"]["x"]) == compare_sample.POSES
    assert made["starc"] is None or 0 <= made["starc"]["distance"] <= 1
    assert "\n".join(lines(CARTPOLE, [made], {})).count("VERDICT") == 1
    if candidate.reward.role == "bonus":
        assert made["controls"] == []


def test_a_driving_reward_is_scored_without_scattered_states():
    arguments = ("env=highway-fast-v0", "reward=synthesis", "frames=20", "env.vehicles_count=3")
    candidate, made = cards(*arguments, "reward.synthesis.semantics=constant")["synthesis"]
    assert made["about"] == "20 random policy" and candidate.sample.batch.signals is not None
    assert made["landscape"] is None


def test_the_truth_itself_is_perfect_and_a_good_sentence_usable():
    found = cards(f"env={CARTPOLE}", "reward=task,clip", "frames=300")
    task, clip = found["task"][1], found["clip"][1]
    assert task["truth"]["auroc"] == 1.0 and task["epic"] is None and task["task"]["pearson"] == 1.0
    assert clip["verdict"] == USABLE and clip["truth"]["auroc"] > 0.95 and clip["truth"]["pearson"] > 0.9
    assert clip["truth"]["auroc_interval"][0] <= clip["truth"]["auroc"] <= clip["truth"]["auroc_interval"][1]
    assert clip["epic"]["distance"] == pytest.approx(np.sqrt((1 - clip["truth"]["pearson"]) / 2))
    landscape = clip["landscape"]
    assert abs(landscape["x"][int(np.argmax(landscape["reward"]))]) < 0.4
    kinds = {row["kind"]: row for row in clip["controls"]}
    assert list(kinds) == ["gibberish", "off topic", "negated", "baseline alone", "untrained"]
    assert kinds["negated"]["pearson"] < -0.5 and kinds["untrained"]["high"] - kinds["untrained"]["low"] < 0.05
    assert clip["phrases"][0][1] > 0.9 and clip["spread"] > 0.5


def test_a_sentence_that_is_read_as_the_goal_by_mistake_is_weak():
    made = compare_card.card(ask("clip", frames=300, goal="The pole has toppled over"), 0)
    assert made["truth"]["auroc"] > 0.95 and made["verdict"] == WEAK, made["reasons"]
    assert [reading["sentence"] for reading in made["readings"]] == ["the pole has falling over"]
    both = ask("clip", frames=300, goal="the post points up and the pole is hanging down")
    readings = compare_card._readings(both, both.sample.truth[both.sample.counted, 0])
    assert [reading["kind"] for reading in readings][-2:] == ["clause", "clause"]
    assert readings[-1]["auroc"] < 0.1 and readings[-1]["spread"] > 0.5


@pytest.mark.parametrize("sentence", ["the pole is hanging down", "qwv zzxk blorp", "a bowl of noodle soup"])
def test_bad_sentences_are_not_to_be_trained_with(sentence):
    made = compare_card.card(ask("clip", frames=300, goal=sentence), 0)
    assert made["verdict"] == DO_NOT, made["reasons"]


def test_a_contrast_is_calibrated_before_it_is_asked():
    candidate = ask("contrast")
    made = compare_card.card(candidate, 0)
    assert candidate.passes > 0 and made["truth"]["auroc"] > 0.9 and made["range"][4] > 0.5
    negated = next(row for row in made["controls"] if row["kind"] == "negated")
    assert negated["sentence"] == "the pole is hanging down" and negated["pearson"] < 0


def test_starc_is_exact_in_a_small_environment():
    task, rnd = (ask(name, "MiniGrid-Empty-5x5-v0", 40) for name in ("task", "rnd"))
    mdp = load_or_enumerate(task.spec)
    found = compare_card.starc(task, task.values, 0)
    assert found["kind"] == "exact, 32 states"
    # A reward that is positive everywhere keeps an agent away from the goal, where the episode ends.
    assert compare_card.starc(rnd, rnd.values, 0)["distance"] > 0.9
    audits = [compare_card.audit(candidate, None) for candidate in (task, rnd)]
    assert audits[0]["kind"] == "exact, 32 states" and audits[0]["tied"] == audits[0]["tied_target"]
    assert audits[0]["informativeness"] > 0.5 > 0 > audits[1]["informativeness"]  # a bonus at the start misleads
    table, transition = mdp.table(mdp.sample.batch.reward), mdp.transition
    distances = [starc(table, x * table, transition, gamma=0.99) for x in (3, -1)]
    assert distances == pytest.approx([0, 1], abs=1e-7)


def test_embeddings_are_kept_and_another_sentence_needs_no_frames(monkeypatch):
    first = ask("clip", PENDULUM, 40)
    assert first.seconds["embed"] > 0
    compare_card.card(first, 0)  # embeds with the untrained encoder, too

    def refuse(*args: object) -> None:
        raise AssertionError("frames were embedded again")

    monkeypatch.setattr(type(first.reward), "embed", refuse)
    monkeypatch.setattr(compare_sample, "take", refuse)
    second = ask("clip", PENDULUM, 40, goal="the pendulum is hanging down")
    assert second.seconds["embed"] == 0 and compare_card.card(second, 0)["verdict"] == DO_NOT


def test_a_warm_bonus_has_learnt_from_the_sample():
    cold, warm = ask("rnd", frames=200), ask("rnd", frames=200, warm=3)
    assert warm.passes == 3 and cold.passes == 0 and warm.values.mean() < cold.values.mean()
    assert any(note.startswith("untrained") for note in compare_card._notes(cold))
    assert any("for 3 passes" in note for note in compare_card._notes(warm))


def judged(**changes):
    """The verdict on a card that is good but for `changes`."""
    sure = {"auroc_interval": (0.93, 0.97), "spearman_interval": (0.7, 0.9)}
    truth = {"auroc": 0.95, "spearman": 0.8, **sure, **changes.pop("truth", {})}
    made = {
        "role": "goal",
        "graded": True,
        "range": [0.0, 0.1, 0.5, 0.9, 1.0],
        "nonzero": 1.0,
        "truth": truth,
        "spread": 0.6,
        "controls": [{"kind": "gibberish", "sentence": "qwv", "spearman": 0.1}],
        "notes": [],
        "readings": [],
        "blank": 0.0,
        **changes,
    }
    return verdict(made)[0]


def test_the_rules_of_the_verdict_one_by_one():
    assert judged() == USABLE
    assert judged(truth={"auroc": 0.8}) == WEAK and judged(truth={"auroc": 0.6}) == DO_NOT
    assert judged(truth={"auroc": float("nan")}) == WEAK
    assert judged(truth={"spearman": -0.4, "spearman_interval": (-0.5, -0.3)}) == DO_NOT
    assert judged(spread=0.1) == WEAK and judged(spread=0.04) == DO_NOT and judged(spread=None) == USABLE
    assert judged(controls=[{"kind": "gibberish", "sentence": "qwv", "spearman": 0.79}]) == DO_NOT
    assert judged(blank=0.3) == WEAK


def test_words_that_the_model_lacks_are_a_note_where_measurement_says_that_the_sentence_works():
    unknown = {"notes": ["'a fox' is not like what this model was taught; look"]}
    assert judged(**unknown) == USABLE
    assert judged(**unknown, truth={"auroc": 0.9, "auroc_interval": (0.8, 1.0)}) == WEAK  # few goal states: not sure
    assert judged(**unknown, truth={"auroc": float("nan"), "auroc_interval": (float("nan"),) * 2}) == WEAK
    assert judged(**unknown, truth={"spearman": 0.6}) == WEAK  # separates, and is unlike the truth elsewhere
    assert judged(**unknown, truth={"spearman": 0.3}, graded=False) == USABLE  # ranks of yes and no say little
    rephrased = [{"kind": "in words it was taught", "sentence": "a dog", "auroc": 0.5, "spread": 0.9}]
    assert judged(**unknown, readings=rephrased) == WEAK
    clause = {"kind": "clause", "sentence": "a dog", "spread": 0.9}
    assert judged(readings=[{**clause, "auroc": 0.2}]) == WEAK and judged(readings=[{**clause, "auroc": 0.5}]) == USABLE
    assert judged(readings=[{**clause, "auroc": 0.2, "spread": 0.3}]) == USABLE  # it says next to nothing
    assert judged(**unknown, spread=0.1) == WEAK and judged(**unknown, truth={"auroc": 0.6}) == DO_NOT
    assert judged(range=[0.5] * 5) == DO_NOT and judged(range=[float("nan")] * 5) == DO_NOT
    assert judged(role="bonus") == USABLE


def test_without_a_goal_unknown_words_or_a_control_that_wins_are_a_warning():
    nothing = {"role": "goal", "range": [0, 0, 0, 0, 1.0], "truth": None, "nonzero": 1.0, "spread": None}
    nothing |= {"notes": [], "controls": [], "task": {"spearman": -0.19}}
    assert verdict(nothing)[0] == NOT_JUDGED
    unknown = {"notes": ["'a fox' is not like what this model was taught; look"]}
    assert verdict(nothing | unknown) == (
        WEAK,
        [
            "'a fox' is not like what this model was taught",
            "no goals are known for this environment; compared with the task's reward instead",
        ],
    )
    untrained = {"kind": "untrained", "sentence": "a ball", "spearman": 0.23}
    label, reasons = verdict(nothing | {"controls": [untrained]})
    assert label == WEAK and reasons[0] == ("the control 'untrained' does better (Spearman 0.23, this reward -0.19)")
    # A task without reward says nothing, and neither does a control that is only as good.
    assert verdict(nothing | {"controls": [untrained], "task": {"spearman": float("nan")}})[0] == NOT_JUDGED
    assert verdict(nothing | {"controls": [{**untrained, "spearman": -0.18}]})[0] == NOT_JUDGED
    assert judged(controls=[{**untrained, "auroc": 0.99}], truth={"auroc": 0.9}) == WEAK
    assert judged(controls=[{**untrained, "auroc": 0.5}]) == USABLE


class Copied(Reward):
    """CliffWalking's own reward, of state and action."""

    requires = frozenset({"obs", "action"})

    def score(self, batch):
        row, column = np.divmod(np.asarray(batch.obs), 12)
        down, right = (np.asarray(batch.action) == a for a in (2, 1))
        falls = (down & (row == 2) & (column > 0) & (column < 11)) | (right & (row == 3) & (column < 10))
        return np.where(falls, -100, -1).astype(np.float32)


class CopiedByEffect(Copied):
    """The same on every transition that happens, told by where it leads to."""

    requires = frozenset({"obs", "action", "next_obs"})


class Shaped(Copied):
    """That, and a potential's shaping."""

    requires = frozenset({"obs", "action", "next_obs"})

    def score(self, batch):
        now, after = (np.asarray(x, np.float32) ** 2 / 10 for x in (batch.obs, batch.next_obs))
        return super().score(batch) + np.float32(compare_candidate.GAMMA) * after - now


@pytest.fixture
def cliff(monkeypatch):
    """What asks a reward of this file about CliffWalking."""
    classes = {cls.__name__.lower(): cls for cls in (Copied, CopiedByEffect, Shaped)}
    monkeypatch.setattr(rewards.table, "registered", classes)
    return lambda name: ask(name, "CliffWalking-v1", frames=400)


def test_an_exact_copy_of_the_tasks_reward_is_at_distance_zero(cliff):
    candidate = cliff("copied")
    np.testing.assert_array_equal(candidate.values, candidate.sample.batch.reward)
    made = compare_card.card(candidate, None)
    assert made["epic"]["distance"] == pytest.approx(0, abs=1e-6) and made["starc"]["distance"] == pytest.approx(0)
    assert "EPIC distance" in dict(compare_page.facts(made))
    assert dict(compare_page.facts(made))["EPIC distance"].startswith("0.000 (canonicalised with 256 x 32")


def test_there_is_no_distance_where_the_task_cannot_be_asked_about_made_up_successors(cliff):
    made = compare_card.card(cliff("copiedbyeffect"), None)
    assert made["epic"] is None and made["task"]["pearson"] == pytest.approx(1)
    assert dict(compare_page.facts(made))["EPIC distance"].startswith("none: the reward or the task cannot be asked")


def test_a_pair_that_shaping_alone_distinguishes_is_at_distance_zero(cliff):
    plain, shaped = cliff("copied"), cliff("shaped")
    apart = distances_between([plain, shaped])["copied", "shaped"]
    assert apart.name == "EPIC" and apart.value == pytest.approx(0, abs=1e-3)
    assert epic(plain.values, shaped.values) > 0.1


def test_a_pair_of_which_one_knows_recorded_transitions_alone_has_pearsons_distance(cliff):
    apart = distances_between([cliff("copied"), cliff("task")])["copied", "task"]
    assert apart.name == "Pearson" and apart.value == pytest.approx(0, abs=1e-6)
    assert "copied and task: Pearson 0.000" in lines("CliffWalking-v1", [], {("copied", "task"): apart})[-1]


def test_measures_agree_with_each_other():
    truth = np.array([True, True, False, False, False])
    found = measures(np.array([5.0, 4, 3, 2, 1]), truth, truth.astype(float))
    assert found["auroc"] == 1.0 and found["pearson"] == pytest.approx(found["spearman"])
    assert found["pearson_interval"][0] <= found["pearson"] <= found["pearson_interval"][1]


def test_the_order_of_values_by_hand():
    """Three episodes that reach the goal, of 5, 6 and 2 (too few) steps, and one of 5 steps that never does."""
    lengths, met_at = [6, 6, 2, 5], [4, 5, 1, None]
    ends = np.cumsum(lengths) - 1
    truth, truncated = np.zeros((2, 19), bool)
    truncated[ends] = True
    truth[[first + at for first, at in zip(ends - lengths + 1, met_at) if at is not None]] = True
    none, numbers = np.zeros(19, bool), np.zeros(19, np.float32)
    step = np.concatenate([np.arange(n) for n in lengths])
    batch = Transitions(numbers, numbers, numbers, numbers, none, truncated, ~none, step)
    sample = SimpleNamespace(batch=batch, source=np.ones(19, int))
    # ranks 1 2 3 4 5 against time: 1, what follows the goal is cut; 5 6 4 3 2 1: 1 - 6 * 68 / (6 * 35); 5 4 3 2 1: -1
    values = np.array([1, 2, 3, 4, 5, -9, 5, 6, 4, 3, 2, 1, 0, 1, 5, 4, 3, 2, 1.0])
    found = compare_card.order(sample, values, truth)
    assert found["reached"] == pytest.approx((1 + 1 - 6 * 68 / 210) / 2)
    assert (found["failed"], found["cut"], found["episodes"]) == (pytest.approx(-1), 0.5, 2)
    assert compare_card.order(sample, values, none) is None


def test_an_environment_without_goals_is_compared_with_the_task(capsys):
    assert compare.main(["env=lodestar/DeepSea-v0", "reward=count", "frames=20", "env.size=4"]) == 0
    out = capsys.readouterr().out
    assert "with the task's reward" in out and "goal or not" not in out


def test_the_page_holds_everything_and_needs_nothing_else(folder, capsys):
    page = folder / "deep" / "page.html"
    assert compare.main([f"env={CARTPOLE}", "reward=clip,rnd", "frames=60", f"page={page}"]) == 0
    text = page.read_text()
    assert not re.search(r"(src|href)=\"(?!data:)", text) and "<script" not in text
    assert len(re.findall(r"<figure>", text)) == 4 * 8 and len(re.findall(r"<img", text)) == 4 * 8 + 4
    assert "pole vertically upright on top of the cart" in text and "STARC" in text
    out = capsys.readouterr().out
    assert out.count("VERDICT") == 2 and f"page: {page}" in out and "clip and rnd: EPIC" in out


def test_a_sentence_with_markup_stays_a_sentence(folder):
    page = folder / "markup.html"
    assert (
        compare.main([f"env={CARTPOLE}", "reward=clip", "frames=20", "reward.clip.goal=a <b>pole</b>", f"page={page}"])
        == 0
    )
    assert "<b>pole" not in page.read_text() and "&lt;b&gt;pole" in page.read_text()


def test_frames_are_of_the_highest_and_the_lowest_scores_and_all_differ():
    candidate = ask("task")
    chosen = extremes(candidate, count=5)
    counted = candidate.values[candidate.sample.counted]
    assert (
        candidate.values[chosen["highest"][0]] == counted.max()
        and candidate.values[chosen["lowest"][0]] == counted.min()
    )
    frames = {candidate.sample.batch.frame[row].tobytes() for row in chosen["highest"]}
    assert len(frames) == 5 and not set(chosen["highest"]) & set(chosen["lowest"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["reward=clip"], "env= is missing"),
        ([f"env={CARTPOLE}"], "reward= is missing"),
        ([f"env={CARTPOLE}", "reward=clipp"], "did you mean clip?"),
        ([f"env={CARTPOLE}", "reward=clip", "frmes=3"], "key=frmes is unknown; did you mean frames?"),
        ([f"env={CARTPOLE}", "reward=clip", "frames=3"], "frames=3 is out of range; give a number in [20, 100000]"),
        ([f"env={CARTPOLE}", "reward=clip", "frames=200000"], "give a number in [20, 100000]"),
        ([f"env={CARTPOLE}", "reward=clip", "goal=lying"], f"goal=lying is unknown; {CARTPOLE} has upright"),
        (["env=lodestar/DeepSea-v0", "reward=count", "goal=x"], "lodestar/DeepSea-v0 has none that are known"),
        (["env=lodestar/DeepSea-v0", "reward=clip"], "needs a sentence for lodestar/DeepSea-v0"),
        ([f"env={CARTPOLE}", "reward=clip", "reward.rnd.weight=2"], "reward.rnd.weight belongs to a reward"),
        ([f"env={CARTPOLE}", "reward=clip", "run=nowhere"], "run=nowhere is no run's folder"),
        (["env=CartPole-v9", "reward=task"], "unknown environment 'CartPole-v9'"),
        ([f"env={CARTPOLE}", "reward=clip", "reward.clip.alpha=7"], "reward.clip.alpha=7.0 is out of range"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused_in_one_sentence(arguments, sentence, capsys):
    assert compare.main(arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1


def test_the_goal_that_is_asked_for_brings_its_sentence_and_its_truth():
    asked = compare.main.parse(["env=HalfCheetah-v5", "reward=clip", "goal=rearing"])
    config = compare.compose(asked)["clip"].reward["clip"]
    assert config.goal == "a cheetah robot standing upright on its hind leg"
    known = goals("HalfCheetah-v5")
    assert compare.goal_index(asked, known, config) == 1
    asked.goal = ""
    assert compare.goal_index(asked, known, config) == 1 and compare.goal_index(asked, [], config) is None


def test_a_candidate_leaves_weight_scale_and_shape_out():
    spec = SampleSpec(CARTPOLE, frames=20, frame_size=None)
    env = make(CARTPOLE)
    config = rewards.get("task").Config(weight="linear:1:0:10", scale="return", shape="potential")
    candidate = Candidate("task", config, (env.observation_space, env.action_space), spec, load_or_take(spec))
    np.testing.assert_array_equal(candidate.values, candidate.sample.batch.reward)
    assert SOURCES[0] == "scattered" and candidate.stream.shape == "none"


# effective horizon

GRID = "MiniGrid-Empty-5x5-v0"


def horizon(k, m):
    solved = {} if k is None else {k: m}
    return EffectiveHorizon(k, m, math.inf if k is None else k + math.log(m, 4), 0, solved)


def test_the_sentence_says_whether_the_reward_helped():
    assert horizon_text(horizon(1, 4), horizon(2, 4)) == (
        "k=1 with m=4 (H=2.00); the task's own reward: k=2 with m=4 (H=3.00): it made the task easier"
    )
    assert horizon_text(horizon(None, None), horizon(1, 1)).endswith(
        "not solved; the task's own reward: k=1 with m=1 (H=1.00): it made the task harder"
    )
    assert horizon_text(horizon(1, 4), horizon(1, 4)).endswith("k=1 with m=4 (H=2.00)")


class Away(Reward):
    """The opposite of the task's reward."""

    requires = frozenset({"reward"})
    role = "goal"

    def score(self, batch, memory=None):
        return -batch.reward


@pytest.mark.nightly
def test_a_reward_that_points_away_makes_the_task_harder():
    env = make(GRID)
    reward = Away(RewardConfig(), env.observation_space, env.action_space)
    assert effective_horizon(GRID, 1, None).m == 1
    assert effective_horizon(GRID, 1, None, reward, RewardConfig(weight=2.0)).k is None


def test_where_it_cannot_be_computed_one_sentence_explains_why():
    with pytest.raises(UsageError, match=r"horizon=2 cannot be found: .*give Discrete"):
        effective_horizon("Pendulum-v1", 2, None)
    with pytest.raises(UsageError, match=r"solved=much"):
        compare.main.parse([f"env={GRID}", "reward=count", "solved=much"])


@pytest.mark.nightly
def test_the_card_shows_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert compare.main([f"env={GRID}", "reward=count", "frames=20", "horizon=1", "page=page.html"]) == 0
    out = capsys.readouterr().out
    assert "effective horizon" in out and "k=1 with m=1" in out
    assert "effective horizon" in Path("page.html").read_text()
