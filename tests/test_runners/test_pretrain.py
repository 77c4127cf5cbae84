import numpy as np
import pytest

from runners import pretrain, pretrain_words
from runners.pretrain import PretrainConfig
from runners.pretrain_captions import Caption, Grammar, truth, worlds_of
from runners.pretrain_data import (
    ATTRIBUTES,
    CARTPOLE,
    FRESH,
    MOUNTAINCAR,
    PENDULUM,
    SUBJECTS,
    VERBATIM,
    States,
    join,
    sample_states,
)
from runners.pretrain_eval import clip_score, correlation, measure
from runners.pretrain_frames import THEMES_HELD_OUT, augment, draw


def at(world, angle=0.0, x=0.0):
    return States(np.array([world]), np.array([float(angle)]), np.array([float(x)]))


def test_truth_multiplies_claims_and_inverts_denials():
    # angle 0: "up" is 0.55 + 0.45 = 1 exactly; the cart at x = 0 is in the middle: exp(0) = 1
    # angle pi/2: the slope gives 0.55 / 2, the peak exp(-0.5 * (1.5708 / 0.25)^2) = 2.7e-9
    up, not_up = Caption("", (CARTPOLE,), (("up", False),)), Caption("", (CARTPOLE,), (("up", True),))
    both = Caption("", (CARTPOLE,), (("up", False), ("cart_centre", False)))
    states = join([at(CARTPOLE), at(CARTPOLE, np.pi / 2), at(CARTPOLE, 0, 0.5), at(PENDULUM)])
    value, about = truth([up, not_up, both], states)
    assert value[0].tolist() == pytest.approx([1, 0.275, 1, 0], abs=1e-6)
    assert value[1].tolist() == pytest.approx(
        [0, 0.725, 0, 0], abs=1e-6
    )  # a denial about another world is no truth either
    assert value[2].tolist() == pytest.approx([1, 0.275, np.exp(-0.5), 0], abs=1e-6)
    assert about.tolist() == [[True, True, True, False]] * 3


def test_a_sentence_without_meaning_is_true_of_nothing_and_a_baseline_of_its_whole_world():
    states = join([sample_states(np.random.default_rng(0), 20, world) for world in range(3)])
    grammar = Grammar(np.random.default_rng(0))
    assert truth([grammar.nothing() for _ in range(50)], states)[0].max() == 0
    values = truth([grammar.baseline() for _ in range(50)], states)[0]
    assert set(values.ravel().tolist()) == {0.0, 1.0}


def test_naming_the_cart_rules_out_the_pendulum():
    assert worlds_of("pole on the cart") == (CARTPOLE,)
    assert worlds_of("pole") == worlds_of("pendulum") == (CARTPOLE, PENDULUM)


def test_training_never_sees_what_is_held_out():
    captions = Grammar(np.random.default_rng(0)).draw(20_000)
    texts = {caption.text for caption in captions}
    assert not texts & set(VERBATIM)
    assert not any(caption.claims == (("up", False), ("cart_right", False)) for caption in captions)
    words = set(pretrain_words.training_words())
    for unseen in ("stick", "vertical", "vehicle", "summit", "dangling", "erect"):
        assert unseen not in words
    for attribute in ATTRIBUTES.values():
        assert not set(attribute.said) & set(attribute.held_out)
    for name, phrases in FRESH.items():
        assert not set(ATTRIBUTES[name].said) & set(phrases)
    for seen, held_out in SUBJECTS.values():
        assert not set(seen) & set(held_out)


def test_the_renderer_draws_the_state_that_the_caption_speaks_of():
    frames = draw(
        join([at(PENDULUM, np.pi / 2), at(MOUNTAINCAR, x=0.5), at(CARTPOLE, 0, 1.5)]), 64, np.random.default_rng(0)
    )
    red = (frames[0, :, :, 0] > 150) & (frames[0, :, :, 1] < 120)
    assert np.argwhere(red)[:, 1].mean() > 34  # clockwise by a quarter: the rod points right
    dark = (frames < 60).all(-1)
    assert np.argwhere(dark[1])[:, 1].mean() > 50  # the car is at the right
    assert 48 < np.argwhere(dark[2])[:, 1].mean() < 56  # 32 + 64 * 1.5 / 4.8 = 52


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
    words = ["pole", "poles", "upright", "right", "up", "the", "cart", "carton", "art"]
    pretrain_words.write(tmp_path, words)
    tokenize = pretrain.tokenizer_of(tmp_path)
    assert [len(tokenize.encode(word)) for word in words] == [1] * len(words)
    assert len({tokenize.encode(word)[0] for word in words}) == len(words)
    assert len(tokenize.encode("zyx")) == 3 and len(tokenize.encode("The pole, upright!")) == 3
    before = (tmp_path / "bpe.txt.gz").read_bytes()
    pretrain_words.write(tmp_path, words)
    assert (tmp_path / "bpe.txt.gz").read_bytes() == before and pretrain_words.read(tmp_path) == words


def test_reduced_word_vectors_keep_neighbours():
    rng = np.random.default_rng(0)
    groups = rng.normal(size=(5, 30)).repeat(4, axis=0)
    vectors = pretrain_words.reduce(np.stack([groups + 0.1 * rng.normal(size=groups.shape) for _ in range(3)]), 8)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(pretrain_words.LENGTH, abs=1e-5)
    nearest = (vectors @ vectors.T - 9 * np.eye(20)).argmax(1)
    assert (nearest // 4 == np.arange(20) // 4).all()


def test_sentences_without_meaning_are_made_of_words_unlike_ours():
    words = ["pole", "stick", "wombat", "yodel"]
    vectors = np.array([[1, 0, 0], [0.9, 0.1, 0], [0, 1, 0], [0, 0.9, 0.1]], np.float32)
    assert pretrain_words.far_words(words, vectors) == ["wombat", "yodel"]


def test_correlation_by_hand():
    assert correlation(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])) == pytest.approx(1)
    assert correlation(np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.0, 1.0])) == pytest.approx(0)
    assert correlation(np.ones(3), np.arange(3)) == 0  # a constant reward correlates with nothing


def test_the_shipped_words_are_what_the_grammar_says():
    from rewards.vision.encoder import SHIPPED

    assert set(pretrain_words.training_words()) <= set(pretrain_words.read(SHIPPED))


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("step=3", "'step=3' is not understood; write key=value with one of out, words, steps"),
        ("lr=abc", "lr=abc is not a number, which lr must be"),
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


@pytest.fixture(scope="module")
def miniature(tmp_path_factory):
    """Seconds of training on two attributes of one world, with random word vectors."""
    folder = tmp_path_factory.mktemp("mini")
    words = pretrain_words.training_words()
    vectors = np.random.default_rng(0).normal(0, 0.05, (len(words), pretrain.WIDTH)).astype(np.float32)
    config = PretrainConfig(words="random", steps=80, text_steps=100, batch=48, captions=64, bank=200, lr=4e-3)
    model, tokenize, frozen = pretrain.prepare(config, words, vectors, folder)
    grammar = Grammar(np.random.default_rng(0), attributes=("up", "down"))
    states = sample_states(np.random.default_rng(0), 400, PENDULUM)
    frames = draw(states, 64, np.random.default_rng(0))
    before = model.text.token_embedding.weight[frozen].clone()
    pretrain.train_text(model, tokenize, frozen, grammar, config)
    assert (
        model.text.token_embedding.weight[frozen] - before
    ).abs().max() < 0.05  # held still, but for the weight decay
    pretrain.train_image(model, tokenize, frames, states, grammar, config)
    pretrain.save(model, folder)
    return folder


def test_a_miniature_beats_the_untrained_model(miniature):
    rng = np.random.default_rng(5)
    states = sample_states(rng, 150, PENDULUM)
    frames = draw(states, 64, rng)
    said = {"up": "the pendulum is upright", "down": "the pendulum is hanging down"}
    claims = [Caption(text, (PENDULUM,), ((name, False),)) for name, text in said.items()]
    trained = measure(clip_score(miniature), claims, frames, states)
    untrained = measure(clip_score(miniature, "untrained"), claims, frames, states)
    assert trained.min() > 0.7 and trained.mean() > untrained.mean() + 0.3


def test_other_frames_are_never_scored_by_the_last_ones_embeddings(miniature):
    score = clip_score(miniature)
    frames = draw(sample_states(np.random.default_rng(1), 4, PENDULUM), 64, np.random.default_rng(1))
    themes = [score(["the pendulum is upright"], theme(frames)) for theme in THEMES_HELD_OUT.values()]  # temporaries
    assert len({values.tobytes() for values in themes}) == len(themes)


def test_a_trained_folder_is_a_model_like_any_other(miniature):
    from rewards.vision.clip import Clip, ClipConfig

    reward = Clip(ClipConfig(goal="the pole is upright", weights=str(miniature)), None, None)
    assert reward.frame_size == 64 and "simulator state" in reward.notes()[0]


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    tiny = dict.fromkeys(("steps", "text_steps"), 2) | dict.fromkeys(("frames", "batch", "captions", "bank"), 8)
    digests = [
        pretrain.run(PretrainConfig(seed=seed, **tiny), tmp_path / name)
        for name, seed in (("one", 0), ("two", 0), ("three", 1))
    ]
    assert digests[0] == digests[1] != digests[2]
