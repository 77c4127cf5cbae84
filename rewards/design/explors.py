"""ExploRS: a bonus that a network designs while the agent learns, for actions that turned out better for the task.

    r(s, a) = size tanh(f(s, a) - mean_b f(s, b)),    f ascends   pi(a|s) (G - V(s)) (r(s, a) - sum_b pi(b|s) r(s, b))
    G    the task's return from s on, V(s) its mean there; pi the agent's policy, of which a clone is kept

Source: Devidze, Kamalaruban, Singla 2022, "Exploration-Guided Reward Shaping for Reinforcement Learning under Sparse
Rewards" (ExploRS, NeurIPS 2022), its self-supervised part for networks. `lodestar design method=explors` is the tabular
method, on a model of all states.
Differences: a reward does not see the agent, so pi is a classifier of the actions that were taken; f learns at every
update from new steps, where the source takes the last ten episodes at every twentieth and begins after 5,000; where an
episode goes on beyond a rollout, V stands for the rest. The other half, a count of visited states, is a reward of its
own: `reward=[task,explors,count] reward.count.memory=lifetime`.
Fails when: the task never rewards anything, for then f stays near 0; f is no potential, so a longer way through what
helped once may earn more than the shortest.
"""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softmax

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.numerics.returns import returns
from lodestar.settings import setting
from rewards.base import RunningMeanStd, valid_rows
from rewards.exploration.learned import Learned, LearnedConfig


@dataclass
class ExploRSConfig(LearnedConfig):
    """Settings of explors; the source's value in brackets where it differs."""

    scale: str = "none"
    gamma: float | None = None
    episodic: bool | None = True
    size: float = setting(0.1, "the most that a step earns", "> 0", tune=(0.01, 1.0, "log"))


class ExploRS(Learned):
    """r(s, a) = size tanh(f(s, a) - mean_b f(s, b)), near 0 before the first update."""

    Config = ExploRSConfig
    requires = frozenset({"obs", "action", "reward", "next_obs"})

    def build(self) -> None:
        super().build()
        if not isinstance(self.action_space, gym.spaces.Discrete):
            raise ValueError(f"reward explors compares the actions of a Discrete space, not {self.action_space}")
        hidden = self.config.hidden
        actions = self.actions.size
        self.f = self.net(hidden, hidden, actions)
        self.clone = self.net(hidden, hidden, actions)
        self.value = self.net(hidden, hidden, 1)
        with torch.no_grad():
            last: Any = self.f.dense[-1]
            last.weight.mul_(0.01)
        self.train_on(self.f, self.clone, self.value)
        # V is of returns less their mean, over their deviation.
        self.returns = RunningMeanStd()

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        x = self.inputs(batch.obs)
        return self.in_pieces(self._bonus, x, self.actions(batch.action)).cpu().numpy()

    def _bonus(self, x: Tensor, action: Tensor) -> Tensor:
        """The bonus of whitened rows (N, size) and one-hot actions (N, A): (N,)."""
        return (self._bonuses(x) * action).sum(1)

    def _bonuses(self, x: Tensor) -> Tensor:
        """The bonus of each action in rows (N, size): (N, A)."""
        outputs = self.f(x)
        # As in a table, no state gains for all actions alike, which would reward staying alive.
        centred = outputs - outputs.mean(1, keepdim=True)
        return self.config.size * torch.tanh(centred)

    def update(self, batch: Transitions) -> dict[str, float]:
        # A flat batch is that of one environment, in time order.
        if len(batch.shape) == 1:
            batch = batch[:, None]
        rows = valid_rows(batch)
        if not len(rows.step):
            return {}
        self.watch(rows)
        next_rows = self.inputs(batch.flatten().next_obs)
        values = self.in_pieces(self._value, next_rows).cpu().numpy()
        tail = values.reshape(batch.shape)
        task_returns = returns_to_go(batch, tail, self.discount)
        valid = np.asarray(batch.valid, bool)
        reached = task_returns[valid]
        self.returns.update(reached)
        standardised = (reached - self.returns.mean) / self._deviation()
        target = self.tensor(standardised.astype(np.float32))
        x = self.inputs(rows.obs)
        return self.fit((x, self.actions(rows.action), target))

    def _value(self, x: Tensor) -> Tensor:
        """What the task returns from rows (N, size) on: (N,)."""
        standardised = self.value(x).squeeze(1)
        return standardised * float(self._deviation()) + float(self.returns.mean)

    def _deviation(self) -> np.ndarray:
        return np.maximum(self.returns.std, 1e-6)

    def loss(self, *columns: Tensor) -> dict[str, Tensor]:
        x, action, target = columns
        value = self.value(x).squeeze(1)
        logits = self.clone(x)
        policy = softmax(logits.detach(), 1)
        advantage = target - value.detach()
        bonus = self._bonuses(x)
        mean_bonus = (bonus * policy).sum(1)
        above_mean = (bonus * action).sum(1) - mean_bonus
        probability = (policy * action).sum(1)
        value_error = target - value
        design = probability * advantage * above_mean
        return {
            "value_loss": value_error.square().mean(),
            "clone_loss": self.actions.loss(logits, action),
            "design_loss": -design.mean(),
        }


def returns_to_go(batch: Transitions, tail: np.ndarray, discount: float) -> np.ndarray:
    """Discounted sums (T, N) of the task's rewards from each step on; `tail` (T, N) is what follows it elsewhere.

    It stands for what comes after an episode that ran out of time, or that the rollout does not show.
    """
    length, n = batch.shape
    valid = np.asarray(batch.valid, bool)
    is_next_step = batch.step[1:] == batch.step[:-1] + 1
    is_last = np.ones((length, n), bool)
    is_last[:-1] = ~(valid[1:] & is_next_step) | batch.ended[:-1]
    after_last = np.where(batch.terminated, 0, tail)
    # The rows of one environment stand after those of the other.
    sums = returns(batch.reward.T.ravel(), is_last.T.ravel(), after_last.T.ravel(), discount)
    return np.where(valid, sums.reshape(n, length).T, 0)
