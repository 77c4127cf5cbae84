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
from rewards.exploration.learned import Learned, LearnedConfig
from rewards.exploration.memories import Episodic, NeighbourMemory, Visits

TINY = 1e-6  # added to the distance of trajectories, as in the paper's code


@dataclass
class DEIRConfig(LearnedConfig):
    """Settings of DEIR; the paper's value in brackets where it differs."""

    weight: Any = 0.01  # of a bonus whose deviation is 1, the paper's for MiniGrid
    scale: str = "ema"
    learning_rate: float = setting(3e-4, "Adam step size of discriminator, encoder and trajectory memory")
    features: int = setting(64, "size of an observation's embedding and of the trajectory's")
    capacity: int = setting(1024, "states that an episode remembers [all]", low=1)


class TrajectoryQuotient(NeighbourMemory):
    """Neighbours among rows of an observation's embedding beside the embedding of the trajectory before it."""

    def distances(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        half = self.features // 2
        ways = np.sqrt(super().distances(x[..., half:], y[..., half:]))
        return super().distances(x[..., :half], y[..., :half]) / (ways + TINY)


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
            nn.init.uniform_(weight, -(size**-0.5), size**-0.5, generator=self.generator)
        self.judge = self.head(2 * size + self.actions.size, config.hidden, 1)
        self.train_on(self.encoder, self.trajectory, self.judge)

    def initial_memory(self, n: int) -> Memory:
        return {**super().initial_memory(n), "way": np.zeros((n, self.config.features), np.float32)}

    def scan(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
        visits = Visits(batch)
        x, way = self._walk(visits, memory["way"])
        quotient, after = self.memory.walk(memory, x, visits.valid, visits.ended)
        quotient = quotient[visits.rows, :, 0]
        # a state without any before it, in an episode that was cut, has nothing to be unlike
        return np.where(np.isfinite(quotient), quotient, 0).astype(np.float32), {**after, "way": way}

    def update(self, batch: Transitions) -> dict[str, float]:
        column = batch if len(batch.shape) == 2 else batch.map(lambda x: x[None])
        visits = Visits(column)
        x, _ = self._walk(visits, np.zeros((column.shape[1], self.config.features), np.float32))
        way = x[visits.rows, :, self.config.features :]
        return super().update(column.replace(extras={"way": way}))

    def columns(self, batch: Transitions) -> tuple[Tensor, ...]:
        after = self.inputs(batch.next_obs)
        way = torch.from_numpy(batch.extras["way"]).to(self.device)
        other = torch.from_numpy(self.rng.permutation(len(after))).to(self.device)
        return way, self.actions(batch.action), after, after[other]

    def loss(self, *columns: Tensor) -> dict[str, Tensor]:
        way, action, true, false = columns
        embedded = self.encoder(torch.cat([true, false]))
        one, other = self.trajectory(embedded, torch.cat([way, way])).chunk(2)
        differ = (true != false).any(dim=1).float()  # a false successor that is the true one teaches nothing
        sure, fooled = (self.judge(torch.cat([way, action, led], dim=1)).squeeze(1) for led in (one, other))
        lost = binary_cross_entropy_with_logits(sure, torch.ones_like(sure), weight=differ)
        lost = lost + binary_cross_entropy_with_logits(fooled, torch.zeros_like(fooled), weight=differ)
        return {"loss": lost / 2}

    def _walk(self, visits: Visits, way: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each visited state's embedding beside its trajectory's before it (S, N, 2 D), and the last trajectory."""
        e = visits.of(lambda obs: self.values(self.encoder, obs))
        h = torch.from_numpy(way).to(self.device)
        seen, valid, ended = (torch.from_numpy(x).to(self.device) for x in (e, visits.valid, visits.ended))
        ways = torch.empty_like(seen)
        with torch.no_grad():
            for t, ends in enumerate(ended):
                ways[t] = h
                h = torch.where(valid[t, :, None], self.trajectory(seen[t], h), h)
                h = torch.where(ends[:, None], torch.zeros_like(h), h)
        return np.concatenate([e, ways.cpu().numpy()], axis=2), h.cpu().numpy()
