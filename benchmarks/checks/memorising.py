"""Does a factored model learn the rules of a maze, or the mazes? Its error in the levels it saw and in new ones.

Random play in ProcMaze and ButtonGrid of size 3, a new level in every episode, fits the model of the preset `factored`
once. Today's held-out rows are blocks of 20 in a row (rows), whose neighbours of the same level are fitted to; rows
ordered so that held-out blocks are whole episodes show what a split by episode would say (episodes). Each reports its
error on what it held out, and is asked about 2,000 steps in levels that neither met: the share of steps of which any
entry is predicted wrongly. `still` is that share where nothing ever changes.

Verdict, written before the first whole run: the model generalises if in new levels of both worlds at most 0.05 of the
steps are wrong; it memorises if in ProcMaze at least half as many are wrong as with `still`. The split leaks if the
reported error of `rows` is below the error in new levels beyond the intervals, and that of `episodes` is not.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import results
from runners.evaluation.play import interval
from runners.report.statistics import iqm

SEEDS = 5
STEPS, NEW = 10_000, 2_000
WORLDS = {"procmaze": "lodestar/ProcMaze-v0", "buttongrid": "lodestar/ButtonGrid-v0"}
ORDERS = ("rows", "episodes")
BLOCK, OF, HELD = 20, 10, 5  # as `agents.dynamics.ensemble.split` holds out at the first fit


def play(env_id: str, steps: int, seed: int) -> tuple[list[Tensor], np.ndarray, Any]:
    """Random play: obs, action, next_obs, reward, terminated, truncated; the episode of each row; the spaces."""
    from envs.make import make

    env: Any = make(env_id, size=3)
    env.action_space.seed(seed)
    rows, episode = [], np.zeros(steps, int)
    obs, _ = env.reset(seed=seed)
    for step in range(steps):
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, np.eye(env.action_space.n)[action], after, reward, terminated, truncated))
        episode[step + 1 :] += terminated or truncated
        obs = env.reset()[0] if terminated or truncated else after
    columns = [torch.from_numpy(np.stack([np.asarray(x, np.float32) for x in column])) for column in zip(*rows)]
    return columns, episode, env


def by_episode(episode: np.ndarray) -> np.ndarray:
    """Rows in an order whose held-out blocks are of episodes that no other row is of; what does not fit is left out."""
    held = episode % OF == HELD
    out, rest = np.flatnonzero(held), np.flatnonzero(~held)
    blocks = min(len(out) // BLOCK, len(rest) // (BLOCK * (OF - 1)))
    order = np.empty((blocks, OF, BLOCK), int)
    order[:, HELD] = out[: blocks * BLOCK].reshape(blocks, BLOCK)
    order[:, np.arange(OF) != HELD] = rest[: blocks * BLOCK * (OF - 1)].reshape(blocks, OF - 1, BLOCK)
    return order.ravel()


def measure(env_id: str, seed: int) -> dict[str, dict[str, float]]:
    """By order: the error that the fit reports, and the shares of wrong steps where it held out and in new levels."""
    from agents.dynamics.ensemble import EnsembleConfig, split
    from agents.dynamics.factored import Factored
    from agents.networks.actor_critic import SpaceEncoding

    columns, episode, env = play(env_id, STEPS, seed)
    new = play(env_id, NEW, 1_000_000 + seed)[0]
    found = {}
    for name in ORDERS:
        order = np.arange(STEPS) if name == "rows" else by_episode(episode)
        mine = [column[order] for column in columns]
        config = EnsembleConfig(members=1, hidden=[128, 128], terminations=True)
        model = Factored(SpaceEncoding(env.observation_space, env.action_space), config, seed=seed)
        fitted = model.fit(SimpleNamespace(arrays=lambda mine=mine: mine, added=len(order)))  # type: ignore[arg-type]
        places = split(len(order))[1]
        found[name] = {
            "error": fitted["model_error"],
            "steps": fitted["model_steps"],
            "held": wrong(model, *(column[places] for column in mine[:3])),
            "seen": wrong(model, *(column[split(len(order))[0]] for column in mine[:3])),
            "new": wrong(model, *new[:3]),
            "still": float((new[0] != new[2]).any(1).float().mean()),
        }
    return found


def wrong(model: Any, obs: Tensor, action: Tensor, next_obs: Tensor) -> float:
    """The share of steps of which any entry is predicted wrongly."""
    return float((model.step(obs, action, sample=False).next_obs != next_obs).any(1).float().mean())


def run(folder: Path) -> dict[str, float]:
    """Measure what has no row; IQM over seeds with intervals."""
    path = folder / "memorising.csv"
    for seed in range(SEEDS):
        for world, env_id in WORLDS.items():
            if results.lacks_row(path, world=world, seed=seed):
                found = measure(env_id, seed).items()
                results.append_rows(path, [{"world": world, "split": name, "seed": seed, **one} for name, one in found])
    figures: dict[str, float] = {}
    for world in WORLDS:
        for name in ORDERS:
            rows = [row for row in results.read_rows(path) if (row["world"], row["split"]) == (world, name)]
            for key in ("held", "seen", "new", "still"):
                values = [float(row[key]) for row in rows]
                low, high = np.clip(interval(values), 0, 1)
                whole = f"memorising_{world}_{name}_{key}"
                figures |= {whole: float(iqm(values)), f"{whole}_low": float(low), f"{whole}_high": float(high)}
    return figures
