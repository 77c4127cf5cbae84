"""What a shell completes on TAB: verbs, keys, names and values.

    source <(lodestar completion bash)      in ~/.bashrc; zsh likewise, after compinit

Nothing heavy is imported: options are read from the source (`runners.cli.declared`).
"""

import ast
from collections.abc import Iterable
from pathlib import Path

from gymnasium.envs.registration import registry

import agents
import rewards
from envs.make import families
from envs.make import options as options_of
from runners.cli import presets
from runners.cli.declared import Declared, choices, declared_fields, fields, key_of, tree
from runners.run.trust import admit

SCRIPTS = {path.stem: path for path in sorted(Path(__file__).parent.glob("shell/*.txt"))}
# The keys that a line gives already -> their texts.
Chosen = dict[str, str]
# Verbs that take the keys of `train`, too.
OWN_NAMESPACE = "lodestar/"
VERBS_THAT_TRAIN = ("train", "sweep", "tune", "transfer", "design", "compare", "annotate")


def complete(line: str, verbs: dict[str, str]) -> list[str]:
    """What the last word of a line, `lodestar ...` up to the cursor, may become."""
    # The mark keeps a last word that is still empty.
    _, *words, last = f"{line}|".split()
    last = last[:-1]
    if not words:
        return _starting_with(last, [*verbs, "completion"])
    verb, *given = words
    if verb == "completion":
        return _starting_with(last, SCRIPTS)
    if verb not in verbs:
        return []
    admit(given)
    chosen = dict(argument.split("=", 1) for argument in given if "=" in argument)
    key, equals, _ = last.partition("=")
    if not equals:
        return _complete_key(verb, verbs[verb], chosen, key)
    # Of reward=[task,rn only the last item is completed.
    begin = last[: max(last.rfind(","), last.rfind("["), len(key)) + 1]
    values = _values(verb, verbs[verb], chosen, key)
    words = _starting_with(last, _prepend(begin, values))
    typed = last.removeprefix(begin)
    # Who types CartP may mean ours.
    if key == "env" and typed and "/" not in typed:
        words += _starting_with(f"{begin}{OWN_NAMESPACE}{typed}", _prepend(begin, values))
    return words


def _starting_with(begin: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(begin)]


def _prepend(prefix: str, words: Iterable[str]) -> list[str]:
    return [prefix + word for word in words]


def _complete_key(verb: str, module: str, chosen: Chosen, key: str) -> list[str]:
    """Keys that begin so, each with its =; for `list` also the names that it takes."""
    words = list(map("{}=".format, _keys(verb, module, chosen, key)))
    if verb == "list":
        words += [*rewards.names(), *agents.names()]
    if "." in key:
        return _starting_with(key, words)
    # First only the owner of options is shown, agent. for instance, and with its dot its options.
    plain = []
    owners = []
    for word in words:
        owner, dot, _ = word.rpartition(".")
        if dot:
            owners.append(owner + dot)
        else:
            plain.append(word)
    return _starting_with(key, dict.fromkeys(plain + owners))


def _keys(verb: str, module: str, chosen: Chosen, begin: str) -> list[str]:
    """The keys of a verb; options of the environment only where `begin` asks for them, as they cost an import."""
    keys = [*_own_fields(module)]
    if verb in VERBS_THAT_TRAIN:
        keys += _train_fields()
        keys += _prepend("agent.", declared_fields("agent", chosen.get("agent", "ppo")))
        for name, reward in _rewards(chosen).items():
            keys += _prepend(f"reward.{name}.", declared_fields("reward", reward))
        if begin.startswith("env.") and "env" in chosen:
            keys += _prepend("env.", options_of(chosen["env"]))
    open_keys = []
    for key in dict.fromkeys(keys):
        if key not in chosen and key not in ("rest", "trust"):
            open_keys.append(key)
    return open_keys


def _values(verb: str, module: str, chosen: Chosen, key: str) -> list[str]:
    """What a key may be given, where that is known."""
    if key == "env":
        ids: list[str] = []
        for family in families().values():
            ids += family.ids
        return list(dict.fromkeys([*ids, *registry]))
    if key == "reward":
        return rewards.names()
    if key == "agent":
        return agents.names()
    if key == "preset":
        return [*presets.all_presets(), "auto", "none"]
    owner, *path = key.split(".")
    if owner == "agent" and path:
        declared = declared_fields("agent", chosen.get("agent", "ppo"))
    elif owner == "reward" and path:
        declared = declared_fields("reward", _rewards(chosen).get(path[0], path[0]))
    else:
        declared = _own_fields(module)
        if verb in VERBS_THAT_TRAIN:
            declared = _train_fields() | declared
    field = key.rpartition(".")[2]
    if field in declared:
        return choices(*declared[field])
    return []


def _rewards(chosen: Chosen) -> dict[str, str]:
    """The rewards of a line, by the names that their options have: novelty:Far is called far."""
    names = chosen.get("reward", "").strip("[]'\"").split(",")
    shown_names = {}
    for name in names:
        shown_name = name
        if ":" in name:
            shown_name = name.rpartition(":")[2].lower()
        shown_names[shown_name] = name
    return shown_names


def _train_fields() -> dict[str, Declared]:
    declared = fields("runners.run.config", "TrainConfig")
    del declared["agent_name"], declared["env_options"]
    return declared


def _own_fields(module: str) -> dict[str, Declared]:
    """The fields of a verb's Config, the first argument of its `Command`."""
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ast.unparse(node.targets[0]) == "main":
            config = node.value.args[0]
            declared = fields(module, config.id) if isinstance(config, ast.Name) else {}
            return {key_of(name): field for name, field in declared.items()}
    return {}
