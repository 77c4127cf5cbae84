"""Policies of a family's tasks: each is trained once, and evaluated once on every task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from runners.run.checkpoint import write_atomically
from runners.sweep.drive import drive
from runners.sweep.job import Launcher
from runners.sweep.job_log import JobLog
from runners.transfer.config import TransferConfig

RETURNS = "transfer.json"  # in a run's folder: its policy's return on every task


class SourcePolicies:
    """Source -> the returns of its policies on all tasks; what is missing is trained.

    Args:
        config: with the tasks.
        log: of its folder.
        launcher: what runs the jobs.
    """

    def __init__(self, config: TransferConfig, log: JobLog, launcher: Launcher) -> None:
        self.config, self.log, self.launcher = config, log, launcher
        self.rows: dict[int, np.ndarray] = {}  # (seeds, N)

    def get(self, sources: list[int]) -> dict[int, np.ndarray]:
        """The returns of policies trained at some sources, mean over seeds, (N,) each; those that are new run at once.

        Raises:
            RuntimeError: if a run did not finish; the same command tries it again.
            Stopped: by a signal; the runs have saved.
        """
        new = [source for source in dict.fromkeys(sources) if source not in self.rows]
        seeds = range(self.config.seeds)
        jobs = [self.config.run(source, seed) for source in new for seed in seeds]
        entries = drive(jobs, self.log, self.launcher, resume="errored")
        for job in jobs:
            if not job.finished:
                error = entries[job.name].error or entries[job.name].state
                raise RuntimeError(f"{job.name} did not finish ({error}); the same command continues it")
        for source in new:
            self.rows[source] = np.array([returns(self.config, self.config.run(source, seed).folder) for seed in seeds])
        return {source: self.rows[source].mean(axis=0) for source in sources}


def returns(config: TransferConfig, run: Path) -> list[float]:
    """Return of a run's policy on every task, without further training: mean over episodes, (N,)."""
    path, asked = run / RETURNS, {"tasks": [list(task) for task in config.tasks], "episodes": config.episodes}
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if {key: known.get(key) for key in asked} != asked:
        known = {**asked, "returns": _evaluate(config, run)}
        write_atomically(path, json.dumps(known) + "\n")
    return known["returns"]


def _evaluate(config: TransferConfig, run: Path) -> list[float]:
    from runners.evaluate import play, policy
    from runners.run.build import load_run

    trained, model, mix, _ = load_run(run, trust=True)  # trained by this command, a moment ago
    found = []
    for task in range(len(config.tasks)):
        scores = play(
            trained.env,
            policy(model, trained.env),
            config.episodes,
            max_steps=int(trained.eval_steps),
            max_episode_steps=trained.max_episode_steps,
            options={**trained.env_options, **config.options(task)},
            mix=mix,
        )
        found.append(float(np.mean(scores.returns)))
    mix.close()
    return found
