"""Boosted oblivious trees in place of networks: of an actor and a critic, or of a reward model.

    F(x) = sum over trees t of leaf_t[code_t(x)]     all outputs, such as a policy's and its values, from every tree
    code_t(x)                                        `depth` comparisons x[feature] > threshold, read as bits
    a tree is fitted to the gradient of a loss at F(x); its leaves hold the mean gradient there

An oblivious tree asks the same question in all nodes of a level: that of the highest score, the sum over nodes of
|sum of the gradient|^2 / rows, found for all thresholds of all inputs at once from histograms.

Sources: Fuhrer et al. 2024, "Gradient Boosting Reinforcement Learning", arXiv 2407.08250; oblivious trees as in
Prokhorenkova et al. 2018, "CatBoost", arXiv 1706.09516.
Differences: NumPy; thresholds are placed once a rollout; to choose a question, a gradient is divided by its root mean
square; F begins at 0; ensembles are not distilled, so acting takes time in proportion to all trees so far.
Fails when: the observation is an image, or what matters is a sum of many inputs, which trees approach by steps.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

LARGEST = np.finfo(np.float32).max  # a threshold that nothing is above
CELLS = 2**20  # rows times trees that are looked at in one go
GROWN = ("feature", "threshold", "leaf")


class Bins(NamedTuple):
    """M rows, each number as its place among the W bins of all inputs, which lie one after the other."""

    place: np.ndarray  # int64 (M, D'), of the inputs that vary
    column: np.ndarray  # int64 (W,), which of these a bin belongs to
    feature: np.ndarray  # int64 (W,), the same among all inputs
    edge: np.ndarray  # float32 (W,), what is larger lies in a bin further right

    @classmethod
    def of(cls, x: np.ndarray, most: int) -> "Bins":
        """Of rows (M, D), at most so many bins an input: between its values if they are few, else at quantiles."""
        places, edges, features, begin = list[np.ndarray](), list[np.ndarray](), list[int](), 0
        for number, column in enumerate(x.T):
            seen = np.unique(column)
            if len(seen) == 1 and (features or number < x.shape[1] - 1):
                continue
            if len(seen) > most:
                between = np.unique(np.quantile(column, np.arange(1, most) / most))
            else:
                between = (seen[1:] + seen[:-1]) / 2
            edges.append(np.append(between, LARGEST).astype(np.float32))
            places.append(begin + np.searchsorted(edges[-1][:-1], column))
            features.append(number)
            begin += len(edges[-1])
        column = np.repeat(np.arange(len(edges)), [len(each) for each in edges])
        return cls(np.stack(places, 1), column, np.array(features)[column], np.concatenate(edges))


class Tree(NamedTuple):
    """One tree of depth d for K outputs."""

    feature: np.ndarray  # int64 (d,)
    threshold: np.ndarray  # float32 (d,)
    leaf: np.ndarray  # float32 (2^d, K); the first question is the highest bit of the number of a leaf
    gain: np.ndarray  # float32 (d, K), what each question added to the score

    def at(self, x: np.ndarray) -> np.ndarray:
        """Leaves of rows (M, D): (M, K)."""
        return self.leaf[(x[:, self.feature] > self.threshold) @ (1 << np.arange(len(self.feature))[::-1])]


def fit(bins: Bins, gradient: np.ndarray, depth: int) -> Tree:
    """The tree whose leaves hold means of the gradient (M, K) of the rows in `bins`.

    Example:
        >>> x, gradient = np.float32([[0], [1], [2], [3]]), np.array([[1.0], [1], [-1], [-1]])
        >>> tree = fit(Bins.of(x, 32), gradient, 1)
        >>> tree.threshold.tolist(), tree.leaf.ravel().tolist(), tree.gain.tolist()
        ([1.5], [1.0, -1.0], [[4.0]])
    """
    rows, width = len(bins.place), len(bins.edge)
    size = np.sqrt(np.square(gradient, dtype=np.float64).mean(0))
    size[size == 0] = 1.0
    each = np.concatenate([np.ones((1, rows)), (gradient / size).T])  # (1 + K, M): rows, then gradients
    beside = np.repeat(each, bins.place.shape[1], axis=1)
    total = each.sum(1)[:, None]  # (1 + K, nodes)
    before, node = total[1:, 0] ** 2 / rows, np.zeros(rows, np.int64)
    chosen, gains = list[int](), list[np.ndarray]()
    for level in range(depth):
        place = (bins.place + width * node[:, None]).ravel()
        histogram = np.stack([np.bincount(place, part, width << level) for part in beside])
        # All inputs before a bin's own have added all rows of the node.
        left = histogram.reshape(len(each), -1, width).cumsum(-1) - bins.column * total[..., None]
        right = total[..., None] - left
        score = sum((side[1:] ** 2 / np.maximum(side[0], 1)).sum(1) for side in (left, right))  # (K, W)
        best = int(score.sum(0).argmax())
        chosen.append(best)
        gains.append(score[:, best] - before)
        before = score[:, best]
        total = np.stack([left[..., best], right[..., best]], -1).reshape(len(each), -1)
        node = 2 * node + (bins.place[:, bins.column[best]] > best)
    leaf = (total[1:] / np.maximum(total[0], 1)).T * size
    return Tree(bins.feature[chosen], bins.edge[chosen], leaf.astype(np.float32), np.array(gains, np.float32))


class Trees(nn.Module):
    """An ensemble for K outputs of D inputs; `importance`, (D, K), is what the questions about an input added."""

    feature: Tensor
    threshold: Tensor
    importance: Tensor

    def __init__(self, inputs: int, outputs: int, depth: int) -> None:
        super().__init__()
        self.width, self.leaf = outputs, nn.Parameter(torch.zeros(0, 2**depth, outputs))
        self.register_buffer("feature", torch.zeros(0, depth, dtype=torch.int64))
        self.register_buffer("threshold", torch.zeros(0, depth))
        self.register_buffer("importance", torch.zeros(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, K)."""
        out = x.new_zeros(len(x), self.width)
        if not len(self.leaf):
            return out + self.leaf.sum()  # 0, as a function of the leaves
        step = max(CELLS // max(len(x), 1), 1)
        for part in range(0, len(self.leaf), step):
            feature, threshold, leaf = (getattr(self, name)[part : part + step] for name in GROWN)
            code = torch.arange(len(leaf), device=x.device)
            for level in range(feature.shape[1]):
                code = 2 * code + (x[:, feature[:, level]] > threshold[:, level])
            out = out + embedding_bag(code, leaf.flatten(0, 1), mode="sum")
        return out

    @torch.no_grad()
    def grow(self, trees: Sequence[Tree]) -> None:
        for name in GROWN:
            new = torch.from_numpy(np.stack([getattr(tree, name) for tree in trees])).to(self.leaf.device)
            self.put(name, torch.cat([getattr(self, name), new]))
        for tree in trees:
            feature, gain = (torch.from_numpy(x).to(self.leaf.device) for x in (tree.feature, tree.gain))
            self.importance.index_add_(0, feature, gain)

    def put(self, name: str, value: Tensor) -> None:
        setattr(self, name, nn.Parameter(value) if name == "leaf" else value)

    def _load_from_state_dict(self, state: Mapping[str, Tensor], prefix: str, *rest: Any) -> None:
        for name in GROWN:  # any number of trees fits
            own = getattr(self, name).detach()
            self.put(name, own.new_zeros(len(state[prefix + name]), *own.shape[1:]))
        super()._load_from_state_dict(state, prefix, *rest)
