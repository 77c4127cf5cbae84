import hashlib
import json

import numpy as np
import pytest
import torch

from assets.clip.train import __main__ as pretrain
from assets.clip.train import words as new_words
from assets.clip.train.__main__ import PretrainConfig
from assets.clip.train.evaluate import clip_score, correlation, measure
from assets.clip.train.themes import THEMES_HELD_OUT
from assets.clip.train.worlds import MODELS
from assets.clip.train.worlds.classic import LEXICON
from rewards.vision.load import MODELS as SHIPPED
from rewards.vision.training import fit, words
from rewards.vision.training import model as training_model
from rewards.vision.training.captions import Caption, Grammar, truth
from rewards.vision.training.frames import augment
from rewards.vision.training.lexicon import States, collect, join

CARTPOLE, MOUNTAINCAR, PENDULUM = 0, 1, 2
ATTRIBUTES = LEXICON.attributes


def at(world, angle=0.0, x=0.0):
    return States(np.array([world]), {"angle": np.array([float(angle)]), "x": np.array([float(x)])})


def pendulums(seed, count, size=64):
    """States and frames of one world only."""
    rng = np.random.default_rng(seed)
    return collect(LEXICON.worlds[PENDULUM].scenes(rng, count, rng), PENDULUM, size)


def test_truth_multiplies_claims_and_inverts_denials():
    # angle 0: "up" is 0.55 + 0.45 = 1 exactly; the cart at x = 0 is in the middle: exp(0) = 1
    # angle pi/2: the slope gives 0.55 / 2, the peak exp(-0.5 * (1.5708 / 0.25)^2) = 2.7e-9
    up, not_up = Caption("", (CARTPOLE,), (("up", False),)), Caption("", (CARTPOLE,), (("up", True),))
    both = Caption("", (CARTPOLE,), (("up", False), ("cart_centre", False)))
    states = join([at(CARTPOLE), at(CARTPOLE, np.pi / 2), at(CARTPOLE, 0, 0.5), at(PENDULUM)])
    value, about = truth(LEXICON, [up, not_up, both], states)
    assert value[0].tolist() == pytest.approx([1, 0.275, 1, 0], abs=1e-6)
    assert value[1].tolist() == pytest.approx(
        [0, 0.725, 0, 0], abs=1e-6
    )  # a denial about another world is no truth either
    assert value[2].tolist() == pytest.approx([1, 0.275, np.exp(-0.5), 0], abs=1e-6)
    assert about.tolist() == [[True, True, True, False]] * 3


def test_the_loss_is_the_mean_squared_error_of_cosines_and_counts_a_captions_own_world_as_all_worlds():
    up = Caption("", (CARTPOLE,), (("up", False),))
    states = join([at(CARTPOLE), at(PENDULUM)])
    text = torch.tensor([[1.0, 0.0]])
    image = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    # Cosines of 1 and 0, where 1 and 0 less the offset are wanted.
    error = fit.TRUTH_OFFSET**2
    expected = (len(LEXICON.worlds) * error + error) / 2
    assert float(fit._loss(text, image, [up], states, LEXICON, None)) == pytest.approx(expected)


def test_a_sentence_without_meaning_is_true_of_nothing_and_a_baseline_of_its_whole_world():
    states, _ = LEXICON.sample(np.random.default_rng(0), 20)
    grammar = Grammar(LEXICON, np.random.default_rng(0))
    assert truth(LEXICON, [grammar.unmatched_caption() for _ in range(50)], states)[0].max() == 0
    values = truth(LEXICON, [grammar.baseline() for _ in range(50)], states)[0]
    assert set(values.ravel().tolist()) == {0.0, 1.0}


def test_naming_the_cart_rules_out_the_pendulum():
    assert LEXICON.worlds_of("up", "pole on the cart") == (CARTPOLE,)
    assert LEXICON.worlds_of("up", "pole") == LEXICON.worlds_of("up", "pendulum") == (CARTPOLE, PENDULUM)


def test_training_never_sees_what_is_held_out():
    captions = Grammar(LEXICON, np.random.default_rng(0)).draw(20_000)
    texts = {caption.text for caption in captions}
    assert not texts & set(LEXICON.verbatim)
    assert not any(caption.claims == (("up", False), ("cart_right", False)) for caption in captions)
    taught = set(words.training_words(LEXICON))
    for unseen in ("stick", "vertical", "vehicle", "summit", "dangling", "erect"):
        assert unseen not in taught


def test_the_captions_of_the_first_model_never_change():
    # Drawn by the code that trained assets/clip, before there was a second model.
    captions = Grammar(LEXICON, np.random.default_rng(2)).draw(20_000)
    said = repr([(c.text, c.worlds, c.claims) for c in captions])
    assert hashlib.sha256(said.encode()).hexdigest()[:16] == "610738be3727ad6f"


def test_augmentation_keeps_shape_and_range_and_follows_its_generator():
    import torch

    frames = torch.rand(6, 3, 64, 64)
    one, two = (augment(frames, torch.Generator().manual_seed(4)) for _ in range(2))
    assert one.shape == frames.shape and one.min() >= 0 and one.max() <= 1 and torch.equal(one, two)
    assert not torch.equal(one, augment(frames, torch.Generator().manual_seed(5)))


@pytest.mark.parametrize("name", THEMES_HELD_OUT)
def test_a_theme_changes_colours_and_nothing_else(name):
    frames = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)
    changed = THEMES_HELD_OUT[name](frames)
    assert changed.shape == frames.shape and changed.dtype == np.uint8 and (changed != frames).any()


def test_each_word_becomes_one_token_and_others_fall_into_pieces(tmp_path):
    listed = ["pole", "poles", "upright", "right", "up", "the", "cart", "carton", "art"]
    new_words.write(tmp_path, listed)
    tower = training_model.Tower(size=64, width=12, mean=0.5, std=0.25)
    vectors = np.zeros((len(listed), training_model.WORD_WIDTH), np.float32)
    _, tokenize, frozen = training_model.prepare(tower, tmp_path, listed, vectors, seed=0)
    assert [len(tokenize.encode(word)) for word in listed] == [1] * len(listed)
    assert len({tokenize.encode(word)[0] for word in listed}) == len(listed) == int(frozen.sum())
    assert len(tokenize.encode("zyx")) == 3 and len(tokenize.encode("The pole, upright!")) == 3
    before = (tmp_path / "bpe.txt.gz").read_bytes()
    new_words.write(tmp_path, listed)
    assert (tmp_path / "bpe.txt.gz").read_bytes() == before and words.read(tmp_path) == listed


def test_reduced_word_vectors_keep_neighbours():
    rng = np.random.default_rng(0)
    groups = rng.normal(size=(5, 30)).repeat(4, axis=0)
    vectors = new_words.reduce(np.stack([groups + 0.1 * rng.normal(size=groups.shape) for _ in range(3)]), 8)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(new_words.LENGTH, abs=1e-5)
    nearest = (vectors @ vectors.T - 9 * np.eye(20)).argmax(1)
    assert (nearest // 4 == np.arange(20) // 4).all()


def test_sentences_without_meaning_are_made_of_words_unlike_ours():
    listed = ["pole", "stick", "wombat", "yodel"]
    vectors = np.array([[1, 0, 0], [0.9, 0.1, 0], [0, 1, 0], [0, 0.9, 0.1]], np.float32)
    assert words.far_words(LEXICON, listed, vectors) == ["wombat", "yodel"]


def test_correlation_by_hand():
    assert correlation(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])) == pytest.approx(1)
    assert correlation(np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.0, 1.0])) == pytest.approx(0)
    assert correlation(np.ones(3), np.arange(3)) == 0  # a constant reward correlates with nothing


def test_a_sentence_is_measured_in_the_first_world_where_its_truth_varies():
    states = join([at(CARTPOLE), at(CARTPOLE), at(PENDULUM), at(PENDULUM, np.pi)])  # CartPole's poles are all up
    up, elsewhere = (Caption("", worlds, (("up", False),)) for worlds in ((CARTPOLE, PENDULUM), (CARTPOLE,)))
    values = measure(LEXICON, lambda said, frames: np.array([[1.0, 5.0, 3.0, 4.0]] * len(said)), [up], None, states)
    assert values == pytest.approx([-1])  # 3 where it is up, 4 where it hangs
    assert len(measure(LEXICON, lambda said, frames: np.zeros((1, 4)), [elsewhere], None, states)) == 0


@pytest.mark.parametrize("name", MODELS)
def test_the_shipped_words_are_what_the_grammar_says(name):
    lexicon, folder = MODELS[name].lexicon(), SHIPPED[name]
    pieces = set(words.training_words(lexicon)) - set(words.read(SHIPPED["lodestar"]))
    assert len(pieces) == {"lodestar": 0, "lodestar-96": 27}[name]  # words that the second model reads in pieces
    known = json.loads((folder / "phrases.json").read_text())
    assert known["phrases"] == training_model.known_phrases(lexicon)
    assert known["worlds"] == [pattern for world in lexicon.worlds for pattern in world.ids]


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("step=3", "'step=3' is not understood; write key=value with one of steps, text_steps"),
        ("lr=abc", "lr=abc is not a number, which lr must be"),
        ("model=lodestar-1", "model='lodestar-1' is none of lodestar, lodestar-96"),
        ("lr=7", r"lr=7.0 is outside \(0, 1\)"),
        ("steps=0", "steps=0 is too small"),
        ("noise=-1", "noise=-1.0 is negative"),
    ],
)
def test_bad_arguments_are_one_sentence(argument, sentence, capsys):
    with pytest.raises(ValueError, match=sentence):
        pretrain.parse([argument])
    assert pretrain.main([argument]) == 2
    assert capsys.readouterr().err.startswith("error: ") and pretrain.main(["--help"]) == 0


def trained(folder, rows=400, **steps):
    """A model of two attributes of one world, with random word vectors, in a folder."""
    taught = words.training_words(LEXICON)
    vectors = np.random.default_rng(0).normal(0, 0.05, (len(taught), training_model.WORD_WIDTH)).astype(np.float32)
    config = PretrainConfig(**steps, batch=48, captions=64, bank=200, lr=4e-3)
    of = MODELS["lodestar"]
    new_words.write(folder, taught)
    model, tokenize, frozen = training_model.prepare(of.tower, folder, taught, vectors, seed=0)
    grammar = Grammar(LEXICON, np.random.default_rng(0))
    grammar.attributes = ("up", "down")
    states, frames = pendulums(0, rows)
    before = model.text.token_embedding.weight[frozen].clone()
    text_states, _ = LEXICON.sample(np.random.default_rng(1), rows // 2)
    fit.train_text(model, tokenize, frozen, grammar, text_states, config)
    assert not model.training
    assert (
        model.text.token_embedding.weight[frozen] - before
    ).abs().max() < 0.05  # held still, but for the weight decay
    fit.train_image(model, tokenize, frames, states, grammar, of.tower, config)
    training_model.save(model, folder, LEXICON, of.taught)
    return folder


@pytest.fixture(scope="module")
def miniature(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("mini"), rows=100, steps=2, text_steps=2)


@pytest.mark.nightly
def test_seconds_of_training_beat_the_untrained_model(tmp_path):
    miniature = trained(tmp_path, steps=80, text_steps=100)
    states, frames = pendulums(5, 150)
    said = {"up": "the pendulum is upright", "down": "the pendulum is hanging down"}
    claims = [Caption(text, (PENDULUM,), ((name, False),)) for name, text in said.items()]
    after = measure(LEXICON, clip_score(miniature), claims, frames, states)
    before = measure(LEXICON, clip_score(miniature, "untrained"), claims, frames, states)
    assert after.min() > 0.7 and after.mean() > before.mean() + 0.3


def test_other_frames_are_never_scored_by_the_last_ones_embeddings(miniature):
    score = clip_score(miniature)
    _, frames = pendulums(1, 4)
    themes = [score(["the pendulum is upright"], theme(frames)) for theme in THEMES_HELD_OUT.values()]  # temporaries
    assert len({values.tobytes() for values in themes}) == len(themes)


def test_a_trained_folder_is_a_model_like_any_other(miniature):
    from rewards.vision.clip import Clip, ClipConfig

    reward = Clip(ClipConfig(goal="the pole is upright", weights=str(miniature)), None, None)
    assert reward.frame_size == 64 and "simulator state" in reward.notes()[0]


@pytest.mark.nightly
def test_the_same_seed_gives_the_same_bytes(tmp_path):
    tiny = dict.fromkeys(("steps", "text_steps"), 2) | dict.fromkeys(("frames", "batch", "captions", "bank"), 8)
    digests = [
        pretrain.run(PretrainConfig(seed=seed, **tiny), tmp_path / name)
        for name, seed in (("one", 0), ("two", 0), ("three", 1))
    ]
    assert digests[0] == digests[1] != digests[2]
