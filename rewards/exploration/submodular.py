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
from rewards.base import Walk
from rewards.exploration.count import Hash
from rewards.exploration.learned import WHOLE_OBS, Learned, LearnedConfig, obs_entry
from rewards.exploration.memories import CountMemory, EllipticalMemory, Episodic, Visits

MAX_DISC_CELLS = 1000  # a disc of more has the wrong radius


@dataclass
class SubmodularConfig(LearnedConfig):
    """Settings of the submodular bonus: `logdet`, F = log det(I + K/noise), or `cover`, the cells in discs around S."""

    weight: Any = 0.01  # of a bonus that is in cells, or in nats (at most log(1 + 1/noise) a step)
    scale: str = "none"
    gamma: float | None = setting(None, "null takes the learner's; the closer to 1, the closer the return is to F")
    kind: str = setting("logdet", "what F is", "logdet | cover")
    features: int = setting(128, "random Fourier features of logdet: the most directions an episode can distinguish")
    length: float = setting(0.5, "of the kernel, in deviations of an observation", "> 0", tune=(0.1, 3.0, "log"))
    noise: float = setting(0.1, "variance of a measurement of logdet", "> 0", tune=(0.01, 1.0, "log"))
    bin: Any = setting(0.1, "width of a cell of cover: one number, or one for each of a float observation", "> 0")
    radius: float = setting(0.0, "of the disc of cover, in cells of one vector; 0 is the cell itself", ">= 0")
    capacity: int = setting(4096, "cells that an episode of cover remembers", ">= 1")


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
            deviation = 1 / (config.length * math.sqrt(size))
            nn.init.normal_(waves.weight, 0, deviation, generator=self.generator)
            nn.init.uniform_(waves.bias, 0, 2 * math.pi, generator=self.generator)
            self.waves = waves.requires_grad_(False).to(self.device)
            self.memory = EllipticalMemory(config.features, config.noise)

    def scan(self, batch: Transitions, memory: Memory) -> Walk:
        if self.config.kind == "logdet":
            bonus, memory = self.walk(batch, memory, self._phi)
            return np.log1p(bonus).astype(np.float32), memory
        # How many cells of each disc are new to the episode.
        visits = Visits(batch)
        cells = visits.apply(self._cells)  # (S, N, M)
        states, envs, discs = cells.shape
        # The memory sees the M cells of a disc one after the other: (S, N, M) -> (S * M, N).
        steps = (states * discs, envs)
        keys = cells.transpose(0, 2, 1).reshape(steps)
        valid = visits.valid[..., None] & (cells > 0)
        valid = valid.transpose(0, 2, 1).reshape(steps)
        ended = np.zeros((states, discs, envs), bool)
        ended[:, -1] = visits.ended
        counts, memory = self.memory.walk(memory, keys, valid, ended.reshape(steps))
        is_new = (counts == 1) & valid
        new_cells = is_new.reshape(states, discs, envs).sum(axis=1)
        return new_cells[visits.rows].astype(np.float32), memory

    def _phi(self, obs: Obs) -> np.ndarray:
        """Fourier features (M, D) of observations, of a length near 1."""
        scale = math.sqrt(2 / self.config.features)
        return self.values(lambda x: self.waves(x).cos() * scale, obs)

    def _disc(self, radius: float) -> np.ndarray:
        """Places (M, D) of the cells of a disc around the cell 0; only that cell for any other kind of observation."""
        if radius < 1:
            return np.zeros((1, 1))
        box, *other_parts = self.hash.parts.values()
        size = math.prod(box.shape or ())
        reach = math.floor(radius)
        width = 2 * reach + 1
        if other_parts or not isinstance(box, gym.spaces.Box) or width**size > MAX_DISC_CELLS:
            fix = "name one short vector in keys, or give radius=0"
            raise ValueError(
                f"reward.submodular.radius={radius} makes no disc of at most {MAX_DISC_CELLS} cells; {fix}"
            )
        places = np.indices((width,) * size).reshape(size, -1).T - reach
        in_disc = np.square(places).sum(axis=1) <= radius**2
        return places[in_disc].astype(np.float64)

    def _cells(self, obs: Obs) -> np.ndarray:
        """Keys (M, cells of the disc) of observations (M, ...), 0 for a cell out of bounds."""
        # Reading the rows refuses what is not finite.
        self.rows(obs)
        if len(self.disc) == 1:
            return self.hash(obs)[:, None]
        # A disc of several cells has a single Box, see `_disc`.
        key: str
        box: Any
        [(key, box)] = self.hash.parts.items()
        widths = self.hash.bins.get(key, np.ones(()))
        size = self.disc.shape[1]
        centres = np.rint(np.asarray(obs_entry(obs, key)).reshape(-1, size) / widths)
        places = ((centres[:, None] + self.disc) * widths).reshape(-1, size)
        low = box.low.ravel() - widths / 2
        high = box.high.ravel() + widths / 2
        inside = (places >= low) & (places <= high)
        keys = self.hash(places if key == WHOLE_OBS else {key: places})
        keys = np.where(inside.all(axis=1), keys, np.uint64(0))
        return keys.reshape(len(centres), -1)
