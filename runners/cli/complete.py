"""What a shell completes on TAB: verbs, keys, names and values.

    source <(lodestar completion bash)      in ~/.bashrc; zsh likewise, after compinit

Nothing heavy is imported: options are read from the source (`runners.cli.declared`).
"""

import ast
from pathlib import Path

from gymnasium.envs.registration import registry

import agents
import rewards
from envs.make import families
from envs.make import options as options_of
from runners.cli import presets
from runners.cli.declared import Declared, choices, fields, key_of, options, tree
from runners.run.trust import admit

SCRIPTS = {path.stem: path for path in sorted(Path(__file__).parent.glob("shell/*.txt"))}
# verbs that take the keys of `train`, too
TRAINS = ("train", "sweep", "tune", "transfer", "design", "compare", "annotate")


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
    admit(given)
    chosen = dict(argument.split("=", 1) for argument in given if "=" in argument)
    key, equals, text = word.partition("=")
    if not equals:
        words = {f"{each}=": None for each in _keys(verb, verbs[verb], chosen, key)}
        words |= dict.fromkeys([*rewards.names(), *agents.names()] if verb == "list" else ())
        dotted = {f"{each.rpartition('.')[0]}.": None for each in words if "." in each}  # agent. before agent.gamma=
        shown = [*(each for each in words if "." not in each or each.startswith(f"{key.rpartition('.')[0]}."))]
        return [each for each in [*shown, *(dotted if "." not in key else ())] if each.startswith(key)]
    listed = text[: max(text.rfind(","), text.rfind("[")) + 1]  # reward=[task,rn
    values = _values(verb, verbs[verb], chosen, key)
    return [f"{key}={listed}{value}" for value in values if value.startswith(text[len(listed) :])]


def _keys(verb: str, module: str, chosen: dict[str, str], word: str) -> list[str]:
    """The keys of a verb; options of the environment only where `word` begins so, as they cost an import."""
    found = [*_own(module)]
    if verb in TRAINS:
        found += _own_of_train()
        found += [f"agent.{name}" for name in options("agent", chosen.get("agent", "ppo"))]
        for name, reward in _rewards(chosen).items():
            found += [f"reward.{name}.{option}" for option in options("reward", reward)]
        if word.startswith("env.") and "env" in chosen:
            found += [f"env.{name}" for name in options_of(chosen["env"])]
    return [name for name in dict.fromkeys(found) if name not in chosen and name not in ("rest", "trust")]


def _values(verb: str, module: str, chosen: dict[str, str], key: str) -> list[str]:
    """What a key may be given, where that is known."""
    if key == "env":
        return list(dict.fromkeys([*(name for family in families().values() for name in family.ids), *registry]))
    if key == "reward":
        return rewards.names()
    if key == "agent":
        return agents.names()
    if key == "preset":
        return [*presets.every(), "auto", "none"]
    part, _, rest = key.partition(".")
    found: dict[str, Declared] = {**(_own_of_train() if verb in TRAINS else {}), **_own(module)}
    if part == "agent" and rest:
        found = options("agent", chosen.get("agent", "ppo"))
    elif part == "reward" and rest:
        name = rest.partition(".")[0]
        found = options("reward", _rewards(chosen).get(name, name))
    field = found.get(key.rpartition(".")[2])
    return [] if field is None else choices(*field)


def _rewards(chosen: dict[str, str]) -> dict[str, str]:
    """The rewards of a line, by the names that their options have: novelty:Far is called far."""
    given = chosen.get("reward", "").strip("[]'\"").split(",")
    return {text.rpartition(":")[2].lower() if ":" in text else text: text for text in given}


def _own_of_train() -> dict[str, Declared]:
    found = fields("runners.run.config", "TrainConfig")
    return {name: declared for name, declared in found.items() if name not in ("agent_name", "env_options")}


def _own(module: str) -> dict[str, Declared]:
    """The fields of a verb's Config, the first argument of its `Command`."""
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.targets[0].id == "main":  # type: ignore[attr-defined]
            config = node.value.args[0]
            found = fields(module, config.id) if isinstance(config, ast.Name) else {}
            return {key_of(name): declared for name, declared in found.items()}
    return {}
