# mypy: allow-untyped-defs
"""MuJoCo's steps of many environments in one call that holds no lock of Python's, compiled by numba (extra `fast`).

Compiled it takes one second, from numba's cache on the disk a twentieth of one. An ImportError or a RuntimeError says
why it cannot run here. Addresses are integers: numba knows no pointers.
"""

from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import mujoco
from llvmlite import ir
from numba import njit, types
from numba.core.types import ExternalFunction
from numba.extending import intrinsic

# A machine word as numba and as LLVM call it.
INTP = types.intp
INTEGER = ir.IntType(64)
emitted: Any = intrinsic


def _library() -> Path:
    """The file of MuJoCo's C functions, which its Python package has in its folder."""
    folder = Path(mujoco.__file__).parent
    for pattern in ("libmujoco.so*", "libmujoco*.dylib", "mujoco.dll"):
        for path in sorted(folder.glob(pattern)):
            return path
    raise ImportError(f"{folder} has no library of MuJoCo's C functions")


def _function(name: str, *arguments, returns=types.void):
    # LLVM would end the process at a call of a function that is missing.
    if llvm.address_of_symbol(name) is None:
        raise ImportError(f"neither MuJoCo's library nor the system has a function {name}")
    return ExternalFunction(name, returns(*arguments))


llvm.load_library_permanently(str(_library()))
set_state = _function("mj_setState", INTP, INTP, INTP, types.intc)
get_state = _function("mj_getState", INTP, INTP, INTP, types.intc)
step = _function("mj_step", INTP, INTP)
forces = _function("mj_rnePostConstraint", INTP, INTP)
copy = _function("mju_copy", INTP, INTP, types.intc)
pause = _function("sched_yield")
read = _function("read", types.intc, INTP, INTP, returns=INTP)
write = _function("write", types.intc, INTP, INTP, returns=INTP)


def _pointer_to(builder, address):
    return builder.inttoptr(address, INTEGER.as_pointer())


@emitted
def _add(context, address, number):
    """What was at an address, before that number is added; with 0 it is looked at."""

    def generate(context, builder, signature, given):
        return builder.atomic_rmw("add", _pointer_to(builder, given[0]), given[1], "seq_cst")

    return types.int64(INTP, types.int64), generate


@emitted
def _advance_if_equal(context, address, number):
    """Whether the number at an address was this one, which becomes one more then."""

    def generate(context, builder, signature, given):
        more = builder.add(given[1], ir.Constant(INTEGER, 1))
        pair = builder.cmpxchg(_pointer_to(builder, given[0]), given[1], more, "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(INTP, types.int64), generate


@njit(cache=True, nogil=True)
def move(board, beds, thread, patience, model, data, kind, frame_skip, fields, sizes):
    """Move rows that no other thread takes by `frame_skip` steps, and copy the `fields` of `data` out.

    Thread 0 asks for all rows and returns when they are moved. The others, each with data of its own, look for rows
    until they are to end; whenever they have looked `patience` times in vain, or are one too many, they sleep until
    thread 0 asks.

    Args:
        board: int64 (10,): rows that were asked for, taken and moved so far; how many there are; addresses of states
            and of derived numbers, each with the bytes from row to row; how many threads work; whether they are to end.
        beds: int64 (threads, 4): whether the thread sleeps; the ends of the pipe that it reads and thread 0 writes to
            wake it; room for a byte.
        model, data: addresses.
        fields, sizes: addresses of what `derived` is copied from, and how many numbers they have.
    """
    # Addresses of the numbers of the board that several threads read and change.
    asked = board.ctypes.data
    taken = asked + 8
    moved = asked + 16
    working = asked + 64
    end = asked + 72
    count = board[3]
    bed = beds.ctypes.data + thread * beds.strides[0]
    byte = bed + 24
    looks = 0
    if thread == 0:
        _add(asked, count)
        # Wake the others that work and sleep.
        for other in range(1, board[8]):
            if _add(bed + other * beds.strides[0], 0):
                write(beds[other, 2], byte, 1)
    while True:
        turn = _add(taken, 0)
        is_superfluous = thread >= _add(working, 0)
        if turn < _add(asked, 0) and not is_superfluous:
            # Move the next row, unless another thread takes it first.
            if not _advance_if_equal(taken, turn):
                continue
            looks = 0
            row = turn % count
            state = board[4] + row * board[5]
            set_state(model, data, state, kind)
            for _ in range(frame_skip):
                step(model, data)
            get_state(model, data, state, kind)
            if len(fields):
                forces(model, data)
                destination = board[6] + row * board[7]
                for number in range(len(fields)):
                    copy(destination, fields[number], sizes[number])
                    destination += 8 * sizes[number]
            _add(moved, 1)
        elif thread == 0:
            # Wait until the others have moved the rows that they took.
            if _add(moved, 0) == turn:
                return
            pause()
        elif looks < patience and not is_superfluous:
            looks += 1
            pause()
        else:
            # Sleep. Having said so, look once more: thread 0 may have asked before it saw this
            # thread asleep, and then would not wake it.
            _add(bed, 1)
            is_superfluous = thread >= _add(working, 0)
            has_nothing = is_superfluous or turn >= _add(asked, 0)
            if not _add(end, 0) and has_nothing:
                read(beds[thread, 1], byte, 1)
            _add(bed, -1)
            if _add(end, 0):
                return
            looks = 0
