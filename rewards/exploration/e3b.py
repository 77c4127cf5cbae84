"""E3B: a bonus for directions of an embedding that this episode has not explored yet.

An ellipse is fitted to the embeddings of the episode's states; a state farther outside of it gets more. It extends the
count of visits within an episode to observations that never repeat.
Source: Henaff, Raileanu, Jiang, Rocktaeschel 2022, Exploration via Elliptical Episodic Bonuses, arXiv 2210.05805,
equation 1 and algorithm 1.
Differences: phi(s_{t+1}) is rewarded, what the action led to, and the state that an episode begins in counts as seen;
the embedding is that of the last update throughout a rollout, and the ellipse keeps what older ones contributed (as in
the paper's actors); dense layers are 64 wide, not 1,024.
Fails when: episodes are longer than it takes to go in every direction, as many as the embedding has; then `features`,
`hidden` and `sqrt` help (python -m benchmarks ellipse_root); or the embedding keeps noise, which looks new forever: a
random one does, a learnt one does where noise follows the action.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lodestar.settings import setting
from rewards.exploration.learned import InverseDynamics, LearnedConfig
from rewards.exploration.memories import EllipticalMemory, Episodic


@dataclass
class E3BConfig(LearnedConfig):
    """Settings of E3B; the paper's value in brackets. The bonus never vanishes: a moving deviation is safe."""

    weight: Any = 0.01  # [1 on a bonus divided by its running deviation, for tasks that give more]
    scale: str = "ema"
    ridge: float = setting(0.1, "C starts as this times the identity", "> 0", tune=(1e-3, 1.0, "log"))
    sqrt: bool = setting(False, "the root: 1/sqrt(n) at the n-th visit instead of 1/n", tune=(False, True, "choice"))
    embedding: str = setting("inverse", "learnt by inverse dynamics, or random", "inverse | random")


class E3B(Episodic, InverseDynamics):
    """r(s') = phi(s')' C^-1 phi(s'), C = ridge I + sum of phi phi' over the episode before s'."""

    Config = E3BConfig
    requires = InverseDynamics.requires | {"step"}

    def build(self) -> None:
        super().build()
        config = self.config
        # A random embedding is the encoder as it was initialised.
        self.learns = config.embedding == "inverse"
        self.memory = EllipticalMemory(config.features, config.ridge)
        self.memory.kernel = self.compiled.kernel
        self.train_on(self.encoder, self.prediction)

    def bonus(self, answers: np.ndarray) -> np.ndarray:
        if self.config.sqrt:
            answers = np.sqrt(answers)
        return answers.astype(np.float32)
