"""Contrastive UCB: a count of visits in features that tell which next states follow a state and an action.

Where P(s'|s, a) = psi(s')' phi(s, a), telling true next states from others of the batch recovers phi, and the width of
a linear regression in phi is an upper confidence bonus, as 1/sqrt(1 + n) is where states can be counted.
Source: Qiu et al. 2022, "Contrastive UCB: Provably Efficient Contrastive Self-Supervised Learning in Online
Reinforcement Learning" (arXiv 2207.14800), algorithm 1; the loss is InfoNCE over the batch.
Differences from the authors' code: features learn from a sample of all transitions so far, as many at each update as
are new; a transition is added to Sigma once, when it is collected, after its own bonus; Sigma is summed again over that
sample after every `again` transitions, as phi has moved; phi has norm 1, so that the bonus is at most 1 / sqrt(ridge),
ridge 1 and not 1e-5; the features are a network of their own, not layers of a Q-function; no Markov games. `phi=random`
is the control that never learns; `phi=outer` the product of observation and action: with one-hot observations 1/sqrt(1
+ n(s, a)).
Fails when: more things differ than there are features; noise that an action switches on, which is learnt like all else
(study contrastive_ucb). It compares each pair of a minibatch, which costs PPO about two fifths of its frames a second
(`python -m benchmarks reward-cost`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from lodestar.state import Stateful
from rewards.base import Metrics, valid_rows
from rewards.exploration.learned import Columns, Learned, LearnedConfig, Losses

PHIS = ("contrast", "random", "outer")
MAX_SAMPLE_ROWS = 20_000  # transitions that Sigma is summed over again
MAX_SAMPLE_BYTES = 2**27
MAX_OUTER_FEATURES = 2048  # of phi=outer; a matrix of their square is inverted


@dataclass
class ContrastiveUCBConfig(LearnedConfig):
    """Settings of Contrastive UCB; `weight` is the paper's beta [0.1 to 1]."""

    features: int = setting(128, "size of phi and psi, D [32 to 128]: it distinguishes at most so many things")
    hidden: int = setting(128, "width of the hidden layers")
    weight: Any = 0.1
    scale: str = "none"
    gamma: float | None = None
    phi: str = setting("contrast", "learnt by contrast; random; outer, observation times action", choices=PHIS)
    ridge: float = setting(1.0, "lambda; Sigma starts as this times the identity", "> 0", tune=(0.1, 10.0, "log"))
    temperature: float = setting(0.1, "divides the similarities that are contrasted", "> 0", tune=(0.03, 1.0, "log"))
    again: int = setting(10_000, "transitions after which Sigma is summed with the features of now", ">= 1")


class ContrastiveUCB(Learned):
    """r(s, a) = sqrt(phi' Sigma^-1 phi), Sigma = ridge I + sum of phi phi' over all of training, |phi(s, a)| = 1."""

    Config = ContrastiveUCBConfig
    requires = frozenset({"obs", "action", "next_obs"})

    def build(self) -> None:
        super().build()
        config = self.config
        self.learns = config.phi == "contrast"
        size = self.layout.size
        row_bytes = 4 * (2 * size + self.actions.size)
        sample_rows = min(MAX_SAMPLE_ROWS, MAX_SAMPLE_BYTES // row_bytes)
        if config.phi == "outer":
            width = size * self.actions.size
            if width > MAX_OUTER_FEATURES:
                raise ValueError(
                    f"{config.prefix}phi=outer has {width} features, more than {MAX_OUTER_FEATURES}; take contrast"
                )
            # These features never change, so Sigma is never summed again.
            sample_rows = 0
        else:
            width = config.features
            self.trunk = self.net(config.hidden, config.hidden)
            self.features = self.head(config.hidden + self.actions.size, config.hidden, width)
            self.psi = self.net(config.hidden, width)
            self.train_on(self.trunk, self.features, self.psi)
        self.sigma = Covariance(width, config.ridge, sample_rows)

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        phi = self.phi(self.rows(batch.obs), self.actions(batch.action))
        return self.sigma.width(phi)

    def update(self, batch: Transitions) -> Metrics:
        sigma = self.sigma
        flat = valid_rows(batch)
        if len(flat.step) == 0:
            return {}
        rows = self.rows(flat.obs)
        action = self.actions(flat.action)
        after = self.rows(flat.next_obs)
        sample = np.concatenate([rows, action.cpu().numpy(), after], axis=1)
        sigma.keep(sample, self.rng)
        metrics = super().update(flat)
        sigma.add(self.phi(rows, action))
        if sigma.capacity and sigma.since >= self.config.again:
            sample_rows, sample_action, _ = self.split_sample(sigma.kept)
            sigma.recompute(self.phi(sample_rows, sample_action))
        return {**metrics, "rank": sigma.rank}

    def epoch(self, columns: Columns) -> Columns:
        """As many rows as are new, drawn from all so far: a policy that stands still would make features forget."""
        sample = self.sigma.kept
        drawn = self.rng.integers(len(sample), size=len(columns[0]))
        rows, action, after = self.split_sample(sample[drawn])
        self.set_used_columns(rows, after)
        used = self.layout.used
        return self.whiten(rows, used), action, self.whiten(after, used)

    def split_sample(self, rows: np.ndarray) -> tuple[np.ndarray, Tensor, np.ndarray]:
        """The parts of rows of the sample: obs and next_obs as they are, coded actions."""
        size = self.layout.size
        action = self.tensor(np.ascontiguousarray(rows[:, size:-size]))
        return rows[:, :size], action, rows[:, -size:]

    def phi(self, rows: np.ndarray, action: Tensor) -> np.ndarray:
        """Features (N, D), norm 1, of rows (N, size) as they are and coded actions (N, A)."""
        if self.config.phi == "outer":
            product = torch.from_numpy(rows)[:, :, None] * action.cpu()[:, None, :]
            return normalize(product.flatten(1)).numpy()
        self.set_used_columns(rows)
        x = self.whiten(rows, self.layout.used)
        return self.in_pieces(self.encode, x, action).cpu().numpy()

    def encode(self, x: Tensor, action: Tensor) -> Tensor:
        hidden = self.trunk(x).relu()
        features = self.features(torch.cat([hidden, action], dim=1))
        return normalize(features)

    def columns(self, batch: Transitions) -> Columns:
        # Only the number of rows counts: `epoch` draws as many from the sample.
        return (torch.empty(len(batch.step)),)

    def loss(self, *columns: Tensor) -> Losses:
        x, action, after = columns
        # InfoNCE: each row of the minibatch has to find its own successor among all of them.
        psi = normalize(self.psi(after))
        similarity = self.encode(x, action) @ psi.T / self.config.temperature
        own = torch.arange(len(x), device=similarity.device)
        return {"contrast_loss": cross_entropy(similarity, own)}


class Covariance(Stateful):
    """ridge I + the sum of phi phi', its inverse, and a sample of what was summed (Vitter 1985, algorithm R)."""

    saved = ("matrix", "inverse", "kept", "seen", "since")

    def __init__(self, features: int, ridge: float, capacity: int) -> None:
        self.ridge = ridge
        self.capacity = capacity
        self.matrix: np.ndarray = ridge * np.eye(features)
        self.inverse: np.ndarray = np.eye(features) / ridge
        self.kept = np.zeros((0, 0), np.float32)  # the sample
        self.room = self.kept  # the array that it grows in
        self.seen = 0  # rows of all time
        self.since = 0  # rows since the last `recompute`

    @property
    def rank(self) -> float:
        """Effective number of features that were visited: the trace of (Sigma - ridge I) Sigma^-1."""
        return float(len(self.matrix) - self.ridge * np.trace(self.inverse))

    def width(self, phi: np.ndarray) -> np.ndarray:
        """sqrt(phi' Sigma^-1 phi) of rows (N, D): float32 (N,)."""
        phi = phi.astype(np.float64)
        square = ((phi @ self.inverse) * phi).sum(axis=1)
        return np.sqrt(np.maximum(square, 0)).astype(np.float32)

    def add(self, phi: np.ndarray) -> None:
        """Sum rows (N, D)."""
        rows = phi.astype(np.float64)
        self.matrix = self.matrix + rows.T @ rows
        self.inverse = np.linalg.inv(self.matrix)

    def keep(self, rows: np.ndarray, rng: np.random.Generator) -> None:
        """Let rows (N, W) into the sample, each with the chance that all of them so far have."""
        number = self.seen + np.arange(len(rows))
        self.since += len(rows)
        self.seen += len(rows)
        if not self.capacity:
            return
        # The room is made once, and again after a state was loaded.
        if self.kept.base is not self.room:
            self.room = np.empty((self.capacity, rows.shape[1]), np.float32)
            self.room[: len(self.kept)] = self.kept.reshape(-1, rows.shape[1])
        # Algorithm R: row number i replaces a random one of the sample with probability capacity / (i + 1).
        place = number.copy()
        is_late = number >= self.capacity
        place[is_late] = rng.integers(0, number[is_late] + 1)
        is_inside = place < self.capacity
        self.room[place[is_inside]] = rows[is_inside]
        self.kept = self.room[: self.seen]

    def recompute(self, phi: np.ndarray) -> None:
        """Replace the sum by that of features (M, D) of a sample, which stands for all rows seen."""
        self.since = 0
        self.matrix = self.ridge * np.eye(len(self.matrix))
        self.add(phi * np.sqrt(self.seen / len(phi)))
