# mypy: allow-untyped-defs
"""All passes of a learned bonus over its rows in one compiled call, and scores in another.

`tape` writes down what a minibatch passes through as rows of numbers; here they are carried out, forwards and, for what
is learnt, backwards. What lies between two operations are rows of `h`, one unit each, a column for each row of the
minibatch; `d` has the slope of the loss in each. The pieces are those of `lodestar.numerics.kernel`.

    INPUT     at, n, column                          rows of the batch become columns of h
    LINEAR    at, n, source, below, weight, its steps by output and by input, bias, bend, slopes, again
    COPY      at, n, source, -, add
    SQUARES   a, n, b, slope in b, add to a, add to b     weight * sum of (a - b)**2, and its share of the loss
    ENTROPY   logits, n, one-hot codes                    -log probability of the code, and its share of the loss

`bend`: a ReLU follows. `slopes`: how many rows of the source want one. `again`: the weights have gradients already.
`add`: so have the rows. One signature serves all bonuses: it is compiled once.
"""

import math

import numpy as np

from lodestar.numerics.kernel import LANES, ZERO, F, adam, compiled, padded, product, transpose
from rewards.exploration.compiled.tape import COPY, ENTROPY, INPUT, LINEAR, SQUARES

EPSILON = F(1e-8)  # of Adam, in rewards
CHUNK = 256  # rows that are scored at a time
GAP = 16  # numbers, a line of a cache


@compiled
def load(ops, columns, order, begin, count, h, flat, wide, flipped, lines):
    """Rows order[begin : begin + count] of the batch's columns, as far as operations are inputs."""
    zero = np.int64(0)
    for op in ops:
        if op[0] != INPUT:
            break
        at, n = op[1], op[2]
        source = columns[op[3]]
        for j in range(count):
            row, to = source[order[begin + j]], flipped[j * lines :][:n]
            for i in range(n):
                to[i] = row[i]
        transpose(flipped, zero, lines, flat, at * wide, wide, padded(count), n)


@compiled
def forward(ops, shares, value, h, d, flat, wide, count, errors, found):
    """All operations in turn; `errors` (wide,) are those of the last loss, `found` has every loss added."""
    width, loss, one = padded(count), np.int64(0), np.int64(1)
    for k in range(len(ops)):
        op = ops[k]
        at, n, source = op[1], op[2], op[3]
        if op[0] == LINEAR:
            below, bias = op[4], op[8]
            product(value, op[5], op[6], op[7], flat, source * wide, wide, flat, at * wide, wide, n, width, below)
            for i in range(n):
                row, shift = h[at + i], value[bias + i]
                for j in range(width):
                    row[j] += shift
                for j in range(width if op[9] else 0):
                    row[j] = ZERO if row[j] < ZERO else row[j]  # NaN stays
        elif op[0] == COPY:
            for i in range(n):
                for j in range(width):
                    h[at + i, j] = h[source + i, j]
        elif op[0] == SQUARES or op[0] == ENTROPY:
            for j in range(width):
                errors[j] = ZERO
            if op[0] == SQUARES:
                for i in range(n):
                    a, b = h[at + i], h[source + i]
                    for j in range(width):
                        errors[j] += (a[j] - b[j]) * (a[j] - b[j])
            else:
                entropies(h[at:][:n], h[source:][:n], d[at:][:n], count, errors)
            weight, total = F(shares[k, 0]), 0.0
            for j in range(count):
                errors[j] *= weight
                total += errors[j]
            found[loss] += shares[k, 1] * total / count
            loss += one


@compiled
def entropies(logits, code, p, count, errors):
    """-log probability of one-hot codes (n, B), by row; p becomes the probabilities."""
    for j in range(count):
        top, total = logits[0, j], ZERO
        for i in range(len(logits)):
            top = max(top, logits[i, j])
        for i in range(len(logits)):
            p[i, j] = F(math.exp(logits[i, j] - top))
            total += p[i, j]
        errors[j] = F(math.log(total)) + top
        for i in range(len(logits)):
            p[i, j] /= total
            errors[j] -= code[i, j] * logits[i, j]


@compiled
def backward(ops, shares, value, grad, h, d, flat, slope, wide, count, flipped, spare, lines):
    """From the losses to the gradients of all weights that operations use."""
    width, zero, one = padded(count), np.int64(0), np.int64(1)
    for k in range(len(ops) - 1, -1, -1):
        op = ops[k]
        at, n, source = op[1], op[2], op[3]
        if op[0] == LINEAR:
            below, weight, bias, again = op[4], op[5], op[8], op[11]
            for i in range(n):
                row, out, total = d[at + i], h[at + i], ZERO
                for j in range(count if op[9] else 0):
                    row[j] = row[j] if out[j] > ZERO else ZERO
                for j in range(count):
                    total += row[j]
                grad[bias + i] = total + (grad[bias + i] if again else ZERO)
            many, few = (below, n) if op[6] == 1 else (n, below)  # rows and columns of the weights as they lie
            mine, other = (flat, slope) if op[6] == 1 else (slope, flat)
            left, right = (source, at) if op[6] == 1 else (at, source)
            transpose(other, right * wide, wide, flipped, zero, lines, few, width)
            to, begins = (spare, zero) if again else (grad, weight)
            product(mine, left * wide, wide, one, flipped, zero, lines, to, begins, few, many, few, count)
            for i in range(n * below if again else 0):
                grad[weight + i] += spare[i]
            if op[10]:
                product(
                    value, weight, op[7], op[6], slope, at * wide, wide, slope, source * wide, wide, op[10], width, n
                )  # fmt: skip
        elif op[0] == COPY:
            for i in range(n):
                for j in range(count):
                    d[source + i, j] = d[at + i, j] + (d[source + i, j] if op[5] else ZERO)
        elif op[0] == SQUARES:
            scale = F(2 * shares[k, 0] * shares[k, 1] / count)
            for i in range(n):
                a, b, d_a, d_b = h[at + i], h[source + i], d[at + i], d[source + i]
                for j in range(count):
                    step = scale * (a[j] - b[j])
                    d_a[j] = step + (d_a[j] if op[5] else ZERO)
                for j in range(count if op[4] else 0):
                    step = scale * (b[j] - a[j])
                    d_b[j] = step + (d_b[j] if op[6] else ZERO)
        elif op[0] == ENTROPY:
            scale = F(shares[k, 0] * shares[k, 1] / count)
            for i in range(n):
                for j in range(count):
                    d[at + i, j] = scale * (d[at + i, j] - h[source + i, j])


@compiled
def space(ops, size):
    """Columns of h, its rows, and the columns of what is transposed; no power of two, which caches dislike."""
    rows, lines = np.int64(0), np.int64(1)
    for program in ops:
        for op in program:
            rows = max(rows, op[1] + op[2])
            lines = max(lines, op[2], op[4] if op[0] == LINEAR else lines)
    return padded(size) + GAP, rows + 2 * LANES, padded(lines) + GAP


@compiled
def epochs(value, grad, mean, square, steps, ops, shares, columns, order, begins, rate, longest):
    """Learn from minibatches in a row, a step of Adam after each that gives a finite gradient.

    Args:
        value, grad, mean, square, steps: (P,) float32, parameters, gradient, Adam's moments; its steps so far.
        ops, shares: (programs, operations, 12) and (..., 2); the loss is the sum over programs, each with its rows.
        columns: three arrays (N, size) float32, of which inputs are taken.
        order, begins: rows, and where each program of each minibatch begins among them, (minibatches, programs + 1).
        rate, longest: learning rate, longest gradient.

    Returns:
        each loss, added over programs and minibatches; the steps of Adam so far.
    """
    size = np.int64(1)
    for each in begins:
        for k in range(len(ops)):
            size = max(size, each[k + 1] - each[k])
    wide, rows, lines = space(ops, size)
    h, d, flipped, spare = (
        np.zeros((rows, wide), F),
        np.zeros((rows, wide), F),
        np.zeros(wide * lines, F),
        np.zeros(lines**2, F),
    )
    flat, slope = h.reshape(-1), d.reshape(-1)
    errors, found = np.zeros(wide, F), np.zeros(ops.shape[1])
    for each in begins:
        for k in range(len(ops)):
            begin, count = each[k], each[k + 1] - each[k]
            load(ops[k], columns, order, begin, count, h, flat, wide, flipped, lines)
            forward(ops[k], shares[k], value, h, d, flat, wide, count, errors, found)
            backward(ops[k], shares[k], value, grad, h, d, flat, slope, wide, count, flipped, spare, lines)
        norm = ZERO
        for i in range(len(grad)):
            norm += grad[i] * grad[i]
        if math.isfinite(norm):
            steps += 1
            adam(value, grad, mean, square, steps, rate, longest, EPSILON)
    return found, steps


@compiled
def rates(ops, shares, value, columns, at, out):
    """Forward alone: into `out` (N, n) go the rows of h from `at` on, or, if it is negative, the last loss's errors."""
    total, zero = out.shape[0], np.int64(0)
    wide, rows, lines = space(ops, min(total, CHUNK))
    h, order = np.zeros((rows, wide), F), np.arange(total)
    flat, flipped, errors, found = h.reshape(-1), np.zeros(wide * lines, F), np.zeros(wide, F), np.zeros(ops.shape[1])
    for begin in range(0, total, CHUNK):
        count = min(total - begin, CHUNK)
        load(ops[0], columns, order, begin, count, h, flat, wide, flipped, lines)
        forward(ops[0], shares[0], value, h, h, flat, wide, count, errors, found)
        if at < 0:
            for j in range(count):
                out[begin + j, 0] = errors[j]
        else:
            transpose(flat, at * wide, wide, flipped, zero, lines, out.shape[1], padded(count))
            for j in range(count):
                to, row = out[begin + j], flipped[j * lines :][: out.shape[1]]
                for i in range(out.shape[1]):
                    to[i] = row[i]


@compiled
def neighbours(ring, filled, x, valid, ended, k):
    """As `memories.NeighbourMemory`: squared distances (T, N, k) of x (T, N, D) to the nearest before it."""
    capacity, size = ring.shape[1], x.shape[2]
    answers = np.full((x.shape[0], x.shape[1], k), np.inf)
    for n in range(x.shape[1]):
        for t in range(x.shape[0]):
            row, best = x[t, n], answers[t, n]
            for place in range(min(filled[n], capacity)):
                other, square = ring[n, place], ZERO
                for i in range(size):
                    square += (row[i] - other[i]) * (row[i] - other[i])
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
    size, answers = x.shape[2], np.empty(x.shape[:2])
    phi, spread = np.empty(size), np.empty(size)
    for n in range(x.shape[1]):
        own = inverse[n]
        for t in range(x.shape[0]):
            answer = 0.0
            for i in range(size):
                phi[i] = x[t, n, i]
            for i in range(size):
                row, total = own[i], 0.0
                for j in range(size):
                    total += row[j] * phi[j]
                spread[i] = total
                answer += total * phi[i]
            answers[t, n] = max(answer, 0.0)
            for i in range(size if valid[t, n] else 0):
                row, part = own[i], spread[i] / (1 + answer)
                for j in range(size):
                    row[j] -= part * spread[j]
            for i in range(size if ended[t, n] else 0):
                own[i] = 0.0
                own[i, i] = 1 / ridge
    return answers
