"""RE3: pay for states that lie far from their neighbours, in the eyes of a random network that never learns.

The log of the distance to the k-th nearest neighbour estimates the entropy of the states visited, up to a constant;
a random encoder keeps distances well enough, and nothing has to be trained.
Source: Seo, Chen, Shin, Lee, Abbeel, Lee 2021, State Entropy Maximization with Random Encoders for Efficient
Exploration, arXiv 2102.09430, equations 3 and 4.
Differences:
    neighbours are sought among what this episode has seen, where the paper takes the replay buffer or the rollout: a
    bonus for spread within an episode, that neither fades over training nor depends on the other environments;
    the state that an episode begins in is seen; while there are fewer than k, the farthest one counts;
    observations are whitened first; vectors pass dense layers.
Fails when: observations contain noise, or much that does not matter: a random network weighs all of it alike. With
`normalize_obs=running` the whitening moves at first, and distances with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from envs.types import Memory, Transitions
from rewards.exploration.learned import Learned, LearnedConfig
from rewards.exploration.memories import Episodic, NeighbourMemory, Visits


@dataclass
class RE3Config(LearnedConfig):
    """Settings of RE3; the paper's value in brackets where it differs. `learning_rate` and its like do nothing here.

    Attributes:
        weight: of a bonus whose deviation is 1 [0.05 of the bare one, fading].
        features: size of the random embedding [50].
        k: which neighbour counts.
        capacity: states that an episode remembers.
    """

    search: ClassVar[dict[str, tuple]] = {  # nothing is learned
        "k": (1, 10),
        "learning_rate": (),
        "update_proportion": (),
    }
    weight: Any = 0.01
    scale: str = "ema"
    k: int = 3
    capacity: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(1, "k", "capacity")


class RE3(Episodic, Learned):
    """r(s') = log(1 + |y - y_k|), y the random embedding of s' and y_k its k-th nearest neighbour in the episode."""

    Config = RE3Config
    requires = frozenset({"obs", "next_obs"})

    def __init__(self, config: Any, *spaces: Any, **options: Any) -> None:
        super().__init__(config, *spaces, **options)
        self.encoder = self.net(config.hidden, config.features).requires_grad_(False)
        self.memory = NeighbourMemory(config.capacity, config.features, config.k)

    def scan(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
        visits = Visits(batch)
        y = visits.of(lambda obs: self.in_pieces(self.encoder, self.inputs(obs)).cpu().numpy())
        squares, memory = self.memory.walk(memory, y, visits.valid, visits.ended)
        squares = squares[visits.rows]
        far = np.where(np.isfinite(squares), squares, 0).max(axis=-1)
        return np.log1p(np.sqrt(far)).astype(np.float32), memory

    def columns(self, batch: Transitions) -> tuple[torch.Tensor, ...]:
        return ()

    def fit(self, columns: tuple[torch.Tensor, ...]) -> dict[str, float]:
        return {}  # only the whitening moves
