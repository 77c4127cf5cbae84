"""Does the effective horizon of a task say how many steps PPO and DQN need, and better than its rivals?

Thirty deterministic tasks of few states: mazes (benchmarks.worlds:MazeLevel-v0), their goal alone rewarded, with a hint
at every step, or with a decoy, and dives (lodestar/DeepSea-v0). Of each, read off its table of transitions: the
effective horizon by GORP (`agents.effective_horizon`), as T^2 A^H steps; the covering length, the steps after which
half of all runs of random play have tried every action of every state that can be reached; the effective planning
window, the least number of steps that a planner has to see to succeed. Beside them, for PPO and DQN, the steps after
which eight of the last ten episodes succeeded, the median of the seeds; a run that never got there counts as longest.
Source: Laidlaw, Russell & Dragan 2023, arXiv 2304.09853, section 6, with 155 tasks of Atari, Procgen and MiniGrid.

Verdict, written before the first whole run: shown if over tasks the rank correlation of GORP's steps with those of PPO
and with those of DQN is at least 0.6, each above what either rival has; contradicted if the covering length correlates
better with both. The interval is that of tasks drawn with replacement.
"""

from __future__ import annotations

import copy
import math
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks import results

SEEDS, LIMIT = 5, 20_000
LAST, ENOUGH = 10, 0.8
RIVALS = ("horizon", "covering", "window")
LEVELS = {"sparse": ((3, 4, 5, 6), (0, 1, 2)), "hint": ((4, 5, 6), (0, 1)), "decoy": ((3, 4, 5), (0, 1))}
TASKS: dict[str, dict[str, Any]] = {
    f"{kind}{size}.{level}": {"env": "benchmarks.worlds:MazeLevel-v0", "size": size, "level": level, "kind": kind}
    for kind, (sizes, levels) in LEVELS.items()
    for size in sizes
    for level in levels
} | {f"deepsea{size}": {"env": "lodestar/DeepSea-v0", "size": size} for size in (3, 4, 5, 6, 7, 8)}
AGENTS = {
    "ppo": ("agent=ppo", "n_envs=8", "agent.n_steps=32", "agent.batch_size=64", "agent.n_epochs=4",
            "agent.learning_rate=1e-3", "agent.entropy_weight=0.01"),
    "dqn": ("agent=dqn", "n_envs=1", "agent.learning_rate=1e-3", "agent.learning_starts=200",
            "agent.target_update_interval=500", "agent.train_freq=2", "agent.batch_size=64"),
}  # fmt: skip


class Table:
    """All transitions of a small deterministic task, and its futures side by side, as `envs.clones`."""

    def __init__(self, env: str, **options: Any) -> None:
        from envs.make import make

        made: Any = make(env, **options)
        self.env_id, self.max_steps, self.action_space = (
            env,
            int(made.spec.max_episode_steps or options["size"]),
            made.action_space,
        )
        actions = int(made.action_space.n)
        obs, _ = made.reset(seed=0)
        states, number = [copy.deepcopy(made.unwrapped)], {obs.tobytes(): 0}
        self.next: list[list[int]] = []
        rows: list[list[tuple[float, bool, bool]]] = []
        for state in states:  # grows while new states are found
            self.next.append([])
            rows.append([])
            for action in range(actions):
                world: Any = copy.deepcopy(state)
                obs, reward, ended, cut, _ = world.step(action)
                key = obs.tobytes()
                if key not in number and not (ended or cut):
                    number[key] = len(states)
                    states.append(world)
                self.next[-1].append(number.get(key, 0))
                rows[-1].append((float(reward), ended or cut, float(reward) > 0.5))
        self.ways = np.array(self.next)
        self.reward, ends, succeeds = (np.array(x) for x in np.moveaxis(np.array(rows, float), 2, 0))
        self.ends, self.succeeds = ends > 0, succeeds > 0

    def rows(self, horizon: int) -> int:
        return 1 << 14

    def start(self, seed: int) -> Any:
        return SimpleNamespace(state=0, step=0, ended=False, success=False)

    def play(self, place: Any, actions: np.ndarray) -> Any:
        """Rewards of N futures (H, N), and which of their steps come before the end."""
        state, alive = np.full(actions.shape[1], place.state), np.ones(actions.shape[1], bool)
        reward, valid = np.zeros(actions.shape, np.float32), np.zeros(actions.shape, bool)
        for step, action in enumerate(actions):
            valid[step] = alive
            reward[step] = self.reward[state, action] * alive
            alive, state = alive & ~self.ends[state, action], self.ways[state, action]
            if not alive.any():
                break
        return SimpleNamespace(reward=reward, valid=valid, shape=reward.shape)

    def step_from(self, place: Any, action: int) -> tuple[Any, Any]:
        s, one = place.state, np.array([[action]])
        step = place.step + 1
        ended = bool(self.ends[s, action]) or step >= self.max_steps
        found = SimpleNamespace(
            state=int(self.ways[s, action]), step=step, ended=ended, success=bool(self.succeeds[s, action])
        )
        return found, self.play(place, one)


def horizon(table: Table) -> float:
    """T^2 A^H, the steps of GORP; infinite if no look-ahead of ours solves the task."""
    from agents.effective_horizon import effective_horizon

    found = effective_horizon(table, k_max=4, m_max=4**6, step=2, budget=50_000_000)  # type: ignore[arg-type]
    return float(table.max_steps**2 * len(table.reward[0]) ** found.value)


def covering(table: Table, runs: int = 64, longest: int = 200_000) -> float:
    """Steps of random play until half of all runs have tried everything."""
    rng, (states, actions) = np.random.default_rng(0), table.reward.shape
    tried = np.zeros((runs, states, actions), bool)
    state, left, needed = np.zeros(runs, int), np.full(runs, table.max_steps), np.full(runs, np.inf)
    each, count = np.arange(runs), np.zeros(runs, int)
    for step in range(1, longest):
        action = rng.integers(actions, size=runs)
        new = ~tried[each, state, action]
        tried[each, state, action] = True
        count += new
        needed[(count == states * actions) & np.isinf(needed)] = step
        if np.isfinite(needed).mean() > 0.5:
            break
        left -= 1
        over = table.ends[state, action] | (left == 0)
        state = np.where(over, 0, table.ways[state, action])
        left = np.where(over, table.max_steps, left)
    return float(np.median(np.where(np.isinf(needed), longest, needed)))


def window(table: Table) -> float:
    """The least number of steps that a planner who repeats its plan at every step must see."""
    value = np.zeros(len(table.ways))
    for seen in range(1, table.max_steps + 1):
        q = table.reward + np.where(table.ends, 0, 0.999 * value[table.ways])  # sooner is better
        value = q.max(1)
        state = 0
        for _ in range(table.max_steps):  # of equally good actions one that leads nowhere: a tie is no plan
            best = np.flatnonzero(q[state] >= q[state].max() - 1e-9)
            action = int(next((a for a in best if table.ways[state, a] == state), best[0]))
            if table.ends[state, action]:
                break
            state = int(table.ways[state, action])
        if table.succeeds[state, action]:
            return float(seen)
    return math.inf


class Until(BaseCallback):
    """Stops once eight of the last ten episodes have succeeded."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[bool] = []
        self.solved = math.inf

    def _on_step(self) -> bool:
        for reward, done in zip(self.locals["rewards"], self.locals["dones"]):  # the goal's is the only one above 0.5
            self.found += [float(reward) > 0.5] * bool(done)
        if len(self.found) >= LAST and np.mean(self.found[-LAST:]) >= ENOUGH:
            self.solved = self.num_timesteps
        return math.isinf(self.solved)


def learn(agent: str, seed: int, env: str, **options: Any) -> float:
    """Steps to solve a task; infinite if LIMIT were not enough."""
    from runners.cli.compose import compose
    from runners.run.build import build

    given = [f"env={env}", *(f"env.{key}={value}" for key, value in options.items()), *AGENTS[agent]]
    parts = build(compose([*given, "reward=task", "preset=none", f"total_timesteps={LIMIT}", f"seed={seed}"])[0])
    until = Until()
    with closing(parts.venv):
        parts.model.learn(LIMIT, callback=until)
    return until.solved


def run(folder: Path) -> dict[str, float]:
    """Measure what has no row; correlations over tasks with their intervals."""
    path = folder / "horizon.csv"
    for seed in range(SEEDS):
        for task, keys in TASKS.items():
            if results.lacks_row(path, task=task, seed=seed):
                table = Table(**keys)
                known = {"horizon": horizon(table), "covering": covering(table), "window": window(table)}
                needed = {agent: learn(agent, seed, **keys) for agent in AGENTS}
                results.append_rows(path, [{"task": task, "seed": seed, **known, **needed}])
    return correlations(results.read_rows(path))


def correlations(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Rank correlation of each measure with the steps of each agent, and how many tasks an agent solved."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    names = (*RIVALS, *AGENTS)
    table = {n: np.array([np.median([float(r[n]) for r in rows if r["task"] == t]) for t in tasks]) for n in names}
    rng, found = np.random.default_rng(0), {}
    for agent in AGENTS:
        found[f"horizon_{agent}_solved"] = float(np.isfinite(table[agent]).mean())
        for name in RIVALS:
            key = f"horizon_{agent}_{name}"
            draws = [rng.integers(len(tasks), size=len(tasks)) for _ in range(1000)]
            found[key] = float(spearmanr(table[name], table[agent]).statistic)
            many = [float(spearmanr(table[name][d], table[agent][d]).statistic) for d in draws]
            found[f"{key}_low"], found[f"{key}_high"] = (float(x) for x in np.nanpercentile(many, [2.5, 97.5]))
    return found
