"""Figures of policies and rewards that were wrong: a closing table, an interval of few episodes, a distance.

epic_copy                EPIC distance of an exact copy of CliffWalking's reward to it, on its card
mfmc_coverage_n4         how often the interval of `estimator=mfmc` holds the mean (0.95 is right), of 4 whole
                         episodes and 400 cheap ones
doorkey_closing_success  success in the closing table of PPO's default command on MiniGrid-DoorKey-5x5-v0, which
                         ends after 60,000 steps here: training succeeds always from 35,000 on
doorkey_mode_success     that of the same policy by its most likely actions, which stood in the table before

The first two take seconds, the run a minute or two.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np

import rewards
from envs.make import make
from envs.transitions import Transitions
from rewards.base import Reward, RewardConfig
from runners.report.statistics import mfmc

TRIES = 4000
DEAR, CHEAP, MEAN = 4, 400, 2.3
ROWS = 2000
WIDTH = 12  # of CliffWalking's grid
RIGHT, DOWN = 1, 2
DOORKEY = ("env=MiniGrid-DoorKey-5x5-v0", "total_timesteps=60000", "video=false", "logger=[]")
ROOT = Path(__file__).resolve().parents[3]


def measure() -> dict[str, float]:
    """The figures by name."""
    return {"epic_copy": epic_copy(), "mfmc_coverage_n4": mfmc_coverage(), **doorkey_success()}


class CliffCopy(Reward):
    """CliffWalking's own reward, written down anew: -100 for a step over the edge, -1 for any other."""

    requires = frozenset({"obs", "action"})

    def score(self, batch: Transitions, memory: Any = None) -> Any:
        row, column = np.divmod(np.asarray(batch.obs), WIDTH)
        action = np.asarray(batch.action)
        above_cliff = (row == 2) & (column > 0) & (column < WIDTH - 1)
        beside_cliff = (row == 3) & (column < WIDTH - 2)
        falls = (above_cliff & (action == DOWN)) | (beside_cliff & (action == RIGHT))
        return np.where(falls, -100, -1).astype(np.float32)


def epic_copy() -> float:
    """The EPIC distance on the card of a copy of the task's reward."""
    from runners.compare.candidate import Candidate
    from runners.compare.card import card
    from runners.compare.sample import SampleSpec, load_or_take

    name = rewards.table.name_of(CliffCopy)
    spec = SampleSpec("CliffWalking-v1", frames=ROWS)
    env = make(spec.env)
    spaces = env.observation_space, env.action_space
    env.close()
    # The sample is kept below the working directory.
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        candidate = Candidate(name, RewardConfig(), spaces, spec, load_or_take(spec))
        made = card(candidate, None)
    return float(made["epic"]["distance"])


def mfmc_coverage() -> float:
    """The share of tries in which the interval holds the mean of correlated normal returns."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(TRIES):
        cheap = rng.normal(size=CHEAP)
        dear = MEAN + 2 * cheap[:DEAR] + rng.normal(size=DEAR)
        found = mfmc(dear.tolist(), cheap.tolist())
        covered += found.low <= MEAN <= found.high
    return covered / TRIES


def doorkey_success() -> dict[str, float]:
    """Success of PPO in the closing table, as it was trained and by its mode."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "runners.train", *DOORKEY, f"run_dir={folder}/run"]
        subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True)
        scores = json.loads((Path(folder) / "run" / "result.json").read_text())
    return {
        "doorkey_closing_success": scores["this run"]["success"],
        "doorkey_mode_success": scores["this run, mode"]["success"],
    }
