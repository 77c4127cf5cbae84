"""ExIt: episodes of training begin where returns differ most, in states that the agent itself came through.

    p(start) = 0.9 s / sum s + 0.1 / n,   s = the deviation of the newest returns seen from the start

A start that always succeeds, or never, teaches nothing; one whose returns differ is at the edge of what the agent can
do. An episode leaves one of its states, drawn evenly, with the return that followed it; what was tried less than twice
counts as the most informative. When the collection is full, the least informative makes room, and only every eighth
episode leaves a state, so that each is tried about four times.

Source: Jiang et al. 2025 (ExIt), arXiv 2509.04575: partial histories of a language model as new tasks, by the variance
of their group's returns; here simulators' states and single episodes, a collection for each of N environments.
`Branches` is for judges that compare two continuations (`reward.bradley_terry.pairs=branches`): each of its starts is
used twice in a row.
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
from envs.snapshots.snapshots import State, get_state, refuse_unsupported
from envs.types import EnvReset, EnvStep, Options, StateDict

BY = ("variance", "uniform", "clusters")
BRANCHES = "branches"
# States in the collection, and the newest returns that are kept of each.
MAX_POOL_STATES = 64
MEMORY = 8
# Clusters of `by="clusters"`.
CLUSTERS = 6
# The share of the episodes that begin in a state of the collection.
RESET_SHARE = 0.5
# The share of the episodes that leave a state, once the collection is full.
LEAVES = RESET_SHARE / 4
# The share of the choices that are uniform.
EVENLY = 0.1


def add_starts(env: gym.Env, starts: str) -> gym.Env:
    """The environment with other starts: a `StartCurriculum` by one of `BY`, `Branches`, or S3RL from FILE.

    A file may be followed by arguments of `SnapshotReset`: clusters, until (steps of one environment), truncate.
    """
    if starts == BRANCHES:
        return Branches(env)
    if starts in BY:
        return StartCurriculum(env, starts)
    path, *options = starts.split(":")
    arguments: dict[str, int] = {}
    for option in options:
        if not re.fullmatch(r"(clusters|until|truncate)=\d+", option):
            raise ValueError(
                f"starts={path}:{option} is unknown; give clusters=, until= or truncate= with a whole number"
            )
        name, value = option.split("=")
        arguments[name] = int(value)
    try:
        return SnapshotReset(env, Snapshots.load(path), **arguments)
    except OSError as error:
        raise ValueError(
            f"starts={path} is no file ({error.strerror}); give {', '.join([*BY, BRANCHES])}, or a file of snapshots"
        ) from None


class StartCurriculum(SnapshotReset):
    """Half of all resets, `RESET_SHARE`, lead into states that the agent came through.

    Everything random is drawn from `np_random`.
    """

    STATE = (*SnapshotReset.STATE, "_pool", "_chosen", "_found")

    def __init__(self, env: gym.Env, by: str = "variance") -> None:
        gym.Wrapper.__init__(self, env)
        refuse_unsupported(env)
        self.by = by
        self.truncate = sys.maxsize
        self._start = time.perf_counter()
        # Dicts of state, obs and returns, the oldest first.
        self._pool: list[StateDict] = []
        # Where in the pool the running episode began; -1 if elsewhere.
        self._chosen = -1
        # The state that it leaves, and the return before it.
        self._found: StateDict | None = None

    def reset(self, *, seed: int | None = None, options: Options | None = None) -> EnvReset:
        self._chosen = -1
        self._found = None
        answer = super().reset(seed=seed, options=options)
        # MiniGrid counts the steps of an episode itself.
        if self._borrowed and "step_count" in vars(self.unwrapped):
            cast(Any, self.unwrapped).step_count = 0
        return answer

    def _choose_state(self) -> State | None:
        if not self._pool or self.np_random.random() >= RESET_SHARE:
            return None
        self._chosen = self._choose()
        return self._pool[self._chosen]["state"]

    def step(self, action: Any) -> EnvStep:
        obs, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            self._update_pool()
        elif self.np_random.random() * self._age < 1:
            # Reservoir sampling: each state of the episode is kept with the same probability.
            flat_obs = spaces.flatten(self.env.observation_space, obs)
            flat_obs = np.asarray(flat_obs, np.float32)
            self._found = {"state": get_state(self.env), "obs": flat_obs, "before": self._return}
        return obs, reward, terminated, truncated, info

    def _chances(self) -> np.ndarray:
        return chances([entry["returns"] for entry in self._pool])

    def _choose(self) -> int:
        """The place in the pool where an episode begins."""
        count = len(self._pool)
        if self.by == "variance":
            return int(self.np_random.choice(count, p=self._chances()))
        if self.by == "clusters":
            states = Snapshots([], np.stack([entry["obs"] for entry in self._pool]))
            clusters = states.clusters(min(CLUSTERS, count))
            members = clusters[self.np_random.integers(len(clusters))]
            return int(members[self.np_random.integers(len(members))])
        return int(self.np_random.integers(count))

    def _update_pool(self) -> None:
        """An episode has ended: keep its return at the state where it began, and one of its states in the pool."""
        if self._chosen >= 0:
            start = self._pool[self._chosen]
            start["returns"] = [*start["returns"], self._return][-MEMORY:]
        is_full = len(self._pool) == MAX_POOL_STATES
        if self._found is None or (is_full and self.np_random.random() >= LEAVES):
            return
        if is_full:
            least_informative = int(self._chances().argmin())
            del self._pool[least_informative if self.by == "variance" else 0]
        return_after = self._return - self._found["before"]
        self._pool.append({"state": self._found["state"], "obs": self._found["obs"], "returns": [return_after]})
        self._found = None


class Branches(StartCurriculum):
    """Of the states that the agent came through, each that is chosen begins two episodes in a row."""

    STATE = (*StartCurriculum.STATE, "_twin_start")

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env, "uniform")
        # Where the next episode begins, as the one before did.
        self._twin_start: State | None = None

    def _choose_state(self) -> State | None:
        state = self._twin_start
        if state is not None:
            self._twin_start = None
            return state
        self._twin_start = super()._choose_state()
        return self._twin_start


def chances(returns: Sequence[Sequence[float]]) -> np.ndarray:
    """The probability of each start (n,), from the newest returns seen from it.

    Example:
        >>> chances([[0, 1], [1, 1], [0, 0], [1]]).round(3).tolist()
        [0.475, 0.025, 0.025, 0.475]
    """
    score = np.full(len(returns), np.nan)
    for start, seen in enumerate(returns):
        if len(seen) > 1:
            score[start] = np.std(seen)
    # What was tried less than twice counts as the most informative.
    is_tried = ~np.isnan(score)
    highest = score[is_tried].max(initial=0.0)
    score[~is_tried] = highest if highest > 0 else 1.0
    even = np.full(len(score), 1 / len(score))
    if score.sum() <= 0:
        return even
    return (1 - EVENLY) * score / score.sum() + EVENLY * even
