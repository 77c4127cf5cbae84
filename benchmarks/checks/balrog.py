"""BALROG's progression of the shipped NetHack agent and of random play, in percent.

    python -m benchmarks balrog

Both play the same seeds of lodestar/NetHackScore-v0, 5,000 steps at most; BALROG's leaderboard has
other games and another limit (`envs.nethack.progression`), so its figures stand beside ours, no more.
"""

from __future__ import annotations

from pathlib import Path

import lodestar as ld
from benchmarks.house import ROOT
from runners.evaluation.play import play, policy

ENV = "lodestar/NetHackScore-v0"
AGENT = ROOT / "assets" / "agents" / "nethack-score"
GAMES = 20
MAX_STEPS = 10**7


def run(folder: Path) -> dict[str, float]:
    """Mean progression and deepest level over GAMES games of either."""
    del folder
    trained = ld.load(AGENT)
    act = policy(trained.policy, trained.config, seed=0)
    figures = {}
    for suffix, chooses in (("", act), ("_random", None)):
        metrics = play(ENV, chooses, GAMES, max_steps=MAX_STEPS).metrics
        figures[f"balrog_progression{suffix}"] = metrics["BALROG progression, %"]
        figures[f"balrog_depth{suffix}"] = metrics["depth"]
    return figures
