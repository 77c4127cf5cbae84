"""Named settings: what is good for an environment and a reward, and what makes any run short, or like the paper's.

A preset is a YAML file in `preset/`, of command-line keys. Its first comment is its description.

    applies: {env: "MiniGrid-*", reward: rnd}   it applies by itself where these shell patterns match
    on_top: true                                it changes whatever run it is named for, and the preset that applies
                                                there by itself stays below it
    agents: {dyna: {agent.members: 2}}          settings for runs of one agent, and so `rewards:`
"""

import fnmatch
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lodestar.files import read_text
from runners.run.config import UsageError, read, unknown

FOLDER = Path(__file__).parent / "preset"


def every() -> dict[str, dict[str, Any]]:
    """Every preset by name: about (one line), values (key -> value), applies, on_top, agents, rewards."""
    return {path.stem: _parsed(path, path.stat().st_mtime_ns) for path in sorted(FOLDER.glob("*.yaml"))}


def named(name: str) -> dict[str, Any]:
    """One preset, by its name or by the path of a .yaml file, as `runners.tune` writes them; else a UsageError."""
    if _is_file(name):
        path = Path(name).resolve()
        return _parsed(path, path.stat().st_mtime_ns)
    found = every()
    if name not in found:
        raise UsageError(unknown("preset", name, [*found, "auto", "none"]))
    return found[name]


def from_elsewhere(names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of the presets that are files and did not come with this package: the name, and settings for any run or some."""
    for name in filter(_is_file, names):
        preset = named(name)
        for part in (preset["values"], *preset["agents"].values(), *preset["rewards"].values()):
            yield name, part or {}


def _is_file(name: str) -> bool:
    return Path(name).suffix == ".yaml" and Path(name).is_file()


@functools.lru_cache
def _parsed(path: Path, changed: int) -> dict[str, Any]:
    """The file as it was when it was last `changed`; a sweep asks for every job."""
    text = read_text(path)
    if "${" in text or "_target_" in text:
        raise UsageError(f"the preset {path} is refused: configurations are data, without _target_ and ${{...}}")
    data = read(path)
    about = next((line[1:].strip() for line in text.splitlines() if line.startswith("#")), "")
    own = {name: data.pop(name, None) or {} for name in ("applies", "on_top", "agents", "rewards")}
    for name in ("agents", "rewards"):
        if not isinstance(own[name], dict) or not all(isinstance(part or {}, dict) for part in own[name].values()):
            raise UsageError(f"{name}: in the preset {path} holds no settings by the name of one; see those that ship")
    return {"about": about, "values": data, **own}


def applied(given: dict[str, Any]) -> list[str]:
    """The presets of a run, later ones on top: the one it names, or the one made for its environment and reward.

    A preset applies by itself when its `applies` entries match what was given: `env` and `reward` as shell patterns
    (a reward that was not given is `task`). It does not apply to another agent than the one it tunes.
    """
    name = str(given.get("preset", "auto"))
    if name == "none":
        return []
    if name != "auto" and not named(name)["on_top"]:
        return [name]
    reward = given.get("reward", "task")
    asked = {"env": str(given.get("env", "")), "reward": "+".join(reward) if isinstance(reward, list) else str(reward)}
    matches = []
    for other, preset in every().items():
        patterns, agent = preset["applies"], preset["values"].get("agent", "ppo")
        if not patterns or given.get("agent", agent) != agent:
            continue
        if all(fnmatch.fnmatchcase(asked[key], str(pattern)) for key, pattern in patterns.items()):
            exact = sum(not re.search(r"[*?\[]", str(pattern)) for pattern in patterns.values())
            matches.append((exact, len(patterns), other))
    return [*(max(matches)[2:] if matches else ()), *([] if name == "auto" else [name])]


def values(names: list[str], given: dict[str, Any]) -> dict[str, Any]:
    """What presets set for any agent and reward; options of one that the user replaced are left out."""
    merged: dict[str, Any] = {}
    for name in names:
        settings = dict(named(name)["values"])
        for kind, default in (("agent", "ppo"), ("reward", None)):
            own = settings.get(kind, default)
            if own is not None and given.get(kind, own) != own:
                settings = {key: value for key, value in settings.items() if not key.startswith(kind)}
        merged |= settings
    return merged


def values_for(names: list[str], agent: str, rewards: list[str]) -> dict[str, Any]:
    """What presets set for this agent and these rewards in particular."""
    merged: dict[str, Any] = {}
    for preset in map(named, names):
        for part in (preset["agents"].get(agent), *map(preset["rewards"].get, rewards)):
            merged |= part or {}
    return merged
