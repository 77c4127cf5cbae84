"""ReCOIL: imitate a few demonstrations with the help of any other recording, without rewards or a discriminator.

Values are high along the demonstrations and fall with the steps that lead there, so that actions of the recording which
lead there are imitated, too. Cloning them alone knows nothing beside them, and cloning everything the average.

Source: Sikchi et al. 2023, arXiv 2302.08560, and the authors' code. They differ; both are here, t = 2 / (1 - gamma):

    form=code   half (Q - t)^2 on demonstrations, half (Q - y)^2 on everything; y = -2 + gamma V(s'), at an end -t
    form=paper  mixture (E_all[Q(s, pi)] - E_demos[Q(s, a)]) + E_mix[(gamma V(s') - Q(s, a))^2] / 4

V is an implicit maximum over recorded actions, in `code` of everything; the policy is IQL's, on all rows.
Differences from the source: the demonstrations are among everything, so that values spread from where both meet; values
are in units of 1 / (1 - gamma) unless `normalize_reward` is off; Q(s, pi) is that of one sampled action.
When it fails: a recording that shares no states with the demonstrations; demonstrations of several ways at once;
`paper` asks Q about actions that nothing was recorded of.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from agents.offline.iql import IQL, IQLConfig, Q
from lodestar.numerics.descent import draw_integers
from lodestar.settings import setting


@dataclass
class ReCOILConfig(IQLConfig):
    """Settings of `ReCOIL`: those of `IQL`, and the form."""

    gamma: float = setting(0.99, "discount", "(0, 1)")
    batch_size: int = setting(256, "transitions a step, half of them demonstrations", ">= 2")
    value_loss: str = "gumbel"
    temperature: float = 0.03  # of values in [-2, 2], as beta
    beta: float = 300.0
    normalize_reward: bool = setting(True, "whether values are in units of 1 / (1 - gamma)")
    form: str = setting("code", "as the authors' code has it, or their paper", "code | paper")
    mixture: float = setting(0.5, "of paper: share of demonstrations", "(0, 1)")


class ReCOIL(IQL):
    """`IQL` whose signal is 1 where a transition is a demonstration, else 0."""

    Config = ReCOILConfig
    learns_from = "demonstrations"
    has_values = False

    def _scale_signal(self, signal: np.ndarray) -> np.ndarray:
        demos = np.flatnonzero(signal)
        if not 0 < len(demos) < len(signal):
            raise ValueError(f"{len(demos)} of {len(signal)} transitions are demonstrations; ReCOIL needs both kinds")
        # Half a minibatch is drawn from each: everything, and the demonstrations alone.
        everything = torch.arange(len(signal), device=self.device)
        self._halves = [everything, self.tensor(demos)]
        return signal

    def _draw(self, steps: int) -> Tensor:
        shape = (steps, self.config.batch_size // 2)
        halves = []
        for rows in self._halves:
            index = draw_integers(self._generator, len(rows), *shape)
            halves.append(rows[index])
        return torch.cat(halves, 1)

    def _value_loss(self, gap: Tensor) -> Tensor:
        if self.config.form == "code":
            gap = gap[: len(gap) // 2]
        return super()._value_loss(gap)

    def _q_loss(
        self,
        q: Tensor,
        signal: Tensor,
        continues: Tensor,
        next_value: Tensor,
        obs: Tensor,
        policy: Tensor,
    ) -> Tensor:
        config = self.config
        # As `_draw` puts them together, the second half of the rows are demonstrations.
        row = torch.arange(len(obs), device=obs.device)[:, None]
        is_demo = row >= len(obs) // 2
        unit = 1 - config.gamma if config.normalize_reward else 1.0
        if config.form == "code":
            top = 2 * unit / (1 - config.gamma)
            following = continues * next_value - (1 - continues) * top
            target = torch.where(is_demo, top, config.gamma * following - 2 * unit)
            return (q - target).square().mean((1, 2)).sum()
        own_q = self._own_q(obs, policy)
        # Each half of the rows stands for its share of the mixture, which is twice that of the whole.
        weight = 2 * torch.where(is_demo, config.mixture, 1 - config.mixture)
        bellman_error = config.gamma * continues * next_value - q
        error = weight * bellman_error.square() / 4
        contrast = torch.where(is_demo, -q, own_q)
        terms = 2 * unit * config.mixture * contrast + error
        return terms.mean((1, 2)).sum()

    def _own_q(self, obs: Tensor, policy: Tensor) -> Tensor:
        """Values (2, B, 1) of one action each that the policy draws."""
        net = self.net
        with torch.no_grad():
            action = self._choose(net.policy(policy), False)
            if self.discrete:
                action = one_hot(action.argmax(-1), policy.shape[1]).to(obs)
            else:
                action = action.clamp(-1, 1)
        return net.q(net(obs, action, Q), action)
