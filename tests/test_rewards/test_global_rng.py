# ruff: noqa: NPY002 - the global generators are what is tested here
"""The process's generators are seeded for a while and then stand where they stood."""

import random

import numpy as np
import pytest
import torch

from rewards.check import generator_states, seed_generators


def draw():
    return random.random(), np.random.rand(), float(torch.rand(()))


def test_within_the_same_seed_draws_the_same_and_another_seed_does_not():
    draws = []
    for seed in (1, 1, 2):
        with seed_generators(seed):
            draws.append(draw())
    assert draws[0] == draws[1]
    assert not set(draws[0]) & set(draws[2])


def test_afterwards_they_stand_where_they_stood_even_after_an_error():
    with seed_generators(3):
        expected = [draw(), draw()]
    with seed_generators(3):
        assert draw() == expected[0]
        with pytest.raises(KeyError), seed_generators(9):
            draw()
            raise KeyError
        assert draw() == expected[1]


def test_states_tell_whether_something_was_drawn():
    with seed_generators(0):
        before = generator_states()
        assert len(before) == 3
        assert before[0] == generator_states()[0]
        draw()
        after = generator_states()
    assert before[0] != after[0]
    assert before[1][2] != after[1][2]
    assert not torch.equal(before[2], after[2])
