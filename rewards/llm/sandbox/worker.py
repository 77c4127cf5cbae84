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

import ctypes
import json
import os
import platform
import resource
import select
import signal
import struct
import sys
import types
import warnings
from typing import Any

MOST = 64  # factors
SYSCALLS = {  # AUDIT_ARCH, and the numbers of what may be asked of the kernel
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
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # SECCOMP_RET_ALLOW; SECCOMP_RET_ERRNO with EPERM


class FilterProgram(ctypes.Structure):
    """struct sock_fprog: how many instructions, and where they are."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


def filter_kernel() -> bool:
    """Let only `SYSCALLS` pass from now on; False where the kernel cannot."""
    if not sys.platform.startswith("linux") or platform.machine() not in SYSCALLS:
        return False
    machine, numbers = SYSCALLS[platform.machine()]
    load, equal, answer = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
    steps = [(load, 0, 0, 4), (equal, 1, 0, machine), (answer, 0, 0, REFUSE), (load, 0, 0, 0)]
    for number in numbers:
        steps += [(equal, 0, 1, number), (answer, 0, 0, ALLOW)]
    steps.append((answer, 0, 0, REFUSE))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = FilterProgram(len(steps), ctypes.addressof(code))
    prctl = ctypes.CDLL(None).prctl
    return prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, ctypes.byref(program), 0, 0) == 0


def drop_privileges(memory: int) -> bool:
    """Drop what the code must not have; `memory` is in bytes beyond what is used already."""
    os.rmdir(os.getcwd())
    limits = [("RLIMIT_NOFILE", 3), ("RLIMIT_NPROC", 0), ("RLIMIT_FSIZE", 0), ("RLIMIT_CORE", 0)]
    if sys.platform.startswith("linux"):
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        limits.append(("RLIMIT_AS", used + memory))
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
        view = view[os.write(0, view) :]


def wait_for_request(parent: int) -> None:
    """Return when there is something to read; end with the parent, even if others hold the other end open."""
    while not select.select([0], [], [], 1.0)[0]:
        if os.getppid() != parent:
            os._exit(0)


def explain(error: Exception, source: str) -> str:
    """An error with the line of the source that raised it."""
    place, number = error.__traceback__, 0
    while place is not None:
        number = place.tb_lineno if place.tb_frame.f_code.co_filename == "factors" else number
        place = place.tb_next
    line = source.splitlines()[number - 1].strip() if number else ""
    return f"{type(error).__name__}: {error}" + (f", in the line: {line}" if line else "")


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
    warnings.simplefilter("ignore")  # showing one would open files
    np.seterr(all="ignore")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    setup = json.loads(bytes(take(struct.unpack("<I", take(4))[0])))
    allowed = types.SimpleNamespace(**{name: getattr(np, name) for name in setup["numpy"]})
    allowed.linalg = types.SimpleNamespace(norm=np.linalg.norm)
    builtins = vars(__builtins__) if isinstance(__builtins__, types.ModuleType) else __builtins__
    offered = {"__import__": within_numpy, **{name: builtins[name] for name in setup["builtins"]}}
    code = compile(setup["source"], "factors", "exec", dont_inherit=True)
    give(b"1" if drop_privileges(setup["memory"]) else b"0")

    def call(rows: int, obs: Any, action: Any) -> Any:
        space: dict[str, Any] = {"__builtins__": dict(offered), "np": allowed}
        exec(code, space)  # for each request, so that no state is kept from one to the next
        found = space["factors"](obs, action)
        if not isinstance(found, np.ndarray) or found.ndim != 2 or len(found) != rows or not 0 < found.shape[1] <= MOST:
            form = f"an array {found.shape}" if isinstance(found, np.ndarray) else f"a {type(found).__name__}"
            raise ValueError(f"factors returned {form} for {rows} rows; return an array ({rows}, k), k up to {MOST}")
        return np.ascontiguousarray(found, np.float32)

    while True:
        wait_for_request(parent)
        rows, width, height = struct.unpack("<III", take(12))
        obs = np.frombuffer(take(4 * rows * width), np.float32).reshape(rows, width)
        action = np.frombuffer(take(4 * rows * height), np.float32).reshape(rows, height)
        signal.setitimer(signal.ITIMER_REAL, setup["timeout"])
        try:
            found = call(rows, obs, action)
            head, body = struct.pack("<II", found.shape[1], found.nbytes), found
        except Exception as error:
            body = explain(error, setup["source"]).encode("utf-8", "replace")[:2000]
            head = struct.pack("<II", 0, len(body))
        signal.setitimer(signal.ITIMER_REAL, 0)
        give(head)
        give(body)


if __name__ == "__main__":
    main()
