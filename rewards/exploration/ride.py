"""RIDE: a bonus for how much an action changed the environment, discounted by visits within the episode.

Inverse and forward dynamics learn an embedding of what actions change; the distance between its values before and after
a step is the impact, and a count of the new state within the episode keeps the agent from going to and fro.
Source: Raileanu, Rocktaeschel 2020, RIDE: Rewarding Impact-Driven Exploration, arXiv 2002.12292, equations 1 to 4.
Differences: the forward loss is a mean over the features, where the paper sums; the state that an episode begins in
counts as visited; cells are as in `count`; divided by a moving deviation, where the paper adds it bare.
Fails when: large changes are not the useful ones (a lift, a television that the agent can switch), or no two
observations are alike, so that every count is 1. With the paper's weights the embedding shrinks in MiniGrid, and the
bonus with it; with `inverse_weight` and `forward_weight` of 1 it does not (python -m benchmarks bonus_contrast).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from rewards.base import Walk
from rewards.exploration.compiled.tape import Tape, Units
from rewards.exploration.count import CellSettings, Hash
from rewards.exploration.learned import InverseDynamics, LearnedConfig, Losses
from rewards.exploration.memories import CountMemory, Episodic, values_at_both


@dataclass
class RIDEConfig(LearnedConfig, CellSettings):
    """Settings of RIDE; the paper's value in brackets where it differs."""

    weight: Any = 0.01  # of a bonus whose deviation is 1 [0.1 or 0.5 of the bare one]
    scale: str = "ema"
    inverse_weight: float = setting(0.1, "of the loss that predicts the action", ">= 0", tune=(0.01, 1.0, "log"))
    forward_weight: float = setting(10.0, "of the loss that predicts the embedding", ">= 0", tune=(0.1, 100.0, "log"))


class RIDE(Episodic, InverseDynamics):
    """r(s, s') = |phi(s') - phi(s)| / sqrt(N(s')), N the visits of s' in this episode, this one included."""

    Config = RIDEConfig

    def build(self) -> None:
        super().build()
        config = self.config
        self.hash = Hash(self.observation_space, config.keys, config.bin, config.name)
        self.memory = CountMemory(config.capacity)
        self.forward = self.head(config.features + self.actions.size, config.hidden, config.features)
        self.train_on(self.encoder, self.prediction, self.forward)

    def scan(self, batch: Transitions, memory: Memory) -> Walk:
        # The impact of an action, divided by the root of how often the episode has been where it led.
        before, after = values_at_both(self.phi, batch)
        n, memory = self.walk(batch, memory, self.hash)
        impact = np.linalg.norm(after - before, axis=-1)
        return (impact / np.sqrt(n)).astype(np.float32), memory

    def loss(self, *columns: Tensor) -> Losses:
        x, action, after = columns
        one, two = self.encode(x, after)
        ahead = self.forward(torch.cat([one, action], dim=1))
        inverse_loss = self.inverse_loss(one, two, action)
        forward_loss = (ahead - two).square().mean()
        return {
            "inverse_loss": self.config.inverse_weight * inverse_loss,
            "forward_loss": self.config.forward_weight * forward_loss,
        }

    def tape(self, tape: Tape, x: Units, action: Units, after: Units) -> None:
        one, two = tape.apply_to_each(self.encoder.dense, x, after)
        ahead = tape.net(self.forward, one, action)
        tape.squares("forward_loss", ahead, two, 1 / two.n, self.config.forward_weight)
        self.tape_inverse(tape, one, two, action, self.config.inverse_weight)
