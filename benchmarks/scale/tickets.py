"""An environment and a reward that show what became of every transition: numbers on both sides that must agree.

An observation is a ticket: a number of the episode, drawn from the environment's seed, and the step. Its picture says
the same in black and white, and the reward is computed from the picture alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.transitions import Transitions
from rewards.base import Reward, RewardConfig

ENV, SIZE, LENGTH = "LodestarTickets-v0", 32, 23
BITS = 24  # of an episode's number, and of the step
STEP_S = 5e-4


class Tickets(gym.Env):
    """Episodes of 23 steps, each step half a millisecond long."""

    observation_space, action_space = spaces.Box(0, 2.0**BITS, (2,), np.float32), spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.ticket = np.array([self.np_random.integers(2**BITS), 0], np.float32)
        return self.ticket.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(STEP_S)
        self.ticket[1] += 1
        return self.ticket.copy(), worth(self.ticket).item(), bool(self.ticket[1] >= LENGTH), False, {}

    def render(self) -> Any:
        bits = (self.ticket.astype(np.int64)[:, None] >> np.arange(BITS)) & 1
        frame = np.zeros((SIZE, SIZE, 3), np.uint8)
        frame[:2, :BITS] = 255 * bits[..., None]
        frame[-1] = 128
        return frame


gym.register(ENV, f"{__name__}:Tickets")


def worth(tickets: np.ndarray) -> np.ndarray:
    """What a ticket (..., 2) is worth, in [0, 1)."""
    return ((7919 * tickets[..., 0].astype(np.int64) + 104_729 * tickets[..., 1].astype(np.int64)) % 1009) / 1009


@dataclass
class TicketConfig(RewardConfig):
    """No options of its own."""


class Ticket(Reward):
    """What the ticket in the picture is worth."""

    Config = TicketConfig
    requires = frozenset({"frame", "next_obs"})  # for who looks at both
    role = "goal"
    frame_size = SIZE
    embedding = "ticket"

    def build(self) -> None:
        """Nothing is learned."""

    def embed(self, batch: Transitions) -> np.ndarray:
        assert batch.frame is not None
        bits = batch.frame[:, :2, :BITS, 0] > 127
        return (bits * 2.0 ** np.arange(BITS)).sum(-1).astype(np.float32)

    def score(self, batch: Transitions, memory: Any = None) -> np.ndarray:
        kept = batch.extras.get("ticket")
        return worth(self.embed(batch) if kept is None else kept).astype(np.float32)
