"""New tasks with frozen weights: does a transformer of learning histories learn in its context?

Of `agents.offline.ad`. In bandits it imitates Thompson sampling on 300 bandits of ten arms, 200 pulls each, and plays
60 new ones: regret over 200 pulls, as a ratio to UCB1's on the same ones. In the dark room (`benchmarks.worlds`) it
imitates Q-learning: every fifth of the 100 episodes of 150 histories, whose goals are any of 38 cells. It then plays 40
tasks whose goals are the other ten: return of the first and the last of twenty episodes, and the gain between them.

    ad          as it is
    shuffled    room: the episodes of each history in random order
    mixed       room: each episode of a history is that of another history of the same age, so of another task
    untrained   no minibatch
    source      the algorithm that is imitated, for as long; ucb and random beside it

Its verdicts stand in effects.yaml and were written before the first run. Sizes and settings were chosen on seed 0:
ad had 0.77 of UCB1's regret, its source 0.36, uniform pulls 1.80; in the room ad went from 0.1 to 3.0, its source from
0.2 to 3.3, shuffled from 0.7 to 0.7, mixed from 0.2 to 0.7. The check has seeds 10 to 14. `agent.keep` is not in it.
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from agents.offline.ad import AD, ADConfig, Learner
from benchmarks import results
from benchmarks.worlds import BANDIT_ARMS, ROOM_SIDE
from envs.make import make, make_vec
from envs.recording import episodes, record
from envs.transitions import Transitions
from runners.evaluation.context import play_tasks
from runners.evaluation.play import SEED

SEEDS = range(10, 15)
BANDIT = "benchmarks.worlds:Bandit-v0"
ROOM = "benchmarks.worlds:DarkRoom-v0"
PULLS = 200
# Histories, and new tasks that are played.
BANDITS = 300
NEW_BANDITS = 60
ROOMS = 150
NEW_ROOMS = 40
# Steps of a history of the room, one of how many of its episodes is used, and episodes of the context.
ROOM_STEPS = 1000
EVERY = 5
ROOM_EPISODES = 20
# Minibatches.
STEPS = 500
ROOM_ACTIONS = 5
SETTINGS: dict[str, Any] = {"batch_size": 16}
ARMS = {
    "bandit": ("ad", "untrained", "source", "ucb", "random"),
    "room": ("ad", "shuffled", "mixed", "untrained", "source", "random"),
}


class Sums:
    """Pulls and sums of rewards of each arm of N bandits."""

    def __init__(self, tasks: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.rows = np.arange(tasks)
        self.pulls = np.zeros((tasks, BANDIT_ARMS))
        self.sums = np.zeros((tasks, BANDIT_ARMS))
        self.action: Any = None

    def __call__(self, obs: Any, begins: Any, reward: Any) -> np.ndarray:
        if self.action is not None:
            self.pulls[self.rows, self.action] += 1
            self.sums[self.rows, self.action] += reward
        self.action = self.indices().argmax(1)
        return self.action

    def indices(self) -> np.ndarray:
        """(N, A): the arm of the largest is pulled."""
        raise NotImplementedError


class UCB1(Sums):
    """Mean reward and sqrt(2 ln t / n); each arm once at first (Auer et al. 2002)."""

    def indices(self) -> np.ndarray:
        total = self.pulls.sum(1, keepdims=True).clip(1)
        count = self.pulls.clip(1)
        bound = self.sums / count + np.sqrt(2 * np.log(total) / count)
        return np.where(self.pulls > 0, bound, np.inf)


class Thompson(Sums):
    """A draw of the posterior Beta of each mean, from a uniform prior."""

    def indices(self) -> np.ndarray:
        return self.rng.beta(1 + self.sums, 1 + self.pulls - self.sums)


class Uniform(Sums):
    """Any arm, or action of the room."""

    def __call__(self, obs: Any, begins: Any, reward: Any) -> np.ndarray:
        actions = BANDIT_ARMS
        if obs.shape[1] > 1:
            actions = ROOM_ACTIONS
        return self.rng.integers(actions, size=len(self.rows))


class QLearning:
    """A table of Q that begins at 1, so that it tries everything; no other exploration, ties at random."""

    RATE = 0.6
    GAMMA = 0.9

    def __init__(self, tasks: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.rows = np.arange(tasks)
        self.q = np.ones((tasks, ROOM_SIDE, ROOM_SIDE, ROOM_ACTIONS))
        self.before: Any = None

    def __call__(self, obs: np.ndarray, begins: np.ndarray, reward: Any) -> np.ndarray:
        row = obs[:, :ROOM_SIDE].argmax(1)
        column = obs[:, ROOM_SIDE:].argmax(1)
        place = (self.rows, row, column)
        values = self.q[place]
        # The last observation of an episode is not seen here, so its step is not learned from.
        if self.before is not None and not begins.any():
            target = reward + self.GAMMA * values.max(1)
            self.q[self.before] += self.RATE * (target - self.q[self.before])
        ties = 1e-6 * self.rng.random(values.shape)
        action = (self.q[place] + ties).argmax(1)
        self.before = (*place, action)
        return action


class LastReward(VectorWrapper):
    """A vector that knows the rewards of its last step."""

    reward: Any = None

    def step(self, actions: Any) -> Any:
        step = self.env.step(actions)
        self.reward = np.array(step[1])
        return step


def histories(env_id: str, learner: Learner, tasks: int, steps: int, seed: int) -> Transitions:
    """What a learner does in so many steps of each task, with the task's number."""
    vector: VectorEnv = make_vec(env_id, tasks, seed=seed, backend="gym")
    with closing(LastReward(vector)) as envs:
        batch = record(envs, lambda obs, begins: learner(obs, begins, envs.reward), steps * tasks, seed)
    return batch.replace(extras={"task": np.repeat(np.arange(tasks), steps)})


def rearrange(batch: Transitions, arm: str, seed: int) -> Transitions:
    """The histories of the room as an arm learns from them."""
    if arm not in ("shuffled", "mixed"):
        return batch
    parts = np.array([np.r_[part] for part in episodes(batch)])
    # The rows of each task's episodes, (tasks, episodes, steps).
    rows = parts.reshape(len(np.unique(batch.extras["task"])), -1, parts.shape[1])
    keys = np.random.default_rng(seed).random(rows.shape[:2])
    axis = 1 if arm == "shuffled" else 0
    order = keys.argsort(axis)
    rows = np.take_along_axis(rows, order[..., None], axis)
    return batch[rows.ravel()].replace(extras=batch.extras)


def run(folder: Path) -> dict[str, float]:
    """Run the seeds that have no rows; figures are IQMs over five seeds."""
    path = folder / "in_context.csv"
    for seed in SEEDS:
        if results.lacks_row(path, seed=seed):
            results.append_rows(path, measure(seed))
    return figures(results.read_rows(path))


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Regret as a ratio to UCB1's, and returns of the room."""
    summaries: dict[str, float] = {}
    for arm in ARMS["bandit"]:
        summaries |= arm_summary(rows, "bandit", arm, "regret_ratio", f"{arm}_regret_ratio")
    for arm in ARMS["room"]:
        for column in ("first", "last", "gain"):
            summaries |= arm_summary(rows, "room", arm, column, f"{arm}_room_{column}")
    return summaries


def arm_summary(rows: list[dict[str, Any]], world: str, arm: str, column: str, key: str) -> dict[str, float]:
    """One figure with its interval."""
    own_rows = [row for row in rows if row["world"] == world and row["arm"] == arm]
    return results.summary(key, [float(row[column]) for row in own_rows])


def measure(seed: int) -> list[dict[str, Any]]:
    """The rows of all arms in both worlds."""
    bandits = histories(BANDIT, Thompson(BANDITS, seed), BANDITS, PULLS, 1000 * seed)
    rooms = histories(ROOM, QLearning(ROOMS, seed), ROOMS, ROOM_STEPS, 1000 * seed)
    ucb_regret = bandit_regret(UCB1(NEW_BANDITS, seed), seed)
    rows = []
    for arm in ARMS["bandit"]:
        began = time.process_time()
        regret = bandit_regret(bandit_learner(arm, bandits, seed), seed)
        row = {"regret_ratio": regret / ucb_regret, "first": "", "last": "", "gain": ""}
        rows.append({"seed": seed, "world": "bandit", "arm": arm, **row, "seconds": time.process_time() - began})
    for arm in ARMS["room"]:
        began = time.process_time()
        act = room_learner(arm, rooms, seed)
        by_episode = play_tasks(act, ROOM, NEW_ROOMS, ROOM_EPISODES, seed, {"held_out": True})
        first = float(np.mean(by_episode[0].returns))
        last = float(np.mean(by_episode[-1].returns))
        row = {"regret_ratio": "", "first": first, "last": last, "gain": last - first}
        rows.append({"seed": seed, "world": "room", "arm": arm, **row, "seconds": time.process_time() - began})
    return rows


def bandit_learner(arm: str, batch: Transitions, seed: int) -> Learner:
    """What plays new bandits in an arm."""
    if arm == "source":
        return Thompson(NEW_BANDITS, seed)
    if arm == "ucb":
        return UCB1(NEW_BANDITS, seed)
    if arm == "random":
        return Uniform(NEW_BANDITS, seed)
    return distil(arm, BANDIT, batch, ADConfig(**SETTINGS), seed)


def room_learner(arm: str, batch: Transitions, seed: int) -> Learner:
    """What plays new tasks of the room in an arm."""
    if arm == "source":
        return QLearning(NEW_ROOMS, seed)
    if arm == "random":
        return Uniform(NEW_ROOMS, seed)
    return distil(arm, ROOM, rearrange(batch, arm, seed), ADConfig(every=EVERY, **SETTINGS), seed)


def distil(arm: str, env_id: str, batch: Transitions, config: ADConfig, seed: int) -> Learner:
    """A transformer of the histories, or an untrained one."""
    with closing(make(env_id)) as env:
        model = AD(config, env.observation_space, env.action_space, batch, seed=seed)
    if arm != "untrained":
        model.learn(STEPS)
    return model.learner()


def bandit_regret(act: Learner, seed: int) -> float:
    """What the best arm would have been rewarded more over all pulls, a mean over new bandits."""
    bandit: Any = gym.make(BANDIT).unwrapped
    best = []
    for task in range(NEW_BANDITS):
        bandit.reset(seed=SEED + 1000 * seed + task)
        best.append(bandit.means.max())
    by_episode = play_tasks(act, BANDIT, NEW_BANDITS, PULLS, seed)
    rewarded = sum(np.mean(scores.returns) for scores in by_episode)
    return float(PULLS * np.mean(best) - rewarded)
