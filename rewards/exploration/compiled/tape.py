"""What the rows of a minibatch pass through, layer by layer, written down for a compiled call (`.kernel`, by numba).

A reward whose method `tape` writes down its `loss` learns and scores in compiled calls:

    reward.<name>.path=auto       torch until `LONG` was learnt, then compiled: short runs do not wait
    reward.<name>.path=numba      compiled from the first update, scores too
    reward.<name>.path=torch      never

How much was learnt is part of a reward's state: resumed, it changes over at the same update. Limitations: dense layers
with ReLUs, on a CPU with AVX2. A class that overrides `loss` alone learns in torch.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lodestar.numerics.compiled import kernel, say

if TYPE_CHECKING:
    from rewards.exploration.learned import Learned

LONG = 40_000_000  # of `Learned.learnt`: five seconds in torch, what compiling takes; RND: a million transitions
INPUT, LINEAR, COPY, SQUARES, ENTROPY = range(5)  # numba's cache does not notice a change here: touch `kernel`, too
FIELDS = 12
NONE = np.zeros((1, 1), np.float32)  # a column that is not there


class Units(NamedTuple):
    """Numbers that each row of a minibatch has: where they lie, how many, and whether weights change them."""

    at: int
    n: int
    learnt: bool = True
    column: int = -1  # of the batch, where they are its own

    def part(self, begin: int, n: int) -> "Units":
        return Units(self.at + begin, n, self.learnt)


class Tape:
    """Operations in turn; weights are named by their place in the vector that holds them all.

    What a layer reads may be read by something else only before: on the way back the layer comes first.
    """

    def __init__(self, places: dict[int, int], part: int = 0) -> None:
        self.places = places  # where a parameter begins in the vector, by the address of its memory
        self.part = part  # of the loss, where each part has rows of its own (`Learned.parts`)
        self.inputs: list[list[Any]] = []
        self.ops: list[list[Any]] = []
        self.shares: list[tuple[float, float]] = []
        self.names: list[str] = []  # of the losses
        self.end = 0

    def column(self, index: int, n: int) -> Units:
        """The batch's column of that number, n numbers wide."""
        rows = self._rows(n, False, index)
        self.inputs.append([INPUT, rows.at, n, index])
        return rows

    def net(self, layers: Iterable[nn.Module], *sources: Units) -> Units:
        """Dense layers, ReLUs between, of sources side by side."""
        return self.each(layers, self._join(sources))[0]

    def each(self, layers: Iterable[nn.Module], *sources: Units) -> list[Units]:
        """Dense layers, ReLUs between, of each source; what comes out of them lies side by side."""
        found, linear = [*sources], [layer for layer in layers if isinstance(layer, nn.Linear)]
        for layer in linear:
            weight, bias = (self.places[x.data_ptr()] for x in (layer.weight, layer.bias))
            places, bend = (weight, layer.in_features, 1, bias), layer is not linear[-1]
            found = [self.linear(rows, layer.out_features, places, bend) for rows in found]
        return found

    def linear(self, source: Units, n: int, places: Sequence[int], bend: bool) -> Units:
        """One layer; `places`: of the weights, their steps by output and by input, and the place of the biases."""
        rows = self._rows(n)
        self.ops.append([LINEAR, rows.at, n, source.at, source.n, *places, bend, source.n * source.learnt])
        return rows

    def squares(self, name: str, a: Units, b: Units, weight: float, share: float = 1.0) -> None:
        """Errors weight * sum of (a - b)**2 of each row; `share` times their mean is a loss of that name."""
        self._lose(name, [SQUARES, a.at, a.n, b.at, b.learnt], weight, share)

    def entropy(self, name: str, logits: Units, code: Units, share: float = 1.0) -> None:
        """Cross-entropies of one-hot codes; `share` times their mean is a loss of that name."""
        self._lose(name, [ENTROPY, logits.at, logits.n, code.at], 1.0, share)

    def program(self, losses: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Operations (1, K, 12), each with what it finds there on the way back, and weights and shares (1, K, 2).

        With `losses` only up to the last of so many.
        """
        shares = iter(self.shares)
        pairs = [(op, next(shares) if op[0] in (SQUARES, ENTROPY) else (0.0, 0.0)) for op in self.inputs + self.ops]
        ops = np.array([op + [0] * (FIELDS - len(op)) for op, _ in pairs], np.int64)
        weights, written = set[int](), set[int]()

        def again(begin: int, count: int) -> bool:
            rows = {*range(begin, begin + count)}
            found = bool(rows & written)
            written.update(rows)
            return found

        for op in ops[::-1]:
            kind, at, n, source = map(int, op[:4])
            if kind == LINEAR:
                op[11] = op[5] in weights
                weights.add(int(op[5]))
                assert not again(source, int(op[10])), "something else reads what this layer reads, and comes after it"
            elif kind == COPY:
                op[5] = again(source, n)
            elif kind in (SQUARES, ENTROPY):
                op[5] = again(at, n)
                op[6] = again(source, n) if kind == SQUARES and op[4] else 0
        end = len(ops) if losses is None else np.flatnonzero(np.isin(ops[:, 0], (SQUARES, ENTROPY)))[losses - 1] + 1
        return ops[None, :end], np.array([share for _, share in pairs[:end]])[None]

    def _rows(self, n: int, learnt: bool = True, column: int = -1) -> Units:
        self.end += n
        return Units(self.end - n, n, learnt, column)

    def _join(self, sources: Sequence[Units]) -> Units:
        """Units side by side: as they lie where they do, else copies."""
        if any(one.at + one.n != two.at for one, two in pairwise(sources)):
            sources = [self.column(s.column, s.n) if s.column >= 0 else self._copy(s) for s in sources]
        return Units(sources[0].at, sum(s.n for s in sources), any(s.learnt for s in sources))

    def _copy(self, source: Units) -> Units:
        rows = self._rows(source.n, source.learnt)
        self.ops.append([COPY, rows.at, source.n, source.at])
        return rows

    def _lose(self, name: str, op: list[Any], weight: float, share: float) -> None:
        self.names.append(name)
        self.ops.append(op)
        self.shares.append((weight, share))


class Compiled:
    """The compiled path of a reward: which calls take it, and their programs, which are made once."""

    def __init__(self, reward: "Learned") -> None:
        self.reward = reward
        self.programs: dict[Any, Any] = {}

    def kernel(self, *methods: str) -> Any:
        """The module of compiled calls, where they are asked for and can be made; else None.

        `methods` are those that they stand for: no younger class than that of `tape` may override one.
        """
        reward, kinds = self.reward, type(self.reward).__mro__
        path, name = reward.config.path, reward.config.name
        if path == "torch" or (path == "auto" and reward.learnt < LONG):
            return None
        age = {method: [method in vars(kind) for kind in kinds].index(True) for method in ("tape", *methods)}
        if any(age["tape"] > age[method] for method in methods):
            return None
        if reward.layout.images or torch.device(reward.device).type != "cpu":
            if path == "numba":
                say(f"reward {name}", f"torch, as reward.{name}.path=numba is for vectors, on the CPU")
            return None
        return kernel("rewards.exploration.compiled.kernel", f"reward {name}", "torch", f"reward.{name}.path")

    def epoch(
        self, compiled: Any, columns: Sequence[Tensor], minibatches: Sequence[Sequence[np.ndarray]]
    ) -> dict[str, float]:
        """Learn from minibatches, each the rows of every part of the loss; the sums of losses over minibatches."""
        flat, config, parts = self.reward.optimizer, self.reward.config, len(minibatches[0])
        if "loss" not in self.programs:
            tapes = [self._tape(columns, part) for part in range(parts)]
            programs = map(np.concatenate, zip(*(tape.program() for tape in tapes)))
            self.programs["loss"] = (*programs, tapes[0].names)
        ops, shares, names = self.programs["loss"]
        rows = [part for minibatch in minibatches for part in minibatch]
        ends = np.cumsum([0, *map(len, rows)])
        found, steps = compiled.epochs(
            *(x.numpy() for x in (flat.value, flat.grad, flat.mean, flat.square)),
            int(flat.steps),
            *(ops, shares, _arrays(columns), np.concatenate(rows)),
            ends[np.arange(0, len(rows), parts)[:, None] + np.arange(parts + 1)],
            *(float(config.learning_rate), float(config.max_grad_norm)),
        )
        flat.steps.fill_(steps)
        return {name: float(found[: len(names)][np.array(names) == name].sum()) for name in names}

    def rates(self, function: Any, columns: Sequence[Tensor]) -> Tensor | None:
        """What `function` makes of columns, if it is dense layers, or the reward's `error`: that of the first loss."""
        layers: Any = getattr(function, "dense", None)  # of a `Net`
        dense = layers is not None
        if not dense and function != getattr(self.reward, "error", None):
            return None
        compiled = self.kernel(*(() if dense else ("error",)))
        if compiled is None or (dense and columns[0].shape[1] != layers[0].in_features):
            return None
        key = function if dense else "error"
        if key not in self.programs:
            self.programs[key] = self._layers(layers) if dense else (*self._tape(columns).program(1), -1, 1, True)
        ops, shares, at, size, own = self.programs[key]
        value = self.reward.optimizer.value if own else torch.cat([x.detach().reshape(-1) for x in layers.parameters()])
        out = np.empty((len(columns[0]), size), np.float32)
        compiled.rates(ops, shares, value.numpy(), _arrays(columns), at, out)
        return torch.from_numpy(out if dense else out[:, 0])

    def members(self, heads: Any, rows: Tensor) -> Tensor | None:
        """What networks side by side, whose `heads.tape` writes down that of a part, make of rows: (K, N, D)."""
        compiled = self.kernel("variance")
        if compiled is None:
            return None
        if "members" not in self.programs:
            places = _places(self.reward.trained)
            tapes = [Tape(places, part) for part in range(len(heads.weights[0]))]
            ends = [heads.tape(tape, tape.column(0, rows.shape[1])) for tape in tapes]
            self.programs["members"] = [(*tape.program(), end) for tape, end in zip(tapes, ends)]
        programs = self.programs["members"]
        out = np.empty((len(programs), len(rows), programs[0][-1].n), np.float32)
        for member, (ops, shares, end) in zip(out, programs):
            compiled.rates(ops, shares, self.reward.optimizer.value.numpy(), _arrays([rows]), end.at, member)
        return torch.from_numpy(out)

    def _tape(self, columns: Sequence[Tensor], part: int = 0) -> Tape:
        reward: Any = self.reward
        tape = Tape(_places(reward.trained), part)
        reward.tape(tape, *(tape.column(index, column.shape[1]) for index, column in enumerate(columns)))
        return tape

    def _layers(self, layers: Any) -> tuple[Any, ...]:
        own = _places(getattr(self.reward, "trained", ()))
        learnt = layers[0].weight.data_ptr() in own
        tape = Tape(own if learnt else _places(layers.parameters()))
        rows = tape.net(layers, tape.column(0, layers[0].in_features))
        return *tape.program(), rows.at, rows.n, learnt


def _places(parameters: Iterable[Tensor]) -> dict[int, int]:
    """Where parameters begin in a vector of all of them, by the address of their memory."""
    listed = [*parameters]
    return dict(zip((p.data_ptr() for p in listed), np.cumsum([0, *(p.numel() for p in listed)]).tolist()))


def _arrays(columns: Sequence[Tensor]) -> tuple[np.ndarray, ...]:
    """Three arrays, as `kernel` takes."""
    found = [np.require(column.numpy(), np.float32, ["C", "W"]) for column in columns]
    return *found, *[NONE] * (3 - len(found))
