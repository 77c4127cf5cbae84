"""What stands beside an exported policy: the run card (what was trained, on what, how well it does), and a small run.

Both name no machine and no person: of a path in the configuration they hold the last part, of an address nothing.
"""

import fnmatch
import json
import re
import shlex
from pathlib import Path
from typing import Any

import jinja2

from lodestar.files import read_json
from lodestar.mappings import map_values
from lodestar.settings import settings_of
from runners.cli.command import argument_text, changes_from_defaults
from runners.evaluate import table
from runners.run import checkpoint
from runners.run.build import Trained, load_checkpoint
from runners.run.config import TrainConfig, Values, assignments, sources, to_dict
from runners.run.folder import EXPORTED, STATUS

# The command line of the card shows these by themselves.
SHOWN_APART = {"env", "env_options", "reward", "agent", "agent_name"}
# These say nothing about what was trained.
NOT_SHOWN = {"preset", "root", "run_dir", "resume", "control", "video"}
# Settings of the configuration that lead to a place on this machine.
PLACE_SETTINGS = ("root", "run_dir", "resume", "init_from", "init")
WEB_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]*://\S+")
ABSOLUTE_PATH = re.compile(r"(?<![\w.])(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\:,'\"]+)+")


def remove_paths(value: Any) -> Any:
    """Plain data without addresses, and of each absolute path only its last part."""
    if isinstance(value, dict):
        return map_values(remove_paths, value)
    if isinstance(value, list | tuple):
        return list(map(remove_paths, value))
    if not isinstance(value, str):
        return value
    value = WEB_ADDRESS.sub("<address>", value)
    return ABSOLUTE_PATH.sub(lambda match: re.split(r"[/\\]", match[0])[-1], value)


def settings(config: TrainConfig) -> list[str]:
    """What the run sets otherwise than the defaults do, as arguments of the command line."""
    code = sources(config)
    rewards = [code.get(f"reward.{name}", name) for name in config.reward]
    agent = code.get(f"agent.{config.agent_name}", config.agent_name)
    arguments = [f"env={config.env}"]
    arguments += [f"env.{option}" for option in assignments(config.env_options)]
    arguments += [f"reward=[{','.join(rewards)}]", f"agent={agent}", "preset=none"]
    for name, default, _ in settings_of(TrainConfig):
        value = getattr(config, name)
        if name not in SHOWN_APART | NOT_SHOWN and value != default:
            arguments.append(f"{name}={argument_text(value)}")
    parts = {"agent": config.agent}
    for name, options in config.reward.items():
        parts[f"reward.{name}"] = options
    for prefix, options in parts.items():
        for name, value in changes_from_defaults(options).items():
            arguments.append(f"{prefix}.{name}={argument_text(value)}")
    return remove_paths(arguments)


def vision(config: TrainConfig) -> list[str]:
    """For each reward that sees: whether its model was trained on this environment."""
    from rewards.vision.load import MODELS

    sentences = []
    env_id = config.env.rpartition(":")[2]
    for name, options in config.reward.items():
        # Any reward that declares these three reads frames with a vision model, one of the user's own as well.
        if not all(hasattr(options, field) for field in ("model", "goal", "precision")):
            continue
        model = options.model
        weights = getattr(options, "weights", "")
        if model in MODELS and not weights:
            words = "its model ships with the suite and was not trained on this environment"
            worlds = read_json(MODELS[model] / "phrases.json").get("worlds", [])
            if any(fnmatch.fnmatchcase(env_id, world) for world in worlds):
                words = "in-domain: its model was trained on frames of this environment"
        elif weights == "untrained":
            words = "a control: its model was never trained"
        else:
            words = "zero-shot, as far as its public weights are"
        sentences.append(f"{name} ({remove_paths(str(model))}): {words}.")
    return sentences


def card(trained: Trained, run: Path, checked: list[str], loaded: str = 'ld.load("<this folder>")') -> str:
    """The run card, Markdown, of a run at the checkpoint that is exported.

    `checked` are sentences about its files; `loaded` is the expression that loads it.
    """
    config = trained.config
    scores = read_json(run / "result.json")
    episodes = 0
    score_table = ""
    if scores:
        episodes = next(iter(scores.values()))["episodes"]
        score_table = remove_paths(table(scores))
    notes = vision(config) + list(trained.mix.notes())
    text = Path(__file__).with_name("card.txt").read_text()
    template = jinja2.Template(text, trim_blocks=True, keep_trailing_newline=True)
    return template.render(
        config=config,
        step=trained.step,
        reward=remove_paths(trained.mix.describe()),
        command=shlex.join(settings(config)),
        notes=remove_paths(notes),
        actions=scores.get("this run", {}).get("actions"),
        scores=score_table,
        episodes=episodes,
        loaded=loaded,
        checked=checked,
        trained_with=_join_versions(read_json(run / "versions.json")),
        exported_with=_join_versions(checkpoint.versions()),
    )


def _join_versions(versions: Values) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def write_small(folder: Path, run: Path, trained: Trained, at: str = "") -> None:
    """A run's folder without what trained it: its configuration, scores, and a checkpoint of weights and rewards alone.

    Whatever reads a run's folder reads this one, but training cannot continue in it. It is of the run's newest
    checkpoint, or of another.
    """
    import yaml

    state, step = load_checkpoint(run, at)
    agent_state: Values = {}
    # An agent of the user's own may lack the method; then its module `policy` is what acts.
    paths = ["modules.policy"]
    if hasattr(trained.model, "weights"):
        paths = list(trained.model.weights())
    for path in paths:
        *parents, last = path.split(".")
        source = state["agent"]
        target = agent_state
        for parent in parents:
            source = source[parent]
            target = target.setdefault(parent, {})
        target[last] = source[last]
    checkpoint.save(folder / "checkpoints", {"agent": agent_state, "mix": state["mix"]}, step)

    config = to_dict(trained.config)
    for key in PLACE_SETTINGS:
        config.pop(key, None)
    # Through JSON, which turns tuples into the lists that safe YAML can write.
    plain = json.loads(json.dumps(remove_paths(config)))
    (folder / "config.yaml").write_text(yaml.safe_dump(plain, sort_keys=False))
    (folder / STATUS).write_text(json.dumps({"state": EXPORTED, "step": step}) + "\n")
    for name in ("versions.json", "result.json"):
        if contents := read_json(run / name):
            checkpoint.write_json(folder / name, remove_paths(contents))
