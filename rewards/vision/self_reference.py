"""Progress by the agent's own successes: the value of a state is the progress of successful episodes near it.

The latest episodes that succeeded are kept, each as a row of states at even places of its way; their states are
gathered into a few centres. A new state takes the progress of the nearest centre, less the farther away it is; that is
used as a potential. The reward is 0 before the first success.
Source: Fei, Wang, Ji, Li, Zhang, Liu, Hou, Gong, Zhao, Qiu 2025, SRPO: Self-Referential Policy Optimization for
Vision-Language-Action Models, arXiv 2511.15605.
Differences: the source gives one number to a failed episode, by the embedding of its whole video; ours rates each
state, of every episode, so that it can be a potential and leave the best policy as it is; successes outlive their
batch, because a rollout of a beginner holds none; a new success moves the potential, so an episode that lasts through
an update is rewarded by two of them; k-means instead of DBSCAN; observations or CLIP's embeddings instead of V-JEPA
2's.
Fails when: exploration never succeeds (it does not guide exploration); successes wander, or the states of success and
failure look alike; episodes are long and differ in length, since progress counts in shares of an episode.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from lodestar.state import Stateful
from rewards.vision.latent import Latent, LatentConfig

ROUNDS = 10  # of k-means
PLACES = 64  # states kept of a success


@dataclass
class SelfReferenceConfig(LatentConfig):
    """Settings of `self_reference`."""

    threshold: float | None = setting(None, "return of a success; null: its last reward is positive", low=-math.inf)
    successes: int = setting(16, "latest successful episodes that are kept", low=1)
    centres: int = setting(64, "of their states", low=1)
    width: float = setting(0.5, "distance, in deviations of the successes, where progress counts for 0.61", above=0)
    longest: int = setting(1000, "states of a running episode that are remembered; what came before is left out", low=1)


class SelfReference(Stateful, Latent):
    """phi(s) = p_j exp(-|s - c_j|^2 / (2 D width^2)), j the nearest centre, p_j its states' mean share of the way.

    States are divided by the standard deviations of the successes', of which D are not 0.
    """

    Config = SelfReferenceConfig
    config: SelfReferenceConfig
    saved = ("found", "ways", "running")

    def build(self) -> None:
        super().build()
        self.running = RunningEpisodes(self.config.longest, self.size)
        self.found = 0  # successes so far
        self.ways = np.zeros((self.config.successes, PLACES, self.size), np.float32)
        self._gather()

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        if not self.found:
            return np.zeros(batch.shape, np.float32)
        z = self.states(batch) / self.spread
        square = np.square(z).sum(1, keepdims=True) - 2 * z @ self.centres.T + np.square(self.centres).sum(1)
        nearest = square.argmin(axis=1)
        far = np.square(z - self.centres[nearest]).sum(1) / self.vary  # without what the expansion rounds away
        return (self.progress[nearest] * np.exp(-far / (2 * self.config.width**2))).astype(np.float32)

    def update(self, batch: Transitions) -> dict[str, float]:
        """Keep the episodes that ended well; a flat batch (N,) is one step of N environments."""
        if len(batch.shape) == 1:
            batch = batch.map(lambda x: x[None])
        if not batch.valid.any():
            return {}
        ended, threshold = self.running.ended(batch, self.states(batch)), self.config.threshold
        goal = [terminated and last > 0 for _, _, last, terminated in ended]
        good = goal if threshold is None else [total > threshold for _, total, _, _ in ended]
        successes = [way for (way, *_), succeeded in zip(ended, good) if succeeded]
        for way in successes:
            self.ways[self.found % len(self.ways)] = along(way)
            self.found += 1
        if successes:
            self._gather()
        return {"successes": float(self.found), **({"success": len(successes) / len(ended)} if ended else {})}

    def _gather(self) -> None:
        ways = self.ways[: min(self.found, len(self.ways))]
        states = ways.reshape(-1, self.size) if self.found else np.zeros((1, self.size), np.float32)
        spread = states.std(0, dtype=np.float64)
        self.spread = np.where(spread > 1e-6, spread, 1).astype(np.float32)
        self.vary = max(int((spread > 1e-6).sum()), 1)  # numbers; two of these states are about 2 * vary apart, squared
        progress = np.resize(np.linspace(0, 1, PLACES, dtype=np.float32), len(states))
        self.centres, self.progress = gather(states / self.spread, progress, self.config.centres)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._gather()


class RunningEpisodes(Stateful):
    """The episodes that are under way: their latest states, and their returns so far."""

    saved = ("states", "returns")

    def __init__(self, longest: int, size: int) -> None:
        self.longest = longest
        self.states = np.zeros((0, 0, size), np.float32)  # (L, N, D), the newest last
        self.returns = np.zeros(0)  # (N,)

    def ended(self, batch: Transitions, states: np.ndarray) -> list[tuple[np.ndarray, float, float, bool]]:
        """Take in a rollout (T, N), whose rows follow the last call's, and the states (T, N, D) that it led to.

        Returns states (M, D), return, last reward and termination of each episode that ends there.
        """
        envs = batch.shape[1]
        if len(self.returns) != envs:
            self.states, self.returns = np.zeros((0, *states.shape[1:]), np.float32), np.zeros(envs)
        kept = len(self.states)
        states = np.concatenate([self.states, np.where(batch.valid[..., None], states, np.float32(0))])
        total = np.zeros((len(batch.reward) + 1, envs))  # of each column up to a row
        np.cumsum(np.where(batch.valid, batch.reward, 0), axis=0, out=total[1:])
        total += self.returns
        before = np.zeros(envs)  # what earlier episodes of a column add to it
        found = []
        for t, n in np.argwhere(batch.ended):
            first = max(kept + t - int(batch.step[t, n]), 0)
            last = float(batch.reward[t, n]), bool(batch.terminated[t, n])
            if batch.valid[t, n]:  # no row in which it was lost
                found.append((states[first : kept + t + 1, n], float(total[t + 1, n] - before[n]), *last))
            before[n] = total[t + 1, n]
        self.returns = total[-1] - before
        self.states = states[-self.longest :].copy()
        return found


def along(way: np.ndarray) -> np.ndarray:
    """The states (PLACES, D) at even places of a way (M, D), its first and last among them."""
    return way[np.linspace(0, len(way) - 1, PLACES).round().astype(np.int64)]


def gather(states: np.ndarray, progress: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """K-means of states (M, D) from a start that is spread evenly over their progress (M,): centres (K, D) and the mean
    progress of the states that each gathers (K,), K at most `count` and M.
    """
    order = np.argsort(progress, kind="stable")
    places = np.linspace(0, len(states) - 1, min(count, len(states))).round().astype(np.int64)
    centres = states[order[places]].astype(np.float64)
    for _ in range(ROUNDS):
        square = np.square(centres).sum(1) - 2 * states @ centres.T
        member = np.zeros((len(centres), len(states)))
        member[square.argmin(axis=1), np.arange(len(states))] = 1
        size = member.sum(1)
        centres, size, member = centres[size > 0], size[size > 0], member[size > 0]
        centres = member @ states / size[:, None]
    return centres.astype(np.float32), (member @ progress / size).astype(np.float32)
