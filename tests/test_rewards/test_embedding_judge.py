"""The judge that compares captions with phrases, with its real model."""

import numpy as np
import pytest
import torch

from rewards.llm.judges import embedding
from rewards.llm.judges.base import make_judge

SIZE = embedding.VECTOR_SIZE
encode = embedding.encode

HELPS = {
    "nethack": [
        "You climb down the stairs.",
        "You kill the newt!",
        "You swap places with your kitten.  $ - 5 gold pieces.",
        "Welcome to experience level 4.",
        "The door opens.",
    ],
    "minigrid": ["picked up the yellow key", "opened the blue door (417 moves left)", "reached the goal"],
}
DOES_NOT = {
    "nethack": [
        "It's a wall.",
        "This door is locked.",
        "Never mind.",
        "You climb up the stairs.",
        "You see here 12 gold pieces.",
        "The kitten bites the newt.  The newt is killed!",
        "",
    ],
    "minigrid": [
        "the yellow door is locked",
        "dropped the yellow key",
        "bumped into a wall",
        "fell into lava",
        "sees the blue door",
    ],
}


@pytest.mark.parametrize("family", HELPS)
def test_captions_near_to_good_phrases_are_distinguished_from_those_that_look_alike(family):
    judge = make_judge("embedding", family=family)
    assert dict(zip(HELPS[family], judge.label(HELPS[family]).value)) == dict.fromkeys(HELPS[family], 1.0)
    assert dict(zip(DOES_NOT[family], judge.label(DOES_NOT[family]).value)) == dict.fromkeys(DOES_NOT[family], 0.0)
    assert not judge.label(HELPS[family]).failed.any() and judge.label([]).value.shape == (0,)


def test_a_goal_chooses_the_phrases_nearest_to_it():
    gold = make_judge("embedding", family="nethack", goal="Find and pick up as much gold as possible.")
    stairs = make_judge("embedding", family="nethack", goal="find the stairs down")
    texts = ["$ - 7 gold pieces.", "You climb down the stairs.", "You kill the newt!"]
    assert gold.label(texts).value.tolist() == [1, 0, 0] and stairs.label(texts).value.tolist() == [0, 1, 0]
    assert gold.good == ["$ - 20 gold pieces."] and gold.identity != stairs.identity
    assert make_judge("embedding", family="nethack", goal="bake a large cake").good == ["bake a large cake"]
    assert make_judge("embedding", goal="win").good == ["win"]  # a family of which nothing is known


def test_goals_of_ones_own_are_taken_as_they_are():
    judge = make_judge("embedding", family="nethack", goals="the altar glows; ", goal="not read")
    assert judge.good == make_judge("embedding", goals=["the altar glows"]).good == ["the altar glows"]
    assert judge.label(["The altar glows brightly.", "You kill the newt!"]).value.tolist() == [1, 0]
    assert judge.notes() == [
        "captions are good if their words are near to: the altar glows; no model reasons about them"
    ]


def test_of_two_captions_the_nearer_is_better_and_a_small_difference_is_none():
    judge = make_judge("embedding", goals="the altar glows", margin=0.1)
    near = judge.nearness(["The altar glows.", "An altar is here.", "It's a wall."])
    assert near[0] > near[1] + 0.1 and near[1] > near[2] + 0.1
    answers = judge.compare(["The altar glows.", "It's a wall.", "It's a wall."], ["An altar is here."] * 2 + ["stone"])
    assert answers.value.tolist() == [0, 1, 0.5]
    judge.threshold = float(near[1])
    assert judge.label(["The altar glows.", "An altar is here."]).value.tolist() == [1, 0]


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"nothing is known of family='chess'; say what is good in goals"):
        make_judge("embedding", family="chess")


def test_vectors_are_those_of_the_library_sentence_transformers():
    expected = {  # sentence-transformers 5.7.0, normalize_embeddings=True
        "The door opens.": [0.03529573, 0.02119377, -0.04947218, 0.03981739, 0.01086046],
        "It's a wall.": [0.04061244, 0.07411917, -0.05079284, 0.00884032],
        "": [-0.11883838, 0.04829868, -0.00254811, -0.01101118],
    }
    vectors = encode(list(expected))
    assert vectors.dtype == np.float32 and vectors.shape == (3, SIZE)
    for row, values in zip(vectors, expected.values()):
        np.testing.assert_allclose(row[: len(values)], values, atol=1e-6)


def test_vectors_have_length_one_and_do_not_hang_on_the_company_they_are_in():
    texts = [f"{'word ' * (i % 7)}{i}" for i in range(150)]
    vectors = encode(texts)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(vectors[[3, 77]], np.concatenate([encode([texts[3]]), encode([texts[77]])]), atol=1e-6)
    assert encode([]).shape == (0, SIZE)


def test_a_text_is_read_up_to_256_tokens():
    long = "gold " * 253 + "and "  # with its ends 256 tokens
    np.testing.assert_allclose(encode([long + "stairs"]), encode([long + "walls"]), atol=1e-6)


def test_loading_the_model_draws_no_random_numbers():
    state = torch.random.get_rng_state()
    embedding._load_model.__wrapped__()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_weights_that_are_not_the_published_ones_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("LODESTAR_MINILM", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"has no model\.safetensors; give a folder with model\.saf"):
        embedding._load_model.__wrapped__()
    (tmp_path / "model.safetensors").write_bytes(b"another model")
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    with pytest.raises(ValueError, match=r"model\.safetensors is not the published one of all-MiniLM-L6-v2 \(sha256"):
        embedding._load_model.__wrapped__()
