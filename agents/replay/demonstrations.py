"""A replay with two sources beside its ring, each a fixed share of every sample: demonstrations and the agent's best.

    demos    the transitions of a recording; they stay, and keep their share while the ring is small (RLPD). With a
             share of 0 they are poured into the ring instead, as if the agent's own: the control
    best     finished episodes in which a goal was rewarded (SIL). Where their return R is above Q(s, a), it is the
             target: the best value is at least what was reached

Rows get their reward from the scorer as it is now; what only whole episodes tell, `rescore` computes again.

Sources: Ball et al. 2023, "Efficient Online RL with Offline Data" (RLPD), arXiv 2302.02948; Luo et al. 2024, "SERL",
arXiv 2401.16013; Oh et al. 2018, "Self-Imitation Learning", arXiv 1806.05635, section 4.
A world model draws sequences from both, of images too (`agents.world_model`): RLPD from pixels with `agent.preset=mrq`.
Differences: models are fitted to all sources, and imagination begins in all; an episode that ran out of time goes on
with the value of its last state; R counts goals alone, and of a soft value the entropy of later actions, by the policy
as it is now: without it R would be no lower bound where that is negative; Q is regressed to R instead of adding a loss.
Fails when: the recording is of other dynamics; the world is random, where luck is imitated.
"""

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.base import BaseAgent
from agents.replay.replay import Replay, Rows, Sequences
from envs.datasets.dataset import recorded_transitions
from envs.steps import Chunk
from envs.transitions import Transitions, join
from envs.types import MODALITY_FIELDS, Options
from lodestar.numerics.returns import returns

# Rows of best episodes that are held, the newest.
MAX_BEST_ROWS = 20_000


def demonstrations(agent: BaseAgent) -> Transitions:
    """The transitions (M,) of the recording that `agent.demos` names; a ValueError if it does not fit the run."""
    path = agent.config.demos
    requires = agent.scorer.requires
    batch = recorded_transitions(path, "agent.demos", agent.observation_space, agent.action_space)
    for name in sorted(requires.intersection(MODALITY_FIELDS)):
        if getattr(batch, name) is None:
            raise ValueError(
                f"agent.demos={path} lacks {name}, which the reward reads; record it with frames=224, "
                "text=true or signals=true"
            )
    unread = set(MODALITY_FIELDS) - requires
    return batch.replace(**dict.fromkeys(unread), extras={})


def goals(scorer: Any) -> list[str]:
    """The streams that are what is wanted, not bonuses on the way to it; a ValueError if there is none."""
    names = []
    for name, stream in scorer.streams.items():
        # The task's own stream has no reward object, and a user's reward may have no role.
        reward = getattr(stream, "reward", None)
        if getattr(reward, "role", "goal") == "goal":
            names.append(name)
    if not names:
        bonuses = ", ".join(scorer.streams)
        raise ValueError(f"agent.imitate imitates what a goal rewards, and {bonuses} are bonuses; add the task")
    return names


class MixedReplay(Replay):
    """A ring whose samples also hold demonstrations (M,), None for none, and the best of what was added."""

    saved = (*Replay.saved, "sources", "bound", "_stale")  # type: ignore[assignment]

    def __init__(
        self,
        *place: Any,
        demos: Transitions | None,
        demo_share: float,
        best_share: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(*place, **options)
        self.sources: dict[str, Replay] = {}
        self.shares: dict[str, float] = {}
        self.goals: list[str] = []
        # Whether the scorer has learned since `rescore`.
        self._stale = False
        # Returns of the rows in `best`.
        no_bound = torch.full((MAX_BEST_ROWS,), -torch.inf)
        self.bound = no_bound.to(self.device)
        if best_share:
            self.goals = goals(self.scorer)
        if demos is not None and demo_share:
            self._add_source("demos", demo_share, len(demos.step), options)
        if best_share:
            self._add_source("best", best_share, MAX_BEST_ROWS, options)
        if demos is None:
            return
        if not demo_share and len(demos.step) > self.size:
            raise ValueError(f"agent.demos holds {len(demos.step)} transitions; raise agent.buffer_size={self.size}")
        _fill(self.sources.get("demos", self), demos)
        # The agent itself has taken no step.
        self.added = 0
        self.timesteps = 0

    def _add_source(self, name: str, share: float, rows: int, options: Options) -> None:
        """A replay of one environment, of which each sample has a share."""
        seed = options.get("seed", 0) + len(self.sources) + 1
        # Priorities are of the ring's rows.
        source_options = {**options, "seed": seed, "sampling": "uniform"}
        source = Replay(rows, 1, self.encoding, self.scorer, **source_options)
        # The scorer learns from the ring alone.
        source._update_rows = sys.maxsize
        self.sources[name] = source
        self.shares[name] = share

    def add(self, batch: Transitions) -> None:
        super().add(batch)
        if "best" in self.sources:
            for column in np.flatnonzero(batch.ended & batch.valid):
                self._add_best(int(column), int(batch.step[column]) + 1)

    def _add_best(self, column: int, length: int) -> None:
        """Copy an environment's episode that just ended into `best`, if a goal was rewarded in it."""
        if length > min(self._filled, MAX_BEST_ROWS):
            return
        self.flush()
        rows = self._rows_at(self._last_times(length))[:, column]
        is_whole = np.array_equal(rows.step[rows.valid], np.arange(length))
        if is_whole and (self._goal_reward(rows) > 0).any():
            best = self.sources["best"]
            # Until `rescore` the new rows have no return.
            new_rows = best._pos + np.arange(length)
            self.bound[new_rows % MAX_BEST_ROWS] = -torch.inf
            _fill(best, rows)

    def _learn(self) -> None:
        super()._learn()
        self._stale = True

    def measure(self) -> dict[str, float]:
        metrics = dict(super().measure())
        for name, source in self.sources.items():
            metrics[f"train/{name}_rows"] = float(len(source))
        return metrics

    def _goal_reward(self, rows: Transitions) -> np.ndarray:
        """What the goals alone reward each row with, as the agent is rewarded now."""
        scaled = self.scorer.scale_rewards(self.scorer.relabel(rows))
        weights = self.scorer.weights(self.timesteps)
        goal_rewards = [scaled[name] * weights[name] for name in self.goals]
        return np.sum(goal_rewards, 0)

    @torch.no_grad()
    def rescore(self, value: Callable[[Tensor], Tensor], entropy: Callable[[Tensor], Tensor]) -> None:
        """Scores of rewards with a memory, and returns, by the rewards as they are now.

        `value` and `entropy`, of states (B, D), both (B,): what follows the last one, and what a soft value adds to the
        reward of a step for its action's entropy.
        """
        self.rescore_episodes()
        best = self.sources.get("best")
        if not best:
            return
        times = best._last_times(best._filled)
        rows = best._rows_at(times)[:, 0]
        table = best.table[times]
        next_value = value(table[:, best._next]).cpu().numpy()
        tail = np.where(rows.terminated, 0, next_value)
        bonus = entropy(table[:, best._obs]).cpu().numpy()
        # Q(s, a) holds the entropy of all later actions, and not that of a itself.
        soft_reward = self._goal_reward(rows) + bonus
        soft_return = returns(soft_reward, rows.ended, tail, self.gamma) - bonus
        self.bound[times] = torch.from_numpy(soft_return).to(self.device)

    def rescore_episodes(self) -> None:
        """Scores of rewards with a memory, by the rewards as they are now, where these have learned since."""
        if self._stale:
            for source in self.sources.values():
                if any(key.startswith("score/") for key in source.columns):
                    source._memory = self.scorer.initial_memory(1)
                    for times in source._blocks():
                        source._keep(source._rows_at(times), times, source.columns)
        self._stale = False

    @torch.no_grad()
    def lower_bounds(self, rows: Rows, q: Callable[[Tensor, Tensor], Tensor]) -> Rows:
        """Where the return of a row of the best lies above Q(s, a), (B,), it is the target, without what follows."""
        best = (rows.index < 0).nonzero()[:, 0]
        bound = self.bound[-1 - rows.index[best]]
        above = bound > q(rows.obs[best], rows.action[best])
        better = best[above]
        reward = rows.reward.clone()
        reward[better] = bound[above]
        discount = rows.discount.clone()
        discount[better] = 0.0
        return rows._replace(reward=reward, discount=discount)

    def _source_counts(self, count: int) -> dict[str, int]:
        """How many of `count` rows come from each source that has any."""
        counts = {}
        for name, source in self.sources.items():
            if len(source):
                counts[name] = round(count * self.shares[name])
        return counts

    def _draw(self, draw: Callable[[Replay, int], Any], count: int) -> list[Any]:
        """What `draw` gives of the ring, and of each source for its share of `count` rows."""
        counts = self._source_counts(count)
        parts = [draw(self, count - sum(counts.values()))]
        for name, source_count in counts.items():
            source = self.sources[name]
            source.timesteps = self.timesteps
            parts.append(draw(source, source_count))
        return parts

    def sample(self, batch_size: int) -> Rows:
        """As the ring's; places in the best are -1, -2, ... Every slice has the same shares, up to a row."""
        parts = self._draw(Replay.sample, batch_size)
        if self.sources.get("best"):
            parts[-1] = _behind(parts[-1])
        # Each row's place within its part, from 0 to 1, spreads all parts evenly over the batch.
        places = []
        for part in parts:
            count = len(part.obs)
            places.append((torch.arange(count) + 0.5) / count)
        order = torch.cat(places).argsort(stable=True).to(self.device)
        columns = map(torch.cat, zip(*parts))
        return Rows(*(column[order] for column in columns))

    def sequences(self, batch_size: int, length: int, *, imagine: bool = False) -> Sequences:
        """As the ring's, the sources' last; places in these are -1, -2, ..."""
        draw = functools.partial(Replay.sequences, length=length, imagine=imagine)
        own, *others = self._draw(draw, batch_size)
        parts = [own, *map(_behind, others)]
        return Sequences(*(join(_beside, list(column)) for column in zip(*parts)))

    def set_priority(self, index: Tensor, error: Tensor) -> None:
        """As the ring's, of a batch of sequences; demonstrations, which stand last in it, are drawn evenly."""
        counts = self._source_counts(len(index))
        own = len(index) - sum(counts.values())
        super().set_priority(index[:own], error[:own])

    def starts(self, batch_size: int) -> tuple[Tensor, Tensor]:
        obs, step = zip(*self._draw(Replay.starts, batch_size))
        return torch.cat(obs), torch.cat(step)

    def arrays(self) -> Any:
        parts = [super().arrays()]
        if "demos" in self.sources:
            parts.append(self.sources["demos"].arrays())
        return tuple(map(torch.cat, zip(*parts)))

    def bounds(self) -> tuple[Tensor, Tensor]:
        of_sources = [source.bounds() for source in self.sources.values()]
        parts = [super().bounds(), *of_sources]
        low, high = zip(*parts)
        least = torch.stack(low).amin(0)
        return least, torch.stack(high).amax(0)


def _behind(part: Any) -> Any:
    """Rows or sequences of a source, with places -1, -2, ..., as those of the ring are 0 or more."""
    return part._replace(index=-1 - part.index)


def _beside(sequences: list[Any]) -> Any:
    """Parts (L, B, ...) as one batch."""
    return torch.cat(sequences, 1)


def _fill(replay: Replay, batch: Transitions) -> None:
    """Add transitions (M,) to a replay, each of whose environments gets a stretch of them."""
    count = len(batch.step)
    steps = math.ceil(count / replay.n_envs)
    for t in range(steps):
        index = t + steps * np.arange(replay.n_envs)
        valid = index < count
        rows = batch[np.where(valid, index, 0)]
        replay.add(rows.replace(valid=valid))
    replay.flush()
    # What else is added may have other columns.
    replay._pending = Chunk(replay._pending.length)
