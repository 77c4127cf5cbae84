"""Table: a reward for each of a few states and each action, as `runners.design method=exprd` solves for it.

The file is JSON: `states` (S, D), observations laid out as numbers; `rewards` (S, A). What is observed counts as the
nearest of the states, each number in units of its deviation among them.
Source: Devidze et al. 2021, "Explicable Reward Design for Reinforcement Learning Agents" (NeurIPS 2021).
When it fails: states that look alike are one state; far from all of them the nearest means nothing.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gymnasium import spaces
from scipy.cluster.vq import vq

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.files import LARGE, read_text, why_unread
from lodestar.settings import setting
from rewards.base import Reward, RewardConfig
from rewards.design.code import layout_of, rows_of


@dataclass
class TableConfig(RewardConfig):
    """Settings of table."""

    file: str = setting("", "JSON with states and rewards; `runners.design method=exprd` writes one")


class StateTable(Reward):
    """r(s, a) = rewards[nearest(s), a]."""

    Config = TableConfig
    requires = frozenset({"obs", "action", "next_obs"})
    role = "goal"

    def build(self) -> None:
        file = self.config.file
        space = self.action_space
        self.layout = layout_of(self.observation_space)
        if not isinstance(space, spaces.Discrete):
            raise ValueError(f"reward table has a column for each action, not {space}; take Discrete actions")
        try:
            page = json.loads(read_text(Path(file).resolve(), LARGE))
            states = np.array(page["states"], np.float64)
            table = np.array(page["rewards"], np.float64)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"reward.table.file={file!r} {why_unread(file, error)}; give one that "
                "`python -m runners.design method=exprd` wrote"
            ) from None
        if states.shape != (len(table), self.layout.size) or table.shape[1:] != (int(space.n),):
            raise ValueError(
                f"reward.table.file={file!r} has states {states.shape} and rewards {table.shape}, this environment "
                f"observations of {self.layout.size} numbers and {space.n} actions; design it there"
            )
        deviation = states.std(axis=0)
        self.scale = np.where(deviation > 1e-6, deviation, 1.0)
        self.start = int(space.start)
        self.states = states / self.scale
        self.table = table.astype(np.float32)

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        states, action = rows_of(self.layout, batch)
        nearest, _ = vq(states[:, : self.layout.size] / self.scale, self.states)
        return self.table[nearest, action[:, 0].astype(int) - self.start]

    def notes(self) -> list[str]:
        active = int((self.table != 0).any(axis=1).sum())
        return [f"the reward is {self.config.file}: not 0 in {active} of {len(self.table)} states"]
