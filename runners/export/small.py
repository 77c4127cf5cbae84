"""A run's folder without what trained it: its configuration, its scores, and a checkpoint of weights and rewards alone.

Whatever reads a run's folder reads this one: `lodestar.load`, evaluate, watch, explain, export, `init_from=`. Training
cannot continue in it, as optimisers, replay and environments are not there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.files import read_json
from runners.export.card import scrubbed
from runners.run import checkpoint
from runners.run.build import load_checkpoint
from runners.run.config import to_dict
from runners.run.folder import EXPORTED, STATUS

if TYPE_CHECKING:
    from runners.run.build import Trained

PLACES = ("root", "run_dir", "resume", "init_from", "init")  # of the configuration, that say nothing elsewhere


def write_small(folder: Path, run: Path, trained: Trained, at: str = "") -> None:
    """Write into `folder` what acts of a run at its newest checkpoint, or at another; paths lose all but their name."""
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
