"""DQN for discrete actions, with two critics and the interface of `agents.off_policy.sac`.

Source: Mnih et al. 2015, DQN; van Hasselt et al. 2016, "Double Q-learning", arXiv 1509.06461, equation 4: one network
chooses, another one evaluates the choice.

Differences: K critics choose by their mean, and targets evaluate by the smallest or mean value; targets follow slowly.
When it fails: rewards that random actions never reach.
"""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from agents.off_policy.sac import Critics, LearnerConfig
from lodestar.numerics.descent import draw_uniform


class DeepQ(Critics):
    """Values of n one-hot actions for each state; `epsilon`, a 0-d tensor, is the share of random ones in `sample`."""

    saved = (*Critics.saved, "epsilon")
    acting = ("critic", "mean", "scale", "epsilon")

    def __init__(
        self,
        obs_size: int,
        n_actions: int,
        config: LearnerConfig,
        *,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        if config.norm == "batch":
            raise ValueError("agent.norm=batch is CrossQ's, for continuous actions; give none or layer")
        super().__init__(obs_size, 0, n_actions, config, seed=seed, device=device)
        self.action_size = n_actions
        self.epsilon = torch.zeros((), device=self.device)

    @torch.no_grad()
    def sample(self, obs: Tensor) -> tuple[Tensor, None]:
        """One-hot actions (B, n): the best, or with probability epsilon any; DQN has no log-densities."""
        chance, choice = draw_uniform(self.generator, 2, len(obs))
        # Rounding could lift a number just below 1 to one action too many.
        random = (choice * self.action_size).long()
        random = random.clamp_(max=self.action_size - 1)
        best = self._best_action(obs)
        action = torch.where(chance < self.epsilon, random, best)
        return one_hot(action, self.action_size).float(), None

    @torch.no_grad()
    def act(self, obs: Tensor, deterministic: bool = False) -> Tensor:
        """One-hot actions (B, n) to take; the best if deterministic."""
        if not deterministic:
            return self.sample(obs)[0]
        best = self._best_action(obs)
        return one_hot(best, self.action_size).float()

    def q_all(self, obs: Tensor) -> Tensor:
        """Values of all actions, (K, B, n)."""
        return self.head.value(self._outputs(self.inputs(obs)))

    def next_value(self, next_obs: Tensor) -> Tensor:
        """Value by the targets of the action that the critics choose, (B,)."""
        best = self._best_action(next_obs)
        action = one_hot(best, self.action_size).float()
        q = self.q(next_obs, action, target=True)
        return self.aggregate(q, drawn=True)

    def join(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.inputs(obs)

    def select(self, outputs: Tensor, action: Tensor) -> Tensor:
        index = action.argmax(-1)[None, :, None, None]
        chosen = torch.take_along_dim(outputs, index, 2)
        return chosen[..., 0, :]

    def _best_action(self, obs: Tensor) -> Tensor:
        """The action (B,) of the highest mean value over the critics."""
        values = self.q_all(obs).mean(0)
        return values.argmax(-1)
