"""Debate: an action is worth 1 if it can be justified, if it wins a debate about the state against the best other one.

    J(e, a)      how good action a is, as a judge would say who sees the numbers e of an observation and no others
    debate       two sides, one for the agent's action a and one for the rival b, show the judge a number each in turn,
                 the one that moves J(e, a) - J(e, b) most their way, until it sees `shown` of D
    r(s, a)      1[J(e, a) > J(e, b)]; b is the best other action by J of the whole state, of a Box the best of 16

J is a network of one hidden layer that learns from a judge's answers as `bradley_terry` does, but of observations
before actions; each time it sees a random part of the numbers, and which.

Source: Sukovic, Radanovic 2024, "Reward Design for Justifiable Sequential Decision-Making", arXiv 2402.15826.
Differences: debaters look one step ahead in J, where the source trains them by PPO against it; the rival is no
baseline's action, against which an agent that is as good earns nothing; J learns from segments in any states.
When it fails: pixels, of which one says nothing (more than 64 numbers are refused); actions whose worth shows later
than a segment ends. How far one side gets by showing only what speaks for it is `evidence=isolated`. It costs PPO on
CartPole about a third of its frames a second.

Example:
    python -m runners.train env=Pendulum-v1 reward=debate reward.debate.weight=0.1
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from rewards.exploration.disagreement import StackedHeads
from rewards.preference.bradley_terry import BradleyTerry, BradleyTerryConfig

MOST = 64  # numbers of an observation
RIVALS = 16  # actions where they are not one choice
ROWS = 512  # looked at at a time
TIE = 1e-4  # of J
EVIDENCE = ("debate", "isolated", "random")


@dataclass
class DebateConfig(BradleyTerryConfig):
    """Settings of debate; see bradley_terry for the others."""

    of: str = setting("transition", "what J reads: the observation and the action", choices=("transition",))
    length: int = setting(1, "steps of a segment that the judge compares", low=1)
    members: int = setting(1, "networks, whose mean is J", low=1)
    shown: int = setting(4, "numbers that a debate shows, of both sides together; 0 is none", low=0)
    evidence: str = setting("debate", "two sides in turn, the agent's alone, or a draw", choices=EVIDENCE)
    goals: float = setting(0.0, "contrasts what J does not read", low=0, high=0)


class Debate(BradleyTerry):
    """0 or 1; 0 before the first fit, and where the judge sees no difference."""

    Config = DebateConfig
    ensemble: StackedHeads
    role = "bonus"
    control = {"evidence": "random"}

    def build(self) -> None:
        super().build()
        self.requires = self.judge.requires | {"obs", "action"}
        draw, blocks = torch.Generator().manual_seed(0), self.actions.blocks
        each = [torch.eye(size)[torch.randint(size, (RIVALS,), generator=draw)] for size in blocks]
        some = torch.cat(each, dim=1) if each else 2 * torch.rand(RIVALS, self.actions.size, generator=draw) - 1
        self.rivals = (torch.eye(blocks[0]) if len(blocks) == 1 else some).to(self.device)
        self.mixing = torch.randn(2 * (self.layout.size,), generator=draw).double().to(self.device)

    def networks(self, inputs: int) -> StackedHeads:
        config, size = self.config, self.layout.size
        if size > MOST:
            raise ValueError(f"reward debate reads at most {MOST} numbers, not {size}; name some: {config.prefix}keys")
        return StackedHeads([self.head(inputs + size, config.hidden, 1) for _ in range(config.members)])

    def seen(self, batch: Transitions) -> tuple[np.ndarray, np.ndarray]:
        return self.rows(batch.obs), self.actions(batch.action).cpu().numpy()

    def along(self, x: Tensor) -> Tensor:
        """J at every step of sequences (B, L, inputs), or, while it learns, with a part of others (K, B, L, inputs)."""
        size, seen = self.layout.size, torch.ones_like(x[..., : self.layout.size])
        if x.ndim == 4:
            drawn = torch.from_numpy(self.rng.random((*x.shape[:-1], size + 1), np.float32)).to(x.device)
            seen = (drawn[..., 1:] < drawn[..., :1]).float()
        x = torch.cat([x[..., :size] * seen, x[..., size:], seen], dim=-1)
        return self.ensemble(x.flatten(-3, -2)).squeeze(-1).unflatten(1, x.shape[-3:-1])

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        if not self.labelled.fits:
            return np.zeros(batch.shape, np.float32)
        rows, actions = self.seen(batch)
        pieces = zip(self.whiten(rows).split(ROWS), torch.from_numpy(actions).to(self.device).split(ROWS))
        gaps = [self.debate(state, ours, self.rival(state, ours))[0] for state, ours in pieces]
        return (torch.cat(gaps) > TIE).float().cpu().numpy()

    @torch.no_grad()
    def rival(self, state: Tensor, ours: Tensor) -> Tensor:
        """The best of the other actions by J of whole states (N, D): codes (N, A), like `ours`."""
        others = self.rivals.expand(len(state), -1, -1)
        x = torch.cat([state[:, None].expand(-1, len(self.rivals), -1), others], dim=-1)
        same = (others == ours[:, None]).all(dim=-1)
        return self.rivals[self.along(x).mean(dim=0).masked_fill(same, -torch.inf).argmax(dim=1)]

    @torch.no_grad()
    def debate(self, state: Tensor, ours: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
        """J of `ours` less J of `theirs` (N,) after debates about states (N, D), and what was shown, (N, turns)."""
        evidence, (first, last), (n, size) = self.config.evidence, self.ensemble.weights, state.shape
        number, action, seen = first.split([size, ours.shape[1], size], dim=1)
        each = state[..., None] * number[:, None] + seen[:, None]  # what a number adds to hidden units (K, N, D, H)
        sides = [(side @ action + self.ensemble.biases[0])[:, :, None] for side in (ours, theirs)]

        def gap(hidden: Tensor) -> Tensor:  # (K, N, G, H) -> (N, G)
            one, two = (torch.relu(hidden + side) for side in sides)
            return ((one - two).flatten(1, 2) @ last).mean(dim=0).view(n, -1)

        drawn = torch.sin(1e4 * state.double() @ self.mixing).argsort(dim=1)  # by the state alone
        hidden, order, rows = torch.zeros_like(each[:, :, :1]), drawn[:, : self.config.shown].clone(), torch.arange(n)
        for turn in range(order.shape[1]):
            if evidence != "random":
                moved = gap(hidden + each) * (-1 if turn % 2 and evidence == "debate" else 1)
                order[:, turn] = moved.scatter(1, order[:, :turn], -torch.inf).argmax(dim=1)
            hidden = hidden + each[:, rows, order[:, turn]][:, :, None]
        return gap(hidden)[:, 0], order

    def reasons(self, batch: Transitions, names: Sequence[str]) -> list[str]:
        rows, actions = self.seen(batch)
        state, ours = self.whiten(rows), torch.from_numpy(actions).to(self.device)
        gaps, order = self.debate(state, ours, self.rival(state, ours))
        named = names if len(names) == rows.shape[1] else [f"entry {i}" for i in range(rows.shape[1])]
        shown = [[f"{named[i]} {row[i]:.3g}" for i in places] for row, places in zip(rows, order.tolist())]
        verdicts = ["won" if gap > TIE else "lost" for gap in gaps.tolist()]
        return [f"{said}; for: {', '.join(x[::2])}; against: {', '.join(x[1::2])}" for said, x in zip(verdicts, shown)]
