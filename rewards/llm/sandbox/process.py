"""Code that a language model wrote, run without trusting it: `factors(obs, action) -> array (B, k)`, NumPy only.

    sandbox = Sandbox(source, obs_size=3, action_size=1)
    sandbox(obs, action)          float32 (B, k), finite

Three walls. `check` reads the source without running it and refuses whatever is not on a list: there are arithmetic,
comparisons, subscripts, functions, `if`, `for` over at most 64 values, and the names below; no import, no other
attribute, no underscore at the start of a name, no text, no large number. What passes may still run for ever, and runs
in a process of its own that has given up files, network, other processes and its environment (`worker`), with bounded
memory and a deadline. What comes back is read as numbers only, its size is checked, and what is not finite becomes 0.

A call that fails is tried again in a fresh process; after `tries` failures in a row the factors are 0 from then on, and
`notes` says so. Nothing is remembered between calls, so equal inputs give equal factors.

Source: the need for it is in Qu et al. 2025 (arXiv 2412.11120), whose published code runs a model's answer with `exec`.
When it fails: the code may still be wrong, useless, or slow up to the deadline; on a system that is not Linux the
kernel filters nothing and may not bound memory; Windows is refused.
"""

import ast
import contextlib
import json
import math
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from lodestar.settings import Settings, setting

ROWS = 16_384  # a request at a time, to bound memory
START = 30.0  # seconds in which the process must be up
LONGEST = 10_000  # bytes of source
LOOP = 64  # values of a range
_NUMPY = """
abs absolute add all any arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin around
atleast_1d atleast_2d array asarray broadcast_to cbrt ceil clip column_stack concatenate copy copysign cos cosh
cross cumprod cumsum deg2rad degrees diff divide dot e equal exp exp2 expand_dims expm1 eye fabs
finfo float32 float64 floor fmax fmin full full_like greater greater_equal heaviside hstack hypot inf int32 int64
inner isclose isfinite isinf isnan less less_equal linspace log log10 log1p log2 logaddexp logical_and logical_not
logical_or logical_xor max maximum mean median min minimum mod multiply nan nan_to_num nansum negative newaxis
not_equal ones ones_like outer pi power prod ptp rad2deg radians ravel reciprocal remainder repeat reshape rint
roll round searchsorted select sign sin sinc sinh sort sqrt square squeeze stack std subtract sum swapaxes take
tan tanh tile transpose trunc unwrap var vstack where zeros zeros_like
"""
_METHODS = """
T all any append argmax argmin astype clip copy cumprod cumsum dot eps flatten max mean min ndim prod ravel
reshape round shape size squeeze std sum swapaxes transpose var
"""
NUMPY, METHODS = frozenset(_NUMPY.split()), frozenset(_METHODS.split())
BUILTINS = ("abs", "float", "int", "len", "max", "min", "range", "round", "sum")
NODES = (
    *(ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Pass, ast.Break, ast.Continue, ast.Expr),
    *(ast.Assign, ast.AugAssign, ast.For, ast.If, ast.IfExp, ast.ListComp, ast.GeneratorExp, ast.comprehension),
    *(ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.UAdd, ast.USub, ast.Not, ast.Invert, ast.Compare, ast.Eq),
    *(ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv),
    *(ast.Mod, ast.Pow, ast.MatMult, ast.BitAnd, ast.BitOr, ast.BitXor, ast.Call, ast.keyword, ast.Name, ast.Load),
    *(ast.Store, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Constant),
)
_IMPORT = ast.dump(ast.parse("import numpy as np").body[0])


class SandboxError(ValueError):
    """Code that was refused, or that failed; the message is one sentence, fit for the author of the code."""


@dataclass(eq=False)
class Sandbox(Settings):
    """A process that runs one program, started again when it must be.

    SandboxError if the code is refused, or fails on two rows of zeros; ValueError on Windows.
    """

    source: str = setting(help="as `check` takes it")
    obs_size: int = setting(help="numbers in a row of obs")
    action_size: int = setting(help="numbers in a row of action")
    timeout: float = setting(5.0, "seconds for one call", above=0)
    memory: int = setting(512, "MiB that the code may use", low=16)
    tries: int = setting(3, "failures in a row after which the factors are 0", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if os.name != "posix":
            raise ValueError(f"code is run on Linux and macOS only, not on {os.name!r}; use raw factors")
        self.counts = {"calls": 0, "failures": 0, "not finite": 0}  # failures of tries; rows
        self.width, self.failure = 0, ""  # factors, k; the sentence of the newest failure
        self.contained = False  # whether the kernel filters system calls
        self.broken = False  # whether it failed for good
        self._stop: weakref.finalize | None = None
        self._load(self.source)

    def __call__(self, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Factors of B rows, whatever happens: float32 (B, k), finite; zeros once the code failed too often."""
        found = np.zeros((len(obs), self.width), np.float32)
        for i in range(0, len(obs), ROWS):
            for left in reversed(range(0 if self.broken else self.tries)):
                try:
                    found[i : i + ROWS] = self.run(obs[i : i + ROWS], action[i : i + ROWS])
                    break
                except SandboxError:
                    self.broken = left == 0
        return found

    def run(self, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
        """One try of a call; SandboxError if the code raised, took too long or too much, or gave another form."""
        self.counts["calls"] += 1
        try:
            found = self._exchange(np.ascontiguousarray(obs, np.float32), np.ascontiguousarray(action, np.float32))
        except SandboxError as error:
            self.counts["failures"] += 1
            self.failure = str(error)
            self.close()
            raise
        strange = ~np.isfinite(found)
        if strange.any():
            self.counts["not finite"] += int(strange.any(axis=1).sum())
            found[strange] = 0
        return found

    def notes(self) -> list[str]:
        lines, failures, strange = [], self.counts["failures"], self.counts["not finite"]
        if not self.contained:
            lines.append("this kernel does not filter what the factors' code asks of it; only limits hold it")
        if self.broken:
            lines.append(f"the factors' code failed {self.tries} times in a row and is 0 from then on: {self.failure}")
        elif failures:
            lines.append(f"the factors' code failed {failures} times, last: {self.failure}")
        if strange:
            lines.append(f"{strange} rows had factors that were not finite, 0 was taken instead")
        return lines

    def close(self) -> None:
        if self._stop is not None:
            self._stop()
            self._stop = None

    def state_dict(self) -> dict[str, Any]:
        return {"source": self.source, "broken": self.broken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the saved code; ValueError if it is refused, or gives another number of factors."""
        if str(state["source"]) != self.source:
            self._load(str(state["source"]))
        self.broken = bool(state["broken"])

    def _load(self, source: str) -> None:
        before, self._runs = self.width, check(source)
        self.close()
        self.width = 0
        found = self.run(*(np.zeros((2, size), np.float32) for size in (self.obs_size, self.action_size)))
        if before not in (0, found.shape[1]):
            raise ValueError(f"the saved code gives {found.shape[1]} factors, this reward reads {before}; use its own")
        self.width, self.source = found.shape[1], source

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        folder = tempfile.mkdtemp(prefix="factors-")  # the process deletes it as soon as it stands in it
        worker, packages = Path(__file__).with_name("worker.py"), Path(np.__file__).parent.parent
        with theirs, open(os.devnull, "r+b") as nowhere:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(worker), str(packages)],
                stdin=theirs.fileno(),
                stdout=nowhere,
                stderr=nowhere,
                env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"},
                cwd=folder,
                start_new_session=True,
            )
        self._socket, self._stop = ours, weakref.finalize(self, _end, process, ours, folder)
        limits = {"memory": self.memory * 2**20, "timeout": self.timeout + 1}  # it ends itself if its parent cannot
        setup = {"source": self._runs, "numpy": sorted(NUMPY), "builtins": BUILTINS, **limits}
        data = json.dumps(setup).encode()
        deadline = time.monotonic() + START
        self._send(struct.pack("<I", len(data)) + data, deadline)
        self.contained = self._take(1, deadline) == b"1"

    def _exchange(self, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
        if self._stop is None:
            self._start()
        deadline = time.monotonic() + self.timeout
        self._send(struct.pack("<III", len(obs), self.obs_size, self.action_size), deadline)
        for part in (obs, action):
            self._send(part.reshape(-1).view(np.uint8).data, deadline)
        k, length = struct.unpack("<II", self._take(8, deadline))
        if k == 0 and length <= 2000:
            raise SandboxError(self._take(length, deadline).decode("utf-8", "replace"))
        if k > LOOP or length != 4 * len(obs) * k or (self.width and k != self.width):
            raise SandboxError(f"factors returned {k} numbers a row, where it returned {self.width} before")
        return np.frombuffer(self._take(length, deadline), np.float32).reshape(len(obs), k)

    def _send(self, data: bytes | memoryview, deadline: float) -> None:
        with _in_time(self._socket, deadline):
            self._socket.sendall(data)

    def _take(self, count: int, deadline: float) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            with _in_time(self._socket, deadline):
                got = self._socket.recv_into(view)
                if not got:
                    raise EOFError
                view = view[got:]
        return data


@contextlib.contextmanager
def _in_time(channel: socket.socket, deadline: float) -> Iterator[None]:
    """Turns what fails on a socket before a deadline into a sentence."""
    channel.settimeout(max(deadline - time.monotonic(), 1e-3))
    try:
        yield
    except TimeoutError:
        raise SandboxError("factors took too long and was stopped; make it faster") from None
    except (OSError, EOFError):
        raise SandboxError("factors ended its process: too much memory, or something that is not allowed") from None


def _end(process: subprocess.Popen, channel: socket.socket, folder: str) -> None:
    channel.close()
    process.kill()
    process.wait()
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # left only if the process never began


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """Turns what fails about code that is no Python into a sentence; also a decorator."""
    try:
        yield
    except SandboxError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SandboxError(f"the code is no Python: {type(error).__name__}: {str(error)[:200]}") from None


@readable()
def check(source: str) -> str:
    """What may be run of code that defines `factors(obs, action)`, without NumPy's import and annotations.

    SandboxError for the first thing that is not allowed, with its line.
    """
    return _cleaned(parsed(source))


def parsed(source: str) -> ast.Module:
    """The tree of some code; SandboxError for what is too long."""
    if len(source.encode("utf-8", "replace")) > LONGEST:
        raise SandboxError(f"the code has more than {LONGEST:,} bytes; write less")
    return ast.parse(source)


def _cleaned(tree: ast.Module) -> str:
    tree.body = [node for node in tree.body if ast.dump(node) != _IMPORT]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.Assign) and not _is_text(node):
            _refuse(node, "only functions and constants may stand outside of a function")
    nodes = list(ast.walk(tree))
    made = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    made |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    made |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    used = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    of_numpy = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    texts = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) in texts:
            continue
        if isinstance(node, ast.Name) and node.id == "np" and id(node) not in of_numpy:
            _refuse(node, "np must be followed by the name of a function")
        if isinstance(node, ast.Name) and node.id == "range" and id(node) not in used:
            _refuse(node, "range must be called, where it stands")
        _inspect(node, made)
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "factors"]
    if len(found) != 1 or len(found[0].args.args) != 2:
        raise SandboxError("the code must define one function factors(obs, action)")
    return ast.unparse(tree)


def _inspect(node: ast.AST, made: set[str]) -> None:
    """Refuse a node that is not on the list, or says what it may not."""
    if not isinstance(node, NODES):
        _refuse(node, f"{type(node).__name__} is not allowed")
    match node:
        case ast.FunctionDef(decorator_list=[_, *_]):
            _refuse(node, "decorators are not allowed")
        case ast.keyword(arg=name) if name is None or name.startswith("_"):
            _refuse(node, "keywords are written out and begin with a letter")
        case ast.FunctionDef(name=name) | ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) if _taken(name):
            _refuse(node, f"{name[:40]!r} cannot be used as a name")
        case ast.arguments(vararg=a, kwarg=b, kwonlyargs=c, posonlyargs=d, defaults=e) if a or b or c or d or e:
            _refuse(node, "functions take plain arguments without defaults")
        case ast.Name(id=name) if name not in made and name not in (*BUILTINS, "np"):
            _refuse(node, f"the name {name[:40]!r} is not known; there are np, {', '.join(BUILTINS)}")
        case ast.Attribute(value=ast.Name(id="np"), attr=name, ctx=ast.Load()):
            if name not in NUMPY and name != "linalg":
                _refuse(node, f"np.{name[:40]} is not among the functions that may be used")
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="np"), attr="linalg"), attr=name, ctx=ast.Load()):
            if name != "norm":
                _refuse(node, "of np.linalg only norm may be used")
        case ast.Attribute(attr=name, ctx=ast.Load()):
            if name not in METHODS:
                _refuse(node, f".{name[:40]} is not among the methods that may be used")
        case ast.Attribute() | ast.Assign(targets=[_, _, *_]):
            _refuse(node, "attributes cannot be set, and one assignment sets one name")
        case ast.Constant(value=value) if not (value is None or value is Ellipsis or isinstance(value, bool)):
            if not isinstance(value, int | float):
                _refuse(node, f"a {type(value).__name__} has no place here; write numbers")
            if not abs(value) <= (1e9 if isinstance(value, int) else sys.float_info.max):
                _refuse(node, "this number is too large")
        case ast.For(iter=values, orelse=[]) | ast.comprehension(iter=values, is_async=0):
            if not (isinstance(values, ast.Tuple | ast.List) or _called(values) == "range"):
                _refuse(node, f"loops go over range(...) of at most {LOOP} or over a list that is written out")
        case ast.For():
            _refuse(node, "for has no else here")
        case ast.Call(func=ast.Name(id="range"), args=args):
            if not all(_size(one) <= LOOP for one in args):
                _refuse(node, f"range takes numbers of at most {LOOP}, written out")
        case ast.Call(func=func) if not isinstance(func, ast.Name | ast.Attribute):
            _refuse(node, "only functions with a name can be called")
        case ast.BinOp(op=ast.Pow(), right=right) | ast.AugAssign(op=ast.Pow(), value=right):
            if _size(right) > 16:
                _refuse(node, "an exponent is a number of at most 16, written out; use np.power otherwise")
        case ast.Expr(value=value) if not (_is_text(node) or isinstance(value, ast.Call)):
            _refuse(node, "this line does nothing")


def _taken(name: str) -> bool:
    return (name.startswith("_") and name != "_") or name in ("np", *BUILTINS)


def _size(node: ast.AST) -> float:
    """The size of a number that is written out, with or without a minus; infinite for anything else."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return abs(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _size(operand)
    return math.inf


def _called(node: ast.AST) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _refuse(node: ast.AST, why: str) -> NoReturn:
    line = getattr(node, "lineno", 0)
    raise SandboxError((f"line {line}: " if line else "") + why)
