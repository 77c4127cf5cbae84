"""PPO with boosted trees (`lodestar.numerics.trees`): where a network makes a step of Adam, the ensemble gets a tree.

Each minibatch takes the gradient of PPO's loss at the outputs F of its rows, times the number of rows,
because the loss is their mean; a tree is fitted to it and subtracted, at one rate for the policy's
outputs and another for the values. F of all rows of the rollout is kept, so that a tree is evaluated once. With one
epoch of one minibatch the step is A2C's, of normalised advantages.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agents.networks.actor_critic import Actions, ActorCritic, Inputs
from agents.ppo.config import PPOConfig
from agents.ppo.seams import Batch
from agents.ppo.update import TorchUpdate
from lodestar.numerics.descent import Flat
from lodestar.numerics.trees import Bins, Tree, Trees, fit


class TreePolicy(ActorCritic):
    """Policy outputs and K values as columns of one ensemble, which stands where a network's trunk does."""

    def __init__(self, inputs: Inputs, actions: Actions, streams: int, depth: int) -> None:
        if inputs.images or not inputs.size:
            raise ValueError("agent.net=trees reads numbers, and these observations have images; give agent.net=mlp")
        ensemble = Trees(inputs.size, actions.outputs + streams, depth)
        super().__init__(inputs, actions, [], streams, trunk=ensemble)
        del self.pi_head, self.vf_head

    def heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.actions.outputs
        return features[:, :outputs], features[:, outputs:]

    def ordered(self) -> list[nn.Parameter]:
        """Without the leaves, which no step of Adam moves."""
        return [x for x in super().ordered() if x is not self.trunk.leaf]

    def values_from(self, weights: Mapping[str, Tensor], places: Sequence[int | None]) -> dict[str, Tensor]:
        """As `ActorCritic`'s; a new stream's values are 0."""
        outputs = self.actions.outputs
        columns: dict[str, Tensor] = {}
        for key in ("trunk.leaf", "trunk.importance"):
            old = weights[key]
            values = []
            for place in places:
                if place is None:
                    values.append(torch.zeros_like(old[..., 0]))
                else:
                    values.append(old[..., outputs + place])
            policy_columns = old[..., :outputs]
            columns[key] = torch.cat([policy_columns, torch.stack(values, -1)], -1)
        return columns


class TreesUpdate(TorchUpdate):
    """Acts and evaluates as `TorchUpdate`; Adam moves nothing but the deviation of a Gaussian, if there is one."""

    net: TreePolicy

    def __init__(self, net: TreePolicy, flat: Flat, config: PPOConfig) -> None:
        super().__init__(net, flat, config)
        outputs = net.actions.outputs
        values = net.trunk.width - outputs
        self.first_learning_rate = self.learning_rate
        rates = [config.tree_rate] * outputs + [config.tree_value_rate] * values
        self.rates = np.array(rates, np.float32)

    def begin_update(self, batch: Batch) -> Batch:
        """The batch with the rows' numbers as observations: their outputs are known, and change with every tree."""
        batch = super().begin_update(batch)
        vector = self.tensor(batch.vector)
        self.vector = vector.cpu().numpy()
        self.bins = Bins.of(self.vector, self.config.tree_bins)
        self.grown: list[Tree] = []
        with torch.no_grad():
            self.outputs = self.net.trunk(vector)
        row_numbers = np.arange(len(vector))[:, None]
        return dataclasses.replace(batch, vector=row_numbers)

    def end_update(self) -> None:
        trunk = self.net.trunk
        trunk.grow(self.grown)
        limit = self.config.tree_limit
        if limit and len(trunk.leaf) > limit:
            # The rollout's rows are the states that matter now, as in the source.
            trunk.distil(self.vector, self.bins, limit // 2)

    def _outputs(self, batch: Batch, index: Any) -> tuple[Tensor, Tensor]:
        self.minibatch_rows = self.tensor(batch.vector)[index, 0]
        # A leaf of the graph: its gradient is what the next tree is fitted to.
        self.minibatch_outputs = self.outputs[self.minibatch_rows].requires_grad_()
        return self.net.heads(self.minibatch_outputs)

    def _descend(self) -> None:
        if self.net.log_std is not None:
            super()._descend()
        assert self.minibatch_outputs.grad is not None
        gradient = self.minibatch_outputs.grad * len(self.minibatch_outputs)
        places = self.bins.place[self.minibatch_rows.cpu().numpy()]
        bins = self.bins._replace(place=places)
        tree = fit(bins, gradient.cpu().numpy(), self.config.tree_depth)
        # The learning rate of Adam, which may be a schedule, scales the trees' own rates.
        share = self.learning_rate / self.first_learning_rate
        rates = -np.float32(share) * self.rates
        tree = tree._replace(leaf=rates * tree.leaf)
        self.outputs += self.tensor(tree.at(self.vector))
        self.grown.append(tree)
