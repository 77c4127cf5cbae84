"""What is known of a family so far: runs are trained once, and played once on every task, whoever asks for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from runners.run.checkpoint import write_atomically
from runners.sweep.drive import drive
from runners.sweep.job import Launcher
from runners.sweep.job_log import Ledger
from runners.transfer.family import Family

PLAYED = "transfer.json"  # in a run's folder: what its policy earned on every task


class Trained:
    """Source -> the returns of its policies on all tasks; what is missing is trained.

    Args:
        family: the tasks.
        ledger: of the family's folder.
        launcher: what runs the jobs.
    """

    def __init__(self, family: Family, ledger: Ledger, launcher: Launcher) -> None:
        self.family, self.ledger, self.launcher = family, ledger, launcher
        self.rows: dict[int, np.ndarray] = {}  # (seeds, N)

    def get(self, sources: list[int]) -> dict[int, np.ndarray]:
        """The returns of policies trained at some sources, mean over seeds, (N,) each; those that are new run at once.

        Raises:
            RuntimeError: if a run did not finish; the same command tries it again.
            Stopped: by a signal; the runs have saved.
        """
        new = [source for source in dict.fromkeys(sources) if source not in self.rows]
        seeds = range(self.family.seeds)
        jobs = [self.family.job(source, seed) for source in new for seed in seeds]
        entries = drive(jobs, self.ledger, self.launcher, resume="errored")
        for job in jobs:
            if not job.finished:
                error = entries[job.name].error or entries[job.name].state
                raise RuntimeError(f"{job.name} did not finish ({error}); the same command goes on with it")
        for source in new:
            self.rows[source] = np.array([played(self.family, self.family.job(source, seed).folder) for seed in seeds])
        return {source: self.rows[source].mean(axis=0) for source in sources}


def played(family: Family, run: Path) -> list[float]:
    """What the policy of a run earns on every task, without further training: mean over episodes, (N,)."""
    path, asked = run / PLAYED, {"tasks": [list(task) for task in family.tasks], "episodes": family.episodes}
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if {key: known.get(key) for key in asked} != asked:
        known = {**asked, "returns": _play(family, run)}
        write_atomically(path, json.dumps(known) + "\n")
    return known["returns"]


def _play(family: Family, run: Path) -> list[float]:
    from runners.evaluate import play, policy
    from runners.run.build import load_run

    config, model, mix, _ = load_run(run, trust=True)  # trained by this command, a moment ago
    found = []
    for task in range(len(family.tasks)):
        scores = play(
            config.env,
            policy(model, config.env),
            family.episodes,
            max_steps=int(config.eval_steps),
            max_episode_steps=config.max_episode_steps,
            options={**config.env_options, **family.options(task)},
            mix=mix,
        )
        found.append(float(np.mean(scores.returns)))
    mix.close()
    return found
