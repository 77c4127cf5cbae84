"""Subgoals whose teacher leaves: `reward=benchmarks.beacons:Leaving`, of the study `subgoals`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from envs.transitions import Transitions
from envs.types import Array, Memory
from lodestar.settings import setting
from lodestar.state import Stateful
from rewards.language.subgoals import Subgoals, SubgoalsConfig


@dataclass
class LeavingConfig(SubgoalsConfig):
    """Settings of leaving."""

    until: int = setting(0, "steps of training after which episodes begin without a plan, evaluation's too; 0: never")
    seen: bool = setting(True, "whether the policy reads the subgoal; without, it is rewarded for what it cannot see")


class Taught(Stateful):
    """Steps of training so far."""

    saved = ("steps",)

    def __init__(self) -> None:
        self.steps = 0


class Leaving(Subgoals):
    """Subgoals until the teacher leaves; from then on the policy's input of them is blank, and none is rewarded."""

    Config = LeavingConfig
    config: LeavingConfig

    def build(self) -> None:
        super().build()
        self.taught = Taught()

    def begin(self, memory: Memory, modalities: Mapping[str, Array], mask: np.ndarray) -> Memory:
        after = super().begin(memory, modalities, mask)
        if 0 < self.config.until <= self.taught.steps:
            after["plan"][mask] = 0
        return after

    def update(self, batch: Transitions) -> dict[str, float]:
        self.taught.steps += int(np.asarray(batch.valid).sum())
        return super().update(batch)

    def guide(self, memory: Memory) -> np.ndarray:
        vectors = super().guide(memory)
        return vectors if self.config.seen else np.zeros_like(vectors)
