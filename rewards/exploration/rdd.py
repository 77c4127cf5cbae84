"""Random targets that stand for counts: RND whose target is redrawn at every visit.

A predictor that averages n draws is off their mean by about 1/n of their variance, so its distance to the mean is a
pseudo-count; RND's fixed target has no such law. One class, three ways to draw:

    gaussian    RDD: target(x) + noise, bonus mean over D of (f(x) - target(x))**2, about 1/n
    ensemble    DRND: one of K fixed networks, bonus alpha |f - mean|**2 + (1 - alpha) sqrt((f**2 - mean**2) / variance)
    coin_flip   CFN: +1 or -1 for each feature, bonus sqrt(mean over D of f(x)**2), about 1/sqrt(n)

Source: Fang et al. 2025, arXiv 2505.11044 (RDD, equations 3 to 6); Yang, Tao, Lyu, Li 2024, arXiv 2401.09750 (DRND,
equations 6 to 9); Lobel, Bagaria, Konidaris 2023, arXiv 2306.03186 (CFN, equation 4).
Differences: the law of 1/n holds for a predictor that averages all visits alike: `replay`, off by default, keeps that
many with their draws, at random among all so far, and every pass learns from twice as many of them as are new; a draw
belongs to a visit, through epochs and replay; DRND's second term is a mean over D, where its code sums; CFN's random
prior is left out.
Fails when: observations contain noise; when the predictor is too small, or too slow, to average (the bonus then has a
floor that does not vanish).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from envs.transitions import Transitions
from envs.types import Memory, StateDict
from lodestar.settings import setting
from rewards.exploration.rnd import RND, RNDConfig


@dataclass
class RDDConfig(RNDConfig):
    """Settings of random distribution distillation; the paper's value in brackets where it differs."""

    learning_rate: float = 3e-4
    target: str = setting("gaussian", "how targets are drawn", "gaussian | ensemble | coin_flip")
    sigma: float = setting(1.0, "deviation of the gaussian draws", "> 0", tune=(0.1, 3.0, "log"))
    members: int = setting(10, "fixed networks of the ensemble, K", ">= 2")
    alpha: float = setting(0.9, "share of the ensemble's first term", "[0, 1]")
    replay: int = setting(0, "visits kept to be learnt from again; 0 keeps none", ">= 0")


class RDD(RND):
    """r(s') = mean over D of (f(x) - E target(x))**2, f trained on draws; the module gives the other bonuses."""

    Config = RDDConfig

    def build(self) -> None:
        super().build()
        config = self.config
        self.kind = config.target
        if self.kind == "ensemble":
            nets = [self.net(config.hidden, config.features) for _ in range(config.members)]
            self.targets = torch.nn.ModuleList(nets).requires_grad_(False)
        self.replay = VisitReplay(config.replay, self.layout.size, config.features)

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        return self.values(self.bonus, batch.next_obs)

    def columns(self, batch: Transitions) -> tuple[Tensor, ...]:
        rows = self.rows(batch.next_obs)
        x = self.whiten(rows)
        draws = self.draw(x)
        if self.config.replay:
            self.replay.add(self.rng, rows, draws.cpu().numpy())
        return x, draws

    def epoch(self, columns: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if not self.config.replay:
            return columns
        # Twice as many as are new; the new visits are in the replay already.
        rows, draws = self.replay.sample(self.rng, 2 * len(columns[0]))
        return self.whiten(rows), self.tensor(draws)

    def draw(self, x: Tensor) -> Tensor:
        """One target (N, D) for each whitened row (N, size)."""
        n = len(x)
        shape = (n, self.config.features)
        match self.kind:
            case "gaussian":
                noise = self.rng.standard_normal(shape, dtype=np.float32)
                noise *= np.float32(self.config.sigma)
                return self.in_pieces(self.target, x) + self.tensor(noise)
            case "ensemble":
                draws = self.rng.integers(len(self.targets), size=n)
                outputs = torch.stack([self.in_pieces(net, x) for net in self.targets])  # (K, N, D)
                return outputs[draws, np.arange(n)]
        # A coin for each feature: +1 or -1.
        coins = self.rng.integers(0, 2, shape).astype(np.float32)
        return self.tensor(coins * 2 - 1)

    def bonus(self, x: Tensor) -> Tensor:
        """Whitened rows (N, size) -> bonus (N,)."""
        match self.kind:
            case "gaussian":
                return self.error(x, self.target(x))
            case "coin_flip":
                return self.predictor(x).square().mean(dim=1).sqrt()
        # DRND: the distance to the mean of the targets, and an estimate of 1/n from their second moment.
        outputs = torch.stack([net(x) for net in self.targets])
        mean = outputs.mean(dim=0)
        second_moment = outputs.square().mean(dim=0)
        variance = (second_moment - mean.square()).clamp(min=1e-6)
        prediction = self.predictor(x)
        distance = (prediction - mean).square().sum(dim=1)
        ratio = (prediction.square() - mean.square()).abs() / variance
        pseudo_count = ratio.clamp(1e-6, 1).sqrt().mean(dim=1)
        return self.config.alpha * distance + (1 - self.config.alpha) * pseudo_count


class VisitReplay:
    """A uniform sample of all visits so far, each with the target that was drawn for it (reservoir sampling)."""

    def __init__(self, capacity: int, size: int, features: int) -> None:
        self.rows = np.zeros((capacity, size), np.float32)
        self.draws = np.zeros((capacity, features), np.float32)
        self.seen = 0

    def add(self, rng: np.random.Generator, rows: np.ndarray, draws: np.ndarray) -> None:
        """Take in visits; each of all so far is kept with the same probability."""
        capacity = len(self.rows)
        # Visit number i goes to a random place up to i; beyond the capacity it is dropped.
        number = self.seen + np.arange(len(rows))
        place = np.where(number < capacity, number, rng.integers(0, number + 1))
        is_inside = place < capacity
        place = place[is_inside]
        self.rows[place] = rows[is_inside]
        self.draws[place] = draws[is_inside]
        self.seen += len(rows)

    def sample(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """`n` visits drawn with replacement, rows (n, size) and draws (n, D)."""
        index = rng.integers(min(self.seen, len(self.rows)), size=n)
        return self.rows[index], self.draws[index]

    def state_dict(self) -> StateDict:
        filled = min(self.seen, len(self.rows))
        return {"rows": self.rows[:filled], "draws": self.draws[:filled], "seen": self.seen}

    def load_state_dict(self, state: StateDict) -> None:
        self.seen = int(state["seen"])
        filled = min(self.seen, len(self.rows))
        if len(state["rows"]) != filled:
            raise ValueError(
                f"the saved replay has {len(state['rows'])} visits, this one {len(self.rows)}; give the same replay"
            )
        self.rows[:filled] = state["rows"]
        self.draws[:filled] = state["draws"]
