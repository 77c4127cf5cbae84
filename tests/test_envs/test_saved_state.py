"""States: what is saved does not move, and what is restored keeps its kind and, where it can, its memory."""

import json
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lodestar.state import Stateful, Weights, all_finite, get_state, pack, restore, set_state, unpack


class Holder(Stateful):
    saved = ("array", "_tensor", "queue", "pair", "table", "rng", "generator", "number")

    def __init__(self, start=0.0):
        self.array, self._tensor = np.full(3, start), torch.full((3,), start)
        self.queue, self.pair = deque([np.full(2, start)], maxlen=2), (start, [start])
        self.table = {"a": torch.full((2,), start), "b": int(start)}
        self.rng, self.generator = np.random.default_rng(int(start)), torch.Generator().manual_seed(int(start))
        self.number = start


def test_what_is_saved_does_not_move_and_what_is_restored_is_what_was_saved():
    one, two = Holder(1.0), Holder(2.0)
    state, table = one.state_dict(), two.table
    assert list(state) == [name.lstrip("_") for name in Holder.saved]
    one.array += 9
    one._tensor += 9
    one.queue[0] += 9
    one.table["a"] += 9
    drawn = one.rng.random(), torch.rand(1, generator=one.generator)
    two.table["c"] = "gone"
    two.load_state_dict(state)
    assert two.array.tolist() == two._tensor.tolist() == [1, 1, 1] and two.number == 1 and two.pair == (1.0, [1.0])
    assert two.queue.maxlen == 2 and [x.tolist() for x in two.queue] == [[1, 1]]
    assert two.table is table and two.table.keys() == {"a", "b"} and two.table["a"].tolist() == [1, 1]
    assert (two.rng.random(), torch.rand(1, generator=two.generator)) == drawn
    two.array += 1
    assert state["array"].tolist() == [1, 1, 1]


def test_a_tensor_keeps_its_memory_where_shape_and_type_are_the_same():
    for saved, kept in ((torch.ones(2), True), (torch.ones(3), False), (torch.ones(2, dtype=torch.float64), False)):
        owner = SimpleNamespace(part=SimpleNamespace(x=torch.zeros(2)))
        before = owner.part.x
        restore(owner, "part.x", saved)
        assert (owner.part.x is before) == kept and torch.equal(owner.part.x, saved)


def test_lists_are_filled_where_they_stand_and_the_rest_is_exchanged():
    owner = SimpleNamespace(words=["a"], few=(np.zeros(1), 2), nothing=None)
    words = owner.words
    set_state(
        owner, {"x.words": "words", "x.few": "few", "n": "nothing"}, {"x": {"words": ["b", "c"], "few": [3]}, "n": 7}
    )
    assert owner.words is words == ["b", "c"] and owner.few == (3,) and owner.nothing == 7
    assert get_state(owner, {"x.words": "words", "n": "nothing"}) == {"x": {"words": ["b", "c"]}, "n": 7}


def test_weights_are_named_by_their_place_and_those_of_other_networks_are_refused():
    part = Holder(1.0)
    part.saved = ("_tensor", "pair", "number")
    weights = Weights({"part": part})
    flat = weights.state_dict()
    assert {name: value.tolist() for name, value in flat.items()} == {
        "part.tensor": [1, 1, 1], "part.pair.0": 1, "part.pair.1.0": 1, "part.number": 1,
    }  # fmt: skip
    weights.load_state_dict({name: value + 1 for name, value in flat.items()})
    assert part._tensor.tolist() == [2, 2, 2] and part.number == 2 and part.pair == (2.0, [2.0])
    with pytest.raises(RuntimeError, match=r"there is no 'part\.number'"):
        weights.load_state_dict({name: value for name, value in flat.items() if name != "part.number"})
    with pytest.raises(RuntimeError, match=r"part\.tensor has the shape \(2,\), not \(3,\)"):
        weights.load_state_dict(flat | {"part.tensor": torch.ones(2)})


def test_a_state_is_finite_if_all_its_tensors_are():
    assert all_finite({"a": [torch.ones(2), "text", None], "b": torch.tensor([1, 2])})
    assert not all_finite({"a": (torch.ones(2), [torch.tensor([1.0, np.inf])])})


def test_every_kind_of_part_comes_back_from_a_file():
    state = {
        1: deque([1, 2], maxlen=3), "1": np.float32(0.5), "words": np.array([["b", ""], ["a", "b"]], object),
        "none": np.zeros(0, object), "tensor": torch.arange(3), "bytes": b"\x00\xff", "tuple": (True, [None, "x"]),
    }  # fmt: skip
    tree, arrays = pack(state)
    back = unpack(json.loads(json.dumps(tree)), arrays)
    assert list(back) == list(state) and back[1] == state[1] and back[1].maxlen == 3
    assert back["1"] == 0.5 and back["1"].dtype == np.float32 and back["tuple"] == state["tuple"]
    assert back["words"].tolist() == state["words"].tolist() and back["none"].dtype == object
    assert back["tensor"].tolist() == [0, 1, 2] and back["bytes"] == b"\x00\xff"
    both = pack({1: np.zeros(1), "1": np.ones(1)})
    assert [x.tolist() for x in unpack(*both).values()] == [[0], [1]]
    for part, words in (
        (np.array([1j]), r"/x is an array of complex128"),
        ({1, 2}, r"/x is a set, which only pickle"),
    ):
        with pytest.raises(TypeError, match=words):
            pack({"x": part})
    with pytest.raises(ValueError, match="unknown kind 'list'"):
        unpack({"_": "list", "v": []}, {})
