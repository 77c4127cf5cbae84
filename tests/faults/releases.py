"""Runs that earlier releases left after 32 of 64 steps, kept in `runs_of_releases`: this version continues them.

    python -m tests.faults releases

Each was begun by its release with the command below, stopped, and stripped of what a run can do without.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from runners.run import checkpoint
from runners.run.progress import read_csv
from runners.train import main
from tests.faults import Fault, Found
from tests.faults.child import run, warm
from tests.faults.phases import last

FOLDER = Path(__file__).with_name("runs_of_releases")
COMMAND = ["env=CartPole-v1", "reward=[task,rnd]", "reward.rnd.hidden=4", "reward.rnd.features=4", "n_envs=2"]
COMMAND += ["agent.n_steps=16", "agent.batch_size=16", "agent.n_epochs=1", "agent.net_arch=[4]", "device=cpu", "seed=3"]
COMMAND += ["total_timesteps=64", "checkpoint_every=32", "log_every=32", "eval_episodes=0", "video=false"]
COMMAND += ["control=none", "logger=[]"]
# Defaults that have changed since: the command has to name them.
NAMED = {"0.2.0": ["reward.rnd.episodic=true"], "0.3.0": ["reward.rnd.episodic=true"], "0.4.0": []}


def continue_run(release: str, folder: Path) -> str:
    """Continue a copy of a release's run; what is wrong, empty if it went on from its checkpoint to its end."""
    shutil.copytree(FOLDER / release, folder)
    arguments = [*COMMAND, *NAMED[release], f"run_dir={folder}"]
    code, printed = run(lambda: main(arguments), folder.with_suffix(".txt"))
    if code != 0:
        return f"it ended with code {code}: {last(printed)}"
    if "continues at step 32" not in printed:
        return "it did not go on from its checkpoint"
    if json.loads((folder / "status.json").read_text())["state"] != "finished":
        return "it is not finished"
    found = checkpoint.load(folder / "checkpoints")
    steps = [row["step"] for row in read_csv(folder / "metrics.csv")]
    if found is None or found[1] != 64 or steps != ["32", "64"]:
        return f"it has rows of the steps {', '.join(steps)}"
    code, printed = run(lambda: main(arguments), folder.with_suffix(".txt"))
    return "" if code == 0 and "is finished already" in printed else f"not known as finished: {last(printed)}"


def releases(folder: Path, quick: bool) -> Found:
    """Every release whose checkpoints this version reads."""
    warm()
    told = {release: continue_run(release, folder / f"run-{release}") for release in NAMED}
    wrong = [f"{release}: {words}" for release, words in told.items() if words]
    resumed = len(told) - len(wrong)
    words = "; ".join(wrong) or f"those of {', '.join(told)} went on from their checkpoints to their ends"
    return Found(len(told), len(wrong), {"resumed_releases": float(resumed)}, words)


FAULTS = [
    Fault(
        "releases",
        "a run of an earlier release is continued by this version",
        "The same command continues it; where a default has changed since, the sentence names the value to give.",
        releases,
    ),
]
