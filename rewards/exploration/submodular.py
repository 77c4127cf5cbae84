"""Submodular bonus: pay for what a state adds to what the episode's set of states is worth, not for the state itself.

F gives a value to a set of states and has diminishing returns; a step pays F(S + s') - F(S). Over an episode that adds
up to F of all that was visited, so going back and forth between two good places pays once.
Source: Prajapat, Mutny, Zeilinger, Krause 2024, Submodular Reinforcement Learning (SubPO), arXiv 2307.13372, sections 3
to 5: marginal gains as rewards, coverage and information gain as F.
Differences:
    a reward for any learner, where the paper derives a policy gradient of its own (the same one, for a discount of 1);
    S begins with the state that the episode begins in, whose own worth is not paid;
    the kernel of `logdet` is Gaussian, by random Fourier features (Rahimi, Recht 2007) of whitened observations; the
    paper halves the logarithm and knows the map beforehand.
Fails when: the policy cannot tell from its observation what it has seen (F depends on the past; a policy without a
memory can only hope for the best); a discount below 1 prefers what is near to what is worth more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn.utils import skip_init

from envs.types import Memory, Obs, Transitions
from rewards.exploration.count import Hash
from rewards.exploration.learned import Learned, LearnedConfig
from rewards.exploration.memories import CountMemory, EllipticalMemory, Episodic, Visits
from rewards.exploration.spaces import part

DISC = 1000  # cells; a disc of more has the wrong radius


@dataclass
class SubmodularConfig(LearnedConfig):
    """Settings of the submodular bonus. `learning_rate` and its like do nothing here.

    Attributes:
        weight: of a bonus that is in cells, or in nats (at most log(1 + 1/noise) a step).
        gamma: None takes the learner's; the closer to 1, the closer the return is to F.
        kind: `logdet` is the information that noisy measurements in S give, F = log det(I + K/noise); `cover` is the
            number of cells that lie in a disc around a state of S.
        features: random Fourier features of `logdet`: an episode cannot tell more directions apart.
        length: of the kernel, in deviations of an observation (root mean square over its numbers).
        noise: variance of a measurement of `logdet`, where the kernel's is 1: a second look is worth about noise/2 of
            a first one.
        bin: width of a cell of `cover`, in the units of a float observation; one number, or one for each dimension.
        radius: of the disc of `cover`, in cells; 0 is the cell itself. Above 0 it needs an observation that is one
            vector (see `keys`); cells outside of its bounds are left out.
        capacity: cells that an episode of `cover` remembers.
    """

    search: ClassVar[dict[str, tuple]] = {"length": (0.1, 3.0, "log"), "noise": (0.01, 1.0, "log")}
    weight: Any = 0.01
    scale: str = "none"
    gamma: float | None = None
    kind: str = "logdet"
    features: int = 128
    length: float = 0.5
    noise: float = 0.1
    bin: Any = 0.1
    radius: float = 0.0
    capacity: int = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        self.one_of("kind", "logdet", "cover")
        self.positive("length", "noise")
        self.at_least(0, "radius")
        self.at_least(1, "capacity")


class Submodular(Episodic, Learned):
    """r(s') = F(S + s') - F(S), S the states of the episode before s'."""

    Config = SubmodularConfig
    requires = frozenset({"obs", "next_obs"})

    def __init__(self, config: Any, *spaces: Any, **options: Any) -> None:
        super().__init__(config, *spaces, **options)
        if config.kind == "cover":
            self.hash = Hash(self.observation_space, config.keys, config.bin, config.name)
            self.disc = self._disc(config.radius)
            self.memory: Any = CountMemory(config.capacity)
        else:
            self.waves = self._waves(config).requires_grad_(False).to(self.device)
            self.memory = EllipticalMemory(config.features, config.noise)

    def scan(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
        visits = Visits(batch)
        if self.settings.kind == "logdet":
            bonus, memory = self.memory.walk(memory, visits.of(self._phi), visits.valid, visits.ended)
            return np.log1p(bonus[visits.rows]).astype(np.float32), memory
        cells = visits.of(self._cells)  # (S, N, M), which the memory is to see one after the other
        (rows, n, m), order = cells.shape, (0, 2, 1)
        valid = (visits.valid[..., None] & (cells > 0)).transpose(order).reshape(rows * m, n)
        ended = np.zeros((rows, m, n), bool)
        ended[:, -1] = visits.ended
        walked, memory = self.memory.walk(
            memory, cells.transpose(order).reshape(rows * m, n), valid, ended.reshape(rows * m, n)
        )
        new = ((walked == 1) & valid).reshape(rows, m, n).sum(axis=1)
        return new[visits.rows].astype(np.float32), memory

    def columns(self, batch: Transitions) -> tuple[torch.Tensor, ...]:
        return ()

    def fit(self, columns: tuple[torch.Tensor, ...]) -> dict[str, float]:
        return {}  # only the whitening of `logdet` moves

    def _waves(self, config: SubmodularConfig) -> nn.Linear:
        size = self.layout.size
        waves = skip_init(nn.Linear, size, config.features)
        nn.init.normal_(waves.weight, 0, 1 / (config.length * math.sqrt(size)), generator=self.generator)
        nn.init.uniform_(waves.bias, 0, 2 * math.pi, generator=self.generator)
        return waves

    def _phi(self, obs: Obs) -> np.ndarray:
        """Fourier features (M, D) of observations, of a length near 1."""
        waves = self.in_pieces(self.waves, self.inputs(obs))
        return (waves.cos() * math.sqrt(2 / self.settings.features)).cpu().numpy()

    def _disc(self, radius: float) -> np.ndarray:
        """Places (M, D) of the cells of a disc around the cell 0; only that cell for any other kind of observation."""
        if radius < 1:
            return np.zeros((1, 1))
        (box, *more) = self.hash.parts.values()
        size, reach = int(np.prod(box.shape or ())), math.floor(radius)
        if more or not isinstance(box, gym.spaces.Box) or (2 * reach + 1) ** size > DISC:
            raise ValueError(
                f"reward submodular: radius={radius} makes no disc of at most {DISC} cells in {self.observation_space};"
                " name one short vector in keys, or give radius=0"
            )
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
