"""What a shell completes on TAB: verbs, keys, names and values.

    source <(lodestar completion bash)      in ~/.bashrc; zsh likewise, after compinit

The declarations of options are read from the source, without importing it: torch takes seconds.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from importlib import util
from pathlib import Path

Declared = tuple[ast.AnnAssign, str]  # a field as it is written, and the module it is written in

# Both hand over the line up to the cursor. Bash has split the last word at = and :, and replaces what stands behind.
BASH = r"""
_lodestar() {
  local line="${COMP_LINE:0:COMP_POINT}" breaks="${COMP_WORDBREAKS//[^=:]/}" word kept=""
  word="${line##* }"
  [[ -n "$breaks" ]] && kept="${word%"${word##*[$breaks]}"}"
  mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" __complete "$line" 2>/dev/null)
  COMPREPLY=("${COMPREPLY[@]#"$kept"}")
  [[ "${COMPREPLY[*]}" == *[=.] ]] && compopt -o nospace 2>/dev/null
}
complete -o default -F _lodestar lodestar
"""
ZSH = r"""
_lodestar() {
  local -a found
  found=("${(@f)$("${words[1]}" __complete "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)}")
  [[ -n "$found" ]] || { _files; return }
  compadd -Q -S '' -a found
}
compdef _lodestar lodestar
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH}
TRAINS = ("train", "sweep", "tune", "transfer", "compare", "annotate")  # verbs that take the keys of `train`, too


def complete(line: str, verbs: dict[str, str]) -> list[str]:
    """What the last word of a line, `lodestar ...` up to the cursor, may become."""
    _, *before, word = f"{line}|".split()
    word = word[:-1]
    if not before:
        return [verb for verb in (*verbs, "completion") if verb.startswith(word)]
    verb, *given = before
    if verb == "completion":
        return [shell for shell in SCRIPTS if shell.startswith(word)]
    if verb not in verbs:
        return []
    chosen = dict(argument.split("=", 1) for argument in given if "=" in argument)
    key, equals, text = word.partition("=")
    if not equals:
        words = {f"{each}=": None for each in _keys(verb, verbs[verb], chosen, key)}
        words |= dict.fromkeys(_names() if verb == "list" else ())
        dotted = {f"{each.rpartition('.')[0]}.": None for each in words if "." in each}  # agent. before agent.gamma=
        shown = [*(each for each in words if "." not in each or each.startswith(f"{key.rpartition('.')[0]}."))]
        return [each for each in [*shown, *(dotted if "." not in key else ())] if each.startswith(key)]
    listed = text[: max(text.rfind(","), text.rfind("[")) + 1]  # reward=[task,rn
    values = _values(verb, verbs[verb], chosen, key)
    return [f"{key}={listed}{value}" for value in values if value.startswith(text[len(listed) :])]


def _names() -> list[str]:
    import agents
    import rewards

    return [*rewards.names(), *agents.names()]


def _keys(verb: str, module: str, chosen: dict[str, str], word: str) -> list[str]:
    """The keys of a verb; options of the environment only where `word` begins so, as they cost an import."""
    found = [*_own(module)]
    if verb in TRAINS:
        found += _own_of_train()
        found += [f"agent.{name}" for name in _options("agent", chosen.get("agent", "ppo"))]
        for reward in chosen.get("reward", "").strip("[]'\"").split(","):
            found += [f"reward.{reward}.{name}" for name in _options("reward", reward)]
        if word.startswith("env.") and "env" in chosen:
            from envs.make import options

            found += [f"env.{name}" for name in options(chosen["env"])]
    return [name for name in dict.fromkeys(found) if name not in chosen and name not in ("rest", "trust")]


def _values(verb: str, module: str, chosen: dict[str, str], key: str) -> list[str]:
    """What a key may be given, where that is known."""
    import agents
    import rewards

    if key == "env":
        from gymnasium.envs.registration import registry

        from envs.make import families

        return list(dict.fromkeys([*(name for family in families().values() for name in family.ids), *registry]))
    if key == "reward":
        return rewards.names()
    if key == "agent":
        return agents.names()
    if key == "preset":
        from runners.cli import presets

        return [*presets.every(), "auto", "none"]
    part, _, rest = key.partition(".")
    fields: dict[str, Declared] = {**(_own_of_train() if verb in TRAINS else {}), **_own(module)}
    if part == "agent" and rest:
        fields = _options("agent", chosen.get("agent", "ppo"))
    elif part == "reward" and rest:
        fields = _options("reward", rest.partition(".")[0])
    field = fields.get(key.rpartition(".")[2])
    return [] if field is None else _choices(*field)


def _own_of_train() -> dict[str, Declared]:
    return {
        k: v for k, v in _fields("runners.run.config", "TrainConfig").items() if k not in ("agent_name", "env_options")
    }


def _own(module: str) -> dict[str, Declared]:
    """The fields of a verb's Config, the first argument of its `Command`."""
    for node in _tree(module).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.targets[0].id == "main":  # type: ignore[attr-defined]
            config = node.value.args[0]
            return _fields(module, config.id) if isinstance(config, ast.Name) else {}
    return {}


def _options(kind: str, name: str) -> dict[str, Declared]:
    """The fields of the Config of a reward or an agent; none for an unknown one."""
    import agents
    import rewards

    target = (rewards if kind == "reward" else agents).TABLE.get(name, name)
    module, _, cls = target.partition(":")
    for node, place in _lineage(module, cls):
        for line in node.body:
            targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
            if any(isinstance(t, ast.Name) and t.id == "Config" for t in targets) and getattr(line, "value", None):
                return _fields(place, line.value.id)  # type: ignore[attr-defined, union-attr]
    return {}


def _fields(module: str, cls: str) -> dict[str, Declared]:
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
    for node in _tree(module).body:
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
def _tree(module: str) -> ast.Module:
    try:
        spec = util.find_spec(module)
        return ast.parse(Path(spec.origin or "").read_text()) if spec is not None else ast.Module([], [])
    except (OSError, SyntaxError, ValueError, ImportError):
        return ast.Module([], [])


def _choices(field: ast.AnnAssign, module: str) -> list[str]:
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
