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

WORD = types.intp
emitted: Any = intrinsic


def _library() -> Path:
    """The file of MuJoCo's C functions, which its Python package has in its folder."""
    names = ("libmujoco.so*", "libmujoco*.dylib", "mujoco.dll")
    found = [path for name in names for path in sorted(Path(mujoco.__file__).parent.glob(name))]
    if not found:
        raise ImportError(f"{Path(mujoco.__file__).parent} has no library of MuJoCo's C functions")
    return found[0]


def _function(name: str, *arguments):
    if llvm.address_of_symbol(name) is None:  # else LLVM would end the process where it is used
        raise ImportError(f"MuJoCo's library has no function {name}")
    return ExternalFunction(name, types.void(*arguments))


llvm.load_library_permanently(str(_library()))
set_state = _function("mj_setState", WORD, WORD, WORD, types.intc)
get_state = _function("mj_getState", WORD, WORD, WORD, types.intc)
step = _function("mj_step", WORD, WORD)
forces = _function("mj_rnePostConstraint", WORD, WORD)
copy = _function("mju_copy", WORD, WORD, types.intc)


@emitted
def _take(context, address):
    """The number at an address, which becomes one more; no two threads get the same."""

    def generate(context, builder, signature, given):
        place = builder.inttoptr(given[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "seq_cst")

    return types.int64(WORD), generate


@njit(cache=True, nogil=True)
def move(turn, count, model, data, kind, frame_skip, states, stride, derived, derived_stride, fields, sizes):
    """Move the rows that no other thread takes on by `frame_skip` steps, and copy the `fields` of `data` out.

    `turn`, int64 (1,), is the next of `count` rows; models, data, states, derived and fields are addresses, strides
    bytes from row to row, `sizes` how many numbers a field has.
    """
    while True:
        row = _take(turn.ctypes.data)
        if row >= count:
            return
        state = states + row * stride
        set_state(model, data, state, kind)
        for _ in range(frame_skip):
            step(model, data)
        get_state(model, data, state, kind)
        if len(fields):
            forces(model, data)
            to = derived + row * derived_stride
            for number in range(len(fields)):
                copy(to, fields[number], sizes[number])
                to += 8 * sizes[number]
