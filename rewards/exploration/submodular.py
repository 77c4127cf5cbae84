"""Submodular bonus: a reward for what a state adds to the value of the episode's set of states.

F gives a value to a set of states and has diminishing returns; a step gets F(S + s') - F(S). Over an episode that adds
up to F of all that was visited, so going back and forth between two good places counts once.
Source: Prajapat, Mutny, Zeilinger, Krause 2024, Submodular Reinforcement Learning (SubPO), arXiv 2307.13372, sections 3
to 5: marginal gains as rewards, coverage and information gain as F.
Differences: a reward for any learner, where the paper derives a policy gradient (the same one, for a discount of 1); S
begins with the state that the episode begins in, whose own value is not rewarded; the kernel of `logdet` is Gaussian,
by random Fourier features (Rahimi, Recht 2007) of whitened observations; the paper halves the logarithm.
Fails when: the observation does not contain what has been visited (F depends on the past; a policy without a memory
cannot know it); a discount below 1 prefers what is near to what is worth more.
"""

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from torch import nn
from torch.nn.utils import skip_init

from envs.transitions import Transitions
from envs.types import Memory, Obs
from lodestar.settings import setting
from rewards.exploration.count import Hash
from rewards.exploration.learned import Learned, LearnedConfig, part
from rewards.exploration.memories import CountMemory, EllipticalMemory, Episodic, Visits

DISC = 1000  # cells; a disc of more has the wrong radius


@dataclass
class SubmodularConfig(LearnedConfig):
    """Settings of the submodular bonus: `logdet`, F = log det(I + K/noise), or `cover`, the cells in discs around S."""

    weight: Any = 0.01  # of a bonus that is in cells, or in nats (at most log(1 + 1/noise) a step)
    scale: str = "none"
    gamma: float | None = setting(None, "null takes the learner's; the closer to 1, the closer the return is to F")
    kind: str = setting("logdet", "what F is", choices=("logdet", "cover"))
    features: int = setting(128, "random Fourier features of logdet: the most directions an episode can distinguish")
    length: float = setting(0.5, "of the kernel, in deviations of an observation", above=0, tune=(0.1, 3.0, "log"))
    noise: float = setting(0.1, "variance of a measurement of logdet", above=0, tune=(0.01, 1.0, "log"))
    bin: Any = setting(0.1, "width of a cell of cover: one number, or one for each of a float observation", above=0)
    radius: float = setting(0.0, "of the disc of cover, in cells of one vector; 0 is the cell itself", low=0)
    capacity: int = setting(4096, "cells that an episode of cover remembers", low=1)


class Submodular(Episodic, Learned):
    """r(s') = F(S + s') - F(S), S the states of the episode before s'."""

    Config = SubmodularConfig
    learns = False
    requires = frozenset({"obs", "next_obs", "step"})

    def build(self) -> None:
        super().build()
        config = self.config
        if config.kind == "cover":
            self.hash = Hash(self.observation_space, config.keys, config.bin, config.name)
            self.disc = self._disc(config.radius)
            self.memory = CountMemory(config.capacity)
        else:
            size = self.layout.size
            waves = skip_init(nn.Linear, size, config.features)
            nn.init.normal_(waves.weight, 0, 1 / (config.length * math.sqrt(size)), generator=self.generator)
            nn.init.uniform_(waves.bias, 0, 2 * math.pi, generator=self.generator)
            self.waves = waves.requires_grad_(False).to(self.device)
            self.memory = EllipticalMemory(config.features, config.noise)

    def scan(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
        if self.config.kind == "logdet":
            bonus, memory = self.walk(batch, memory, self._phi)
            return np.log1p(bonus).astype(np.float32), memory
        visits = Visits(batch)
        cells = visits.of(self._cells)  # (S, N, M), which the memory is to see one after the other
        (rows, n, m), order = cells.shape, (0, 2, 1)
        valid = (visits.valid[..., None] & (cells > 0)).transpose(order).reshape(rows * m, n)
        ended = np.zeros((rows, m, n), bool)
        ended[:, -1] = visits.ended
        keys = cells.transpose(order).reshape(rows * m, n)
        walked, memory = self.memory.walk(memory, keys, valid, ended.reshape(rows * m, n))
        new = ((walked == 1) & valid).reshape(rows, m, n).sum(axis=1)
        return new[visits.rows].astype(np.float32), memory

    def _phi(self, obs: Obs) -> np.ndarray:
        """Fourier features (M, D) of observations, of a length near 1."""
        return self.values(lambda x: self.waves(x).cos() * math.sqrt(2 / self.config.features), obs)

    def _disc(self, radius: float) -> np.ndarray:
        """Places (M, D) of the cells of a disc around the cell 0; only that cell for any other kind of observation."""
        if radius < 1:
            return np.zeros((1, 1))
        (box, *more) = self.hash.parts.values()
        size, reach = int(np.prod(box.shape or ())), math.floor(radius)
        if more or not isinstance(box, gym.spaces.Box) or (2 * reach + 1) ** size > DISC:
            fix = "name one short vector in keys, or give radius=0"
            raise ValueError(f"reward.submodular.radius={radius} makes no disc of at most {DISC} cells; {fix}")
        places = np.indices((2 * reach + 1,) * size).reshape(size, -1).T - reach
        return places[np.square(places).sum(axis=1) <= radius**2].astype(np.float64)

    def _cells(self, obs: Obs) -> np.ndarray:
        """Keys (M, cells of the disc) of observations (M, ...), 0 for a cell out of bounds."""
        self.rows(obs)  # refuses what is not finite
        if len(self.disc) == 1:
            return self.hash(obs)[:, None]
        key, box = next((key, box) for key, box in self.hash.parts.items() if isinstance(box, gym.spaces.Box))
        widths = self.hash.bins.get(key, np.ones(()))
        centres = np.rint(np.asarray(part(obs, key)).reshape(-1, self.disc.shape[1]) / widths)
        places = ((centres[:, None] + self.disc) * widths).reshape(-1, self.disc.shape[1])
        inside = (places >= box.low.ravel() - widths / 2) & (places <= box.high.ravel() + widths / 2)
        keys = self.hash(places if key == "" else {key: places})
        return np.where(inside.all(axis=1), keys, np.uint64(0)).reshape(len(centres), -1)
