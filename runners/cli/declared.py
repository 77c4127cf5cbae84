"""The fields of a Config and their choices, read from the source without importing it: torch takes seconds."""

import ast
import functools
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import agents
import rewards
from lodestar.settings import CHOICE_SEPARATOR, read_presets

# A field as it is written, and the module it is written in.
Declared = tuple[ast.AnnAssign, str]


def declared_fields(kind: str, name: str) -> dict[str, Declared]:
    """The fields of the Config of a reward or an agent: ours, or my_file:Class; none for another one."""
    table = rewards.TABLE if kind == "reward" else agents.TABLE
    target = table.get(name, name)
    module, _, cls = target.partition(":")
    # To look for a module in a package would import the package.
    if target == name and "." in module:
        return {}
    for node, place in _lineage(module, cls):
        for line in node.body:
            if not isinstance(line, ast.Assign | ast.AnnAssign) or not _assigns(line, "Config"):
                continue
            # Such as `Config = RNDConfig`, or `Config: ClassVar[type] = RNDConfig`.
            if isinstance(line.value, ast.Name):
                return fields(place, line.value.id)
    return {}


def fields(module: str, cls: str) -> dict[str, Declared]:
    """Field -> its declaration, of a dataclass and the classes above it, whose own come first."""
    declared = {}
    for node, place in reversed([*_lineage(module, cls)]):
        for line in node.body:
            if not isinstance(line, ast.AnnAssign) or "ClassVar" in ast.unparse(line.annotation):
                continue
            # A subclass that gives a field another default keeps the declaration, unless it names other choices.
            name = ast.unparse(line.target)
            if name not in declared or _declared_choices(line) is not None:
                declared[name] = line, place
    return declared


def key_of(field: str) -> str:
    """The key of a field; `from_` is from, which no field can be called."""
    return field.removesuffix("_")


def _lineage(module: str, cls: str) -> Iterator[tuple[ast.ClassDef, str]]:
    """A class and those above it, each with its module, as far as they are ours or the user's."""
    node, place = _find_definition(module, cls)
    if not isinstance(node, ast.ClassDef):
        return
    yield node, place
    for base in node.bases:
        if isinstance(base, ast.Name):
            yield from _lineage(place, base.id)


def _find_definition(module: str, name: str) -> tuple[ast.stmt | None, str]:
    """A module's name where it is defined, and where that is: in it or where it is imported from. Or None, and ""."""
    for node in tree(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node, module
        if isinstance(node, ast.Assign | ast.AnnAssign) and _assigns(node, name):
            return node, module
        if isinstance(node, ast.ImportFrom) and node.module and name in [alias.name for alias in node.names]:
            if node.module.split(".")[0] == "dataclasses":
                break
            return _find_definition(node.module, name)
    return None, ""


def _assigns(node: ast.Assign | ast.AnnAssign, name: str) -> bool:
    """Whether a statement gives this name a value or a type."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return name in map(ast.unparse, targets)


@functools.cache
def tree(module: str) -> ast.Module:
    """The source of a module; empty if it cannot be read."""
    try:
        spec = util.find_spec(module)
        if spec is not None:
            return ast.parse(Path(spec.origin or "").read_text())
    except (OSError, SyntaxError, ValueError, ImportError):
        pass
    return ast.Module([], [])


def _declared_choices(field: ast.AnnAssign) -> ast.expr | None:
    """What `setting(...)` is given as the choices of a field: `choices=NAMES`, or the text "a | b"."""
    call = field.value
    if not isinstance(call, ast.Call):
        return None
    for word in call.keywords:
        if word.arg == "choices":
            return word.value
    for argument in call.args[2:]:
        if isinstance(argument, ast.Constant) and CHOICE_SEPARATOR in str(argument.value):
            return argument
    return None


def choices(field: ast.AnnAssign, module: str) -> list[str]:
    """What a field may be, as far as its declaration says so."""
    declared = _declared_choices(field)
    if declared is not None:
        return _texts(declared, module)
    if ast.unparse(field.annotation) == "bool":
        return ["true", "false"]
    return []


def _texts(node: ast.expr | None, module: str) -> list[str]:
    """The choices in a text "a | b", a tuple or the keys of a dict, written out, named or as `tuple(NAMES)`."""
    if isinstance(node, ast.Constant):
        return str(node.value).split(CHOICE_SEPARATOR)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "read_presets":
        return [*read_presets(ast.literal_eval(node.args[0]))]
    if isinstance(node, ast.Call) and node.args:
        return _texts(node.args[0], module)
    if isinstance(node, ast.Name):
        definition, place = _find_definition(module, node.id)
        return _texts(getattr(definition, "value", None), place)
    items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
    names = []
    for item in items:
        if isinstance(item, ast.Constant):
            names.append(str(item.value))
    return names
