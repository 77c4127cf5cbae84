"""The run card: what was trained, on what, how well it does, and what is not known. It names no machine and no person.

What a configuration says is shown without what belongs to a machine: of a path its last part, of an address nothing.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import re
import shlex
from pathlib import Path
from typing import Any

from runners.evaluate import table
from runners.run.checkpoint import versions
from runners.run.config import TrainConfig

KEPT_APART = {"root", "run_dir", "resume", "env_options", "reward", "agent", "agent_name", "preset", "control", "video"}


def scrubbed(value: Any) -> Any:
    """Plain data without absolute paths and addresses."""
    if isinstance(value, dict):
        return {key: scrubbed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [scrubbed(item) for item in value]
    if not isinstance(value, str):
        return value
    value = re.sub(r"\b[a-z][a-z0-9+.-]*://\S+", "<address>", value)
    return re.sub(r"(?<![\w.])(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\:,'\"]+)+", lambda m: re.split(r"[/\\]", m[0])[-1], value)


def settings(config: TrainConfig) -> list[str]:
    """What the run sets otherwise than the defaults do, as arguments of the command line."""
    names = list(config.reward)
    found = [f"env={config.env}", *(f"env.{key}={value}" for key, value in config.env_options.items())]
    found += [f"reward=[{','.join(names)}]", f"agent={config.agent_name}", "preset=none"]
    own = {f.name: f.default for f in dataclasses.fields(TrainConfig)}
    for name, default in own.items():
        if name not in KEPT_APART and name != "env" and getattr(config, name) != default:
            found.append(f"{name}={getattr(config, name)}")
    for prefix, options in [("agent", config.agent), *((f"reward.{name}", o) for name, o in config.reward.items())]:
        plain = type(options)()
        for field in dataclasses.fields(options):
            value = getattr(options, field.name)
            if value != getattr(plain, field.name):
                found.append(f"{prefix}.{field.name}={_written(value)}")
    return [scrubbed(argument) for argument in found]


def _written(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_written, value))}]"
    return "null" if value is None else str(value)


def vision(config: TrainConfig) -> list[str]:
    """For each reward that sees: whether its model was taught this environment."""
    from rewards.vision.encoder import MODELS

    sentences = []
    for name, options in config.reward.items():
        model, weights = getattr(options, "model", None), getattr(options, "weights", "")
        if not hasattr(options, "goal") or not hasattr(options, "precision") or model is None:
            continue
        if model in MODELS and not weights:
            taught = _worlds(MODELS[model])
            inside = any(fnmatch.fnmatchcase(config.env.rpartition(":")[2], world) for world in taught)
            words = (
                "in-domain: its model was taught frames of this environment"
                if inside
                else ("its model ships with the suite and was not taught this environment")
            )
        elif weights == "untrained":
            words = "a control: its model was never trained"
        else:
            words = "zero-shot, as far as its public weights are"
        sentences.append(f"{name} ({scrubbed(str(model))}): {words}.")
    return sentences


def _worlds(folder: Path) -> list[str]:
    try:
        return list(json.loads((folder / "phrases.json").read_text()).get("worlds", []))
    except (OSError, ValueError):
        return []


def card(
    config: TrainConfig, run: Path, step: int, reward: str, notes: list[str], checked: list[str], sampled: bool
) -> str:
    """The run card, Markdown.

    Args:
        config: of the run.
        run: its folder, for its numbers and versions.
        step: environment steps that the exported policy has learned from.
        reward: the composed reward, as the run printed it.
        notes: what the rewards say about themselves.
        checked: sentences about how the files were compared with the agent.
        sampled: whether the evaluation let the policy choose by chance.
    """
    lines = [f"# {config.agent_name} on {config.env}, paid by {scrubbed(reward)}", ""]
    lines += ["A deterministic policy, exported after " + f"{step:,} environment steps with seed {config.seed}.", ""]
    command = " ".join(map(shlex.quote, settings(config)))
    lines += ["## What was trained", "", "All settings that differ from the defaults:", ""]
    lines += [f"    python -m runners.train {command}", ""]
    lines += [f"The reward: {scrubbed(reward)}.", *(f"- {scrubbed(s)}" for s in [*vision(config), *notes]), ""]
    lines += ["## How well it does", "", *_numbers(run, step, config, sampled), ""]
    lines += ["## How to use it", "", *_usage(checked), ""]
    lines += ["## Versions", "", f"Trained with {_versions(_json(run / 'versions.json'))}.", ""]
    lines += [f"Exported with {_versions(versions())}.", ""]
    lines += ["## Limits", "", *_limits(config, sampled), ""]
    lines += [
        "## Licence",
        "",
        "Not yet chosen: write yours here. The environment and any pretrained model have their own.",
    ]
    return "\n".join(lines) + "\n"


def _numbers(run: Path, step: int, config: TrainConfig, sampled: bool) -> list[str]:
    scores = _json(run / "result.json")
    if not scores:
        return ["The run has not been evaluated: `python -m runners.evaluate run=<folder>`."]
    episodes = next(iter(scores.values()))["episodes"]
    how = "sampled from" if sampled else "of"
    lines = [f"The task's own return over {episodes} episodes, actions {how} the policy at the end of training", ""]
    lines += ["```", scrubbed(table(scores)), "```"]
    if step < config.total_timesteps:
        lines += ["", f"These are of the end of training ({int(config.total_timesteps):,} steps), not of this step."]
    return lines


def _usage(checked: list[str]) -> list[str]:
    lines = ["    from runners.export import load", '    action = load("<this folder>").act(obs)', ""]
    return lines + [f"- {sentence}" for sentence in checked]


def _limits(config: TrainConfig, sampled: bool) -> list[str]:
    lines = ["- One run with one seed: another may do better or worse by more than the interval above says."]
    lines.append("- It was trained and evaluated in this environment with these settings, and nowhere else.")
    if "task" not in config.reward:
        lines.append("- It was not paid by the task: a high learned reward is no promise of a high task return.")
    if sampled:
        lines.append(
            "- It was judged with chance in its actions; the likeliest action, taken always, may repeat itself."
        )
    return lines


def _versions(found: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items()) or "versions that nobody wrote down"


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
