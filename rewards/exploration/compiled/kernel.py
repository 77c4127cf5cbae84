# mypy: allow-untyped-defs
"""All passes of a learned bonus over its rows in one compiled call, and scores in another.

`tape` writes down what a minibatch passes through as rows of numbers, whose fields it names; here they are carried out,
forwards and, for what is learnt, backwards. Values lie in `h`: one unit (neuron) a row, one row of the minibatch a
column. `d` has the slope of the loss in each of them; `flat` and `slope` are the same memory as vectors. The pieces are
those of `lodestar.numerics.kernel`, and one signature serves all bonuses: it is compiled once.

The innermost loops are written as LLVM vectorises them, with conditional expressions instead of branches.
"""

import math

import numpy as np

from lodestar.numerics.kernel import LANES, ZERO, F, adam, compiled, padded_columns, product, transpose
from rewards.exploration.compiled.tape import (
    ADD,
    ADD_GRADIENT,
    ADD_TARGET,
    BIAS,
    COLUMN,
    COPY,
    ENTROPY,
    IN_STEP,
    INPUT,
    INPUTS,
    LEARN_TARGET,
    LINEAR,
    LOSS_SHARE,
    OP_KIND,
    OP_SIZE,
    OP_SOURCE,
    OP_START,
    OUT_STEP,
    RELU,
    SLOPES,
    SQUARES,
    WEIGHT,
    WEIGHTING,
)

REWARD_ADAM_EPSILON = F(1e-8)  # of Adam, in rewards
SCORED_ROWS = 256  # rows that are scored at a time
LINE_NUMBERS = 16  # float32 numbers in a line of the processor's cache


@compiled
def load(ops, columns, order, begin, count, h, flat, wide, flipped, lines):
    """Rows order[begin : begin + count] of the batch's columns become units of h; inputs come first among `ops`."""
    zero = np.int64(0)
    for op in ops:
        if op[OP_KIND] != INPUT:
            break
        start = op[OP_START]
        size = op[OP_SIZE]
        column = columns[op[COLUMN]]
        # Gather the rows one after the other, then turn all of them over.
        for j in range(count):
            row = column[order[begin + j]]
            gathered = flipped[j * lines :][:size]
            for i in range(size):
                gathered[i] = row[i]
        transpose(flipped, zero, lines, flat, start * wide, wide, padded_columns(count), size)


@compiled
def forward(ops, shares, value, h, d, flat, wide, count, errors, losses):
    """All operations in turn; `errors` (wide,) are those of the last loss, to `losses` every loss is added."""
    width = padded_columns(count)
    loss = np.int64(0)
    for k in range(len(ops)):
        op = ops[k]
        kind = op[OP_KIND]
        start = op[OP_START]
        size = op[OP_SIZE]
        source = op[OP_SOURCE]
        if kind == LINEAR:
            forward_linear(op, value, h, flat, wide, width)
        elif kind == COPY:
            for i in range(size):
                for j in range(width):
                    h[start + i, j] = h[source + i, j]
        elif kind != INPUT:
            for j in range(width):
                errors[j] = ZERO
            if kind == SQUARES:
                for i in range(size):
                    a = h[start + i]
                    b = h[source + i]
                    for j in range(width):
                        errors[j] += (a[j] - b[j]) * (a[j] - b[j])
            elif kind == ENTROPY:
                entropies(h[start:][:size], h[source:][:size], d[start:][:size], count, errors)
            weighting = F(shares[k, WEIGHTING])
            total = 0.0
            for j in range(count):
                errors[j] *= weighting
                total += errors[j]
            losses[loss] += shares[k, LOSS_SHARE] * total / count
            loss += np.int64(1)


@compiled
def forward_linear(op, value, h, flat, wide, width):
    """One dense layer, z = W x + b for all columns of h, and its ReLU if one follows."""
    start = op[OP_START]
    size = op[OP_SIZE]
    below = op[OP_SOURCE] * wide
    above = start * wide
    out_step = op[OUT_STEP]
    in_step = op[IN_STEP]
    product(value, op[WEIGHT], out_step, in_step, flat, below, wide, flat, above, wide, size, width, op[INPUTS])
    for i in range(size):
        row = h[start + i]
        bias = value[op[BIAS] + i]
        for j in range(width):
            row[j] += bias
        if op[RELU]:
            # A NaN is not below 0, so it stays and is noticed.
            for j in range(width):
                row[j] = ZERO if row[j] < ZERO else row[j]


@compiled
def entropies(logits, code, p, count, errors):
    """-log probability of one-hot codes (n, B), by row; p becomes the probabilities."""
    for j in range(count):
        # The largest logit is subtracted, or the exponential overflows.
        top = logits[0, j]
        for i in range(len(logits)):
            top = max(top, logits[i, j])
        total = ZERO
        for i in range(len(logits)):
            p[i, j] = F(math.exp(logits[i, j] - top))
            total += p[i, j]
        errors[j] = F(math.log(total)) + top
        for i in range(len(logits)):
            p[i, j] /= total
            errors[j] -= code[i, j] * logits[i, j]


@compiled
def backward(ops, shares, value, grad, h, d, flat, slope, wide, count, flipped, spare, lines):
    """From the losses to the gradients of all weights that operations use.

    `op[ADD]` is read in the innermost loops on purpose: read before them, LLVM fuses other multiplications with
    additions, and runs no longer repeat to the last bit.
    """
    for k in range(len(ops) - 1, -1, -1):
        op = ops[k]
        kind = op[OP_KIND]
        start = op[OP_START]
        size = op[OP_SIZE]
        source = op[OP_SOURCE]
        if kind == LINEAR:
            backward_linear(op, value, grad, h, d, flat, slope, wide, count, flipped, spare, lines)
        elif kind == COPY:
            for i in range(size):
                for j in range(count):
                    d[source + i, j] = d[start + i, j] + (d[source + i, j] if op[ADD] else ZERO)
        elif kind == SQUARES:
            # The slope of weighting * (a - b)**2 in a, and its negative in b where b is learnt.
            scale = F(2 * shares[k, WEIGHTING] * shares[k, LOSS_SHARE] / count)
            for i in range(size):
                a = h[start + i]
                b = h[source + i]
                d_a = d[start + i]
                d_b = d[source + i]
                for j in range(count):
                    step = scale * (a[j] - b[j])
                    d_a[j] = step + (d_a[j] if op[ADD] else ZERO)
                if op[LEARN_TARGET]:
                    for j in range(count):
                        step = scale * (b[j] - a[j])
                        d_b[j] = step + (d_b[j] if op[ADD_TARGET] else ZERO)
        elif kind == ENTROPY:
            # The forward pass left the probabilities in d: the slope in a logit is probability - code.
            scale = F(shares[k, WEIGHTING] * shares[k, LOSS_SHARE] / count)
            for i in range(size):
                for j in range(count):
                    d[start + i, j] = scale * (d[start + i, j] - h[source + i, j])


@compiled
def backward_linear(op, value, grad, h, d, flat, slope, wide, count, flipped, spare, lines):
    """d W = d z x', d b = the sum of d z over the minibatch, and d x = W' d z where the source is learnt."""
    width = padded_columns(count)
    zero = np.int64(0)
    one = np.int64(1)
    start = op[OP_START]
    size = op[OP_SIZE]
    source = op[OP_SOURCE]
    inputs = op[INPUTS]
    weight = op[WEIGHT]
    add = op[ADD_GRADIENT]
    for i in range(size):
        row = d[start + i]
        out = h[start + i]
        if op[RELU]:
            for j in range(count):
                row[j] = row[j] if out[j] > ZERO else ZERO
        total = ZERO
        for j in range(count):
            total += row[j]
        bias = op[BIAS] + i
        grad[bias] = total + (grad[bias] if add else ZERO)

    # The gradient is computed as the weights lie: transposed where a step to the next output is 1.
    if op[OUT_STEP] == 1:
        rows = inputs
        columns = size
        left = flat
        left_begin = source * wide
        transpose(slope, start * wide, wide, flipped, zero, lines, columns, width)
    else:
        rows = size
        columns = inputs
        left = slope
        left_begin = start * wide
        transpose(flat, source * wide, wide, flipped, zero, lines, columns, width)
    # Weights that several operations use are summed up by way of `spare`.
    if add:
        product(left, left_begin, wide, one, flipped, zero, lines, spare, zero, columns, rows, columns, count)
        for i in range(size * inputs):
            grad[weight + i] += spare[i]
    else:
        product(left, left_begin, wide, one, flipped, zero, lines, grad, weight, columns, rows, columns, count)
    slopes = op[SLOPES]
    if slopes:
        below = source * wide
        above = start * wide
        out_step = op[OUT_STEP]
        in_step = op[IN_STEP]
        product(value, weight, in_step, out_step, slope, above, wide, slope, below, wide, slopes, width, size)


@compiled
def space(ops, size):
    """Columns of h, its rows, and the columns of what is transposed; no power of two, which caches dislike."""
    rows = np.int64(0)
    lines = np.int64(1)
    for program in ops:
        for op in program:
            rows = max(rows, op[OP_START] + op[OP_SIZE])
            lines = max(lines, op[OP_SIZE])
            if op[OP_KIND] == LINEAR:
                lines = max(lines, op[INPUTS])
    return padded_columns(size) + LINE_NUMBERS, rows + 2 * LANES, padded_columns(lines) + LINE_NUMBERS


@compiled
def epochs(value, grad, mean, square, steps, ops, shares, columns, order, begins, rate, longest):
    """Learn from minibatches in a row, a step of Adam after each that gives a finite gradient.

    Args:
        value, grad, mean, square, steps: (P,) float32, parameters, gradient, Adam's moments; its steps so far.
        ops, shares: (programs, operations, fields) and (..., 2); the loss is the sum over programs, each with its rows.
        columns: three arrays (N, size) float32, of which inputs are taken.
        order, begins: rows, and where each program of each minibatch begins among them, (minibatches, programs + 1).
        rate, longest: learning rate, longest gradient.

    Returns:
        each loss, added over programs and minibatches; the steps of Adam so far.
    """
    largest = np.int64(1)
    for bounds in begins:
        for k in range(len(ops)):
            largest = max(largest, bounds[k + 1] - bounds[k])
    wide, rows, lines = space(ops, largest)
    h = np.zeros((rows, wide), F)
    d = np.zeros((rows, wide), F)
    flat = h.reshape(-1)
    slope = d.reshape(-1)
    flipped = np.zeros(wide * lines, F)
    spare = np.zeros(lines**2, F)
    errors = np.zeros(wide, F)
    losses = np.zeros(ops.shape[1])
    for bounds in begins:
        for k in range(len(ops)):
            begin = bounds[k]
            count = bounds[k + 1] - begin
            load(ops[k], columns, order, begin, count, h, flat, wide, flipped, lines)
            forward(ops[k], shares[k], value, h, d, flat, wide, count, errors, losses)
            backward(ops[k], shares[k], value, grad, h, d, flat, slope, wide, count, flipped, spare, lines)
        squared_norm = ZERO
        for i in range(len(grad)):
            squared_norm += grad[i] * grad[i]
        if math.isfinite(squared_norm):
            steps += 1
            adam(value, grad, mean, square, steps, rate, longest, REWARD_ADAM_EPSILON)
    return losses, steps


@compiled
def rates(ops, shares, value, columns, at, out):
    """Forward alone: into `out` (N, n) go the rows of h from `at` on, or, if it is negative, the last loss's errors."""
    total = out.shape[0]
    size = out.shape[1]
    zero = np.int64(0)
    wide, rows, lines = space(ops, min(total, SCORED_ROWS))
    h = np.zeros((rows, wide), F)
    flat = h.reshape(-1)
    order = np.arange(total)
    flipped = np.zeros(wide * lines, F)
    errors = np.zeros(wide, F)
    losses = np.zeros(ops.shape[1])
    for begin in range(0, total, SCORED_ROWS):
        count = min(total - begin, SCORED_ROWS)
        load(ops[0], columns, order, begin, count, h, flat, wide, flipped, lines)
        # Nothing is learnt here, so probabilities may be written over values.
        forward(ops[0], shares[0], value, h, h, flat, wide, count, errors, losses)
        if at < 0:
            for j in range(count):
                out[begin + j, 0] = errors[j]
        else:
            transpose(flat, at * wide, wide, flipped, zero, lines, size, padded_columns(count))
            for j in range(count):
                answer = out[begin + j]
                row = flipped[j * lines :][:size]
                for i in range(size):
                    answer[i] = row[i]


@compiled
def neighbours(ring, filled, x, valid, ended, k):
    """As `memories.NeighbourMemory`: squared distances (T, N, k) of x (T, N, D) to the nearest before it."""
    capacity = ring.shape[1]
    answers = np.full((x.shape[0], x.shape[1], k), np.inf)
    for n in range(x.shape[1]):
        for t in range(x.shape[0]):
            row = x[t, n]
            best = answers[t, n]
            for place in range(min(filled[n], capacity)):
                other = ring[n, place]
                square = ZERO
                for i in range(x.shape[2]):
                    square += (row[i] - other[i]) * (row[i] - other[i])
                # `best` stays sorted: insert this distance before all that are larger.
                if square < best[k - 1]:
                    i = k - 1
                    while i > 0 and best[i - 1] > square:
                        best[i] = best[i - 1]
                        i -= 1
                    best[i] = square
            if valid[t, n]:
                ring[n, filled[n] % capacity] = row
                filled[n] += 1
            if ended[t, n]:
                ring[n] = ZERO
                filled[n] = 0
    return answers


@compiled
def ellipse(inverse, x, valid, ended, ridge):
    """As `memories.EllipticalMemory`: phi' C^-1 phi (T, N) of rows phi in x (T, N, D)."""
    size = x.shape[2]
    answers = np.empty(x.shape[:2])
    phi = np.empty(size)
    spread = np.empty(size)
    for n in range(x.shape[1]):
        matrix = inverse[n]
        for t in range(x.shape[0]):
            for i in range(size):
                phi[i] = x[t, n, i]
            answer = 0.0
            for i in range(size):
                row = matrix[i]
                total = 0.0
                for j in range(size):
                    total += row[j] * phi[j]
                spread[i] = total
                answer += total * phi[i]
            answers[t, n] = max(answer, 0.0)
            if valid[t, n]:
                # Sherman and Morrison: (C + phi phi')^-1 = C^-1 - spread spread' / (1 + answer).
                for i in range(size):
                    row = matrix[i]
                    part = spread[i] / (1 + answer)
                    for j in range(size):
                        row[j] -= part * spread[j]
            if ended[t, n]:
                for i in range(size):
                    matrix[i] = 0.0
                    matrix[i, i] = 1 / ridge
    return answers
