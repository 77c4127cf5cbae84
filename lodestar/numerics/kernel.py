# mypy: allow-untyped-defs
"""What compiled updates are made of: products of matrices in registers, layers with their gradients, Adam.

Everything between two layers lies as (units, rows), so that a register holds one unit of neighbouring rows and weights
are used as they lie:

    forward    z (units, rows) = W below          backward   d below = W^T d z          d W = d z below^T

`_tile` computes 8 x 32 numbers of a product in registers (6 x 16 with AVX2), in LLVM's own language because numba has
no vectors: what looks like arithmetic in its `generate` emits one instruction a call, which runs later. The rest are
loops that LLVM vectorises. They need `error_model="numpy"`, since a division that may raise is not vectorised, and two
axes, since a place that is computed may be negative. Sums are reordered (`reassoc`), NaN and infinity keep their
meaning, so that a run that diverges is noticed. Repeated on one processor it gives the same bits.

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

_FEATURES = llvm.get_host_cpu_features()
_HAS_AVX512 = _FEATURES.get("avx512f", False)
CPU_SUPPORTED = _FEATURES.get("avx2", False) and _FEATURES.get("fma", False)

# How many float32 numbers a register holds, and how many rows a tile of a product has. A tile is
# two registers wide: its sums, two registers of B and one of A have to fit into the processor's
# registers (32 with AVX-512, else 16).
LANES = 16 if _HAS_AVX512 else 8
TILE_ROWS = 8 if _HAS_AVX512 else 6
TILE_COLUMNS = 2 * LANES

F = np.float32
ZERO = F(0)
HALF = F(0.5)
ONE = F(1)

# Adam's constants.
BETA1 = 0.9
BETA2 = 0.999
ADAM_EPSILON = F(1e-5)

# LLVM's types: a place or a count, the index of a lane, a number, and a register's numbers, places,
# indices and bits.
INT64 = ir.IntType(64)
INDEX = ir.IntType(32)
REAL = ir.FloatType()
VECTOR = ir.VectorType(REAL, LANES)
INT64_VECTOR = ir.VectorType(INT64, LANES)
INDICES = ir.VectorType(INDEX, LANES)
BOOL_VECTOR = ir.VectorType(ir.IntType(1), LANES)

# float32 numbers lie at multiples of so many bytes, and registers at no larger ones.
ALIGNMENT_BYTES = 4

emitted: Any = intrinsic
compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"})


def _word(value):
    return ir.Constant(INT64, value)


def _address(context, builder, kinds, arguments, number):
    """The address where a matrix begins, from argument `number`, an array, and the next, a place in it."""
    array = context.make_array(kinds[number])(context, builder, arguments[number])
    return builder.gep(array.data, [arguments[number + 1]])


def _vector_address(builder, base, row_place, column):
    """The address of LANES numbers from a column of a row on, as that of a register."""
    place = builder.add(row_place, _word(column))
    return builder.bitcast(builder.gep(base, [place]), VECTOR.as_pointer())


def _load_vector(builder, base, row_place, column):
    return builder.load(_vector_address(builder, base, row_place, column), align=ALIGNMENT_BYTES)


def _broadcast(builder, value, kind):
    """A register with the same value in all lanes."""
    first_lane = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(INDEX, 0))
    return builder.shuffle_vector(first_lane, first_lane, ir.Constant(INDICES, [0] * LANES))


def _llvm_function(builder, name, returns, arguments):
    kind = ir.FunctionType(returns, arguments)
    return cgutils.get_or_insert_function(builder.module, kind, name)


@emitted
def _tile(context, a, ao, ar, ak, b, bo, bk, c, co, ck, m, n, depth):
    """`product` of at most TILE_ROWS rows and TILE_COLUMNS columns, whose sums stay in registers.

    Rows beyond the m-th are computed from row 0 and not stored.
    """

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        a = _address(context, builder, kinds, arguments, 0)
        b = _address(context, builder, kinds, arguments, 4)
        c = _address(context, builder, kinds, arguments, 7)
        _, _, a_row_step, a_column_step, _, _, b_row_step, _, _, c_row_step, m, n, depth = arguments
        # fma(x, y, z) = x y + z in every lane; the store writes the lanes whose bit is set.
        fma = _llvm_function(builder, f"llvm.fma.v{LANES}f32", VECTOR, [VECTOR] * 3)
        store_arguments = [VECTOR, VECTOR.as_pointer(), INDEX, BOOL_VECTOR]
        masked_store = _llvm_function(builder, f"llvm.masked.store.v{LANES}f32.p0", ir.VoidType(), store_arguments)
        halves = (0, LANES)

        # Which rows of the tile there are, and where in A each begins: a missing one where row 0
        # does.
        row_exists = [builder.icmp_signed("<", _word(i), m) for i in range(TILE_ROWS)]
        a_rows = []
        for i, exists in enumerate(row_exists):
            row = builder.select(exists, _word(i), _word(0))
            a_rows.append(builder.mul(row, a_row_step))

        # What the loop computes:
        #
        #     for step in range(depth): sums[i, half] += A[i, step] * B[step, half]
        #
        # In LLVM's form it is a block that branches to itself. Its variables are phi nodes, whose
        # value depends on the block that control comes from: from `before` they are 0, from the
        # loop what the last round computed.
        before = builder.block
        loop = builder.append_basic_block()
        after = builder.append_basic_block()
        builder.branch(loop)
        builder.position_at_end(loop)
        step = builder.phi(INT64)
        sums = [(builder.phi(VECTOR), builder.phi(VECTOR)) for _ in a_rows]

        # Load row `step` of B, two registers.
        b_row = []
        for half in halves:
            b_place = builder.mul(step, b_row_step)
            b_row.append(_load_vector(builder, b, b_place, half))

        # Load a number of each row of A, broadcast it to all lanes, and add its product with B's
        # row to the sums.
        new_sums = []
        for a_row, row_sums in zip(a_rows, sums):
            a_place = builder.add(a_row, builder.mul(step, a_column_step))
            a_number = builder.load(builder.gep(a, [a_place]), align=ALIGNMENT_BYTES)
            a_vector = _broadcast(builder, a_number, VECTOR)
            new_row_sums = []
            for total, b_vector in zip(row_sums, b_row):
                new_total = builder.call(fma, [a_vector, b_vector, total])
                total.add_incoming(ir.Constant(VECTOR, [0.0] * LANES), before)
                total.add_incoming(new_total, loop)
                new_row_sums.append(new_total)
            new_sums.append(new_row_sums)

        # Go on with the next step, or leave the loop after the last.
        next_step = builder.add(step, _word(1))
        step.add_incoming(_word(0), before)
        step.add_incoming(next_step, loop)
        builder.cbranch(builder.icmp_signed("<", next_step, depth), loop, after)
        builder.position_at_end(after)

        # Which of the tile's columns there are, a bit a lane.
        column_exists = []
        for half in halves:
            numbers = ir.Constant(INT64_VECTOR, list(range(half, half + LANES)))
            column_exists.append(builder.icmp_signed("<", numbers, _broadcast(builder, n, INT64_VECTOR)))

        def store_rows(store):
            for i, row_sums in enumerate(new_sums):
                with builder.if_then(row_exists[i]):
                    for half, total, exists in zip(halves, row_sums, column_exists):
                        c_place = builder.mul(_word(i), c_row_step)
                        store(total, _vector_address(builder, c, c_place, half), exists)

        def store_all(total, address, exists):
            builder.store(total, address, align=ALIGNMENT_BYTES)

        def store_some(total, address, exists):
            alignment = ir.Constant(INDEX, ALIGNMENT_BYTES)
            builder.call(masked_store, [total, address, alignment, exists])

        # A masked store takes many cycles on some processors, so a whole tile is stored without.
        is_whole = builder.icmp_signed(">=", n, _word(TILE_COLUMNS))
        with builder.if_else(is_whole) as (whole, part):
            with whole:
                store_rows(store_all)
            with part:
                store_rows(store_some)
        return context.get_dummy_value()

    word = types.int64
    return types.void(a, word, word, word, b, word, word, c, word, word, word, word, word), generate


@emitted
def _transpose_tile(context, a, ao, ak, b, bo, bk):
    """LANES x LANES numbers exchange rows and columns on their way from one array to another."""

    def generate(context, builder, signature, arguments):
        a = _address(context, builder, signature.args, arguments, 0)
        b = _address(context, builder, signature.args, arguments, 3)
        _, _, a_row_step, _, _, b_row_step = arguments
        places = [builder.mul(_word(i), a_row_step) for i in range(LANES)]
        rows = [_load_vector(builder, a, place, 0) for place in places]

        # In rounds of size 1, 2, 4, ...: within every block of 2 size x 2 size numbers, the quarter
        # above on the right and the quarter below on the left change places. After the last round
        # rows are columns.
        size = 1
        while size < LANES:
            # Lanes of a pair of rows, those of the second counted from LANES on.
            upper_lanes = list(range(LANES))
            for i in range(LANES):
                if i & size:
                    upper_lanes[i] = LANES + i - size
            upper_mask = ir.Constant(INDICES, upper_lanes)
            lower_mask = ir.Constant(INDICES, [lane + size for lane in upper_lanes])
            for i in range(LANES):
                if i & size:
                    continue
                upper = rows[i]
                lower = rows[i + size]
                rows[i] = builder.shuffle_vector(upper, lower, upper_mask)
                rows[i + size] = builder.shuffle_vector(upper, lower, lower_mask)
            size *= 2

        for i, row in enumerate(rows):
            place = builder.mul(_word(i), b_row_step)
            builder.store(row, _vector_address(builder, b, place, 0), align=ALIGNMENT_BYTES)
        return context.get_dummy_value()

    word = types.int64
    return types.void(a, word, word, b, word, word), generate


@compiled
def product(a, ao, ar, ak, b, bo, bk, c, co, ck, m, n, depth):
    """C (m, n) = A (m, depth) B (depth, n); the columns of A may have any step, those of B and C have 1.

    B is read, but not used, up to a whole number of tiles; depth is at least 1.

    Args:
        a, b, c: float32 arrays, in which the matrices lie.
        ao, bo, co: where in them each matrix begins.
        ar, bk, ck: from one row to the next, how many numbers.
        ak: from one column of A to the next.
        m, n, depth: the matrices' sizes.
    """
    for i in range(0, m, TILE_ROWS):
        for j in range(0, n, TILE_COLUMNS):
            a_row = ao + i * ar
            c_place = co + i * ck + j
            _tile(a, a_row, ar, ak, b, bo + j, bk, c, c_place, ck, m - i, n - j, depth)


@compiled
def transpose(a, ao, ak, b, bo, bk, m, n):
    """B (n, m) = A (m, n) transposed; arguments as in `product`; both are read and written in whole tiles."""
    for i in range(0, m, LANES):
        for j in range(0, n, LANES):
            _transpose_tile(a, ao + i * ak + j, ak, b, bo + j * bk + i, bk)


@compiled
def adam(value, grad, mean, square, steps, rate, longest, epsilon=ADAM_EPSILON):
    """Clip the gradient to the norm `longest`, then step number `steps` of Adam (Kingma & Ba 2015)."""
    norm = ZERO
    for i in range(len(grad)):
        norm += grad[i] * grad[i]
    norm = F(math.sqrt(norm))
    shrink = ONE
    if norm > longest:
        shrink = F(longest / (norm + 1e-6))
    # Both moments begin at 0; these two correct for it.
    size = F(rate / (1 - BETA1**steps))
    correction = F(1 / math.sqrt(1 - BETA2**steps))
    keep = F(BETA2)
    add = F(1 - BETA2)
    move = F(1 - BETA1)
    for i in range(len(grad)):
        grad[i] *= shrink
        mean[i] += (grad[i] - mean[i]) * move
        square[i] = square[i] * keep + add * grad[i] * grad[i]
        deviation = F(math.sqrt(square[i])) * correction
        value[i] -= size * mean[i] / (deviation + epsilon)


@compiled
def padded_columns(n):
    """The next whole number of tiles' columns."""
    return (n + TILE_COLUMNS - 1) // TILE_COLUMNS * TILE_COLUMNS
