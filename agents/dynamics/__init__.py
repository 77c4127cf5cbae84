"""Dynamics models: the transition that an action leads to. Learned ones, and the simulator itself as an oracle.

Observations and actions are flat vectors (`agents.networks.actor_critic`): obs (B, D) in the environment's units,
action (B, A). The models of `agents.world_model` have a latent state of their own, see `agents.dynamics.cells`.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from agents.replay.replay import Replay


@dataclass
class Predicted:
    """Predictions for B transitions; the members' are None unless requested."""

    # (B, D), in the environment's units.
    next_obs: Tensor
    # (B,), the task's own.
    reward: Tensor
    # (B,), a probability in [0, 1]; None for a model that does not learn it.
    terminated: Tensor | None = None
    # (K, B, D), each member's next observation and its deviation (None without such), in standard deviations of the
    # changes it was fitted to, so that they are comparable between tasks
    means: Tensor | None = None
    stds: Tensor | None = None


class OneStepModel(Protocol):
    """What can be rolled out."""

    def step(self, obs: Tensor, action: Tensor, *, sample: bool = True, member_predictions: bool = False) -> Predicted:
        """One transition for each row of obs (B, D) and action (B, A).

        `sample`: a random outcome of a random member, each for an equal share of the rows; else the mean of the
        members' means. `member_predictions`: also `means` and `stds` of every member.
        """


class Dynamics(OneStepModel, Protocol):
    """A dynamics model that is fitted to a replay; what moves is in `state_dict`, see `lodestar.state.Stateful`."""

    def fit(self, replay: Replay, steps: int | None = None) -> dict[str, float]:
        """Learn in at most `steps` gradient steps (None: the model's own budget); returns metrics to log.

        A fit that fails (NaN or infinite) is discarded and counted.
        """
