"""The fields of a Config and their choices, read from the source without importing it: torch takes seconds."""

import ast
import functools
from collections.abc import Iterable, Iterator
from importlib import util
from pathlib import Path

import agents
import rewards

Declared = tuple[ast.AnnAssign, str]  # a field as it is written, and the module it is written in


def options(kind: str, name: str) -> dict[str, Declared]:
    """The fields of the Config of a reward or an agent: ours, or my_file:Class; none for another one."""
    target = (rewards if kind == "reward" else agents).TABLE.get(name, name)
    module, _, cls = target.partition(":")
    if target == name and "." in module:  # looking for it would import what it is in
        return {}
    for node, place in _lineage(module, cls):
        for line in node.body:
            targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
            if any(isinstance(t, ast.Name) and t.id == "Config" for t in targets) and getattr(line, "value", None):
                return fields(place, line.value.id)  # type: ignore[attr-defined, union-attr]
    return {}


def fields(module: str, cls: str) -> dict[str, Declared]:
    """Field -> its declaration, of a dataclass and the classes above it, whose own come first."""
    found: dict[str, Declared] = {}
    for node, place in reversed([*_lineage(module, cls)]):
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                if "ClassVar" in ast.unparse(line.annotation):
                    continue
                known = found.get(line.target.id)
                if known is None or any(word.arg == "choices" for word in getattr(line.value, "keywords", ())):
                    found[line.target.id] = line, place
    return found


def key_of(field: str) -> str:
    """The key of a field; `from_` is from, which no field can be called."""
    return field.removesuffix("_")


def _lineage(module: str, cls: str) -> Iterator[tuple[ast.ClassDef, str]]:
    """A class and those above it, each with its module, as far as they are ours or the user's."""
    place = _place(module, cls)
    if place is None or not isinstance(place[0], ast.ClassDef):
        return
    yield place  # type: ignore[misc]
    for base in place[0].bases:
        if isinstance(base, ast.Name):
            yield from _lineage(place[1], base.id)


def _place(module: str, name: str) -> tuple[ast.stmt, str] | None:
    """Where a module's name is defined, in it or where it is imported from; None if that is not found."""
    for node in tree(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node, module
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in map(ast.unparse, _targets(node)):
            return node, module
        if isinstance(node, ast.ImportFrom) and node.module and name in [alias.name for alias in node.names]:
            return _place(node.module, name) if node.module.split(".")[0] != "dataclasses" else None
    return None


def _targets(node: ast.Assign | ast.AnnAssign) -> Iterable[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


@functools.cache
def tree(module: str) -> ast.Module:
    """The source of a module; empty if it cannot be read."""
    try:
        spec = util.find_spec(module)
        return ast.parse(Path(spec.origin or "").read_text()) if spec is not None else ast.Module([], [])
    except (OSError, SyntaxError, ValueError, ImportError):
        return ast.Module([], [])


def choices(field: ast.AnnAssign, module: str) -> list[str]:
    """What a field may be, as far as its declaration says so."""
    words = {word.arg: word.value for word in getattr(field.value, "keywords", ())}
    if "choices" in words:
        return _texts(words["choices"], module)
    return ["true", "false"] if ast.unparse(field.annotation) == "bool" else []


def _texts(node: ast.expr | None, module: str) -> list[str]:
    """The texts of a tuple or the keys of a dict, written out or under a name."""
    if isinstance(node, ast.Call) and node.args:  # tuple(NAMES)
        return _texts(node.args[0], module)
    if isinstance(node, ast.Name):
        place = _place(module, node.id)
        return _texts(getattr(place[0], "value", None), place[1]) if place is not None else []
    items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
    return [str(item.value) for item in items if isinstance(item, ast.Constant)]
