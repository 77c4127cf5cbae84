"""Named settings: what is good for an environment and a reward, and what makes any run short, or like the paper's.

A preset is a YAML file in `preset/`, of command-line keys. Its first comment is its description.

    applies: {env: "MiniGrid-*", reward: rnd}   it applies by itself where these shell patterns match
    applies: {env: [Hopper-v5, Walker2d-v5]}    or where one of several does
    applies: {env: Pendulum-v1, agent: sac}     or for an agent that is asked for by name
    on_top: true                                it changes whatever run it is named for, and the preset that applies
                                                there by itself stays below it
    agents: {dyna: {agent.members: 2}}          settings for runs of one agent, and so `rewards:`
    envs: {"MiniGrid-*": {n_envs: 16}}          and for environments that match a shell pattern
"""

import fnmatch
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lodestar.files import read_text
from runners.run.config import UsageError, Values, describe_unknown, read

# A preset's about, values, applies, on_top and SECTIONS, as `all_presets` describes them.
Preset = Values
PRESET_FOLDER = Path(__file__).parent / "preset"
# Parts of a preset that hold settings by the name of what they are for.
SECTIONS = ("agents", "rewards", "envs")


def all_presets() -> dict[str, Preset]:
    """Every preset by name: about (one line), values (key -> value), applies, on_top, agents, rewards, envs."""
    return {path.stem: _read_preset(path) for path in sorted(PRESET_FOLDER.glob("*.yaml"))}


def find_preset(name: str) -> Preset:
    """One preset, by its name or by the path of a .yaml file, as `runners.tune` writes them; else a UsageError."""
    if _is_file(name):
        return _read_preset(Path(name).resolve())
    presets = all_presets()
    if name not in presets:
        raise UsageError(describe_unknown("preset", name, [*presets, "auto", "none"]))
    return presets[name]


def user_preset_settings(names: list[str]) -> Iterator[tuple[str, Values]]:
    """Of the presets that are files and did not come with this package: the name, and settings for any run or some."""
    for name in filter(_is_file, names):
        preset = find_preset(name)
        yield name, preset["values"]
        for owner in SECTIONS:
            for part in preset[owner].values():
                yield name, part or {}


def _is_file(name: str) -> bool:
    path = Path(name)
    return path.suffix == ".yaml" and path.is_file()


def _read_preset(path: Path) -> Preset:
    # A sweep asks for every job, so a file is read again only if it was changed.
    return _parse_preset(path, path.stat().st_mtime_ns)


@functools.lru_cache
def _parse_preset(path: Path, changed: int) -> Preset:
    """The file as it was when it was last `changed`."""
    text = read_text(path)
    if "${" in text or "_target_" in text:
        raise UsageError(f"the preset {path} is refused: configurations are data, without _target_ and ${{...}}")
    values = read(path)
    first_comment = re.search("^#(.*)", text, re.MULTILINE)
    about = first_comment[1].strip() if first_comment else ""
    preset = {"about": about, "values": values}
    for name in ("applies", "on_top", *SECTIONS):
        preset[name] = values.pop(name, None) or {}
    for name in SECTIONS:
        owners = preset[name]
        if not isinstance(owners, dict) or not all(isinstance(part or {}, dict) for part in owners.values()):
            raise UsageError(f"{name}: in the preset {path} holds no settings by the name of one; see those that ship")
    return preset


def choose_presets(given: Values) -> list[str]:
    """The presets of a run, later ones on top: the one it names, or the one made for its environment and reward.

    A preset applies by itself when its `applies` entries match what was given: `env`, `reward` and `agent` as shell
    patterns (a reward that was not given is `task`, an agent `ppo`). It does not apply to another agent than the one it
    tunes.
    """
    name = str(given.get("preset", "auto"))
    if name == "none":
        return []
    if name != "auto" and not find_preset(name)["on_top"]:
        return [name]
    reward = given.get("reward", "task")
    if isinstance(reward, list):
        reward = "+".join(reward)
    run = {"env": str(given.get("env", "")), "reward": str(reward), "agent": str(given.get("agent", "ppo"))}
    matches = []
    for other, preset in all_presets().items():
        patterns = preset["applies"]
        agent = preset["values"].get("agent", "ppo")
        if not patterns or given.get("agent", agent) != agent:
            continue
        pattern_that_matches = {key: _matching_pattern(run[key], patterns[key]) for key in patterns}
        if None not in pattern_that_matches.values():
            # Of several presets that match, the one with most names without a wildcard applies.
            exact = 0
            for pattern in pattern_that_matches.values():
                if not re.search(r"[*?\[]", str(pattern)):
                    exact += 1
            matches.append((exact, len(patterns), other))
    names = []
    if matches:
        names.append(max(matches)[2])
    if name != "auto":
        names.append(name)
    return names


def _matching_pattern(value: str, patterns: Any) -> str | None:
    """The first of the shell patterns, or the only one, that `value` matches."""
    if not isinstance(patterns, list):
        patterns = [patterns]
    for pattern in patterns:
        if fnmatch.fnmatchcase(value, str(pattern)):
            return str(pattern)
    return None


def values(names: list[str], given: Values) -> Values:
    """What presets set for any agent and reward; options of one that the user replaced are left out."""
    merged = {}
    for name in names:
        preset_values = _values_in(find_preset(name), str(given.get("env", "")))
        agent = preset_values.get("agent", "ppo")
        reward = preset_values.get("reward")
        for key, value in preset_values.items():
            if key.startswith("agent") and given.get("agent", agent) != agent:
                continue
            if key.startswith("reward") and reward is not None and given.get("reward", reward) != reward:
                continue
            merged[key] = value
    return merged


def _values_in(preset: Preset, env: str) -> Values:
    """What a preset sets in this environment for any agent and reward."""
    merged = dict(preset["values"])
    for pattern, part in preset["envs"].items():
        if fnmatch.fnmatchcase(env, pattern):
            merged |= part or {}
    return merged


def needed_steps(names: list[str], env: str, agent: str, rewards: list[str]) -> int:
    """The environment steps that these presets take to learn the task; 0 where none says so."""
    steps = [0]
    for name in names:
        preset = find_preset(name)
        if not preset["on_top"]:
            preset_values = _values_in(preset, env) | values_for([name], agent, rewards)
            steps.append(int(float(preset_values.get("total_timesteps", 0))))
    return max(steps)


def values_for(names: list[str], agent: str, rewards: list[str]) -> Values:
    """What presets set for this agent and these rewards in particular."""
    merged: Values = {}
    for preset in map(find_preset, names):
        merged |= preset["agents"].get(agent) or {}
        for reward in rewards:
            merged |= preset["rewards"].get(reward) or {}
    return merged
