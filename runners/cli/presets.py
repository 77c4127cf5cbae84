"""Named settings: what is good for an environment and a reward, and what makes any run short, or like the paper's.

A preset is a YAML file in `preset/`, of command-line keys. Its first comment is its description.

    applies: {env: "MiniGrid-*", reward: rnd}   it applies by itself where these shell patterns match
    on_top: true                                it changes whatever run it is named for, and the preset that applies
                                                there by itself stays below it
    agents: {dyna: {agent.members: 2}}          settings for runs of one agent, and so `rewards:`
"""

from __future__ import annotations

import fnmatch
import functools
import re
from pathlib import Path
from typing import Any

from runners.run.config import UsageError, unknown

FOLDER = Path(__file__).parent / "preset"
_ABOUT_ITSELF = ("applies", "on_top", "agents", "rewards")


def named(name: str) -> dict[str, Any]:
    """One preset, by its name or by the path of a .yaml file, as `runners.tune` writes them.

    Raises:
        UsageError: if there is none.
    """
    found = {name: _read(Path(name))} if name.endswith(".yaml") and Path(name).is_file() else every()
    if name not in found:
        raise UsageError(unknown("preset", name, [*found, "auto", "none"]))
    return found[name]


def every() -> dict[str, dict[str, Any]]:
    """Every preset by name: about (one line), values (key -> value), applies, on_top, agents, rewards."""
    return {path.stem: _read(path) for path in sorted(FOLDER.glob("*.yaml"))}


def _read(path: Path) -> dict[str, Any]:
    return _parsed(path, path.stat().st_mtime_ns)


@functools.lru_cache
def _parsed(path: Path, changed: int) -> dict[str, Any]:
    """The file as it was when it was last `changed`; a sweep asks for every job."""
    import yaml

    text = path.read_text()
    if "${" in text or "_target_" in text:
        raise UsageError(
            f"the preset {path} is refused: configurations are data, so there is no _target_ and no ${{...}}"
        )
    try:
        data: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"the preset {path} cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise UsageError(f"the preset {path} holds no key: value")
    about = next((line[1:].strip() for line in text.splitlines() if line.startswith("#")), "")
    own = {name: data.pop(name, None) for name in _ABOUT_ITSELF}
    return {"about": about, "values": data, **own}


def applied(given: dict[str, Any]) -> list[str]:
    """The presets of a run, later ones on top: the one it names, or the one made for its environment and reward.

    A preset applies by itself when its `applies` entries match what was given: `env` and `reward` as shell patterns
    (a reward that was not given is `task`). It does not apply to another agent than the one it tunes.

    Raises:
        UsageError: for a name that is none.
    """
    name = str(given.get("preset", "auto"))
    if name == "none":
        return []
    if name != "auto" and not named(name)["on_top"]:
        return [name]
    return [*_by_itself(every(), given), *([] if name == "auto" else [name])]


def _by_itself(found: dict[str, dict[str, Any]], given: dict[str, Any]) -> list[str]:
    reward = given.get("reward", "task")
    asked = {"env": str(given.get("env", "")), "reward": "+".join(reward) if isinstance(reward, list) else str(reward)}
    matches = []
    for name, preset in found.items():
        applies = preset["applies"]
        agent = preset["values"].get("agent", "ppo")
        if not applies or given.get("agent", agent) != agent:
            continue
        if all(fnmatch.fnmatchcase(asked[key], str(pattern)) for key, pattern in applies.items()):
            exact = sum(not re.search(r"[*?\[]", str(pattern)) for pattern in applies.values())
            matches.append((exact, len(applies), name))
    return [max(matches)[2]] if matches else []


def values(names: list[str], given: dict[str, Any]) -> dict[str, Any]:
    """What presets set for any agent and reward; options of one that the user replaced are left out."""
    merged: dict[str, Any] = {}
    for name in names:
        settings = dict(named(name)["values"])
        if given.get("agent", settings.get("agent", "ppo")) != settings.get("agent", "ppo"):
            settings = {key: value for key, value in settings.items() if not key.startswith("agent")}
        if given.get("reward", settings.get("reward")) != settings.get("reward") and "reward" in settings:
            settings = {key: value for key, value in settings.items() if not key.startswith("reward")}
        merged |= settings
    return merged


def values_for(names: list[str], agent: str, rewards: list[str]) -> dict[str, Any]:
    """What presets set for this agent and these rewards in particular."""
    merged: dict[str, Any] = {}
    for name in names:
        preset = named(name)
        merged |= (preset["agents"] or {}).get(agent) or {}
        for reward in rewards:
            merged |= (preset["rewards"] or {}).get(reward) or {}
    return merged
