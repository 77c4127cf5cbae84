"""What the rows of a minibatch pass through, layer by layer, written down for a compiled call (`.kernel`, by numba).

A reward whose method `tape` writes down its `loss` learns and scores in compiled calls:

    reward.<name>.path=auto       torch until `COMPILE_AFTER_WORK` was done, then compiled: short runs do not wait
    reward.<name>.path=numba      compiled from the first update, scores too
    reward.<name>.path=torch      never

How much was learnt is part of a reward's state: resumed, it changes over at the same update. Limitations: dense layers
with ReLUs, on a CPU with AVX2. A class that overrides `loss` alone learns in torch.

An operation is a row of OP_FIELDS numbers. All kinds share the first four; what follows depends on the kind:

    INPUT      rows of the batch's column number COLUMN become units of h
    LINEAR     W x + b of the INPUTS units at OP_SOURCE, with a RELU or without
    COPY       the units at OP_SOURCE once more
    SQUARES    WEIGHTING * sum of (prediction - target)**2, the target at OP_SOURCE, and its LOSS_SHARE of the loss
    ENTROPY    -log probability of the one-hot code at OP_SOURCE, and its LOSS_SHARE of the loss
"""

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lodestar.numerics.compiled import kernel, warn_once

if TYPE_CHECKING:
    from rewards.exploration.learned import Learned

NO_COLUMN = np.zeros((1, 1), np.float32)  # stands for a column that the batch does not have

# numba's cache does not notice a change of the constants below: touch `kernel`, too.
INPUT, LINEAR, COPY, SQUARES, ENTROPY = range(5)
LOSS_KINDS = (SQUARES, ENTROPY)
OP_FIELDS = 12

# Fields of every operation: its kind, its first row in h, how many, and the first row of what it reads.
OP_KIND, OP_START, OP_SIZE, OP_SOURCE = range(4)
# Of INPUT: the number of the batch's column takes the place of a source.
COLUMN = 3
# Of LINEAR: how many units it reads, where its weights begin and their steps by output and by input, where its biases
# begin, whether a ReLU follows, how many units of the source want a slope, whether its weights have gradients already.
INPUTS, WEIGHT, OUT_STEP, IN_STEP, BIAS, RELU, SLOPES, ADD_GRADIENT = range(4, 12)
# Of SQUARES: whether the target is learnt, too. Of COPY and SQUARES: whether what they read has a slope already, which
# theirs is added to; SQUARES reads the prediction and the target.
LEARN_TARGET, ADD, ADD_TARGET = range(4, 7)
# Fields of an operation's shares: what each error is multiplied with, and the share of their mean in the loss.
WEIGHTING, LOSS_SHARE = range(2)


class Units(NamedTuple):
    """Numbers that each row of a minibatch has: where they lie, how many, and whether weights change them."""

    start: int
    n: int
    learnt: bool = True
    column: int = -1  # of the batch, where they are its own

    def select(self, begin: int, n: int) -> "Units":
        return Units(self.start + begin, n, self.learnt)


class Tape:
    """Operations in turn; weights are named by their place in the vector that holds them all.

    What a layer reads may be read by something else only before: on the way back the layer comes first.
    """

    def __init__(self, places: dict[int, int], part: int = 0) -> None:
        self.places = places  # where a parameter begins in the vector, by the address of its memory
        self.part = part  # of the loss, where each part has rows of its own (`Learned.split_rows`)
        self.inputs: list[list[Any]] = []
        self.ops: list[list[Any]] = []
        self.shares: list[tuple[float, float]] = []  # of the losses among `ops`, in their order
        self.names: list[str] = []  # of the losses
        self.end = 0

    def column(self, index: int, n: int) -> Units:
        """The batch's column of that number, n numbers wide."""
        rows = self._new_rows(n, learnt=False, column=index)
        self.inputs.append([INPUT, rows.start, n, index])
        return rows

    def net(self, layers: Iterable[nn.Module], *sources: Units) -> Units:
        """Dense layers, ReLUs between, of sources side by side."""
        return self.apply_to_each(layers, self._join(sources))[0]

    def apply_to_each(self, layers: Iterable[nn.Module], *sources: Units) -> list[Units]:
        """Dense layers, ReLUs between, of each source; what comes out of them lies side by side."""
        outputs = [*sources]
        linear_layers = [layer for layer in layers if isinstance(layer, nn.Linear)]
        for layer in linear_layers:
            # The weights lie as (outputs, inputs): a step to the next input is 1.
            weight = self.places[layer.weight.data_ptr()]
            bias = self.places[layer.bias.data_ptr()]
            places = (weight, layer.in_features, 1, bias)
            relu = layer is not linear_layers[-1]
            outputs = [self.linear(rows, layer.out_features, places, relu) for rows in outputs]
        return outputs

    def linear(self, source: Units, n: int, places: Sequence[int], relu: bool) -> Units:
        """One layer; `places`: of the weights, their steps by output and by input, and the place of the biases."""
        rows = self._new_rows(n)
        slopes = source.n if source.learnt else 0
        units = (rows.start, n, source.start, source.n)
        self.ops.append([LINEAR, *units, *places, relu, slopes])
        return rows

    def squares(self, name: str, a: Units, b: Units, weight: float, share: float = 1.0) -> None:
        """Errors weight * sum of (a - b)**2 of each row; `share` times their mean is a loss of that name."""
        op = [SQUARES, a.start, a.n, b.start, b.learnt]
        self._add_loss(name, op, weight, share)

    def entropy(self, name: str, logits: Units, code: Units, share: float = 1.0) -> None:
        """Cross-entropies of one-hot codes; `share` times their mean is a loss of that name."""
        op = [ENTROPY, logits.start, logits.n, code.start]
        self._add_loss(name, op, 1.0, share)

    def program(self, losses: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Operations (1, K, OP_FIELDS) with what each finds there on the way back; weights and shares (1, K, 2).

        With `losses` only up to the last of so many.
        """
        listed = self.inputs + self.ops
        ops = np.zeros((len(listed), OP_FIELDS), np.int64)
        for row, op in zip(ops, listed):
            row[: len(op)] = op
        is_loss = np.isin(ops[:, OP_KIND], LOSS_KINDS)
        shares = np.zeros((len(listed), 2))
        shares[is_loss] = np.reshape(self.shares, (-1, 2))
        _mark_sums(ops)
        end = len(ops)
        if losses is not None:
            end = np.flatnonzero(is_loss)[losses - 1] + 1
        return ops[None, :end], shares[None, :end]

    def _new_rows(self, n: int, learnt: bool = True, column: int = -1) -> Units:
        start = self.end
        self.end += n
        return Units(start, n, learnt, column)

    def _join(self, sources: Sequence[Units]) -> Units:
        """Units side by side: as they lie where they do, else copies."""
        if any(left.start + left.n != right.start for left, right in pairwise(sources)):
            sources = list(map(self._copy, sources))
        size = 0
        learnt = False
        for source in sources:
            size += source.n
            learnt = learnt or source.learnt
        return Units(sources[0].start, size, learnt)

    def _copy(self, source: Units) -> Units:
        """The same units at the end of h; columns of the batch are read once more instead."""
        if source.column >= 0:
            return self.column(source.column, source.n)
        rows = self._new_rows(source.n, source.learnt)
        self.ops.append([COPY, rows.start, source.n, source.start])
        return rows

    def _add_loss(self, name: str, op: list[Any], weight: float, share: float) -> None:
        self.names.append(name)
        self.ops.append(op)
        self.shares.append((weight, share))


def _mark_sums(ops: np.ndarray) -> None:
    """Set the fields of operations (K, OP_FIELDS) that say where a slope or gradient is added to an earlier one."""
    weights_with_gradient = set[int]()
    rows_with_slope = set[int]()

    def has_slope(start: int, n: int) -> bool:
        """Whether some of these rows have a slope already; from now on all of them have one."""
        rows = {*range(start, start + n)}
        earlier = not rows_with_slope.isdisjoint(rows)
        rows_with_slope.update(rows)
        return earlier

    # The way back begins with the last operation.
    for op in ops[::-1]:
        kind, start, n, source = map(int, op[:4])
        if kind == LINEAR:
            weight = int(op[WEIGHT])
            op[ADD_GRADIENT] = weight in weights_with_gradient
            weights_with_gradient.add(weight)
            source_has_slope = has_slope(source, int(op[SLOPES]))
            assert not source_has_slope, "something else reads what this layer reads, and comes after it"
        elif kind == COPY:
            op[ADD] = has_slope(source, n)
        elif kind in LOSS_KINDS:
            op[ADD] = has_slope(start, n)
            if kind == SQUARES and op[LEARN_TARGET]:
                op[ADD_TARGET] = has_slope(source, n)


class Compiled:
    """The compiled path of a reward: which calls take it, and their programs, which are made once."""

    def __init__(self, reward: "Learned") -> None:
        self.reward = reward
        self.programs: dict[Any, Any] = {}

    def kernel(self, *methods: str) -> Any:
        """The module of compiled calls, where they are asked for and can be made; else None.

        `methods` are those that they stand for: no subclass of the class that defines `tape` may override one.
        """
        reward = self.reward
        if not reward.compiles or not self._stand_for(methods):
            return None
        name = reward.config.name
        if reward.layout.images or torch.device(reward.device).type != "cpu":
            if reward.config.path == "numba":
                warn_once(f"reward {name}", f"torch, as reward.{name}.path=numba is for vectors, on the CPU")
            return None
        return kernel("rewards.exploration.compiled.kernel", f"reward {name}", "torch", f"reward.{name}.path")

    def _stand_for(self, methods: Sequence[str]) -> bool:
        """Whether `tape`, if there is one, writes down these methods: they are those of the class that defines it."""
        kind = type(self.reward)
        if methods and kind.tape is None:
            return False
        author = next(base for base in kind.__mro__ if "tape" in vars(base))
        for method in methods:
            current = getattr(kind, method)
            # A mixin that defines `tape` alone has no such method, and stands for whatever it is mixed into.
            if getattr(author, method, current) is not current:
                return False
        return True

    def epoch(
        self, compiled: Any, columns: Sequence[Tensor], minibatches: Sequence[Sequence[np.ndarray]]
    ) -> dict[str, float]:
        """Learn from minibatches, each the rows of every part of the loss; the sums of losses over minibatches."""
        flat = self.reward.optimizer
        config = self.reward.config
        parts = len(minibatches[0])
        if "loss" not in self.programs:
            tapes = [self._write_tape(columns, part) for part in range(parts)]
            part_ops, part_shares = zip(*map(Tape.program, tapes))
            # Every part has the same losses.
            self.programs["loss"] = np.concatenate(part_ops), np.concatenate(part_shares), tapes[0].names
        ops, shares, names = self.programs["loss"]
        # One row of `begins` for each minibatch: where each part begins in `order`, and where the last one ends.
        rows = list(chain.from_iterable(minibatches))
        ends = np.cumsum([0, *map(len, rows)])
        first_parts = np.arange(0, len(rows), parts)
        begins = ends[first_parts[:, None] + np.arange(parts + 1)]
        vectors = [vector.numpy() for vector in (flat.value, flat.grad, flat.mean, flat.square)]
        arrays = _three_arrays(columns)
        order = np.concatenate(rows)
        rate = float(config.learning_rate)
        max_norm = float(config.max_grad_norm)
        losses, steps = compiled.epochs(*vectors, int(flat.steps), ops, shares, arrays, order, begins, rate, max_norm)
        flat.steps.fill_(steps)
        # Losses of the same name, such as one for each discrete action, are logged as their sum.
        sums = {}
        for name in names:
            has_name = np.array(names) == name
            sums[name] = float(losses[: len(names)][has_name].sum())
        return sums

    def rates(self, function: Any, columns: Sequence[Tensor]) -> Tensor | None:
        """What `function` makes of columns, if it is dense layers, or the reward's `error`: that of the first loss."""
        layers = getattr(function, "dense", None)  # of a `Net`
        if layers is not None:
            return self._layer_outputs(function, layers, columns)
        if function != self.reward.error:
            return None
        compiled = self.kernel("error")
        if compiled is None:
            return None
        if "error" not in self.programs:
            program = self._write_tape(columns).program(losses=1)
            # A place of -1 asks for the errors of the last loss instead of units.
            self.programs["error"] = [(*program, Units(-1, 1))]
        return _outputs(compiled, self.programs["error"], self.reward.optimizer.value, columns)[0, :, 0]

    def _layer_outputs(self, net: Any, layers: Any, columns: Sequence[Tensor]) -> Tensor | None:
        """The outputs (N, D) of dense layers; None where they are not compiled, or only some columns are given."""
        compiled = self.kernel()
        if compiled is None or columns[0].shape[1] != layers[0].in_features:
            return None
        if net not in self.programs:
            places = _parameter_places(self.reward.trained)
            learnt = layers[0].weight.data_ptr() in places
            # Weights that the reward does not learn are a vector of their own.
            if not learnt:
                places = _parameter_places(layers.parameters())
            tape = Tape(places)
            outputs = tape.net(layers, tape.column(0, layers[0].in_features))
            self.programs[net] = learnt, [(*tape.program(), outputs)]
        learnt, programs = self.programs[net]
        if learnt:
            value = self.reward.optimizer.value
        else:
            value = nn.utils.parameters_to_vector(layers.parameters()).detach()
        return _outputs(compiled, programs, value, columns)[0]

    def members(self, heads: Any, rows: Tensor) -> Tensor | None:
        """What networks side by side, whose `heads.tape` writes down that of a part, make of rows: (K, N, D)."""
        compiled = self.kernel("variance")
        if compiled is None:
            return None
        if "members" not in self.programs:
            places = _parameter_places(self.reward.trained)
            programs = []
            for member in range(len(heads.weights[0])):
                tape = Tape(places, member)
                outputs = heads.tape(tape, tape.column(0, rows.shape[1]))
                programs.append((*tape.program(), outputs))
            self.programs["members"] = programs
        return _outputs(compiled, self.programs["members"], self.reward.optimizer.value, [rows])

    def _write_tape(self, columns: Sequence[Tensor], part: int = 0) -> Tape:
        """The reward's own tape, of columns as wide as these."""
        reward: Any = self.reward
        tape = Tape(_parameter_places(reward.trained), part)
        inputs = [tape.column(index, column.shape[1]) for index, column in enumerate(columns)]
        reward.tape(tape, *inputs)
        return tape


def _outputs(
    compiled: Any, programs: list[tuple[np.ndarray, np.ndarray, Units]], value: Tensor, columns: Sequence[Tensor]
) -> Tensor:
    """What programs of one shape make of columns, (programs, N, D): their operations, shares and outputs."""
    _, _, outputs = programs[0]
    out = np.empty((len(programs), len(columns[0]), outputs.n), np.float32)
    arrays = _three_arrays(columns)
    for part, (ops, shares, outputs) in zip(out, programs):
        compiled.rates(ops, shares, value.numpy(), arrays, outputs.start, part)
    return torch.from_numpy(out)


def _parameter_places(parameters: Iterable[Tensor]) -> dict[int, int]:
    """Where parameters begin in a vector of all of them, by the address of their memory."""
    places = {}
    begin = 0
    for parameter in parameters:
        places[parameter.data_ptr()] = begin
        begin += parameter.numel()
    return places


def _three_arrays(columns: Sequence[Tensor]) -> tuple[np.ndarray, ...]:
    """Three arrays, as `kernel` takes."""
    arrays = [np.require(column.numpy(), np.float32, ["C", "W"]) for column in columns]
    missing = [NO_COLUMN] * (3 - len(arrays))
    return *arrays, *missing
