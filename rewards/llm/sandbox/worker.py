"""The process that runs untrusted code; started by `rewards.llm.sandbox.process`, never imported.

It receives once what to run and what the code may use, drops its privileges, and answers request after request on its
standard input, which is a socket. Dropped are: the environment, the working folder, opening files, processes, writing
to files, unbounded memory, time beyond an alarm; and, on Linux, a filter in the kernel lets nothing pass but memory,
reading and writing what is open, and waiting.

    there   4 bytes of length, JSON {source, numpy, builtins, memory, timeout}
    back    1 byte, b"1" if the kernel filters, b"0" if not
    there   rows, obs size, action size (3 x uint32); float32 obs (rows, obs size); float32 action (rows, action size)
    back    k, length (2 x uint32); float32 (rows, k), or UTF-8 text of an error if k is 0

Source: the filter is seccomp's mode 2 (linux/seccomp.h, linux/filter.h, linux/audit.h). When it fails: on other systems
the memory is not bounded everywhere, and there is no filter.
"""

import builtins
import ctypes
import json
import os
import platform
import resource
import select
import signal
import struct
import sys
import traceback
import types
import warnings
from typing import Any

MAX_FACTORS = 64
MAX_ERROR_BYTES = 2000
# AUDIT_ARCH, and the numbers of what may be asked of the kernel.
SYSCALLS = {
    # read write poll mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn select mremap madvise setitimer
    # getpid exit getppid gettid futex clock_gettime exit_group pselect6 ppoll getrandom
    "x86_64": (
        0xC000003E,
        (0, 1, 7, 9, 10, 11, 12, 13, 14, 15, 23, 25, 28, 38, 39, 60, 110, 186, 202, 228, 231, 270, 271, 318),
    ),
    "aarch64": (
        0xC00000B7,
        (63, 64, 73, 222, 226, 215, 214, 134, 135, 139, 72, 216, 233, 103, 172, 93, 173, 178, 98, 113, 94, 278),
    ),
}
# SECCOMP_RET_ALLOW, and SECCOMP_RET_ERRNO with EPERM.
ALLOW = 0x7FFF0000
REFUSE = 0x00050001
# BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K.
LOAD = 0x20
JUMP_IF_EQUAL = 0x15
RETURN = 0x06
PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2


class FilterProgram(ctypes.Structure):
    """struct sock_fprog: how many instructions, and where they are."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


def filter_kernel() -> bool:
    """Let only `SYSCALLS` pass from now on; False where the kernel cannot."""
    if not sys.platform.startswith("linux") or platform.machine() not in SYSCALLS:
        return False
    machine, numbers = SYSCALLS[platform.machine()]
    # An instruction is code, steps to jump if it holds, steps if not, and a value. The word at 4 of what is looked at
    # (struct seccomp_data) is the architecture, the word at 0 the number of the call.
    steps = [
        (LOAD, 0, 0, 4),
        (JUMP_IF_EQUAL, 1, 0, machine),
        (RETURN, 0, 0, REFUSE),
        (LOAD, 0, 0, 0),
    ]
    for number in numbers:
        steps.append((JUMP_IF_EQUAL, 0, 1, number))
        steps.append((RETURN, 0, 0, ALLOW))
    steps.append((RETURN, 0, 0, REFUSE))
    instructions = b"".join(struct.pack("HBBI", *step) for step in steps)
    code = ctypes.create_string_buffer(instructions)
    program = FilterProgram(len(steps), ctypes.addressof(code))
    prctl = ctypes.CDLL(None).prctl
    if prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    status = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)
    return bool(status == 0)


def drop_privileges(memory: int) -> bool:
    """Drop what the code must not have; `memory` is in bytes beyond what is used already."""
    os.rmdir(os.getcwd())
    limits = [("RLIMIT_NOFILE", 3), ("RLIMIT_NPROC", 0), ("RLIMIT_FSIZE", 0), ("RLIMIT_CORE", 0)]
    if sys.platform.startswith("linux"):
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        limits.append(("RLIMIT_AS", pages * resource.getpagesize() + memory))
    for name, value in limits:
        resource.setrlimit(getattr(resource, name), (value, value))
    return filter_kernel()


def take(count: int) -> bytearray:
    """`count` bytes; ends the process if the other side is gone."""
    data = bytearray(count)
    if sys.stdin.buffer.readinto(data) < count:  # type: ignore[union-attr]
        os._exit(0)
    return data


def give(data: Any) -> None:
    """Write all of it."""
    view = memoryview(data).cast("B")
    while view:
        written = os.write(0, view)
        view = view[written:]


def wait_for_request(parent: int) -> None:
    """Return when there is something to read; end with the parent, even if others hold the other end open."""
    while True:
        readable, _, _ = select.select([0], [], [], 1.0)
        if readable:
            return
        if os.getppid() != parent:
            os._exit(0)


def explain(error: Exception, source: str) -> str:
    """An error with the line of the source that raised it."""
    # The innermost line that is the code's own, and not NumPy's.
    line_number = 0
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == "factors":
            line_number = number
    message = f"{type(error).__name__}: {error}"
    line = source.splitlines()[line_number - 1].strip() if line_number else ""
    if line:
        message += f", in the line: {line}"
    return message


def within_numpy(name: str, *rest: Any) -> Any:
    """What NumPy needs to find parts of itself that are there already, as in the methods of arrays."""
    if not name.startswith("numpy.") or name not in sys.modules:
        raise ImportError(f"{name} cannot be imported here")
    return sys.modules[name]


def main() -> None:
    """Serve until the parent ends."""
    parent = os.getppid()
    sys.path.insert(0, sys.argv[1])
    import numpy as np

    sys.path.clear()
    # Showing a warning would open files.
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    (length,) = struct.unpack("<I", take(4))
    setup = json.loads(bytes(take(length)))
    allowed = types.SimpleNamespace(**{name: getattr(np, name) for name in setup["numpy"]})
    allowed.linalg = types.SimpleNamespace(norm=np.linalg.norm)
    offered: dict[str, Any] = {name: getattr(builtins, name) for name in setup["builtins"]}
    offered["__import__"] = within_numpy
    code = compile(setup["source"], "factors", "exec", dont_inherit=True)
    filtered = drop_privileges(setup["memory"])
    give(b"1" if filtered else b"0")

    def call(rows: int, obs: Any, action: Any) -> Any:
        # The code is run anew for each request, so that no state is kept from one to the next.
        space: dict[str, Any] = {"__builtins__": dict(offered), "np": allowed}
        exec(code, space)
        factors = space["factors"](obs, action)
        wanted = f"for {rows} rows; return an array ({rows}, k), k up to {MAX_FACTORS}"
        if not isinstance(factors, np.ndarray):
            raise ValueError(f"factors returned a {type(factors).__name__} {wanted}")
        if factors.ndim != 2 or len(factors) != rows or not 0 < factors.shape[1] <= MAX_FACTORS:
            raise ValueError(f"factors returned an array {factors.shape} {wanted}")
        return np.ascontiguousarray(factors, np.float32)

    while True:
        wait_for_request(parent)
        rows, obs_size, action_size = struct.unpack("<III", take(12))
        obs = np.frombuffer(take(4 * rows * obs_size), np.float32).reshape(rows, obs_size)
        action = np.frombuffer(take(4 * rows * action_size), np.float32).reshape(rows, action_size)
        signal.setitimer(signal.ITIMER_REAL, setup["timeout"])
        try:
            body = call(rows, obs, action)
            head = struct.pack("<II", body.shape[1], body.nbytes)
        except Exception as error:
            message = explain(error, setup["source"])
            body = message.encode("utf-8", "replace")[:MAX_ERROR_BYTES]
            head = struct.pack("<II", 0, len(body))
        signal.setitimer(signal.ITIMER_REAL, 0)
        give(head)
        give(body)


if __name__ == "__main__":
    main()
