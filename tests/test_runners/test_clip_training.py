"""A small CLIP for an environment of one's own: sentences, truths, states, and what is refused."""

import sys
from contextlib import closing

import gymnasium as gym
import numpy as np
import pytest

from benchmarks import red_ball
from envs.family import Goal, family_of
from envs.make import goals, make, spec_of
from rewards.vision.training.captions import Grammar, truth
from rewards.vision.training.lexicon import States
from rewards.vision.training.sentences import make_lexicon, split_sentence, taught_and_held_out, with_synonyms
from runners.clip.config import ClipTraining
from runners.clip.describe import Describer, degree_ends, grade
from runners.clip.states import Seen, Sentences, StateSource
from runners.run.config import UsageError

ENV = "RedBall-v0"
ON = "the red ball is on the green circle"


@pytest.mark.parametrize(
    ("sentence", "parts"),
    [
        ("The red ball is on the green circle.", ("red ball", "on the green circle")),
        ("a car at the flag", ("car", "at the flag")),
        ("two doors are open", ("two doors", "open")),
        ("everything burns", ("", "everything burns")),
    ],
)
def test_a_sentence_is_a_subject_and_what_is_said_of_it(sentence, parts):
    assert split_sentence(sentence) == parts


def test_the_last_synonym_of_each_word_is_held_out():
    taught, held_out = taught_and_held_out({"ball": ("sphere", "orb"), "red": ("crimson",)})
    assert with_synonyms("red ball", taught) == ["red ball", "red sphere"]
    assert with_synonyms("red ball", held_out) == ["red ball", "red orb", "crimson ball", "crimson orb"]


def lexicon(sentences=(ON, "the red ball is far")):
    synonyms = {"ball": ("sphere", "orb"), "far": ("distant", "remote")}
    return make_lexicon(ENV, sentences, [(ON, "the red ball is far")], ["a red ball and a green circle"], synonyms)


def test_captions_of_a_lexicon_are_as_true_as_their_facts():
    states = States(np.zeros(2, np.int64), {ON: np.array([1.0, 0.2]), "the red ball is far": np.array([0.0, 0.7])})
    grammar = Grammar(lexicon(), np.random.default_rng(0))
    said = grammar.clause(ON)
    denied = grammar.clause("the red ball is far", denied=True)
    value, about = truth(grammar.lexicon, [said, denied], states)
    assert value.tolist() == [pytest.approx([1, 0.2]), pytest.approx([1, 0.3])] and about.all()


def test_training_never_draws_a_held_out_synonym_and_never_calls_its_own_words_meaningless():
    captions = Grammar(lexicon(), np.random.default_rng(0)).draw(400)
    words = {word for caption in captions for word in caption.text.split()}
    assert {"sphere", "distant"} <= words and not {"orb", "remote"} & words
    assert "green" not in lexicon().qualities and "purple" in lexicon().qualities


def test_one_sentence_alone_makes_no_pairs():
    captions = Grammar(lexicon([ON]), np.random.default_rng(0)).draw(200)
    assert max(len(caption.claims) for caption in captions) == 1


def test_a_goal_with_a_degree_is_a_slope_and_a_step():
    # Ends 0 and 4: a degree of 1 is a quarter of 0.6; where the goal is met 0.4 more; beyond the end nothing is added.
    truths = grade(np.array([0, 0, 1, 1]), np.array([-1.0, 1, 4, 9]), (0.0, 4.0))
    assert truths.tolist() == pytest.approx([0, 0.15, 1, 1])
    assert degree_ends(np.arange(101.0)) == pytest.approx((2, 98))


def test_an_own_family_is_found_and_its_goals_are_filled_in():
    assert family_of(spec_of(ENV)) is red_ball.FAMILY
    assert [goal.prompt for goal in goals(ENV)] == [ON]
    with closing(make(ENV, seed=0, signals=True, text=True)) as env:
        _, info = env.reset()
        world = env.unwrapped
        assert info["signals"].tolist() == pytest.approx([world.distance])
        assert info["text"] == red_ball.caption(world)


def seen_of(*truths):
    return [Seen(np.zeros((64, 64, 3), np.uint8), true, {}) for true in truths]


@pytest.fixture(scope="module")
def source():
    return StateSource(ClipTraining(ENV))


def test_states_are_drawn_described_and_rare_ones_are_drawn_more_often(source):
    seen = source.collect(60, seed=0)
    sentences = Sentences(source, seen)
    assert ON in sentences.sentences and len(seen) == 60 and seen[0].frame.shape == (64, 64, 3)
    states = sentences.states(seen)
    met = np.array([state.truths[ON] for state in seen])
    assert (states.fact(ON) >= 0.4 * met).all() and states.fact(ON).max() <= 1
    opposite = states.fact("the red ball is far from the green circle")
    assert opposite == pytest.approx(1 - states.fact(ON))
    again = source.collect(60, seed=0)
    assert all((one.frame == two.frame).all() for one, two in zip(seen, again))


def test_chances_grow_with_the_rarity_of_what_is_true(source):
    # "rare" holds in one state of four, "common" in three: weights 4, 4/3, 4/3, 4/3 of a sum of 8.
    seen = seen_of({"rare": 1.0}, {"common": 1.0}, {"common": 1.0}, {"common": 1.0})
    assert Sentences(source, seen).chances(seen) == pytest.approx([0.5, 1 / 6, 1 / 6, 1 / 6])


def test_sentences_that_never_change_are_refused_if_nothing_is_left(source):
    assert Sentences(source, seen_of({"a": 1.0, "b": 1.0}, {"a": 1.0})).constant == ["a"]
    with pytest.raises(UsageError, match=r"no sentence is true of some states and false of others \('a'\)"):
        Sentences(source, seen_of({"a": 1.0}, {"a": 1.0}))
    counted = [{f"{i} metres to go": 1.0} for i in range(301)]
    with pytest.raises(UsageError, match="301 different sentences describe 301 states, the limit is 300"):
        Sentences(source, seen_of(*counted))


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    """Writes my_words.py where Python finds it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_words", raising=False)

    def write(text):
        (tmp_path / "my_words.py").write_text(text)
        return "my_words:caption"

    return write


@pytest.mark.parametrize(
    ("said", "truths"),
    [
        ("'It stands'", {"It stands": 1.0}),
        ("['a', 'b']", {"a": 1.0, "b": 1.0}),
        ("{'a': 0.25}", {"a": 0.25}),
        ("''", {}),
    ],
)
def test_a_caption_is_a_sentence_several_or_graded_ones(own_file, said, truths):
    name = own_file(f"def caption(world):\n    world.ball\n    return {said}\n")
    with closing(make(ENV)) as env:
        env.reset(seed=0)
        described, _ = Describer(env, name)(env)
    described.pop(ON)
    assert described == truths


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("caption = 3", "captions=my_words:caption is of type int; give a function of a state"),
        ("def other(env): pass", "captions=my_words:caption cannot be had: AttributeError"),
        ("def caption(env): return 7", "returned 7 for a state; return a sentence, a list of sentences"),
        ("def caption(env): return {'a': 2}", "says that 'a' is 2 true; give a truth in"),
        ("def caption(env): return 'Straße'", "write 1 to 500 plain letters in English"),
    ],
)
def test_captions_that_cannot_be_used_are_one_sentence(own_file, text, sentence):
    name = own_file(text)
    with closing(make(ENV)) as env:
        env.reset(seed=0)
        with pytest.raises(UsageError, match=sentence):
            Describer(env, name)(env)


class Wordless(red_ball.RedBall):
    """Of a file without a FAMILY."""


def test_an_environment_without_words_needs_captions():
    with closing(make("CartPole-v1")) as env, pytest.raises(UsageError, match=r"captions=words\.py:say is no module"):
        Describer(env, "words.py:say")
    gym.register("Wordless-v0", Wordless)
    with closing(make("Wordless-v0")) as env, pytest.raises(UsageError, match="declares neither goals nor captions"):
        Describer(env, "")


def test_a_folder_with_other_files_is_not_written_to(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UsageError, match="holds other files; give a new folder"):
        ClipTraining(env=ENV, out=str(tmp_path))


def test_goals_of_a_list_are_read(own_file):
    name = own_file("from envs.family import Goal\ncaption = [Goal('a', 'it is', 'a', lambda env: True)]\n")
    with closing(make(ENV)) as env:
        assert [goal.prompt for goal in Describer(env, name).goals] == ["it is"]
    assert isinstance(red_ball.ON_CIRCLE, Goal)


@pytest.mark.nightly
def test_a_trained_model_is_used_by_its_folder_and_has_a_card(tmp_path):
    from rewards.vision.clip import Clip, ClipConfig
    from runners.clip.__main__ import train_clip

    out = tmp_path / "model"
    figures = train_clip(ClipTraining(env=ENV, out=str(out), frames=600, steps=60, text_steps=80))
    assert figures["auroc"] > figures["untrained"] + 0.1
    card = (out / "README.md").read_text()
    assert f"| {ON} |" in card and "not zero-shot" in card
    reward = Clip(ClipConfig(goal=ON, weights=str(out)), None, None)
    assert reward.frame_size == 64 and "simulator state of RedBall-v0" in reward.notes()[0]
