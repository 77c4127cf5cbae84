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
from lodestar.numerics.descent import draw_integers, draw_normal, draw_uniform
from lodestar.settings import setting
from rewards.exploration.disagreement import StackedHeads
from rewards.preference.bradley_terry import BradleyTerry, BradleyTerryConfig

# An observation has at most so many numbers.
MAX_DEBATED_NUMBERS = 64
# So many actions stand for all, where an action is not one choice.
RIVAL_ACTIONS = 16
# Debates that are held at a time, to bound memory.
DEBATES_AT_ONCE = 512
# Two values of J that differ by no more are equal.
MIN_J_GAP = 1e-4


@dataclass
class DebateConfig(BradleyTerryConfig):
    """Settings of debate; see bradley_terry for the others."""

    of: str = setting("transition", "what J reads: the observation and the action", choices=("transition",))
    length: int = setting(1, "steps of a segment that the judge compares", ">= 1")
    members: int = setting(1, "networks, whose mean is J", ">= 1")
    shown: int = setting(4, "numbers that a debate shows, of both sides together; 0 is none", ">= 0")
    evidence: str = setting("debate", "two sides in turn, the agent's alone, or a draw", "debate | isolated | random")
    goals: float = setting(0.0, "contrasts what J does not read", "[0, 0]")


class Debate(BradleyTerry):
    """0 or 1; 0 before the first fit, and where the judge sees no difference."""

    Config = DebateConfig
    ensemble: StackedHeads
    role = "bonus"
    control = {"evidence": "random"}

    def build(self) -> None:
        super().build()
        self.requires = self.judge.requires | {"obs", "action"}
        generator = torch.Generator().manual_seed(0)
        # An action of several choices has a block for each, a Box has none.
        blocks = self.actions.blocks
        choices = []
        for size in blocks:
            index = draw_integers(generator, size, RIVAL_ACTIONS)
            choices.append(torch.eye(size)[index])
        if not blocks:
            rivals = 2 * draw_uniform(generator, RIVAL_ACTIONS, self.actions.size) - 1
        elif len(blocks) == 1:
            rivals = torch.eye(blocks[0])
        else:
            rivals = torch.cat(choices, dim=1)
        self.rivals = rivals.to(self.device)
        mixing = draw_normal(generator, self.layout.size, self.layout.size)
        self.mixing = mixing.double().to(self.device)

    def networks(self, inputs: int) -> StackedHeads:
        config = self.config
        size = self.layout.size
        if size > MAX_DEBATED_NUMBERS:
            numbers = f"{MAX_DEBATED_NUMBERS} numbers, not {size}"
            raise ValueError(f"reward debate reads at most {numbers}; name some: {config.prefix}keys")
        heads = [self.head(inputs + size, config.hidden, 1) for _ in range(config.members)]
        return StackedHeads(heads)

    def raw_inputs(self, batch: Transitions) -> tuple[np.ndarray, np.ndarray]:
        return self.rows(batch.obs), self.actions(batch.action).cpu().numpy()

    def step_rewards(self, x: Tensor) -> Tensor:
        """J at every step of sequences (B, L, inputs), or, while it learns, with a part of others (K, B, L, inputs)."""
        size = self.layout.size
        is_seen = torch.ones_like(x[..., :size])
        if x.ndim == 4:
            shape = (*x.shape[:-1], size + 1)
            random = torch.from_numpy(self.rng.random(shape, np.float32)).to(x.device)
            # Each row has a threshold of its own, so that few numbers are seen as often as many.
            is_seen = (random[..., 1:] < random[..., :1]).float()
        shown = x[..., :size] * is_seen
        x = torch.cat([shown, x[..., size:], is_seen], dim=-1)
        values = self.ensemble(x.flatten(-3, -2)).squeeze(-1)
        return values.unflatten(1, x.shape[-3:-1])

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        if not self.labelled.fits:
            return np.zeros(batch.shape, np.float32)
        states = self.whiten(self.rows(batch.obs)).split(DEBATES_AT_ONCE)
        actions = self.actions(batch.action).split(DEBATES_AT_ONCE)
        gaps = []
        for state, ours in zip(states, actions):
            gap, _ = self.debate(state, ours, self.rival(state, ours))
            gaps.append(gap)
        has_won = torch.cat(gaps) > MIN_J_GAP
        return has_won.float().cpu().numpy()

    @torch.no_grad()
    def rival(self, state: Tensor, ours: Tensor) -> Tensor:
        """The best of the other actions by J of whole states (N, D): codes (N, A), like `ours`."""
        others = self.rivals.expand(len(state), -1, -1)
        states = state[:, None].expand(-1, len(self.rivals), -1)
        x = torch.cat([states, others], dim=-1)
        is_ours = (others == ours[:, None]).all(dim=-1)
        j = self.step_rewards(x).mean(dim=0).masked_fill(is_ours, -torch.inf)
        return self.rivals[j.argmax(dim=1)]

    @torch.no_grad()
    def debate(self, state: Tensor, ours: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
        """J of `ours` less J of `theirs` (N,) after debates about states (N, D), and what was shown, (N, turns)."""
        evidence = self.config.evidence
        n, size = state.shape
        first, last = self.ensemble.weights
        bias = self.ensemble.biases[0]
        number_weight, action_weight, seen_weight = first.split([size, ours.shape[1], size], dim=1)
        # What each number of a state adds to the hidden units if it is shown: (K, N, D, H).
        added = state[..., None] * number_weight[:, None] + seen_weight[:, None]
        our_hidden = (ours @ action_weight + bias)[:, :, None]
        their_hidden = (theirs @ action_weight + bias)[:, :, None]

        def gap(hidden: Tensor) -> Tensor:
            """J of ours less J of theirs (N, G), given what G choices of numbers add, (K, N, G, H)."""
            difference = torch.relu(hidden + our_hidden) - torch.relu(hidden + their_hidden)
            gaps = difference.flatten(1, 2) @ last
            return gaps.mean(dim=0).view(n, -1)

        # An order that looks random and follows from the state alone, so that scores are pure.
        noise = torch.sin(1e4 * state.double() @ self.mixing)
        order = noise.argsort(dim=1)[:, : self.config.shown].clone()
        hidden = torch.zeros_like(added[:, :, :1])
        for turn in range(order.shape[1]):
            if evidence != "random":
                gain = gap(hidden + added)
                if turn % 2 and evidence == "debate":
                    gain = -gain
                # No number is shown twice.
                gain = gain.scatter(1, order[:, :turn], -torch.inf)
                order[:, turn] = gain.argmax(dim=1)
            shown = added[:, torch.arange(n), order[:, turn]]
            hidden = hidden + shown[:, :, None]
        return gap(hidden)[:, 0], order

    def reasons(self, batch: Transitions, names: Sequence[str]) -> list[str]:
        rows = self.rows(batch.obs)
        state = self.whiten(rows)
        ours = self.actions(batch.action)
        gaps, order = self.debate(state, ours, self.rival(state, ours))
        if len(names) != rows.shape[1]:
            names = [f"entry {i}" for i in range(rows.shape[1])]
        reasons = []
        for row, gap, places in zip(rows, gaps.tolist(), order.tolist()):
            verdict = "lost"
            if gap > MIN_J_GAP:
                verdict = "won"
            shown = [f"{names[i]} {row[i]:.3g}" for i in places]
            reasons.append(f"{verdict}; for: {', '.join(shown[::2])}; against: {', '.join(shown[1::2])}")
        return reasons
