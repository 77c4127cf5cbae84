"""Self-play: an episode is worth the share of comparisons that it wins against the agent's own last episodes.

A reward behind comparisons exists only where these have an order. Judges may go in circles (a beats b, b beats c, c
beats a); then the best that can be had is a mixture that nothing beats more often than not, the minimax winner, and
that is where win rates against oneself lead. A judge compares whole episodes, a network P learns to say what it would:

    R(x) = mean over x' of P(x over x'), x' the last B episodes
    P(x over x') = sigmoid(u(x) - u(x') + a(x) . b(x') - a(x') . b(x))

u alone is the model of Bradley and Terry; the rest, antisymmetric like it, is what goes in circles. An episode is read
as a summary: means and mean squares of the next observations and actions, the last observation, and its length.

Source: Swamy et al. 2024, "A Minimaximalist Approach to Reinforcement Learning from Human Feedback" (SPO), arXiv
2401.04056.
Differences:
  - R is given at the episode's last step; the source gives R / H to each of H steps, which `spread` does where whole
    rollouts are at hand (PPO, SB3's on-policy agents): steps of earlier rollouts then count at the last one;
  - the source asks the judge about every pair; here a network that learned from `budget` answers stands in;
  - a judge sees `length` steps of an episode, equally far apart; the rewards in between are summed (`LastEpisodes`).
When it fails: episodes that never end, or end early, where the learner discounts (`gamma` of this stream is 1); what a
summary does not hold (the order of events). As the queue improves the same behaviour earns less: a value function
follows. It costs PPO on CartPole about a third of its frames a second while it asks.

Example:
    python -m runners.train env=lodestar/ProbeArms-v0 reward=self_play reward.self_play.judge=circle
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from rewards.base import RunningMeanStd
from rewards.exploration.disagreement import StackedHeads
from rewards.preference.bradley_terry import BradleyTerry, BradleyTerryConfig
from rewards.preference.segments import SUMMARY, LastEpisodes


@dataclass
class SelfPlayConfig(BradleyTerryConfig):
    """Settings of self_play; the source's value in brackets where it differs. See bradley_terry for the others."""

    judge: str = setting("scripted", "scripted, circle, heron, clip, human, recorded or vlm; of whole episodes")
    gamma: float | None = 1.0  # what comes once an episode would look better the earlier that ends
    of: str = setting("transition", "what is summed up, as in bradley_terry", "transition | frame")
    length: int = setting(25, "steps that a judge is shown of an episode, L", ">= 1")
    pool: int = setting(200, "newest episodes that pairs are drawn from", ">= 2")
    queue: int = setting(50, "newest episodes that an episode is compared with, B [10 to 1000]; 1 is a coin", ">= 1")
    rank: int = setting(8, "numbers in a and b; 0 is Bradley-Terry of episodes, which knows no circles", ">= 0")
    spread: bool = setting(False, "whether each of H steps is given R / H, where whole rollouts are scored")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_if(self.queue > self.pool, f"{self.prefix}queue={{queue}} exceeds pool={{pool}}; give at most that")
        self.refuse_if(self.goals, f"{self.prefix}goals={{goals}} contrasts steps; an episode has one summary: give 0")


class SelfPlay(BradleyTerry):
    """R(x) = mean over the queue of P(x over x'), at the last step of x; 1/2 before the first fit and for an equal x'.

    The memory holds the running episode: sums of what is summed up, the last observation, the number of steps.
    """

    Config = SelfPlayConfig

    def build(self) -> None:
        super().build()
        self.relabelable = False
        self.requires = self.requires | {"terminated", "truncated"}
        gathered = self.segments
        self.segments = LastEpisodes(
            self.config.length, self.config.pool, gathered.requires, gathered.extras, summarise=self.summarise
        )
        # Summaries are whitened, not observations.
        self.statistics = RunningMeanStd((self.width,))

    def networks(self, inputs: int) -> StackedHeads:
        config = self.config
        self.summed = 2 * inputs
        self.width = self.summed + self.layout.size + 1
        widths = (config.hidden, config.features, 1 + 2 * config.rank)
        return StackedHeads([self.head(self.width, *widths) for _ in range(config.members)])

    def initial_memory(self, n: int) -> Memory:
        last = np.zeros((n, self.layout.size), np.float32)
        return {"sums": np.zeros((n, self.summed)), "last": last, "steps": np.zeros(n, np.int64)}

    def scan(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
        """Along a rollout (T, N); `spread` over those of its steps that are in it."""
        rows, moments = (part.reshape(*batch.shape, -1) for part in self.moments(batch.flatten()))
        sums = memory["sums"]
        last = memory["last"]
        steps = memory["steps"]
        valid = np.asarray(batch.valid, bool)
        ends = []
        summaries = []
        for t, ended in enumerate(batch.ended):
            is_step = valid[t, :, None]
            sums = np.where(is_step, sums + moments[t], sums)
            last = np.where(is_step, rows[t], last)
            steps = steps + valid[t]
            if ended.any():
                columns = np.flatnonzero(ended & valid[t])
                ends += [(t, n, steps[n]) for n in columns]
                summaries.append(summary(sums[columns], last[columns], steps[columns]))
                for part in (sums, last, steps):
                    part[ended] = 0
        raw = np.zeros(batch.shape, np.float32)
        rates = self.win_rates(np.concatenate(summaries)) if ends else ()
        for (t, n, length), rate in zip(ends, rates):
            rewarded_steps = min(length, t + 1) if self.config.spread else 1
            raw[t + 1 - rewarded_steps : t + 1, n] = rate / length
            # The last step also gets the shares of steps in earlier rollouts.
            raw[t, n] = rate - (rewarded_steps - 1) * np.float32(rate / length)
        return raw, {"sums": sums, "last": last, "steps": steps}

    def win_rates(self, summaries: np.ndarray) -> np.ndarray:
        """Summaries (M, D) -> the share of the queue that each wins against, float32 (M,)."""
        if not self.labelled.fits:
            return np.full(len(summaries), 0.5, np.float32)
        with torch.no_grad():
            own = self.ensemble(self.whiten(summaries))
            others = self.ensemble(self.whiten(self.queue()))
            member_rates = torch.sigmoid(margins(own, others)).mean(dim=2)
            return self.blend(member_rates).cpu().numpy()

    def queue(self) -> np.ndarray:
        """The summaries of the newest episodes (B, D)."""
        newest = list(self.segments.pool)[-self.config.queue :]
        return np.stack([episode.extras[SUMMARY][0] for episode in newest])

    def session(self, most: int) -> dict[str, float]:
        """Also metrics: `circles`, the share of triples in the queue that go in one, 1/4 if P were random."""
        metrics = super().session(most)
        if not self.labelled.fits or len(self.segments) < 3:
            return metrics
        with torch.no_grad():
            outputs = self.ensemble(self.whiten(self.queue()))
            margin = margins(outputs, outputs).mean(dim=0)
        wins = (margin > 0).cpu().numpy().astype(np.int64)
        triples = max(math.comb(len(wins), 3), 1)
        # The diagonal counts each circle of three from each of its episodes.
        circles = float(np.trace(wins @ wins @ wins)) / 3
        return metrics | {"circles": circles / triples}

    def summarise(self, episode: Transitions) -> np.ndarray:
        """The summary of a whole episode (H,): float32 (D,)."""
        rows, moments = self.moments(episode)
        return summary(moments.sum(axis=0)[None], rows[-1:], np.array([len(rows)]))[0]

    def moments(self, batch: Transitions) -> tuple[np.ndarray, np.ndarray]:
        """Of flat transitions: rows (N, size), and what is summed up, float64 (N, 2 inputs)."""
        rows, actions = self.raw_inputs(batch)
        x = np.concatenate([rows, actions], axis=1, dtype=np.float64)
        return rows, np.concatenate([x, x * x], axis=1)

    def read(self, segments: Transitions) -> tuple[np.ndarray, np.ndarray]:
        """Summaries of episodes (L, B), as rows (B, 1, D), and no actions."""
        summaries = np.asarray(segments.extras[SUMMARY][0], np.float32)[:, None]
        return summaries, np.zeros((*summaries.shape[:2], 0), np.float32)

    def _logits(self, x: Tensor) -> Tensor:
        """Logits that the second of pairs of summaries (B, 2, 1, D), or (K, B, 2, 1, D), is better: (K, B)."""
        outputs = self.ensemble(x.flatten(-4, -2)).unflatten(1, x.shape[-4:-2])
        return margins(outputs[:, :, None, 1], outputs[:, :, None, 0])[..., 0, 0]

    # The members may differ about these, as the steps of an episode have no rewards.
    predictions = _logits

    def notes(self) -> list[str]:
        notes = super().notes()
        if self.config.queue == 1:
            notes.append("the queue holds one episode, so that a reward is a coin's; give queue=10 or more")
        return notes


def summary(sums: np.ndarray, last: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """What is read of episodes: means (N, ...), the last observation, log2 of the steps; float32 (N, D)."""
    count = steps[:, None].astype(np.float64)
    return np.concatenate([sums / count, last, np.log2(count)], axis=1).astype(np.float32)


def margins(own: Tensor, others: Tensor) -> Tensor:
    """Logits that own episodes (..., M, outputs) are better than others (..., B, outputs): (..., M, B).

    Outputs are u, a, b. What is exchanged changes its sign, so an episode against itself gives exactly 0.
    """
    rank = own.shape[-1] // 2
    u, a, b = own.split([1, rank, rank], dim=-1)
    other_u, other_a, other_b = others.mT.split([1, rank, rank], dim=-2)
    return u - other_u + a @ other_b - b @ other_a
