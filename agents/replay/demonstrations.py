"""A replay with two sources beside its ring, each a fixed share of every sample: demonstrations and the agent's best.

    demos    the transitions of a recording; they stay, and keep their share while the ring is small (RLPD). With a
             share of 0 they are poured into the ring instead, as if the agent's own: the control
    best     finished episodes in which a goal was rewarded (SIL). Where their return R is above Q(s, a), it is the
             target: the best value is at least what was reached

Rows get their reward from the scorer as it is now; what only whole episodes tell, `rescore` computes again.

Sources: Ball et al. 2023, "Efficient Online RL with Offline Data" (RLPD), arXiv 2302.02948; Luo et al. 2024, "SERL",
arXiv 2401.16013; Oh et al. 2018, "Self-Imitation Learning", arXiv 1806.05635, section 4.
Differences: models are fitted to all sources, and imagination begins in all; an episode that ran out of time goes on
with the value of its last state; R counts goals alone, and of a soft value the entropy of later actions, by the policy
as it is now: without it R would be no lower bound where that is negative; Q is regressed to R instead of adding a loss.
Fails when: the recording is of other dynamics; the world is random, where luck is imitated.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.networks.actor_critic import SpaceEncoding
from agents.replay.replay import PENDING, Replay, Rows
from envs.datasets.dataset import recorded
from envs.steps import Chunk
from envs.transitions import Transitions
from envs.types import MODALITIES, ReplayScorer

KEPT = 20_000  # rows of best episodes, the newest


def demonstrations(path: str, encoding: SpaceEncoding, scorer: ReplayScorer) -> Transitions:
    """The transitions (M,) of the recording that `agent.demos` names; a ValueError if it does not fit the run."""
    batch = recorded(path, "agent.demos", encoding.observation_space, encoding.action_space)
    known = {*MODALITIES, *(f"obs_{name}" for name in MODALITIES)}
    if missing := sorted(name for name in scorer.requires & known if getattr(batch, name) is None):
        words = f"lacks {missing[0]}, which the reward reads; record it with frames=224, text=true or signals=true"
        raise ValueError(f"agent.demos={path} {words}")
    return batch.replace(**dict.fromkeys(known - scorer.requires), extras={})


def goals(scorer: Any) -> list[str]:
    """The streams that are what is wanted, not bonuses on the way to it; a ValueError if there is none."""
    roles = {name: getattr(getattr(stream, "reward", None), "role", "goal") for name, stream in scorer.streams.items()}
    if found := [name for name, role in roles.items() if role == "goal"]:
        return found
    raise ValueError(f"agent.imitate imitates what a goal rewards, and {', '.join(roles)} are bonuses; add the task")


def returns(reward: np.ndarray, ends: np.ndarray, tail: np.ndarray, gamma: Any) -> np.ndarray:
    """R_t = r_t + gamma R_{t+1} of rows (M, ...) in time order, with `tail` for R_{t+1} where an episode ends.

    Example:
        >>> returns(np.array([0.0, 1.0, 1.0]), np.array([False, True, True]), np.array([9.0, 0.0, 4.0]), 0.5).tolist()
        [0.5, 1.0, 3.0]
    """
    found, last = np.array(reward, np.float32), np.flatnonzero(ends)
    found[last] += gamma * tail[last]
    lengths = np.diff(last, prepend=-1)
    for back in range(1, int(lengths.max(initial=1))):  # episodes side by side
        row = last[lengths > back] - back
        found[row] += gamma * found[row + 1]
    return found


class MixedReplay(Replay):
    """A ring whose samples also hold demonstrations (M,), None for none, and the best of what was added."""

    saved = (*Replay.saved, "sources", "bound", "_stale")  # type: ignore[assignment]

    def __init__(
        self, *place: Any, demos: Transitions | None, demo_share: float, best_share: float = 0.0, **options: Any
    ) -> None:
        super().__init__(*place, **options)
        given = {"demos": (demo_share, 0 if demos is None else len(demos.step)), "best": (best_share, KEPT)}
        given = {name: value for name, value in given.items() if all(value)}
        self.shares = {name: share for name, (share, _) in given.items()}
        self.sources: dict[str, Replay] = {}
        self.goals = goals(self.scorer) if best_share else []
        self._stale = False  # whether the scorer has learned since `rescore`
        self.bound = torch.full((KEPT,), -torch.inf, device=self.device)  # returns of the best
        for number, (name, (_, rows)) in enumerate(given.items(), 1):
            own = {**options, "seed": options.get("seed", 0) + number}
            self.sources[name] = Replay(rows, 1, self.encoding, self.scorer, **own)
            self.sources[name]._update_rows = sys.maxsize  # the scorer learns from the ring alone
        if demos is None:
            return
        if not demo_share and len(demos.step) > self.size:
            raise ValueError(f"agent.demos holds {len(demos.step)} transitions; raise agent.buffer_size={self.size}")
        _fill(self.sources.get("demos", self), demos)
        self.added = self.timesteps = 0  # the agent has taken no step

    def add(self, batch: Transitions) -> None:
        super().add(batch)
        best: Any = self.sources.get("best")
        for column in () if best is None else np.flatnonzero(batch.ended & batch.valid):
            length = int(batch.step[column]) + 1
            if length > min(self._filled, KEPT):
                continue
            self.flush()
            rows = self._at((self._pos - length + np.arange(length)) % self.length)[:, int(column)]
            if np.array_equal(rows.step[rows.valid], np.arange(length)) and (self._goal(rows) > 0).any():
                self.bound[(best._pos + np.arange(length)) % KEPT] = -torch.inf
                _fill(best, rows)

    def _learn(self) -> None:
        super()._learn()
        self._stale = True

    def measure(self) -> dict[str, float]:
        return super().measure() | {f"train/{name}_rows": float(len(rows)) for name, rows in self.sources.items()}

    def _goal(self, rows: Transitions) -> np.ndarray:
        scaled, weights = self.scorer.scaled(self.scorer.relabel(rows)), self.scorer.weights(self.timesteps)
        return np.sum([scaled[name] * weights[name] for name in self.goals], 0)

    def rescore(self, value: Callable[[Tensor], Tensor], entropy: Callable[[Tensor], Tensor]) -> None:
        """Scores of rewards with a memory, and returns, by the rewards as they are now.

        `value` and `entropy`, of states (B, D), both (B,): what follows the last one, and what a soft value adds to the
        reward of a step for its action's entropy.
        """
        for name, source in self.sources.items():
            order = (source._pos - source._filled + np.arange(source._filled)) % source.length
            if self._stale and any(key.startswith("score/") for key in source.columns):
                source._memory = self.scorer.initial_memory(1)
                for times in np.split(order, range(PENDING, len(order), PENDING)):
                    source._keep(source._at(times), times, source.columns)
            if name == "best" and len(order):
                rows = source._at(order)[:, 0]
                table = source.table[order]
                with torch.no_grad():
                    tail = np.where(rows.terminated, 0, value(table[:, source._next]).cpu().numpy())
                    bonus = entropy(table[:, source._obs]).cpu().numpy()
                # Q(s, a) holds the entropy of all later actions, and not that of a itself.
                worth = returns(self._goal(rows) + bonus, rows.ended, tail, self.gamma) - bonus
                self.bound[order] = torch.from_numpy(worth).to(self.device)
        self._stale = False

    @torch.no_grad()
    def lower_bounds(self, rows: Rows, q: Callable[[Tensor, Tensor], Tensor]) -> Rows:
        """Where the return of a row of the best lies above Q(s, a), (B,), it is the target, without what follows."""
        best = (rows.index < 0).nonzero()[:, 0]
        bound = self.bound[-1 - rows.index[best]]
        above = bound > q(rows.obs[best], rows.action[best])
        reward, discount = rows.reward.clone(), rows.discount.clone()
        reward[best[above]], discount[best[above]] = bound[above], 0.0
        return rows._replace(reward=reward, discount=discount)

    def _parts(self, count: int) -> dict[str, int]:
        """How many of `count` rows come from each source that has any."""
        return {name: round(count * self.shares[name]) for name, source in self.sources.items() if len(source)}

    def sample(self, batch_size: int) -> Rows:
        """As the ring's; places in the best are -1, -2, ... Every slice has the same shares, up to a row."""
        parts = self._parts(batch_size)
        drawn = [super().sample(batch_size - sum(parts.values()))]
        for name, count in parts.items():
            self.sources[name].timesteps = self.timesteps
            rows = self.sources[name].sample(count)
            drawn.append(rows._replace(index=-1 - rows.index) if name == "best" else rows)
        order = torch.cat([(torch.arange(len(rows.obs)) + 0.5) / len(rows.obs) for rows in drawn])
        order = order.argsort(stable=True).to(self.device)
        return Rows(*(torch.cat(column)[order] for column in zip(*drawn)))

    def starts(self, batch_size: int) -> tuple[Tensor, Tensor]:
        parts = self._parts(batch_size)
        drawn = [super().starts(batch_size - sum(parts.values()))]
        drawn += [self.sources[name].starts(count) for name, count in parts.items()]
        return torch.cat([obs for obs, _ in drawn]), torch.cat([step for _, step in drawn])

    def arrays(self) -> Any:
        demos = [self.sources["demos"].arrays()] if "demos" in self.sources else []
        return tuple(torch.cat(column) for column in zip(super().arrays(), *demos))

    def bounds(self) -> tuple[Tensor, Tensor]:
        low, high = zip(super().bounds(), *(source.bounds() for source in self.sources.values()))
        return torch.stack(low).amin(0), torch.stack(high).amax(0)


def _fill(replay: Replay, batch: Transitions) -> None:
    rows = -(-len(batch.step) // replay.n_envs)
    for t in range(rows):
        index = t + rows * np.arange(replay.n_envs)
        there = index < len(batch.step)
        replay.add(batch[np.where(there, index, 0)].replace(valid=there))
    replay.flush()
    replay._pending = Chunk(replay._pending.length)  # what else is added may have other columns
