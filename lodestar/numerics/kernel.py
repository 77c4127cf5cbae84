# mypy: allow-untyped-defs
"""What compiled updates are made of: products of matrices in registers, layers with their gradients, Adam.

Everything between two layers lies as (units, rows), so that a register holds one unit of neighbouring rows and weights
are used as they lie:

    forward    z (units, rows) = W below          backward   d below = W^T d z          d W = d z below^T

`_tile` computes 8 x 32 numbers of a product in registers (6 x 16 with AVX2), in LLVM's own language because numba has
no vectors; the rest are loops that LLVM vectorises. They need `error_model="numpy"`, since a division that may raise is
not vectorised, and two axes, since a place that is computed may be negative. Sums are reordered (`reassoc`), NaN and
infinity keep their meaning, so that a run that diverges is noticed. Repeated on one processor it gives the same bits.

numba's cache on the disk does not notice changes in this file: after one touch the other files named `kernel.py`.
"""

import math
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

FEATURES = llvm.get_host_cpu_features()
WIDE, SUPPORTED = FEATURES.get("avx512f", False), FEATURES.get("avx2", False) and FEATURES.get("fma", False)
LANES, HEIGHT = (16, 8) if WIDE else (8, 6)  # numbers in a register; rows of a tile, which is two registers wide
F = np.float32
ZERO, HALF, ONE = F(0), F(0.5), F(1)
BETA1, BETA2, EPSILON = 0.9, 0.999, F(1e-5)  # of Adam
WORD, INDEX, REAL = ir.IntType(64), ir.IntType(32), ir.FloatType()
VECTOR = ir.VectorType(REAL, LANES)

emitted: Any = intrinsic
compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"})


def _word(value):
    return ir.Constant(WORD, value)


def _place(context, builder, kinds, given, argument):
    """The address of an array's number, from the arguments `argument` and the next."""
    data = context.make_array(kinds[argument])(context, builder, given[argument]).data
    return builder.gep(data, [given[argument + 1]])


def _vector_at(builder, base, *offsets):
    return builder.bitcast(builder.gep(base, [builder.add(*offsets)]), VECTOR.as_pointer())


def _splat(builder, value, kind):
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(INDEX, 0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(INDEX, LANES), [0] * LANES))


@emitted
def _tile(context, a, ao, ar, ak, b, bo, bk, c, co, ck, m, n, depth):
    """`product` of at most HEIGHT rows and 2 LANES columns; missing rows are computed from row 0 and not stored."""

    def generate(context, builder, signature, given):
        (a, b, c), (ar, ak, bk, ck, m, n, depth) = (
            [_place(context, builder, signature.args, given, i) for i in (0, 4, 7)],
            [given[i] for i in (2, 3, 6, 9, 10, 11, 12)],
        )
        mask, both = ir.VectorType(ir.IntType(1), LANES), (0, LANES)
        fuse = ir.FunctionType(VECTOR, [VECTOR] * 3)
        fuse = cgutils.get_or_insert_function(builder.module, fuse, f"llvm.fma.v{LANES}f32")
        store = ir.FunctionType(ir.VoidType(), [VECTOR, VECTOR.as_pointer(), INDEX, mask])
        store = cgutils.get_or_insert_function(builder.module, store, f"llvm.masked.store.v{LANES}f32.p0")
        there = [builder.icmp_signed("<", _word(i), m) for i in range(HEIGHT)]
        rows = [builder.mul(builder.select(inside, _word(i), _word(0)), ar) for i, inside in enumerate(there)]
        before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
        builder.branch(loop)
        builder.position_at_end(loop)
        step, sums = builder.phi(WORD), [[builder.phi(VECTOR) for _ in both] for _ in rows]
        right = [builder.load(_vector_at(builder, b, builder.mul(step, bk), _word(v)), align=4) for v in both]
        for row, totals in zip(rows, sums):
            left = builder.load(builder.gep(a, [builder.add(row, builder.mul(step, ak))]), align=4)
            left = _splat(builder, left, VECTOR)
            for total, other in zip(totals, right):
                total.add_incoming(ir.Constant(VECTOR, [0.0] * LANES), before)
                total.add_incoming(builder.call(fuse, [left, other, total]), loop)
        following = builder.add(step, _word(1))
        step.add_incoming(_word(0), before)
        step.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)
        builder.position_at_end(after)
        lanes = ir.VectorType(WORD, LANES)
        columns = [ir.Constant(lanes, [v + i for i in range(LANES)]) for v in both]
        kept = [builder.icmp_signed("<", places, _splat(builder, n, lanes)) for places in columns]

        def store_rows(put):
            for i, totals in enumerate(sums):
                with builder.if_then(there[i]):
                    for v, total, keep in zip(both, totals, kept):
                        put(total.incomings[1][0], _vector_at(builder, c, builder.mul(_word(i), ck), _word(v)), keep)

        with builder.if_else(builder.icmp_signed(">=", n, _word(2 * LANES))) as (whole, part):
            with whole:  # a masked store takes many cycles on some processors
                store_rows(lambda value, place, keep: builder.store(value, place, align=4))
            with part:
                store_rows(lambda value, place, keep: builder.call(store, [value, place, ir.Constant(INDEX, 4), keep]))
        return context.get_dummy_value()

    word = types.int64
    return types.void(a, word, word, word, b, word, word, c, word, word, word, word, word), generate


@emitted
def _transpose_tile(context, a, ao, ak, b, bo, bk):
    """LANES x LANES numbers exchange rows and columns on their way from one array to another."""

    def generate(context, builder, signature, given):
        a, b = (_place(context, builder, signature.args, given, i) for i in (0, 3))
        at = [builder.mul(_word(i), given[2]) for i in range(LANES)]
        rows, size = [builder.load(_vector_at(builder, a, place, _word(0)), align=4) for place in at], 1
        while size < LANES:
            low = [LANES + i - size if i & size else i for i in range(LANES)]
            masks = [ir.Constant(ir.VectorType(INDEX, LANES), part) for part in (low, [i + size for i in low])]
            for i in (i for i in range(LANES) if not i & size):
                pair = rows[i], rows[i + size]
                rows[i], rows[i + size] = (builder.shuffle_vector(*pair, mask) for mask in masks)
            size *= 2
        for i, row in enumerate(rows):
            builder.store(row, _vector_at(builder, b, builder.mul(_word(i), given[5]), _word(0)), align=4)
        return context.get_dummy_value()

    word = types.int64
    return types.void(a, word, word, b, word, word), generate


@compiled
def product(a, ao, ar, ak, b, bo, bk, c, co, ck, m, n, depth):
    """C (m, n) = A (m, depth) B (depth, n), each an array, where it begins, and its steps; columns of A may have any.

    B is read, but not used, up to a whole number of tiles; depth is at least 1.
    """
    for i in range(0, m, HEIGHT):
        for j in range(0, n, 2 * LANES):
            _tile(a, ao + i * ar, ar, ak, b, bo + j, bk, c, co + i * ck + j, ck, m - i, n - j, depth)


@compiled
def transpose(a, ao, ak, b, bo, bk, m, n):
    """B (n, m) = A (m, n) transposed; both are read and written in whole tiles."""
    for i in range(0, m, LANES):
        for j in range(0, n, LANES):
            _transpose_tile(a, ao + i * ak + j, ak, b, bo + j * bk + i, bk)


@compiled
def adam(value, grad, mean, square, steps, rate, longest, epsilon=EPSILON):
    """Clip the gradient to a norm, then a step of Adam."""
    norm = ZERO
    for i in range(len(grad)):
        norm += grad[i] * grad[i]
    norm = F(math.sqrt(norm))
    shrink = F(longest / (norm + 1e-6)) if norm > longest else ONE
    size, correction = F(rate / (1 - BETA1**steps)), F(1 / math.sqrt(1 - BETA2**steps))
    keep, add, move = F(BETA2), F(1 - BETA2), F(1 - BETA1)
    for i in range(len(grad)):
        grad[i] *= shrink
        mean[i] += (grad[i] - mean[i]) * move
        square[i] = square[i] * keep + add * grad[i] * grad[i]
        value[i] -= size * mean[i] / (F(math.sqrt(square[i])) * correction + epsilon)


@compiled
def padded(n):
    """The next whole number of tiles."""
    return (n + 2 * LANES - 1) // (2 * LANES) * (2 * LANES)
