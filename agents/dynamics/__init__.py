"""Models of the world: what an action leads to. Learned ones, and the simulator itself as an oracle.

    ensemble.py   probabilistic or deterministic networks, one or several side by side
    sindy.py      sparse polynomials (polynomials.py), fitted by least squares
    factored.py   every entry of a discrete observation by itself
    true.py       the simulator
    latent.py     cells that live in a space of their own (for `agents.world_model.agent`): rssm.py, simnorm.py, ssm.py

Observations and actions are flat vectors (`agents.networks.space_encoding`): obs (B, D) in the environment's units, action (B, A).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


@dataclass
class Predicted:
    """What a model expects of B transitions.

    Attributes:
        next_obs: (B, D), in the environment's units.
        reward: (B,), the task's own.
        terminated: (B,), probability in [0, 1]; None for a model that does not learn it.
        means: (K, B, D), where each of K members expects the next observation, in standard deviations of the changes it
            was fitted to, so that numbers are comparable between tasks; None unless asked for.
        stds: (K, B, D), how unsure each says the outcome is, in the same unit; None unless asked for, or without such.
    """

    next_obs: Tensor
    reward: Tensor
    terminated: Tensor | None = None
    means: Tensor | None = None
    stds: Tensor | None = None


class Dynamics(Protocol):
    """A model of the world.

    Attributes:
        members: how many opinions it has, K.
        differentiable: whether gradients flow through `step` to obs and action.
    """

    members: int
    differentiable: bool

    def step(self, obs: Tensor, action: Tensor, *, sample: bool = True, member_predictions: bool = False) -> Predicted:
        """One transition for each row.

        Args:
            obs: (B, D).
            action: (B, A).
            sample: a random outcome of a random member, each member for an equal share of the rows; otherwise the mean
                of the members' means.
            member_predictions: also `means` and `stds` of every member.
        """

    def fit(self, replay: Any, steps: int | None = None) -> dict[str, float]:
        """Learn from an `agents.replay.replay.Replay`, at most `steps` gradient steps (None: as the model thinks fit).

        Returns metrics to log. A fit that fails (numbers that are none) keeps what was known and counts it.
        """

    def state_dict(self) -> dict[str, Any]:
        """Everything that moves."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
