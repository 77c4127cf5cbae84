"""ExIt: episodes of training begin where returns differ most, in states that the agent itself came through.

    p(start) = 0.9 s / sum s + 0.1 / n,   s = the deviation of the newest returns seen from the start

A start that always succeeds, or never, teaches nothing; one whose returns differ is at the edge of what the agent can
do. An episode leaves one of its states, drawn evenly, with the return that followed it; what was tried less than twice
counts as the most informative. When the collection is full, the least informative makes room, and only every eighth
episode leaves a state, so that each is tried about four times.

Source: Jiang et al. 2025 (ExIt), arXiv 2509.04575: partial histories of a language model as new tasks, by the variance
of their group's returns; here simulators' states and single episodes, a collection for each of N environments.
Controls, `by`: `uniform`, any state of the collection; `clusters`, evenly over clusters of what was observed in them,
as S3RL does with a teacher's states (`envs.snapshots.s3rl`).
When it fails: rewards so rare that all returns are 0, which makes it uniform; returns that differ by chance alone.

Example:
    python -m runners.train env=MountainCar-v0 starts=variance
"""

import re
import sys
import time
from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.snapshots.s3rl import SnapshotReset, Snapshots
from envs.snapshots.snapshots import State, get_state, supported
from envs.types import EnvReset, EnvStep

BY = ("variance", "uniform", "clusters")
CAPACITY, SHARE, MEMORY, CLUSTERS = 64, 0.5, 8, 6  # states; episodes that begin in one; returns kept of each; clusters
LEAVES = SHARE / 4  # share of the episodes that leave a state, once the collection is full
EVENLY = 0.1  # share of the choices that are uniform


def starting(env: gym.Env, starts: str) -> gym.Env:
    """The environment with other starts: a `StartCurriculum` by one of `BY`, or S3RL from FILE or FILE:clusters=1.

    A file may be followed by arguments of `SnapshotReset`: clusters, until (steps of one environment), truncate.
    """
    if starts in BY:
        return StartCurriculum(env, starts)
    path, *options = starts.split(":")
    if wrong := [option for option in options if not re.fullmatch(r"(clusters|until|truncate)=\d+", option)]:
        raise ValueError(
            f"starts={path}:{wrong[0]} is unknown; give clusters=, until= or truncate= with a whole number"
        )
    given = dict(option.split("=") for option in options)
    try:
        return SnapshotReset(env, Snapshots.load(path), **{name: int(value) for name, value in given.items()})
    except OSError as error:
        raise ValueError(
            f"starts={path} is no file ({error.strerror}); give {', '.join(BY)}, or a file of snapshots"
        ) from None


class StartCurriculum(SnapshotReset):
    """Half of all resets, `SHARE`, lead into states that the agent came through; all is drawn from `np_random`."""

    STATE = (*SnapshotReset.STATE, "_pool", "_chosen", "_found", "_moves", "_total")

    def __init__(self, env: gym.Env, by: str = "variance") -> None:
        gym.Wrapper.__init__(self, env)
        supported(env)
        self.by, self.truncate = by, sys.maxsize
        self.steps = 0
        self._start = time.perf_counter()
        self._pool: list[dict[str, Any]] = []  # state, obs, returns: the oldest first
        self._chosen = -1  # where the running episode began in the pool; -1: elsewhere
        self._found: dict[str, Any] | None = None  # the state that it leaves, and the return before it
        self._borrowed, self._age, self._return, self._moves, self._total = False, 0, 0.0, 0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        self._moves, self._total, self._chosen, self._found = 0, 0.0, -1, None
        answer = super().reset(seed=seed, options=options)
        if self._borrowed and "step_count" in vars(self.unwrapped):  # MiniGrid's own clock
            cast(Any, self.unwrapped).step_count = 0
        return answer

    def _chosen_state(self) -> State | None:
        if not self._pool or self.np_random.random() >= SHARE:
            return None
        self._chosen = self._choose()
        return self._pool[self._chosen]["state"]

    def step(self, action: Any) -> EnvStep:
        obs, reward, terminated, truncated, info = super().step(action)
        self._moves += 1
        self._total += float(reward)
        if terminated or truncated:
            self._learn()
        elif self.np_random.random() * self._moves < 1:  # each state of the episode is kept with the same probability
            seen = np.asarray(spaces.flatten(self.env.observation_space, obs), np.float32)
            self._found = {"state": get_state(self.env), "obs": seen, "before": self._total}
        return obs, reward, terminated, truncated, info

    def _choose(self) -> int:
        count = len(self._pool)
        if self.by == "variance":
            return int(self.np_random.choice(count, p=chances([one["returns"] for one in self._pool])))
        if self.by == "clusters":
            states = Snapshots([], np.stack([one["obs"] for one in self._pool]))
            members = states.clusters(min(CLUSTERS, count))
            own = members[self.np_random.integers(len(members))]
            return int(own[self.np_random.integers(len(own))])
        return int(self.np_random.integers(count))

    def _learn(self) -> None:
        if self._chosen >= 0:
            one = self._pool[self._chosen]
            one["returns"] = [*one["returns"], self._total][-MEMORY:]
        full = len(self._pool) == CAPACITY
        if self._found is None or (full and self.np_random.random() >= LEAVES):
            return
        if full:
            p = chances([one["returns"] for one in self._pool])
            del self._pool[int(p.argmin()) if self.by == "variance" else 0]
        rest = self._total - self._found["before"]
        self._pool.append({"state": self._found["state"], "obs": self._found["obs"], "returns": [rest]})
        self._found = None


def chances(returns: Sequence[Sequence[float]]) -> np.ndarray:
    """The probability of each start (n,), from the newest returns seen from it.

    Example:
        >>> chances([[0, 1], [1, 1], [0, 0], [1]]).round(3).tolist()
        [0.475, 0.025, 0.025, 0.475]
    """
    score = np.array([np.std(each) if len(each) > 1 else np.nan for each in returns])
    tried = ~np.isnan(score)
    score[~tried] = score[tried].max() if tried.any() and score[tried].max() > 0 else 1.0
    even = np.full(len(score), 1 / len(score))
    return (1 - EVENLY) * score / score.sum() + EVENLY * even if score.sum() > 0 else even
