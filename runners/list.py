"""What there is: environments by family with their goals, rewards, agents, presets; one line each.

    python -m runners.list              everything
    python -m runners.list rnd          one reward or agent: what it is, and its options
    python -m runners.list CartPole-v1  one environment

The lines are the first sentences of docstrings, read from the files without importing them: torch takes seconds.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import util
from pathlib import Path
from typing import Any

from runners.cli.command import HIDDEN


def main(argv: list[str] | None = None) -> int:
    """Print the lists; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments:
        print("\n\n".join([_environments(), rewards_text(), agents_text(), presets_text()]))
        return 0
    import agents
    import rewards
    from runners.run.config import unknown

    targets = {name: agents.TABLE[name] for name in agents.names()} | reward_targets()
    for name in arguments:
        if name in ("-h", "--help"):
            print(__doc__)
        elif name in targets:
            print(details(name, targets[name], "reward" if name in rewards.names() else "agent"))
        elif re.search(r"-v\d+$", name):
            try:
                print(environment(name))
            except ValueError as error:
                print(error, file=sys.stderr)
                return 2
        else:
            print(unknown("name", name, targets), file=sys.stderr)
            return 2
    return 0


def help_text() -> str:
    """What `python -m runners.train --help` prints."""
    options = [
        f"  {name + '=' + default:<24}{comment}"
        for name, default, comment in fields_of(_tree("runners.run.config"), "TrainConfig")
    ]
    return "\n\n".join(
        [
            "usage: python -m runners.train env=ID [reward=NAME] [agent=NAME] [key=value ...]\n"
            "Trains an agent on a learned reward and reports the task's own truth.",
            'example: python -m runners.train env=CartPole-v1 reward=clip reward.clip.goal="pole standing upright"',
            "keys\n" + "\n".join(options),
            rewards_text(),
            agents_text(),
            presets_text(),
            "python -m runners.list           environments too\n"
            "python -m runners.list NAME      the options of a reward (reward.NAME.<field>) or agent (agent.<field>)\n"
            "                                 or environment (env.<name>)",
        ]
    )


def rewards_text() -> str:
    """The rewards, one line each."""
    return "rewards\n" + _summaries(reward_targets())


def agents_text() -> str:
    """The agents, one line each."""
    import agents

    return "agents\n" + _summaries({name: agents.TABLE[name] for name in agents.names()})


def presets_text() -> str:
    """The presets, one line each."""
    from runners.cli import presets

    lines = {}
    for name, preset in presets.every().items():
        applies = preset["applies"]
        when = f" [by itself for {', '.join(f'{k}={v}' for k, v in applies.items())}]" if applies else ""
        lines[name] = preset["about"] + when
    return "presets\n" + (_table(lines) or "  none")


def reward_targets() -> dict[str, str]:
    """Reward name -> "module:Class", third parties' included."""
    import rewards

    plugins = rewards._plugins()
    targets = {}
    for name in rewards.names():
        if name in rewards.TABLE:
            targets[name] = rewards.TABLE[name]
        elif name in plugins:
            targets[name] = plugins[name].value
        else:
            cls = rewards.get(name)
            targets[name] = f"{cls.__module__}:{cls.__qualname__}"
    return targets


def _environments() -> str:
    from gymnasium.envs.registration import registry

    from envs.make import families

    blocks = []
    for family in families().values():
        lines = [f"environments: {family.name}, {family.description}"]
        for name in family.ids:
            goals = family.goals(registry[name]) if name in registry else []
            words = "; ".join(f'{goal.name}: "{goal.prompt}"' for goal in goals)
            lines.append(f"  {name:<34}{words}".rstrip())
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def environment(env_id: str) -> str:
    """The docstring of an environment, and its options with their defaults; those of its adapter come last.

    Raises:
        ValueError: if the id is unknown.
    """
    import inspect

    from envs.options import creator, options

    text = inspect.getdoc(creator(env_id)) or ""
    lines = [f"  env.{name}={_default(ast.Constant(option.default))}" for name, option in options(env_id).items()]
    return f"{env_id}: {text}\n\noptions\n" + "\n".join(lines)


def _summaries(targets: dict[str, str]) -> str:
    """A line each: the file's first sentence, or the class's where several share a file."""
    modules = [target.partition(":")[0] for target in targets.values()]
    lines = {name: summary(target, modules.count(target.partition(":")[0]) > 1) for name, target in targets.items()}
    return _table(lines)


def summary(target: str, shared: bool = False) -> str:
    """First sentence of the docstring behind "module:Class": the file's, or the class's if the file is `shared`."""
    module, _, name = target.partition(":")
    try:
        tree = _tree(module)
    except (OSError, SyntaxError, ImportError, ValueError) as error:
        return f"(its file cannot be read: {error})"
    own = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    docs = [ast.get_docstring(tree), ast.get_docstring(own) if own else None]
    text = next((doc for doc in (docs[::-1] if shared else docs) if doc), "")
    return re.split(r"(?<!al)\.\s", " ".join(text.split("\n\n")[0].split()))[0].rstrip(".")


def details(name: str, target: str, kind: str) -> str:
    """The docstring of a reward or agent, and its options with their defaults and comments."""
    module, _, cls = target.partition(":")
    tree = _tree(module)
    own = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls), None)
    text = (ast.get_docstring(tree) if kind == "reward" else None) or (ast.get_docstring(own) if own else None) or ""
    prefix = f"reward.{name}." if kind == "reward" else "agent."
    seen: dict[str, tuple[str, str]] = {}
    ranges: dict[str, str] = {}
    for holder, config in _config_classes(tree, own):
        ranges |= _ranges(config)
        for field, default, comment in fields_of(holder, config.name):
            seen[field] = (default, comment or seen.get(field, ("", ""))[1])
        for field, words in _attributes(ast.get_docstring(config) or "").items():
            default, before = seen.get(field, ("", ""))
            if default:  # a class may explain what it inherits; a bracket alone adds to what was said
                seen[field] = (default, f"{before} {words}" if words.startswith("[") and words != before else words)
    tuned = {key: f" {{tune: {given}}}" for key, given in ranges.items() if given}
    lines = [
        f"  {f'{prefix}{key}={default}':<44}{words}{tuned.get(key, '')}".rstrip()
        for key, (default, words) in seen.items()
    ]
    return f"{name}: {text}\n\noptions\n" + "\n".join(lines)


def _ranges(config: ast.ClassDef) -> dict[str, str]:
    """Field -> what `runners.tune` tries, as a command line gives it; empty where the class takes a range back."""
    from runners.tune.space import space

    for item in config.body:
        if isinstance(item, ast.AnnAssign) and item.value and getattr(item.target, "id", "") == "search":
            with suppress(ValueError):  # somebody else's, who computes it
                given = ast.literal_eval(item.value)
                return {key: str(space(key, values)) if values else "" for key, values in given.items()}
    return {}


def _config_classes(tree: ast.Module, own: ast.ClassDef | None) -> list[tuple[ast.Module, ast.ClassDef]]:
    """The Config of a class and its bases, base first, each with the file it stands in."""
    for holder, cls in _ancestry(tree, own.name) if own else []:
        for item in cls.body:
            targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
            value = getattr(item, "value", None)
            if isinstance(value, ast.Name) and any(getattr(target, "id", "") == "Config" for target in targets):
                return list(_ancestry(holder, value.id))[::-1]
    return []


def _ancestry(tree: ast.Module, name: str) -> Iterator[tuple[ast.Module, ast.ClassDef]]:
    """The class that a file calls `name`, then its bases, wherever they are imported from; nearest first."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield tree, node
            for base in node.bases:
                if isinstance(base, ast.Name):
                    yield from _ancestry(tree, base.id)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    with suppress(ImportError, OSError):  # ABC and its like have no file, and no options
                        yield from _ancestry(_tree(str(node.module)), alias.name)


_shown = {("TrainConfig", "reward"): "task", ("TrainConfig", "agent"): "ppo"}  # the command line's, not the class's


def fields_of(tree: ast.Module, cls: str) -> list[tuple[str, str, str]]:
    """The fields of a dataclass as (name, default, explanation): its trailing comment or entry under Attributes."""
    node = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == cls)
    lines: list[str] = tree.source.splitlines()  # type: ignore[attr-defined]
    written = _attributes(ast.get_docstring(node) or "")
    found = []
    for item in node.body:
        if not (isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None):
            continue
        if "ClassVar" in ast.unparse(item.annotation):
            continue
        text = " ".join(lines[item.lineno - 1 : item.end_lineno])
        if item.end_lineno != item.lineno:  # a long default stands in brackets
            text = text.removesuffix(")").rstrip()
        comment = re.search(r"#\s(.*)$", text)
        words = comment.group(1) if comment else written.get(item.target.id, "")
        if item.target.id not in HIDDEN:
            found.append((item.target.id, _shown.get((cls, item.target.id)) or _default(item.value), words))
    return found


def _attributes(docstring: str) -> dict[str, str]:
    section = docstring.partition("Attributes:")[2]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def _default(value: ast.expr) -> str:
    if isinstance(value, ast.Constant):
        return (
            "null"
            if value.value is None
            else str(value.value).lower()
            if isinstance(value.value, bool)
            else str(value.value)
        )
    text = ast.unparse(value)
    factory = re.fullmatch(r"field\(default_factory=(list|dict|lambda: (.*))\)", text)
    if factory is None:
        return text
    return {"list": "[]", "dict": "{}"}.get(factory[1]) or factory[2].replace(" ", "")


def _tree(module: str) -> ast.Module:
    """The parsed source of a module; only the packages above it are imported."""
    spec = util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ImportError(f"no module named {module}")
    source = Path(spec.origin).read_text()
    tree: Any = ast.parse(source)
    tree.source = source
    return tree


def _table(lines: dict[str, str]) -> str:
    return "\n".join(f"  {name:<24}{text}".rstrip() for name, text in lines.items())


if __name__ == "__main__":
    sys.exit(main())
