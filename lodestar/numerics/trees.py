"""Boosted oblivious trees in place of networks: of an actor and a critic, or of a reward model.

    F(x) = sum over trees t of leaf_t[code_t(x)]     all outputs, such as a policy's and its values, from every tree
    code_t(x)                                        `depth` comparisons x[feature] > threshold, read as bits
    a tree is fitted to the gradient of a loss at F(x); its leaves hold the mean gradient there

An oblivious tree asks the same question in all nodes of a level: that of the highest score, the sum over nodes of
|sum of the gradient|^2 / rows, found for all thresholds of all inputs at once from histograms.

Sources: Fuhrer et al. 2024, "Gradient Boosting Reinforcement Learning", arXiv 2407.08250; oblivious trees as in
Prokhorenkova et al. 2018, "CatBoost", arXiv 1706.09516.
Differences: NumPy; thresholds are placed once a rollout; to choose a question, a gradient is divided by its root mean
square; F begins at 0; `distil` fits a smaller ensemble to the outputs at some rows, as acting takes time in proportion
to all trees so far.
Fails when: the observation is an image, or what matters is a sum of many inputs, which trees approach by steps.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

# A threshold that nothing is above.
LARGEST_FLOAT32 = np.finfo(np.float32).max
# Share of what is missing that a tree of `distil` adds.
DISTIL_RATE = 0.3
# Rows times trees that are looked at in one go.
MAX_CELLS_A_PART = 2**20
GROWN = ("feature", "threshold", "leaf")


class Bins(NamedTuple):
    """M rows, each number as its place among the W bins of all inputs, which lie one after the other.

    Args:
        place: int64 (M, D'), of the inputs that vary.
        column: int64 (W,), which of these a bin belongs to.
        feature: int64 (W,), the same among all inputs.
        edge: float32 (W,), what is larger lies in a bin further right.
    """

    place: np.ndarray
    column: np.ndarray
    feature: np.ndarray
    edge: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, most: int) -> "Bins":
        """Of rows (M, D), at most so many bins an input: between its values if they are few, else at quantiles."""
        places = list[np.ndarray]()
        edges = list[np.ndarray]()
        features = list[int]()
        begin = 0
        for number, column in enumerate(x.T):
            values = np.unique(column)
            # A constant input is left out, unless all are constant: then the last one stays.
            is_last = number == x.shape[1] - 1
            if len(values) == 1 and (features or not is_last):
                continue
            if len(values) > most:
                quantiles = np.quantile(column, np.arange(1, most) / most)
                between = np.unique(quantiles)
            else:
                between = (values[1:] + values[:-1]) / 2
            column_edges = np.append(between, LARGEST_FLOAT32).astype(np.float32)
            edges.append(column_edges)
            places.append(begin + np.searchsorted(column_edges[:-1], column))
            features.append(number)
            begin += len(column_edges)
        column = np.repeat(np.arange(len(edges)), list(map(len, edges)))
        feature = np.array(features)[column]
        return cls(np.stack(places, 1), column, feature, np.concatenate(edges))


class Tree(NamedTuple):
    """One tree of depth d for K outputs.

    Args:
        feature: int64 (d,).
        threshold: float32 (d,).
        leaf: float32 (2^d, K); the first question is the highest bit of the number of a leaf.
        gain: float32 (d, K), what each question added to the score.
    """

    feature: np.ndarray
    threshold: np.ndarray
    leaf: np.ndarray
    gain: np.ndarray

    def at(self, x: np.ndarray) -> np.ndarray:
        """Leaves of rows (M, D): (M, K)."""
        bits = x[:, self.feature] > self.threshold
        place_values = 1 << np.arange(len(self.feature))[::-1]
        return self.leaf[bits @ place_values]


def fit(bins: Bins, gradient: np.ndarray, depth: int) -> Tree:
    """The tree whose leaves hold means of the gradient (M, K) of the rows in `bins`.

    Example:
        >>> x, gradient = np.float32([[0], [1], [2], [3]]), np.array([[1.0], [1], [-1], [-1]])
        >>> tree = fit(Bins.of(x, 32), gradient, 1)
        >>> tree.threshold.tolist(), tree.leaf.ravel().tolist(), tree.gain.tolist()
        ([1.5], [1.0, -1.0], [[4.0]])
    """
    rows = len(bins.place)
    width = len(bins.edge)
    # Outputs count alike: the question is chosen by gradients divided by their root mean square.
    size = np.sqrt(np.square(gradient, dtype=np.float64).mean(0))
    size[size == 0] = 1.0

    # What is summed over rows, (1 + K, M): ones, which count them, then the gradients. Repeated for
    # each input it fits `place`, (1 + K, M * D').
    summands = np.concatenate([np.ones((1, rows)), (gradient / size).T])
    repeated = np.repeat(summands, bins.place.shape[1], axis=1)
    # The sums over the rows of each node, (1 + K, nodes), and the score of the questions so far,
    # (K,).
    total = summands.sum(1)[:, None]
    score_before = total[1:, 0] ** 2 / rows
    node = np.zeros(rows, np.int64)
    chosen = list[int]()
    gains = list[np.ndarray]()
    for level in range(depth):
        # The sums over the rows in each bin of each node, (1 + K, nodes, W).
        place = (bins.place + width * node[:, None]).ravel()
        histogram = np.stack([np.bincount(place, summand, width << level) for summand in repeated])
        histogram = histogram.reshape(len(summands), -1, width)
        # The same over all rows up to a bin. All inputs before its own have added all rows of the
        # node.
        left = histogram.cumsum(-1) - bins.column * total[..., None]
        right = total[..., None] - left
        score = _side_score(left) + _side_score(right)
        best = int(score.sum(0).argmax())
        chosen.append(best)
        gains.append(score[:, best] - score_before)
        score_before = score[:, best]
        total = np.stack([left[..., best], right[..., best]], -1).reshape(len(summands), -1)
        node = 2 * node + (bins.place[:, bins.column[best]] > best)
    leaf = (total[1:] / np.maximum(total[0], 1)).T * size
    return Tree(bins.feature[chosen], bins.edge[chosen], leaf.astype(np.float32), np.array(gains, np.float32))


def _side_score(sums: np.ndarray) -> np.ndarray:
    """The score (K, W) of one side of every question, from its sums (1 + K, nodes, W)."""
    count = np.maximum(sums[0], 1)
    return (sums[1:] ** 2 / count).sum(1)


class Trees(nn.Module):
    """An ensemble for K outputs of D inputs; `importance`, (D, K), is what the questions about an input added."""

    feature: Tensor
    threshold: Tensor
    importance: Tensor

    def __init__(self, inputs: int, outputs: int, depth: int) -> None:
        super().__init__()
        self.width = outputs
        self.leaf = nn.Parameter(torch.zeros(0, 2**depth, outputs))
        self.register_buffer("feature", torch.zeros(0, depth, dtype=torch.int64))
        self.register_buffer("threshold", torch.zeros(0, depth))
        self.register_buffer("importance", torch.zeros(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, K)."""
        out = x.new_zeros(len(x), self.width)
        if not len(self.leaf):
            # The sum is 0; it makes the result a function of the leaves, so that it has a gradient.
            return out + self.leaf.sum()
        trees_a_part = max(MAX_CELLS_A_PART // max(len(x), 1), 1)
        for begin in range(0, len(self.leaf), trees_a_part):
            part = slice(begin, begin + trees_a_part)
            feature = self.feature[part]
            threshold = self.threshold[part]
            leaf = self.leaf[part]
            # The number of a leaf among those of all trees: the tree's number in the highest
            # digits, then one bit a question.
            code = torch.arange(len(leaf), device=x.device)
            for level in range(feature.shape[1]):
                code = 2 * code + (x[:, feature[:, level]] > threshold[:, level])
            out = out + embedding_bag(code, leaf.flatten(0, 1), mode="sum")
        return out

    @torch.no_grad()
    def grow(self, trees: Sequence[Tree]) -> None:
        """Add trees to the ensemble."""
        device = self.leaf.device
        for name in GROWN:
            arrays = np.stack([getattr(tree, name) for tree in trees])
            new = torch.from_numpy(arrays).to(device)
            self.set_grown(name, torch.cat([getattr(self, name), new]))
        for tree in trees:
            feature = torch.from_numpy(tree.feature).to(device)
            gain = torch.from_numpy(tree.gain).to(device)
            self.importance.index_add_(0, feature, gain)

    @torch.no_grad()
    def distil(self, x: np.ndarray, bins: Bins, count: int) -> None:
        """Put `count` trees in the place of all, boosted towards the outputs at rows (M, D), which lie in `bins`."""
        missing = self(torch.from_numpy(x).to(self.leaf.device)).cpu().numpy()
        trees = []
        for _ in range(count):
            tree = fit(bins, missing, self.feature.shape[1])
            tree = tree._replace(leaf=np.float32(DISTIL_RATE) * tree.leaf)
            missing = missing - tree.at(x)
            trees.append(tree)
        for name in GROWN:
            none_left = getattr(self, name).detach()[:0]
            self.set_grown(name, none_left)
        self.importance.zero_()
        self.grow(trees)

    def set_grown(self, name: str, value: Tensor) -> None:
        """Exchange one of `GROWN`, whose leaves are a parameter."""
        setattr(self, name, nn.Parameter(value) if name == "leaf" else value)

    def _load_from_state_dict(self, state: Mapping[str, Tensor], prefix: str, *rest: Any) -> None:
        # A state may have any number of trees.
        for name in GROWN:
            own = getattr(self, name).detach()
            count = len(state[prefix + name])
            self.set_grown(name, own.new_zeros(count, *own.shape[1:]))
        super()._load_from_state_dict(state, prefix, *rest)
