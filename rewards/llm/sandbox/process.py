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

# Larger batches are sent in pieces, to bound memory.
ROWS_PER_REQUEST = 16_384
START_TIMEOUT_S = 30.0
MAX_SOURCE_BYTES = 10_000
MAX_ERROR_BYTES = 2000
# The largest integer and the largest exponent that may be written out.
MAX_INTEGER = 1e9
MAX_EXPONENT = 16
# How many values a range may have, and how many factors a row.
LOOP = 64
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
_NODES = """
Module FunctionDef arguments arg Return Pass Break Continue Expr Assign AugAssign For If IfExp ListComp
GeneratorExp comprehension BoolOp And Or UnaryOp UAdd USub Not Invert Compare Eq NotEq Lt LtE Gt GtE BinOp Add
Sub Mult Div FloorDiv Mod Pow MatMult BitAnd BitOr BitXor Call keyword Name Load Store Attribute Subscript Slice
Tuple List Constant
"""
NUMPY = frozenset(_NUMPY.split())
METHODS = frozenset(_METHODS.split())
# Of syntax, by the names that `ast` has for it.
NODES = frozenset(_NODES.split())
BUILTINS = ("abs", "float", "int", "len", "max", "min", "range", "round", "sum")
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
    timeout: float = setting(5.0, "seconds for one call", "> 0")
    memory: int = setting(512, "MiB that the code may use", ">= 16")
    tries: int = setting(3, "failures in a row after which the factors are 0", ">= 1")

    def __post_init__(self) -> None:
        super().__post_init__()
        if os.name != "posix":
            raise ValueError(f"code is run on Linux and macOS only, not on {os.name!r}; use raw factors")
        # Calls, tries that failed, and rows whose factors were not finite.
        self.counts = {"calls": 0, "failures": 0, "not finite": 0}
        # How many factors a row has, k.
        self.width = 0
        # The sentence of the newest failure, and whether the code failed for good.
        self.failure = ""
        self.broken = False
        # Whether the kernel filters system calls.
        self.contained = False
        self._stop: weakref.finalize | None = None
        self._load(self.source)

    def __call__(self, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Factors of B rows, whatever happens: float32 (B, k), finite; zeros once the code failed too often."""
        factors = np.zeros((len(obs), self.width), np.float32)
        for start in range(0, len(obs), ROWS_PER_REQUEST):
            rows = slice(start, start + ROWS_PER_REQUEST)
            self._run_with_retries(obs[rows], action[rows], factors[rows])
        return factors

    def _run_with_retries(self, obs: np.ndarray, action: np.ndarray, factors: np.ndarray) -> None:
        """Write the factors of these rows, which stay 0 where the code is broken or breaks now."""
        if self.broken:
            return
        for _ in range(self.tries):
            try:
                factors[:] = self.run(obs, action)
                return
            except SandboxError:
                continue
        self.broken = True

    def run(self, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
        """One try of a call; SandboxError if the code raised, took too long or too much, or gave another form."""
        self.counts["calls"] += 1
        obs = np.ascontiguousarray(obs, np.float32)
        action = np.ascontiguousarray(action, np.float32)
        try:
            factors = self._exchange(obs, action)
        except SandboxError as error:
            self.counts["failures"] += 1
            self.failure = str(error)
            self.close()
            raise
        not_finite = ~np.isfinite(factors)
        if not_finite.any():
            self.counts["not finite"] += int(not_finite.any(axis=1).sum())
            factors[not_finite] = 0
        return factors

    def notes(self) -> list[str]:
        lines = []
        failures = self.counts["failures"]
        not_finite = self.counts["not finite"]
        if not self.contained:
            lines.append("this kernel does not filter what the factors' code asks of it; only limits hold it")
        if self.broken:
            lines.append(f"the factors' code failed {self.tries} times in a row and is 0 from then on: {self.failure}")
        elif failures:
            lines.append(f"the factors' code failed {failures} times, last: {self.failure}")
        if not_finite:
            lines.append(f"{not_finite} rows had factors that were not finite, 0 was taken instead")
        return lines

    def close(self) -> None:
        if self._stop is not None:
            self._stop()
            self._stop = None

    def state_dict(self) -> dict[str, Any]:
        return {"source": self.source, "broken": self.broken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the saved code; ValueError if it is refused, or gives another number of factors."""
        source = str(state["source"])
        if source != self.source:
            self._load(source)
        self.broken = bool(state["broken"])

    def _load(self, source: str) -> None:
        """Check this code, try it on two rows of zeros, and run it from now on."""
        width_before = self.width
        self._checked_source = check(source)
        self.close()
        # While it is 0 any number of factors is taken.
        self.width = 0
        obs = np.zeros((2, self.obs_size), np.float32)
        action = np.zeros((2, self.action_size), np.float32)
        width = self.run(obs, action).shape[1]
        if width_before not in (0, width):
            raise ValueError(f"the saved code gives {width} factors, this reward reads {width_before}; use its own")
        self.width = width
        self.source = source

    def _start(self) -> None:
        """Start the process, and tell it what to run."""
        ours, theirs = socket.socketpair()
        # The process deletes this folder as soon as it stands in it.
        folder = tempfile.mkdtemp(prefix="factors-")
        worker = Path(__file__).with_name("worker.py")
        packages = Path(np.__file__).parent.parent
        with theirs, open(os.devnull, "r+b") as null:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(worker), str(packages)],
                stdin=theirs.fileno(),
                stdout=null,
                stderr=null,
                env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"},
                cwd=folder,
                start_new_session=True,
            )
        self._socket = ours
        self._stop = weakref.finalize(self, _end_process, process, ours, folder)
        setup = {
            "source": self._checked_source,
            "numpy": sorted(NUMPY),
            "builtins": BUILTINS,
            "memory": self.memory * 2**20,
            # A process whose parent cannot end it ends itself a second later.
            "timeout": self.timeout + 1,
        }
        data = json.dumps(setup).encode()
        deadline = time.monotonic() + START_TIMEOUT_S
        self._send(struct.pack("<I", len(data)) + data, deadline)
        self.contained = self._receive(1, deadline) == b"1"

    def _exchange(self, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
        """One request and its answer; the protocol is that of `worker`."""
        if self._stop is None:
            self._start()
        deadline = time.monotonic() + self.timeout
        self._send(struct.pack("<III", len(obs), self.obs_size, self.action_size), deadline)
        for numbers in (obs, action):
            self._send(numbers.reshape(-1).view(np.uint8).data, deadline)
        # What comes back is not trusted: its size is checked before anything is read.
        k, length = struct.unpack("<II", self._receive(8, deadline))
        if k == 0 and length <= MAX_ERROR_BYTES:
            raise SandboxError(self._receive(length, deadline).decode("utf-8", "replace"))
        fits = k <= LOOP and length == 4 * len(obs) * k
        if not fits or (self.width and k != self.width):
            raise SandboxError(f"factors returned {k} numbers a row, where it returned {self.width} before")
        data = self._receive(length, deadline)
        return np.frombuffer(data, np.float32).reshape(len(obs), k)

    def _send(self, data: bytes | memoryview, deadline: float) -> None:
        with _explain_failure(self._socket, deadline):
            self._socket.sendall(data)

    def _receive(self, count: int, deadline: float) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            with _explain_failure(self._socket, deadline):
                received = self._socket.recv_into(view)
                if not received:
                    raise EOFError
                view = view[received:]
        return data


@contextlib.contextmanager
def _explain_failure(channel: socket.socket, deadline: float) -> Iterator[None]:
    """Turns what fails on a socket before a deadline into a sentence."""
    channel.settimeout(max(deadline - time.monotonic(), 1e-3))
    try:
        yield
    except TimeoutError:
        raise SandboxError("factors took too long and was stopped; make it faster") from None
    except (OSError, EOFError):
        raise SandboxError("factors ended its process: too much memory, or something that is not allowed") from None


def _end_process(process: subprocess.Popen, channel: socket.socket, folder: str) -> None:
    channel.close()
    process.kill()
    process.wait()
    # The folder is left only if the process never began.
    with contextlib.suppress(OSError):
        os.rmdir(folder)


@contextlib.contextmanager
def refuse_unreadable() -> Iterator[None]:
    """Turns what fails about code that is no Python into a sentence; also a decorator."""
    try:
        yield
    except SandboxError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SandboxError(f"the code is no Python: {type(error).__name__}: {str(error)[:200]}") from None


@refuse_unreadable()
def check(source: str) -> str:
    """What may be run of code that defines `factors(obs, action)`, without NumPy's import and annotations.

    SandboxError for the first thing that is not allowed, with its line.
    """
    tree = parse_code(source)
    _remove_import_and_annotations(tree)
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.Assign) and not _is_text(node):
            _refuse(node, "only functions and constants may stand outside of a function")
    _check_nodes(tree)
    definitions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "factors"]
    if len(definitions) != 1 or len(definitions[0].args.args) != 2:
        raise SandboxError("the code must define one function factors(obs, action)")
    return ast.unparse(tree)


def parse_code(source: str) -> ast.Module:
    """The tree of some code; SandboxError for what is too long."""
    if len(source.encode("utf-8", "replace")) > MAX_SOURCE_BYTES:
        raise SandboxError(f"the code has more than {MAX_SOURCE_BYTES:,} bytes; write less")
    return ast.parse(source)


def _remove_import_and_annotations(tree: ast.Module) -> None:
    tree.body = [node for node in tree.body if ast.dump(node) != _IMPORT]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None


def _check_nodes(tree: ast.Module) -> None:
    """Refuse the first node that is not allowed, also for the place where it stands."""
    defined_names: set[str] = set()
    parents: dict[ast.AST, ast.AST] = {}
    for node in ast.walk(tree):
        parents.update(dict.fromkeys(ast.iter_child_nodes(node), node))
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                defined_names.add(name)
    for node in ast.walk(tree):
        _check_node(node, parents.get(node), defined_names)


def _check_node(node: ast.AST, parent: ast.AST | None, defined_names: set[str]) -> None:
    """Refuse a node that is not on the list, or says what it may not."""
    kind = type(node).__name__
    if kind not in NODES:
        _refuse(node, f"{kind} is not allowed")
    match node:
        case ast.Constant(value=str()) if isinstance(parent, ast.Expr):
            # Text that stands alone is a comment.
            pass
        case ast.Name(id="np") if not isinstance(parent, ast.Attribute):
            _refuse(node, "np must be followed by the name of a function")
        case ast.Name(id="range") if not (isinstance(parent, ast.Call) and parent.func is node):
            _refuse(node, "range must be called, where it stands")
        case ast.FunctionDef(decorator_list=[_, *_]):
            _refuse(node, "decorators are not allowed")
        case ast.keyword(arg=name) if name is None or name.startswith("_"):
            _refuse(node, "keywords are written out and begin with a letter")
        case ast.FunctionDef(name=name) | ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) if _is_reserved(name):
            _refuse(node, f"{name[:40]!r} cannot be used as a name")
        case ast.arguments(vararg=a, kwarg=b, kwonlyargs=c, posonlyargs=d, defaults=e) if a or b or c or d or e:
            _refuse(node, "functions take plain arguments without defaults")
        case ast.Name(id=name) if name not in defined_names and name not in (*BUILTINS, "np"):
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
            # The comparison is false for NaN, too.
            largest = MAX_INTEGER if isinstance(value, int) else sys.float_info.max
            if not abs(value) <= largest:
                _refuse(node, "this number is too large")
        case ast.For(iter=values, orelse=[]) | ast.comprehension(iter=values, is_async=0):
            is_range = isinstance(values, ast.Call) and ast.unparse(values.func) == "range"
            if not (is_range or isinstance(values, ast.Tuple | ast.List)):
                _refuse(node, f"loops go over range(...) of at most {LOOP} or over a list that is written out")
        case ast.For():
            _refuse(node, "for has no else here")
        case ast.Call(func=ast.Name(id="range"), args=args):
            if any(_written_size(argument) > LOOP for argument in args):
                _refuse(node, f"range takes numbers of at most {LOOP}, written out")
        case ast.Call(func=func) if not isinstance(func, ast.Name | ast.Attribute):
            _refuse(node, "only functions with a name can be called")
        case ast.BinOp(op=ast.Pow(), right=right) | ast.AugAssign(op=ast.Pow(), value=right):
            if _written_size(right) > MAX_EXPONENT:
                _refuse(node, f"an exponent is a number of at most {MAX_EXPONENT}, written out; use np.power otherwise")
        case ast.Expr(value=value) if not (_is_text(node) or isinstance(value, ast.Call)):
            _refuse(node, "this line does nothing")


def _is_reserved(name: str) -> bool:
    return name in ("np", *BUILTINS) or (name.startswith("_") and name != "_")


def _written_size(node: ast.AST) -> float:
    """The size of a number that is written out, with or without a minus; infinite for anything else."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return abs(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _written_size(operand)
    return math.inf


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _refuse(node: ast.AST, why: str) -> NoReturn:
    # Not every node has a place: the list of a function's arguments has none.
    line = getattr(node, "lineno", 0)
    if line:
        why = f"line {line}: {why}"
    raise SandboxError(why)
