"""Members of `bradley_terry` as ensembles of boosted trees (`net=trees`), which say what they ask about.

A pass over the labels adds a tree to each member, fitted to the gradient of its loss at a bootstrap of the labels. What
matters in a reward is often a threshold (a height, a gap to the car ahead), which one tree has and a network bends to.
Source: Friedman 2001, "Greedy function approximation: a gradient boosting machine"; trees as in
`lodestar.numerics.trees`.
Fails when: the reward is a sum of many inputs; actions or observations are images.
"""

import torch
from torch import nn

from lodestar.numerics.trees import Bins, Trees, fit

MEMBER_DEPTH = 3
MEMBER_BINS = 32
# The share of a tree's values that its member takes over.
SHRINKAGE = 0.3


class StackedTrees(nn.Module):
    """K ensembles, each with one output: (B, inputs) or (K, B, inputs) -> (K, B, 1)."""

    def __init__(self, members: int, inputs: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(Trees(inputs, 1, MEMBER_DEPTH) for _ in range(members))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows = x.expand(len(self.members), -1, -1)
        with torch.no_grad():
            self.out = torch.stack([trees(rows) for trees, rows in zip(self.members, self.rows)])
        return self.out.requires_grad_(torch.is_grad_enabled())

    def grow(self, loss: torch.Tensor, pairs: int) -> None:
        """Add a tree to each member, along the gradient of a loss that is the mean over `pairs`."""
        (gradient,) = torch.autograd.grad(loss * pairs, self.out)
        for trees, rows, member_gradient in zip(self.members, self.rows, gradient):
            bins = Bins.of(rows.cpu().numpy(), MEMBER_BINS)
            tree = fit(bins, member_gradient.cpu().numpy(), MEMBER_DEPTH)
            trees.grow([tree._replace(leaf=-SHRINKAGE * tree.leaf)])  # type: ignore[operator]
