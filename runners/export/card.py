"""What stands beside an exported policy: the run card (what was trained, on what, how well it does), and a small run.

Both name no machine and no person: of a path in the configuration they hold the last part, of an address nothing.
"""

import dataclasses
import fnmatch
import json
import re
import shlex
from pathlib import Path
from typing import Any

import jinja2

from lodestar.files import read_json
from runners.cli.command import changed, written
from runners.evaluate import table
from runners.run import checkpoint
from runners.run.build import Trained, load_checkpoint
from runners.run.config import TrainConfig, sources, to_dict
from runners.run.folder import EXPORTED, STATUS

KEPT_APART = {"env", "env_options", "reward", "agent", "agent_name"}  # shown otherwise
KEPT_APART |= {"preset", "root", "run_dir", "resume", "control", "video"}  # say nothing about what was trained
PLACES = ("root", "run_dir", "resume", "init_from", "init")  # of the configuration, that say nothing elsewhere


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
    code = sources(config)
    names = [code.get(f"reward.{name}", name) for name in config.reward]
    agent = code.get(f"agent.{config.agent_name}", config.agent_name)
    found = [f"env={config.env}", *(f"env.{key}={value}" for key, value in config.env_options.items())]
    found += [f"reward=[{','.join(names)}]", f"agent={agent}", "preset=none"]
    for field in dataclasses.fields(TrainConfig):
        value = getattr(config, field.name)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if field.name not in KEPT_APART and value != default:
            found.append(f"{field.name}={written(value)}")
    for prefix, options in [("agent", config.agent), *((f"reward.{name}", o) for name, o in config.reward.items())]:
        found += [f"{prefix}.{name}={written(value)}" for name, value in changed(options).items()]
    return [scrubbed(argument) for argument in found]


def vision(config: TrainConfig) -> list[str]:
    """For each reward that sees: whether its model was trained on this environment."""
    from rewards.vision.encoder import MODELS

    sentences = []
    for name, options in config.reward.items():
        model, weights = getattr(options, "model", None), getattr(options, "weights", "")
        if not hasattr(options, "goal") or not hasattr(options, "precision") or model is None:
            continue
        if model in MODELS and not weights:
            words = "its model ships with the suite and was not trained on this environment"
            domains = read_json(MODELS[model] / "phrases.json").get("worlds", [])
            if any(fnmatch.fnmatchcase(config.env.rpartition(":")[2], world) for world in domains):
                words = "in-domain: its model was trained on frames of this environment"
        elif weights == "untrained":
            words = "a control: its model was never trained"
        else:
            words = "zero-shot, as far as its public weights are"
        sentences.append(f"{name} ({scrubbed(str(model))}): {words}.")
    return sentences


def card(trained: Trained, run: Path, checked: list[str], loaded: str = 'ld.load("<this folder>")') -> str:
    """The run card, Markdown, of a run at the checkpoint that is exported.

    `checked` are sentences about its files; `loaded` is the expression that loads it.
    """
    config, _, mix, step = trained
    scores = read_json(run / "result.json")
    text = Path(__file__).with_name("card.txt").read_text()
    template = jinja2.Template(text, trim_blocks=True, keep_trailing_newline=True)
    return template.render(
        config=config,
        step=step,
        reward=scrubbed(mix.describe()),
        command=shlex.join(settings(config)),
        notes=map(scrubbed, [*vision(config), *mix.notes()]),
        actions=scores.get("this run", {}).get("actions"),
        scores=scores and scrubbed(table(scores)),
        episodes=next(iter(scores.values()))["episodes"] if scores else 0,
        loaded=loaded,
        checked=checked,
        trained_with=_versions(read_json(run / "versions.json")),
        exported_with=_versions(checkpoint.versions()),
    )


def _versions(found: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


def write_small(folder: Path, run: Path, trained: Trained, at: str = "") -> None:
    """A run's folder without what trained it: its configuration, scores, and a checkpoint of weights and rewards alone.

    Whatever reads a run's folder reads this one, but training cannot continue in it. It is of the run's newest
    checkpoint, or of another.
    """
    import yaml

    state, step = load_checkpoint(run, at)
    weights = getattr(trained.model, "weights", lambda: {"modules.policy": ""})()
    kept: dict[str, Any] = {}
    for path in weights:
        *parents, last = path.split(".")
        of, to = state["agent"], kept
        for parent in parents:
            of, to = of[parent], to.setdefault(parent, {})
        to[last] = of[last]
    checkpoint.save(folder / "checkpoints", {"agent": kept, "mix": state["mix"]}, step)
    config = {key: value for key, value in to_dict(trained.config).items() if key not in PLACES}
    (folder / "config.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(scrubbed(config))), sort_keys=False))
    (folder / STATUS).write_text(json.dumps({"state": EXPORTED, "step": step}) + "\n")
    for name in ("versions.json", "result.json"):
        if found := read_json(run / name):
            (folder / name).write_text(json.dumps(scrubbed(found), indent=1) + "\n")
