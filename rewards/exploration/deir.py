"""DEIR: a bonus for observations unlike those of this episode, unless the trajectories differed as much.

A discriminator learns to tell true successors from false ones; its embedding keeps what a step determines about the
next. The distance of a new observation to each older one is divided by the distance between the trajectories that led
to the two, so that what is new by itself (noise, a scene) gets less than what an action made new.
Source: Wan, Tang, Tian, Kaneko 2023, DEIR: Efficient and Robust Exploration through Discriminative-Model-Based Episodic
Intrinsic Rewards, arXiv 2304.10770, equation 4, algorithm A1.
Differences: false successors are other rows of the same update, where the paper keeps a queue of old observations with
a bonus above the mean; the gradient crosses one step of the trajectory's memory, which starts empty at each update's
first row; nothing is normalised inside the networks; an episode remembers its latest `capacity` states.
Fails when: two trajectories that the memory cannot tell apart lead to observations that differ: the quotient explodes,
and the scale with it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils import skip_init

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from rewards.base import Metrics, Walk
from rewards.exploration.learned import Columns, Learned, LearnedConfig, Losses
from rewards.exploration.memories import Episodic, NeighbourMemory, Visits

TRAJECTORY_EPSILON = 1e-6  # added to the distance of trajectories, as in the paper's code


@dataclass
class DEIRConfig(LearnedConfig):
    """Settings of DEIR; the paper's value in brackets where it differs."""

    weight: Any = 0.01  # of a bonus whose deviation is 1, the paper's for MiniGrid
    scale: str = "ema"
    learning_rate: float = setting(3e-4, "Adam step size of discriminator, encoder and trajectory memory")
    features: int = setting(64, "size of an observation's embedding and of the trajectory's")
    capacity: int = setting(1024, "states that an episode remembers [all]", ">= 1")


class TrajectoryQuotient(NeighbourMemory):
    """Neighbours among rows of an observation's embedding beside the embedding of the trajectory before it."""

    def distances(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        half = self.features // 2
        squares = super().distances(x[..., :half], y[..., :half])
        trajectory_squares = super().distances(x[..., half:], y[..., half:])
        return squares / (np.sqrt(trajectory_squares) + TRAJECTORY_EPSILON)


class DEIR(Episodic, Learned):
    """r(s') = min over earlier i of |e(s') - e(s_i)|**2 / (|h - h_i| + 1e-6), h the trajectory before a state."""

    Config = DEIRConfig
    requires = frozenset({"obs", "action", "next_obs", "step"})

    def build(self) -> None:
        super().build()
        config = self.config
        size = config.features
        self.memory = TrajectoryQuotient(config.capacity, 2 * size, 1)
        self.encoder = self.net(config.hidden, size)
        self.trajectory = skip_init(nn.GRUCell, size, size).to(self.device)
        for weight in self.trajectory.parameters():
            bound = size**-0.5
            nn.init.uniform_(weight, -bound, bound, generator=self.generator)
        self.judge = self.head(2 * size + self.actions.size, config.hidden, 1)
        self.train_on(self.encoder, self.trajectory, self.judge)

    def initial_memory(self, n: int) -> Memory:
        memory = dict(super().initial_memory(n))
        memory["way"] = self._empty_trajectories(n)
        return memory

    def _empty_trajectories(self, n: int) -> np.ndarray:
        return np.zeros((n, self.config.features), np.float32)

    def scan(self, batch: Transitions, memory: Memory) -> Walk:
        visits = Visits(batch)
        x, last_trajectory = self._embed_visits(visits, memory["way"])
        nearest, after = self.memory.walk(memory, x, visits.valid, visits.ended)
        quotient = nearest[visits.rows, :, 0]
        # A state without any before it, in an episode that was cut, has nothing to be unlike.
        bonus = np.where(np.isfinite(quotient), quotient, 0)
        return bonus.astype(np.float32), {**after, "way": last_trajectory}

    def update(self, batch: Transitions) -> Metrics:
        if len(batch.shape) == 1:
            batch = batch[None]
        visits = Visits(batch)
        x, _ = self._embed_visits(visits, self._empty_trajectories(batch.shape[1]))
        trajectory = x[visits.rows, :, self.config.features :]
        return super().update(batch.replace(extras={"way": trajectory}))

    def columns(self, batch: Transitions) -> Columns:
        successor = self.inputs(batch.next_obs)
        trajectory = self.tensor(batch.extras["way"])
        # False successors are those of other rows.
        other = self.rng.permutation(len(successor))
        return trajectory, self.actions(batch.action), successor, successor[other]

    def loss(self, *columns: Tensor) -> Losses:
        trajectory, action, true, false = columns
        embedding = self.encoder(torch.cat([true, false]))
        true_next, false_next = self.trajectory(embedding, torch.cat([trajectory, trajectory])).chunk(2)
        true_logit = self._successor_logit(trajectory, action, true_next)
        false_logit = self._successor_logit(trajectory, action, false_next)
        # A false successor that is the true one teaches nothing.
        weight = (true != false).any(dim=1).float()
        true_loss = binary_cross_entropy_with_logits(true_logit, torch.ones_like(true_logit), weight=weight)
        false_loss = binary_cross_entropy_with_logits(false_logit, torch.zeros_like(false_logit), weight=weight)
        return {"loss": (true_loss + false_loss) / 2}

    def _successor_logit(self, trajectory: Tensor, action: Tensor, next_trajectory: Tensor) -> Tensor:
        """The logit (N,) that a trajectory, an action and the trajectory after it belong together."""
        return self.judge(torch.cat([trajectory, action, next_trajectory], dim=1)).squeeze(1)

    def _embed_visits(self, visits: Visits, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each visited state's embedding e beside h, its trajectory's before it, (S, N, 2 D); and the last trajectory.

        `start` (N, D) are the trajectories before the rollout.
        """
        e = visits.apply(lambda obs: self.values(self.encoder, obs))
        embedding = self.tensor(e)
        valid = self.tensor(visits.valid)
        ended = self.tensor(visits.ended)
        h = self.tensor(start)
        trajectories = torch.empty_like(embedding)
        with torch.no_grad():
            for t, ends in enumerate(ended):
                trajectories[t] = h
                after = self.trajectory(embedding[t], h)
                h = torch.where(valid[t, :, None], after, h)
                h = torch.where(ends[:, None], 0.0, h)
        x = np.concatenate([e, trajectories.cpu().numpy()], axis=2)
        return x, h.cpu().numpy()
