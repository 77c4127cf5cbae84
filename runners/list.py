"""What there is: environments by family with their goals, rewards, agents, presets; one line each.

    python -m runners.list              everything
    python -m runners.list rnd          one reward or agent: what it is, and its options
    python -m runners.list CartPole-v1  one environment

The lines are the first sentences of docstrings, read from the files without importing them: torch takes seconds.
"""

import ast
import inspect
import re
import sys
from importlib import util
from pathlib import Path
from typing import Any

from gymnasium.envs.registration import registry

import agents
import rewards
from envs.make import creator, families, options
from lodestar.tables import Table
from runners.cli import presets
from runners.cli.command import Command, options_text, written
from runners.cli.compose import HIDDEN, named
from runners.run.config import TrainConfig, UsageError, unknown
from runners.run.trust import admit


def show(names: list[str]) -> None:
    """Print the lists, or what is known of some names."""
    if not names:
        print("\n\n".join([_environments(), rewards_text(), *_others()]))
    admit(f"reward={name}" for name in names)  # my_file:Class
    for name in names:
        name = name if re.search(r"-v\d+$", name) else named(rewards.table, name)
        if name in rewards.names():
            print(details(name, rewards.get(name), f"reward.{name}."))
        elif name in agents.names():
            print(details(name, agents.get(name), "agent."))
        elif re.search(r"-v\d+$", name):
            print(environment(name))
        else:
            raise UsageError(unknown("name", name, [*rewards.names(), *agents.names()]))


main = Command(None, show, __doc__, bare=True)


def train_text() -> str:
    """What `python -m runners.train --help` prints."""
    chosen = {"reward": "task", "agent": "ppo"}
    return "\n\n".join(
        [
            "usage: python -m runners.train env=ID [reward=NAME] [agent=NAME] [key=value ...]\n"
            "Trains an agent on a learned reward and reports the task's own return.",
            'example: python -m runners.train env=CartPole-v1 reward=clip reward.clip.goal="pole standing upright"',
            "keys\n" + options_text(TrainConfig, hidden=HIDDEN, defaults=chosen),
            rewards_text(),
            *_others(),
            "python -m runners.list           environments too\n"
            "python -m runners.list NAME      the options of a reward (reward.NAME.<field>) or agent (agent.<field>)\n"
            "                                 or environment (env.<name>)",
        ]
    )


def rewards_text() -> str:
    """The rewards, one line each, third parties' included."""
    return "rewards\n" + _summaries(rewards.table)


def _others() -> list[str]:
    """The agents and the presets."""
    lines = {}
    for name, preset in presets.every().items():
        applies = preset["applies"]
        when = f" [by itself for {', '.join(f'{k}={v}' for k, v in applies.items())}]" if applies else ""
        lines[name] = preset["about"] + when
    return [f"agents\n{_summaries(agents.table)}", "presets\n" + (_table(lines) or "  none")]


def _environments() -> str:
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
    """The docstring of an environment, and its options with their defaults; those of its adapter come last."""
    text = inspect.getdoc(creator(env_id)) or ""
    lines = [f"  env.{name}={written(option.default)}" for name, option in options(env_id).items()]
    return f"{env_id}: {text}\n\noptions\n" + "\n".join(lines)


def details(name: str, cls: type[Any], prefix: str) -> str:
    """The docstring of a reward's file or an agent's class, and its options."""
    text = (inspect.getdoc(sys.modules[cls.__module__]) if prefix.startswith("reward") else None) or inspect.getdoc(cls)
    return f"{name}: {text or ''}\n\noptions\n{options_text(cls.Config, prefix)}"


def _summaries(table: Table[Any]) -> str:
    """A line each: the file's first sentence, or the class's where several share a file."""
    registered = {name: f"{cls.__module__}:{cls.__qualname__}" for name, cls in table.registered.items()}
    targets = {**table.ours, **registered}
    targets |= {name: entry.value for name, entry in table.plugins().items() if name not in targets}
    modules = [target.partition(":")[0] for target in targets.values()]
    lines = {name: summary(target, modules.count(target.partition(":")[0]) > 1) for name, target in targets.items()}
    return _table(lines)


def summary(target: str, shared: bool = False) -> str:
    """First sentence of the docstring behind "module:Class": the file's, or the class's if the file is `shared`."""
    module, _, name = target.partition(":")
    try:
        spec = util.find_spec(module)
        if spec is None or spec.origin is None:
            raise ImportError(f"no module named {module}")
        source = Path(spec.origin).read_text()
        if source.startswith('"""') and not shared:
            source = source[: source.index('"""', 3) + 3]  # reading the rest costs ten times as much
        tree = ast.parse(source)
    except (OSError, SyntaxError, ImportError, ValueError) as error:
        return f"(its file cannot be read: {error})"
    own = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    docs = [ast.get_docstring(tree), ast.get_docstring(own) if own else None]
    text = next((doc for doc in (docs[::-1] if shared else docs) if doc), "")
    return re.split(r"(?<!al)\.\s", " ".join(text.split("\n\n")[0].split()))[0].rstrip(".")


def _table(lines: dict[str, str]) -> str:
    return "\n".join(f"  {name:<24}{text}".rstrip() for name, text in lines.items())


if __name__ == "__main__":
    sys.exit(main())
