"""What there is: environments by family with their goals, rewards, agents, presets; one line each.

    python -m runners.list              everything
    python -m runners.list rnd          one reward or agent: what it is, and its options
    python -m runners.list CartPole-v1  one environment
    python -m runners.list --scores     our agents' returns beside published ones

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
from envs.family import family_of
from envs.make import creator, families, options, spec_of
from lodestar.packages import install_extra
from lodestar.tables import Table
from runners.cli import presets
from runners.cli.command import Command, argument_text, options_text
from runners.cli.compose import HIDDEN, load_name
from runners.run.config import TrainConfig, UsageError, assignments, describe_unknown
from runners.run.trust import admit

# Signals of an environment that are named on its page.
MAX_LISTED_SIGNALS = 16


def show(names: list[str]) -> None:
    """Print the lists, or what is known of some names."""
    if "--scores" in names:
        from runners.report import scores

        print(scores.text())
        names.remove("--scores")
    elif not names:
        print("\n\n".join([_environments_text(), table_text(rewards.table), table_text(agents.table), presets_text()]))
    # As in my_file:Class.
    admit(f"reward={name}" for name in names)
    for name in names:
        if re.search(r"-v\d+$", name):
            print(environment(name))
            continue
        name = load_name(rewards.table, name)
        if name in rewards.names():
            print(details(name, rewards.get(name), f"reward.{name}."))
        elif name in agents.names():
            print(details(name, agents.get(name), "agent."))
        else:
            raise UsageError(describe_unknown("name", name, [*rewards.names(), *agents.names()]))


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
            table_text(rewards.table),
            table_text(agents.table),
            presets_text(),
            "python -m runners.list           environments too\n"
            "python -m runners.list NAME      the options of a reward (reward.NAME.<field>) or agent (agent.<field>)\n"
            "                                 or environment (env.<name>)",
        ]
    )


def presets_text() -> str:
    """The presets, one line each, with what they are used for by themselves."""
    lines = {}
    for name, preset in presets.all_presets().items():
        lines[name] = preset["about"]
        patterns = {}
        for key, value in preset["applies"].items():
            patterns[key] = " or ".join(value) if isinstance(value, list) else value
        if patterns:
            lines[name] += f" [by itself for {', '.join(assignments(patterns))}]"
    return "presets\n" + (_table(lines) or "  none")


def _environments_text() -> str:
    blocks = []
    for family in families().values():
        lines = [f"environments: {family.name}, {family.description}{install_hint(family.extra)}"]
        for name in family.ids:
            goals = family.goals(registry[name]) if name in registry else []
            words = "; ".join(f'{goal.name}: "{goal.prompt}"' for goal in goals)
            lines.append(f"  {name:<34}{words}".rstrip())
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def environment(env_id: str) -> str:
    """The docstring of an environment, its options with their defaults, those of its adapter last, and its signals."""
    text = inspect.getdoc(creator(env_id)) or ""
    lines = [f"  env.{name}={argument_text(option.default)}" for name, option in options(env_id).items()]
    page = f"{env_id}: {text}\n\noptions\n" + "\n".join(lines)
    spec = spec_of(env_id)
    signals = family_of(spec).signals(spec)
    if signals:
        columns = [f"{column} {name}" for column, name in enumerate(signals[:MAX_LISTED_SIGNALS])]
        more = f" ... {len(signals)} in all" if len(signals) > MAX_LISTED_SIGNALS else ""
        page += "\n\nsignals, by column: " + ", ".join(columns) + more
    return page


def details(name: str, cls: type[Any], prefix: str) -> str:
    """The docstring of a reward's file or an agent's class, and its options."""
    text = None
    if prefix.startswith("reward"):
        text = inspect.getdoc(sys.modules[cls.__module__])
    text = text or inspect.getdoc(cls) or ""
    return f"{name}: {text}\n\noptions\n{options_text(cls.Config, prefix)}"


def table_text(table: Table[Any]) -> str:
    """The rewards or the agents, third parties' included: first sentences of files, or of classes that share one."""
    targets = dict(table.ours)
    for name, cls in table.registered.items():
        targets[name] = f"{cls.__module__}:{cls.__qualname__}"
    for name, entry in table.plugins().items():
        targets.setdefault(name, entry.value)
    modules = [target.partition(":")[0] for target in targets.values()]
    lines = {}
    for (name, target), module in zip(targets.items(), modules):
        lines[name] = summary(target, shared=modules.count(module) > 1) + install_hint(table.extras.get(name, ""))
    return f"{table.kind}s\n{_table(lines)}"


def summary(target: str, shared: bool = False) -> str:
    """First sentence of the docstring behind "module:Class": the file's, or the class's if the file is `shared`."""
    module, _, name = target.partition(":")
    try:
        spec = util.find_spec(module)
        if spec is None or spec.origin is None:
            raise ImportError(f"no module named {module}")
        source = Path(spec.origin).read_text()
        if source.startswith('"""') and not shared:
            # Parsing the rest costs ten times as much.
            source = source[: source.index('"""', 3) + 3]
        tree = ast.parse(source)
    except (OSError, SyntaxError, ImportError, ValueError) as error:
        return f"(its file cannot be read: {error})"
    text = ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            own_text = ast.get_docstring(node)
            text = (own_text or text) if shared else (text or own_text)
    text = text or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    # A sentence does not end after "et al.".
    return re.split(r"(?<!al)\.\s", paragraph)[0].rstrip(".")


def install_hint(extra: str) -> str:
    """The command that installs what a line of the list needs, in brackets; "" where it is installed."""
    command = install_extra(extra) if extra else ""
    return f" [{command}]" if command else ""


def _table(lines: dict[str, str]) -> str:
    return "\n".join(f"  {name:<24}{text}".rstrip() for name, text in lines.items())


if __name__ == "__main__":
    sys.exit(main())
