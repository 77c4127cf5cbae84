"""Reads source code without running it, and refuses whatever is not on a list.

    check("def factors(obs, action): ...")     what may be run, or SandboxError

Arithmetic, comparisons, subscripts, functions, `if`, `for` over at most 64 values, and the names below; no import, no
attribute that is not listed, no underscore at the start of a name, no text, no large number. It is the first wall of
`process.py`, which runs what passes; alone it is no protection: what passes may still run for ever or ask
for all memory.
"""

from __future__ import annotations

import ast
import math
import sys
from typing import NoReturn

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


class SandboxError(ValueError):
    """Code that was refused, or that failed; the message is one sentence, fit for the author of the code."""


def check(source: str) -> str:
    """What may be run of source code that defines `factors(obs, action)`; NumPy's import and annotations are taken out.

    Raises:
        SandboxError: for the first thing that is not allowed, with its line.
    """
    if len(source.encode("utf-8", "replace")) > LONGEST:
        raise SandboxError(f"the code has more than {LONGEST:,} bytes; write less")
    try:
        return _cleaned(ast.parse(source))
    except SandboxError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SandboxError(f"the code is no Python: {type(error).__name__}: {str(error)[:200]}") from None


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
    made = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    made |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    made |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    used = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    of_numpy = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
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
        case ast.FunctionDef(name=name) | ast.arg(arg=name):
            _name(node, name)
        case ast.arguments(vararg=a, kwarg=b, kwonlyargs=c, posonlyargs=d, defaults=e) if a or b or c or d or e:
            _refuse(node, "functions take plain arguments without defaults")
        case ast.Name(id=name, ctx=ast.Store()):
            _name(node, name)
        case ast.Name(id=name) if name not in made and name not in (*BUILTINS, "np"):
            _refuse(node, f"the name {name[:40]!r} is not known; there are np, {', '.join(BUILTINS)}")
        case ast.Attribute(ctx=ast.Load()):
            _attribute(node)
        case ast.Attribute() | ast.Assign(targets=[_, _, *_]):
            _refuse(node, "attributes cannot be set, and one assignment sets one name")
        case ast.Constant(value=value):
            _constant(node, value)
        case ast.For(iter=values, orelse=[]) | ast.comprehension(iter=values, is_async=0):
            if not (isinstance(values, ast.Tuple | ast.List) or _called(values) == "range"):
                _refuse(node, f"loops go over range(...) of at most {LOOP} or over a list that is written out")
        case ast.For():
            _refuse(node, "for has no else here")
        case ast.Call(func=ast.Name(id="range"), args=args):
            if not all(_number(one) is not None and abs(_number(one) or 0) <= LOOP for one in args):
                _refuse(node, f"range takes numbers of at most {LOOP}, written out")
        case ast.Call(func=func) if not isinstance(func, ast.Name | ast.Attribute):
            _refuse(node, "only functions with a name can be called")
        case ast.BinOp(op=ast.Pow(), right=right) | ast.AugAssign(op=ast.Pow(), value=right):
            power = _number(right)
            if power is None or abs(power) > 16:
                _refuse(node, "an exponent is a number of at most 16, written out; use np.power otherwise")
        case ast.Expr(value=value) if not (_is_text(node) or isinstance(value, ast.Call)):
            _refuse(node, "this line does nothing")


def _attribute(node: ast.Attribute) -> None:
    match node.value:
        case ast.Name(id="np"):
            if node.attr not in NUMPY and node.attr != "linalg":
                _refuse(node, f"np.{node.attr[:40]} is not among the functions that may be used")
        case ast.Attribute(value=ast.Name(id="np"), attr="linalg"):
            if node.attr != "norm":
                _refuse(node, "of np.linalg only norm may be used")
        case _:
            if node.attr not in METHODS:
                _refuse(node, f".{node.attr[:40]} is not among the methods that may be used")


def _name(node: ast.AST, name: str) -> None:
    if (name.startswith("_") and name != "_") or name in ("np", *BUILTINS):
        _refuse(node, f"{name[:40]!r} cannot be used as a name")


def _constant(node: ast.AST, value: object) -> None:
    if value is None or value is Ellipsis or isinstance(value, bool):
        return
    if not isinstance(value, int | float):
        _refuse(node, f"a {type(value).__name__} has no place here; write numbers")
    if not abs(value) <= (1e9 if isinstance(value, int) else sys.float_info.max):
        _refuse(node, "this number is too large")


def _number(node: ast.AST) -> float | None:
    """The value of a number that is written out, with or without a sign."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool) and math.isfinite(value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = _number(operand)
            return None if positive is None else -positive
    return None


def _called(node: ast.AST) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _refuse(node: ast.AST, why: str) -> NoReturn:
    line = getattr(node, "lineno", 0)
    raise SandboxError((f"line {line}: " if line else "") + why)


_IMPORT = ast.dump(ast.parse("import numpy as np").body[0])
