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

from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from lodestar.state import Stateful
from rewards.vision.latent import Latent, LatentConfig

# States (M, D), return, last reward, and whether it terminated.
FinishedEpisode = tuple[np.ndarray, float, float, bool]

KMEANS_ROUNDS = 10
# How many states are kept of a success, at even places of its way.
STATES_PER_SUCCESS = 64
# A number of the state whose standard deviation is not above this counts as constant.
MIN_SPREAD = 1e-6


@dataclass
class SelfReferenceConfig(LatentConfig):
    """Settings of `self_reference`."""

    threshold: float | None = setting(None, "return of a success; null: its last reward is positive", "finite")
    successes: int = setting(16, "latest successful episodes that are kept", ">= 1")
    centres: int = setting(64, "of their states", ">= 1")
    width: float = setting(0.5, "distance, in deviations of the successes, where progress counts for 0.61", "> 0")
    longest: int = setting(
        1000, "states of a running episode that are remembered; what came before is left out", ">= 1"
    )


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
        # Successes so far, and the states (successes, STATES_PER_SUCCESS, D) of the latest ones in a ring.
        self.found = 0
        self.ways = np.zeros((self.config.successes, STATES_PER_SUCCESS, self.size), np.float32)
        self._fit_centres()

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        if not self.found:
            return np.zeros(batch.shape, np.float32)
        z = self.states(batch) / self.spread
        # |z - c|^2 expanded, (N, K), finds the nearest centre without an (N, K, D) array.
        z_squared = np.square(z).sum(1, keepdims=True)
        centres_squared = np.square(self.centres).sum(1)
        square_distances = z_squared - 2 * z @ self.centres.T + centres_squared
        nearest = square_distances.argmin(axis=1)
        # The distance itself is taken again from the difference: the expansion rounds small ones away.
        distance = np.square(z - self.centres[nearest]).sum(1) / self.vary
        closeness = np.exp(-distance / (2 * self.config.width**2))
        return (self.progress[nearest] * closeness).astype(np.float32)

    def update(self, batch: Transitions) -> dict[str, float]:
        """Keep the episodes that ended well; a flat batch (N,) is one step of N environments."""
        if len(batch.shape) == 1:
            batch = batch[None]
        if not batch.valid.any():
            return {}
        threshold = self.config.threshold
        ended = self.running.take_finished_episodes(batch, self.states(batch))
        successes = 0
        for way, total, last_reward, terminated in ended:
            if threshold is None:
                succeeded = terminated and last_reward > 0
            else:
                succeeded = total > threshold
            if succeeded:
                self.ways[self.found % len(self.ways)] = even_states(way)
                self.found += 1
                successes += 1
        if successes:
            self._fit_centres()
        metrics = {"successes": float(self.found)}
        if ended:
            metrics["success"] = successes / len(ended)
        return metrics

    def _fit_centres(self) -> None:
        """The centres, their progress and the scale of the states, from the successes that are kept."""
        states = np.zeros((1, self.size), np.float32)
        if self.found:
            states = self.ways[: self.found].reshape(-1, self.size)
        spread = states.std(0, dtype=np.float64)
        varies = spread > MIN_SPREAD
        self.spread = np.where(varies, spread, 1).astype(np.float32)
        # D of the class's docstring: two of these states are about 2 D apart, squared.
        self.vary = max(int(varies.sum()), 1)
        shares = np.linspace(0, 1, STATES_PER_SUCCESS, dtype=np.float32)
        progress = np.resize(shares, len(states))
        self.centres, self.progress = k_means(states / self.spread, progress, self.config.centres)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._fit_centres()


class RunningEpisodes(Stateful):
    """The episodes that are under way: their latest states, and their returns so far."""

    saved = ("states", "returns")

    def __init__(self, longest: int, size: int) -> None:
        self.longest = longest
        # (L, N, D), the newest last, and (N,).
        self.states = np.zeros((0, 0, size), np.float32)
        self.returns = np.zeros(0)

    def take_finished_episodes(self, batch: Transitions, states: np.ndarray) -> list[FinishedEpisode]:
        """Take in a rollout (T, N), whose rows follow the last call's, and the states (T, N, D) that it led to.

        Returns states (M, D), return, last reward and termination of each episode that ends there.
        """
        envs = batch.shape[1]
        if len(self.returns) != envs:
            self.states = np.zeros((0, *states.shape[1:]), np.float32)
            self.returns = np.zeros(envs)
        # Row t of the rollout is row offset + t of the states.
        offset = len(self.states)
        states = np.where(batch.valid[..., None], states, np.float32(0))
        states = np.concatenate([self.states, states])
        # The sum of each column's rewards before each row, (T + 1, N), across the ends of episodes.
        total = np.zeros((len(batch.reward) + 1, envs))
        np.cumsum(np.where(batch.valid, batch.reward, 0), axis=0, out=total[1:])
        total += self.returns
        # The part of that sum which earlier episodes of a column earned.
        earlier = np.zeros(envs)
        episodes = []
        for t, n in np.argwhere(batch.ended):
            # A row that is not valid is one in which the environment was lost: its episode has no end.
            if batch.valid[t, n]:
                first = max(offset + t - int(batch.step[t, n]), 0)
                way = states[first : offset + t + 1, n]
                episode_return = float(total[t + 1, n] - earlier[n])
                last_reward = float(batch.reward[t, n])
                episodes.append((way, episode_return, last_reward, bool(batch.terminated[t, n])))
            earlier[n] = total[t + 1, n]
        self.returns = total[-1] - earlier
        self.states = states[-self.longest :].copy()
        return episodes


def even_states(way: np.ndarray, count: int = STATES_PER_SUCCESS) -> np.ndarray:
    """`count` states at even places of a way (M, D), its first and last among them, (count, D)."""
    places = np.linspace(0, len(way) - 1, count).round()
    return way[places.astype(np.int64)]


def k_means(states: np.ndarray, progress: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """K-means of states (M, D) from a start that is spread evenly over their progress (M,): centres (K, D) and the mean
    progress of the states that each gathers (K,), K at most `count` and M.
    """
    order = np.argsort(progress, kind="stable")
    centres = even_states(states[order], min(count, len(states))).astype(np.float64)
    for _ in range(KMEANS_ROUNDS):
        # |s - c|^2 (M, K) less |s|^2, which does not change the nearest centre.
        distance = np.square(centres).sum(1) - 2 * states @ centres.T
        nearest = distance.argmin(axis=1)
        member = (nearest == np.arange(len(centres))[:, None]).astype(np.float64)
        # Centres that no state is nearest to are dropped.
        size = member.sum(1)
        member = member[size > 0]
        size = size[size > 0]
        centres = member @ states / size[:, None]
    mean_progress = member @ progress / size
    return centres.astype(np.float32), mean_progress.astype(np.float32)
