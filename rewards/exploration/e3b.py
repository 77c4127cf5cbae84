"""E3B: pay for the directions of an embedding that this episode has not gone in yet.

An ellipse is fitted to the embeddings of the episode's states; a state that lies outside of it pays more. It carries
the count of visits within an episode over to observations that never repeat.
Source: Henaff, Raileanu, Jiang, Rocktaeschel 2022, Exploration via Elliptical Episodic Bonuses, arXiv 2210.05805,
equation 1 and algorithm 1.
Differences:
    the paper pays phi(s_t), we pay phi(s_{t+1}), what the action led to; the state that an episode begins in is seen;
    the embedding is the one of the last update throughout a rollout, and the ellipse of an episode that goes on keeps
    what older embeddings drew (the paper's actors do the same);
    an optimiser of its own, and vectors that pass dense layers (64 wide, where the paper takes 1,024).
Fails when: episodes are longer than it takes to go in every direction; or the embedding keeps noise, which looks new
forever: a random one does, a learnt one does where noise follows the action.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from envs.types import Memory, Transitions
from rewards.exploration.inverse import Embedded
from rewards.exploration.learned import LearnedConfig
from rewards.exploration.memories import EllipticalMemory, Episodic, Visits


@dataclass
class E3BConfig(LearnedConfig):
    """Settings of E3B; the paper's value in brackets where it differs.

    Attributes:
        weight: [1 on a bonus divided by its running deviation, for tasks that pay more].
        scale: the bonus never vanishes, so a moving deviation is safe; the first steps of the first episodes are so
            large that an all-time one stays too large [`std`].
        ridge: C starts as this times the identity; a first visit pays |phi|**2 / ridge.
        sqrt: pay the root of the bonus: 1/sqrt(n) at the n-th visit instead of 1/n.
        embedding: `inverse` learns by inverse dynamics; `random` never learns. With `normalize_obs=bounds` a random one
            stands still altogether, so that counts are exact.
    """

    search: ClassVar[dict[str, tuple]] = {"ridge": (1e-3, 1.0, "log"), "sqrt": (False, True, "choice")}
    weight: Any = 0.01
    scale: str = "ema"
    ridge: float = 0.1
    sqrt: bool = False
    embedding: str = "inverse"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.positive("ridge")
        self.one_of("embedding", "inverse", "random")


class E3B(Episodic, Embedded):
    """r(s') = phi(s')' C^-1 phi(s'), C = ridge I + sum of phi phi' over the episode before s'."""

    Config = E3BConfig

    def __init__(self, config: Any, *spaces: Any, **options: Any) -> None:
        super().__init__(config, *spaces, **options)
        self.learns = config.embedding == "inverse"
        self.memory = EllipticalMemory(config.features, config.ridge)
        self.train_on(self.encoder, self.guess)

    def scan(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
        visits = Visits(batch)
        phi = visits.of(lambda obs: self.embedded(obs).cpu().numpy())
        bonus, memory = self.memory.walk(memory, phi, visits.valid, visits.ended)
        bonus = bonus[visits.rows]
        return (np.sqrt(bonus) if self.settings.sqrt else bonus).astype(np.float32), memory

    def columns(self, batch: Transitions) -> tuple[torch.Tensor, ...]:
        return super().columns(batch) if self.learns else ()

    def fit(self, columns: tuple[torch.Tensor, ...]) -> dict[str, float]:
        return super().fit(columns) if self.learns else {}
