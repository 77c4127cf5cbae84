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

WORD, INTEGER = types.intp, ir.IntType(64)
emitted: Any = intrinsic


def _library() -> Path:
    """The file of MuJoCo's C functions, which its Python package has in its folder."""
    names = ("libmujoco.so*", "libmujoco*.dylib", "mujoco.dll")
    found = [path for name in names for path in sorted(Path(mujoco.__file__).parent.glob(name))]
    if not found:
        raise ImportError(f"{Path(mujoco.__file__).parent} has no library of MuJoCo's C functions")
    return found[0]


def _function(name: str, *arguments, returns=types.void):
    if llvm.address_of_symbol(name) is None:  # else LLVM would end the process where it is used
        raise ImportError(f"neither MuJoCo's library nor the system has a function {name}")
    return ExternalFunction(name, returns(*arguments))


llvm.load_library_permanently(str(_library()))
set_state = _function("mj_setState", WORD, WORD, WORD, types.intc)
get_state = _function("mj_getState", WORD, WORD, WORD, types.intc)
step = _function("mj_step", WORD, WORD)
forces = _function("mj_rnePostConstraint", WORD, WORD)
copy = _function("mju_copy", WORD, WORD, types.intc)
pause, read, write = (
    _function("sched_yield"),
    *(_function(name, types.intc, WORD, WORD, returns=WORD) for name in ("read", "write")),
)


def _at(builder, address):
    return builder.inttoptr(address, INTEGER.as_pointer())


@emitted
def _add(context, address, number):
    """What was at an address, before that number is added; with 0 it is looked at."""

    def generate(context, builder, signature, given):
        return builder.atomic_rmw("add", _at(builder, given[0]), given[1], "seq_cst")

    return types.int64(WORD, types.int64), generate


@emitted
def _take(context, address, number):
    """Whether the number at an address was this one, which becomes one more then."""

    def generate(context, builder, signature, given):
        more = builder.add(given[1], ir.Constant(INTEGER, 1))
        pair = builder.cmpxchg(_at(builder, given[0]), given[1], more, "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(WORD, types.int64), generate


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
    asked, count, bed = board.ctypes.data, board[3], beds.ctypes.data + thread * beds.strides[0]
    taken, moved, working, end = asked + 8, asked + 16, asked + 64, asked + 72
    byte, vain = bed + 24, 0
    if thread == 0:
        _add(asked, count)
        for other in range(1, board[8]):
            if _add(bed + other * beds.strides[0], 0):
                write(beds[other, 2], byte, 1)
    while True:
        turn, idle = _add(taken, 0), thread >= _add(working, 0)
        if turn < _add(asked, 0) and not idle:
            if not _take(taken, turn):
                continue
            vain, row = 0, turn % count
            state = board[4] + row * board[5]
            set_state(model, data, state, kind)
            for _ in range(frame_skip):
                step(model, data)
            get_state(model, data, state, kind)
            if len(fields):
                forces(model, data)
                to = board[6] + row * board[7]
                for number in range(len(fields)):
                    copy(to, fields[number], sizes[number])
                    to += 8 * sizes[number]
            _add(moved, 1)
        elif thread == 0:
            if _add(moved, 0) == turn:
                return
            pause()
        elif vain < patience and not idle:
            vain += 1
            pause()
        else:
            _add(bed, 1)
            idle = thread >= _add(working, 0)
            if not _add(end, 0) and (idle or turn >= _add(asked, 0)):  # else thread 0 did not see it asleep
                read(beds[thread, 1], byte, 1)
            _add(bed, -1)
            if _add(end, 0):
                return
            vain = 0
