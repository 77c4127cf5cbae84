"""PPO with boosted trees (`lodestar.numerics.trees`): where a network makes a step of Adam, the ensemble gets a tree.

Each minibatch takes the gradient of PPO's loss at the outputs F of its rows, times the number of rows, because the loss
is their mean; a tree is fitted to it and subtracted, at one rate for the policy's outputs and another for the values. F
of all rows of the rollout is kept, so that a tree is evaluated once.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agents.networks.actor_critic import Actions, ActorCritic, Inputs
from agents.ppo.config import PPOConfig
from agents.ppo.update import Batch, TorchUpdate
from lodestar.numerics.flat import Flat
from lodestar.numerics.trees import Bins, Tree, Trees, fit


class TreePolicy(ActorCritic):
    """Policy outputs and K values as columns of one ensemble, which stands where a network's trunk does."""

    def __init__(self, inputs: Inputs, actions: Actions, streams: int, depth: int) -> None:
        if inputs.images or not inputs.size:
            raise ValueError("agent.net=trees reads numbers, and these observations have images; give agent.net=mlp")
        super().__init__(inputs, actions, [], streams, trunk=Trees(inputs.size, actions.outputs + streams, depth))
        del self.pi_head, self.vf_head

    def heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return features[:, : self.actions.outputs], features[:, self.actions.outputs :]

    def ordered(self) -> list[nn.Parameter]:
        """Without the leaves, which no step of Adam moves."""
        return [x for x in super().ordered() if x is not self.trunk.leaf]

    def values_from(self, weights: Mapping[str, Tensor], places: Sequence[int | None]) -> dict[str, Tensor]:
        """As `ActorCritic`'s; a new stream's values are 0."""
        found, outputs = dict[str, Tensor](), self.actions.outputs
        for key in ("trunk.leaf", "trunk.importance"):
            old = weights[key]
            values = [torch.zeros_like(old[..., 0]) if at is None else old[..., outputs + at] for at in places]
            found[key] = torch.cat([old[..., :outputs], torch.stack(values, -1)], -1)
        return found


class TreesUpdate(TorchUpdate):
    """Acts and evaluates as `TorchUpdate`; Adam moves nothing but the deviation of a Gaussian, if there is one."""

    net: TreePolicy

    def __init__(self, net: TreePolicy, flat: Flat, config: PPOConfig) -> None:
        super().__init__(net, flat, config)
        outputs, values = net.actions.outputs, net.trunk.width - net.actions.outputs
        self.rates = np.array([config.tree_rate] * outputs + [config.tree_value_rate] * values, np.float32)

    def begin_update(self, batch: Batch) -> Batch:
        vector = self.tensor(batch.vector)
        self.vector = vector.cpu().numpy()
        self.bins, self.grown = Bins.of(self.vector, self.config.tree_bins), list[Tree]()
        with torch.no_grad():
            self.outputs = self.net.trunk(vector)
        return dataclasses.replace(batch, vector=np.arange(len(vector))[:, None])

    def end_update(self) -> None:
        self.net.trunk.grow(self.grown)

    def _outputs(self, batch: Batch, index: Any) -> tuple[Tensor, Tensor]:
        self.taken = self.tensor(batch.vector)[index, 0]
        self.given = self.outputs[self.taken].requires_grad_()
        return self.net.heads(self.given)

    def _descend(self) -> None:
        if self.net.log_std is not None:
            super()._descend()
        assert self.given.grad is not None
        gradient = (self.given.grad * len(self.given)).cpu().numpy()
        bins = self.bins._replace(place=self.bins.place[self.taken.cpu().numpy()])
        tree, share = fit(bins, gradient, self.config.tree_depth), self.learning_rate / self.config.learning_rate
        tree = tree._replace(leaf=-np.float32(share) * self.rates * tree.leaf)
        self.outputs += self.tensor(tree.at(self.vector))
        self.grown.append(tree)
