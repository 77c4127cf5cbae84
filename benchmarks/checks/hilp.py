"""One policy for every goal, learned from aimless walks: does it reach goals that it was never trained for?

A point moves by half a cell in one of four directions (and 0.05 of noise) in two rooms, joined by a corridor at one
end; 600 recorded walks of 50 steps, each action kept on with chance 1/2, never look for anything. A seed draws the
walks, the networks and 200 pairs of a start and a goal; a goal is reached within half a cell of it, in 100 steps. Arms:
hilp (phi of 5,000 minibatches, then the policy of 5,000); control, the same policy on a phi that was not learned (one
minibatch); gciql, goal-conditioned IQL, which knows in training what counts as reached; sf, successor features of
Laplacian features; cloning, goal-conditioned; random. Goals are prompts without a plan; `hilp_prompts` has both.

The policy's settings were chosen on seed 77, in longer corridors, with the exact distance as phi.
Verdict, written before the first run: shown if hilp_goal_success is above hilp_control_success beyond the interval
(five seeds); the other arms are shown beside it, whichever is better. rank is Spearman's correlation of distances in
phi with steps around the walls, line that of distances as the crow flies.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from agents.offline.hilp import HILP, HILPConfig, on_sphere
from agents.offline.iql import IQL
from benchmarks import results
from benchmarks.checks.exprd import MOVES
from envs.recording import episodes
from envs.transitions import Transitions
from rewards.compare import spearman
from rewards.demonstrations.hilp import LATER, Hilbert, HilpConfig
from rewards.exploration.learned import dense_layers
from runners.report.statistics import aggregate

ROOMS = (".......", ".......", "######.", "######.", "######.", ".......", ".......")
SEEDS, WALKS, LONG = 5, 600, 50
STEPS, PAIRS, TIME, NEAR = 5000, 200, 100, 0.5
FREE = np.array([[sign == "." for sign in row] for row in ROOMS])
SIDE = len(ROOMS)
CORNER = SIDE - 1
SPACES = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(4)
LEARN: dict[str, Any] = {"learning_rate": 1e-3, "tau": 0.01, "net_arch": [64, 64]}
SKILLS = {"gamma": 0.9, "expectile": 0.7, "beta": 3.0, "learning_rate": 3e-3}
ARMS = ("hilp", "control", "gciql", "sf", "cloning", "random")
Act = Callable[[np.ndarray, np.ndarray], np.ndarray]  # places and goals (M, 2) -> actions (M,)


def run(folder: Path) -> dict[str, float]:
    """Run the seeds that have no row; IQM over seeds and intervals."""
    path = folder / "hilp.csv"
    for seed in range(SEEDS):
        if results.lacks_row(path, seed=seed):
            results.append_rows(path, [{"seed": seed, **one(seed)}])
    rows, found = results.read_rows(path), dict[str, float]()
    names = {arm: f"hilp_{arm}_success" for arm in ARMS} | {"hilp": "hilp_goal_success"}
    names |= {"rank": "hilp_rank", "line": "hilp_line_rank"}
    for column, name in names.items():
        summed = aggregate([np.array([float(row[column]) for row in rows])])
        found |= {name: float(summed.value), f"{name}_low": float(summed.low), f"{name}_high": float(summed.high)}
    return found


def one(seed: int, steps: int = STEPS) -> dict[str, float]:
    """A row: the share of goals that each arm reaches, and how good distances are."""
    torch.set_num_threads(1)
    batch = walks(np.random.default_rng(seed))
    rng = np.random.default_rng(1000 + seed)
    starts, goals = anywhere(rng, PAIRS), anywhere(rng, PAIRS)
    found: dict[str, float] = {}
    for arm, learned in (("hilp", steps), ("control", 1)):
        config = HilpConfig(steps=learned, follow=0.05)
        hilbert = Hilbert.from_episodes(batch.obs, batch.next_obs, episodes(batch), config, seed, "cpu")
        model = HILP(HILPConfig(**LEARN | SKILLS), *SPACES, batch, hilbert.phi, seed=seed)
        model.learn(steps)
        found[arm] = reached(towards(model, hilbert.phi), starts, goals, seed)
        if arm == "hilp":
            found |= ranks(hilbert)
    for arm, beta in (("gciql", 3.0), ("cloning", 0.0)):
        control = ToGoals(HILPConfig(**LEARN, beta=beta, features=2), *SPACES, batch, lambda x: x, seed=seed)
        control.learn(steps)
        found[arm] = reached(towards(control), starts, goals, seed)
    found["sf"] = reached(successor_features(batch, seed, steps), starts, goals, seed)
    found["random"] = reached(lambda place, _: rng.integers(4, size=len(place)), starts, goals, seed)
    return {name: round(value, 4) for name, value in found.items()}


def walks(rng: np.random.Generator, free: np.ndarray = FREE) -> Transitions:
    """600 walks, one after the other; a reward of 1 in the last corner."""
    place, action = anywhere(rng, WALKS, free), rng.integers(4, size=WALKS)
    rows: list[tuple[np.ndarray, ...]] = []
    for time in range(LONG):
        action = np.where(rng.random(WALKS) < 0.5, action, rng.integers(4, size=WALKS))
        after = moved(place, action, rng, free)
        rows.append((seen(place), action, seen(after), (cell(after) == CORNER).all(axis=1), np.full(WALKS, time)))
        place = after
    obs, action, after, there, step = (np.stack(part, axis=1).reshape(WALKS * LONG, -1) for part in zip(*rows))
    ends, one_of = step[:, 0] == LONG - 1, step[:, 0]
    reward = there[:, 0].astype(np.float32)
    return Transitions(obs, action[:, 0], reward, after, np.zeros_like(ends), ends, np.ones_like(ends), one_of)


def anywhere(rng: np.random.Generator, count: int, free: np.ndarray = FREE) -> np.ndarray:
    """Places (count, 2), in cells, evenly."""
    tries = rng.uniform(0, SIDE, (4 * count, 2))
    return tries[free[tuple(cell(tries).T)]][:count]


def cell(place: np.ndarray) -> np.ndarray:
    """The cells (M, 2) of places (M, 2)."""
    return place.astype(np.int64)


def seen(place: np.ndarray) -> np.ndarray:
    """Observations float32 (M, 2), in [-1, 1], of places (M, 2)."""
    return (2 * place / SIDE - 1).astype(np.float32)


def moved(place: np.ndarray, action: np.ndarray, rng: np.random.Generator, free: np.ndarray = FREE) -> np.ndarray:
    """Places after a step; who would enter a wall stays."""
    tried = place + 0.5 * np.array(MOVES)[action] + 0.05 * rng.standard_normal(place.shape)
    tried = tried.clip(0, SIDE - 1e-6)
    return np.where(free[tuple(cell(tried).T)][:, None], tried, place)


def reached(act: Act, starts: np.ndarray, goals: np.ndarray, seed: int) -> float:
    """The share of goals that come within half a cell."""
    rng, place, there = np.random.default_rng(2000 + seed), starts, np.zeros(len(starts), bool)
    for _ in range(TIME):
        place = moved(place, act(seen(place), seen(goals)), rng)
        there |= np.linalg.norm(place - goals, axis=1) <= NEAR
    return float(there.mean())


def towards(model: HILP, phi: Callable[[np.ndarray], np.ndarray] | None = None) -> Act:
    """A policy with goals as its prompts: directions in phi, or what its observations look like."""

    def act(place: np.ndarray, goals: np.ndarray) -> np.ndarray:
        if phi is None:
            model.prompt = lambda _: ((torch.from_numpy(goals) - model.net.mean[:2]) / model.net.std[:2]).numpy()
        else:
            model.prompt = lambda x: on_sphere(torch.from_numpy(phi(goals) - phi(x))).numpy()
        return model.predict(place)[0]

    return act


def ranks(hilbert: Hilbert) -> dict[str, float]:
    """How distances between all cells order them as steps around the walls do."""
    cells = np.argwhere(FREE)
    steps = np.array([list(ways((y, x)).values()) for y, x in cells.tolist()])
    apart = np.linalg.norm(cells[:, None] - cells[None], axis=2)
    phi = hilbert.phi(seen(cells + 0.5))
    time = np.linalg.norm(phi[:, None] - phi[None], axis=2)
    pairs = np.triu_indices(len(cells), 1)
    return {"rank": spearman(time[pairs], steps[pairs]), "line": spearman(apart[pairs], steps[pairs])}


def ways(start: tuple[int, int]) -> dict[tuple[int, int], int]:
    """Steps from a cell to every cell, in the order of `np.argwhere`."""
    far, queue = {start: 0}, collections.deque([start])
    while queue:
        y, x = queue.popleft()
        for down, right in MOVES:
            after = (y + down, x + right)
            if min(after) >= 0 and max(after) < SIDE and FREE[after] and after not in far:
                far[after] = far[y, x] + 1
                queue.append(after)
    return dict(sorted(far.items()))


class ToGoals(HILP):
    """Goal-conditioned IQL: what stands beside the observation is a goal, and a step is -1 until it is near."""

    def learn(self, steps: int, begin: int = 0, total: int = 0) -> dict[str, float]:
        assert self._rows is not None
        width = self.encoding.obs_size
        for index in self._draw(steps):
            rows, chance = self._rows[index][:, :-4], torch.rand(3, len(index), generator=self._generator)
            ahead = (torch.log(chance[0]) / np.log(self.config.gamma)).long()  # geometric
            later = torch.minimum(index + ahead, index - index % LONG + LONG - 1)
            goal = self._rows[torch.where(chance[2] < LATER, later, (chance[1] * len(self._rows)).long())]
            rows[:, 2:width] = rows[:, width + 2 : 2 * width] = goal[:, width : width + 2]
            far = (self._rows[index][:, -2:] - goal[:, -2:]).norm(dim=1) > NEAR * 2 / SIDE
            rows[:, -2], rows[:, -1] = -far.float(), far.float()
            IQL._step(self, rows)
        return {}


def successor_features(batch: Transitions, seed: int, steps: int, size: int = 16) -> Act:
    """Successor features of Laplacian features, for every z; a goal is the z of its features."""
    draws = torch.Generator().manual_seed(seed)
    obs, after = torch.from_numpy(batch.obs), torch.from_numpy(batch.next_obs)
    action = torch.from_numpy(batch.action)
    phi = dense_layers(2, (128, 128, size), draws)
    optimizer = torch.optim.Adam(phi.parameters(), lr=1e-3)
    for _ in range(steps):  # neighbours alike, all others orthonormal
        one, two = torch.randint(len(obs), (2, 256), generator=draws)
        x, y, z = phi(obs[one]), phi(after[one]), phi(obs[two])
        apart = (x @ z.T).square().mean() - x.square().sum(1).mean() - z.square().sum(1).mean()
        optimizer.zero_grad()
        ((x - y).square().sum(1).mean() + 0.1 * apart).backward()
        optimizer.step()
    with torch.no_grad():
        features = phi(after)
        features /= features.square().mean().sqrt()
    net, target = (dense_layers(2 + size, (128, 128, 4 * size), torch.Generator().manual_seed(seed)) for _ in range(2))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(steps):
        row, other = torch.randint(len(obs), (2, 256), generator=draws)
        noise = torch.randn(256, size, generator=draws)
        z = on_sphere(torch.where(torch.rand(256, 1, generator=draws) < 0.5, noise, features[other]))
        with torch.no_grad():
            ahead = target(torch.cat([after[row], z], 1)).view(256, 4, size)
            best = (ahead * z[:, None]).sum(2).argmax(1)
            wanted = features[row] + 0.98 * ahead[torch.arange(256), best]
        guess = net(torch.cat([obs[row], z], 1)).view(256, 4, size)[torch.arange(256), action[row]]
        optimizer.zero_grad()
        (guess - wanted).square().sum(1).mean().backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(target.parameters(), net.parameters()):
                old.lerp_(new, 0.01)

    def act(place: np.ndarray, goals: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            z = on_sphere(phi(torch.from_numpy(goals)))
            ahead = net(torch.cat([torch.from_numpy(place), z], 1)).view(len(z), 4, size)
            return (ahead * z[:, None]).sum(2).argmax(1).numpy()

    return act
