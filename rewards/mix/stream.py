"""A stream of a mix: one reward, how it is weighed, scaled, shaped and discounted, and kept from learning nonsense."""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.finite import NotFinite, OnNan, is_finite
from envs.types import MODALITIES, Memory, Transitions, map_obs
from rewards.base import Reward, RewardConfig, values_of
from rewards.mix.learning import Learning
from rewards.mix.scale import make_scale
from rewards.mix.schedule import Schedule
from rewards.mix.shaping import clip, delta, potential, sigmoid

LAST = "last score"  # in the memory of a stream


class Stream:
    """One reward inside a mix: how it is weighed, scaled, shaped and discounted."""

    def __init__(self, name: str, reward: Reward, *, gamma: float) -> None:
        config: RewardConfig = reward.config
        self.name = name
        self.reward = reward
        self.gamma = gamma if config.gamma is None else config.gamma
        config.check("scale", "shape", "gamma")  # a Config may have changed since it was made
        if not (0 < self.gamma <= 1):
            raise ValueError(f"reward.{name}.gamma={self.gamma} is out of range; give a number in (0, 1]")
        try:
            self.weight = Schedule(config.weight)
        except ValueError as error:
            raise ValueError(f"reward.{name}.{error}") from None
        self.episodic = config.episodic
        self.scale = make_scale(config.scale, self.gamma, config.episodic)
        self.has_scale = config.scale != "none"
        self.warmup, self.freeze = config.warmup, config.freeze
        self.shape, self.clip_at, self.slope = config.shape, config.clip_at, config.slope
        self.compares = config.shape in ("potential", "delta")  # needs the score of obs as well
        self.has_memory = reward.initial_memory(1) is not None
        self.on_nan = OnNan()
        self.learning = Learning(reward)
        self.keeps_score = self.compares and self.has_memory  # of the step before, beside the reward's own memory
        if self.keeps_score and reward.starts_at is None:
            raise ValueError(
                f"reward.{name}.shape={config.shape} needs a score that depends on the state alone, but {name} "
                "remembers the episode; use shape=none or clip"
            )

    @property
    def requires(self) -> frozenset[str]:
        """Fields of Transitions the stream reads."""
        need = set(self.reward.requires)
        if self.compares and not self.has_memory:
            need |= {f"obs_{field}" for field in need & set(MODALITIES)} | {"obs"}
        return frozenset(need)

    def initial_memory(self, n: int) -> Memory:
        """The reward's memory for `n` fresh episodes; with the score they start at, if the next is compared with it."""
        memory = self.reward.initial_memory(n)
        return {**memory, LAST: np.full(n, self.reward.starts_at, np.float32)} if self.keeps_score else memory

    def score(self, batch: Transitions, memory: Memory, again: bool = False) -> tuple[np.ndarray, Memory]:
        """Shaped scores, float32, leading shape of the batch; 0 in rows that are no transitions or not ready.

        `again` says that the rows lie in a replay, in any order.
        """
        if self.has_memory:
            given = memory
            raw, memory = self._scan(batch, memory)
        else:
            raw = values_of(self.reward.score(batch.flatten())).reshape(batch.shape)
        raw = self.on_nan(raw)
        if not is_finite(raw):
            self._refuse(raw, batch, again)
        if self.shape == "clip":
            raw = clip(raw, self.clip_at)
        elif self.shape == "sigmoid":
            raw = sigmoid(raw, self.clip_at, self.slope)
        elif self.compares:
            if self.keeps_score:
                before, last = self._last_scores(batch, raw, given[LAST])
                memory = {**memory, LAST: last}
            else:
                before = self._score_obs(batch, raw)
            if self.shape == "delta":
                raw = delta(before, raw)
            else:
                raw = potential(before, raw, batch.terminated, self.gamma)
        if not batch.valid.all():
            raw = np.where(batch.valid, raw, np.float32(0))
        return raw, memory

    def _refuse(self, raw: np.ndarray, batch: Transitions, again: bool) -> None:
        """Name the first score that is no number; rows of a replay stand in no order, so their environment is unknown.

        Raises:
            NotFinite: always.
        """
        where = tuple(np.argwhere(~np.isfinite(raw))[0])
        whose = "a transition out of the replay" if again else f"environment {where[-1]}"
        names = ("obs", "action", "reward", "next_obs")
        kept = {name: map_obs(lambda x: np.asarray(x)[where], getattr(batch, name)) for name in names}
        raise NotFinite(
            f"the reward {self.name!r} gave {raw[where]} for {whose} at step {batch.step[where]} of its episode; "
            "nothing has been learnt from it",
            kept,
        )

    def _scan(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
        """Walk along time; memory of an ended episode is reset, rows that are no transitions leave it alone."""
        if len(batch.shape) == 1:
            raw, memory = self._scan(batch.map(lambda x: x[None]), memory)
            return raw[0], memory
        return self.reward.scan(batch, memory)

    def _last_scores(self, batch: Transitions, score: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What a reward that remembers said a step before, `starts_at` where an episode begins; and the last (N,)."""
        if len(batch.shape) == 1:
            before, last = self._last_scores(batch.map(lambda x: x[None]), score[None], last)
            return before[0], last
        before = np.empty_like(score)
        for t, (valid, ended) in enumerate(zip(batch.valid, batch.ended)):
            before[t] = last
            last = np.where(ended, np.float32(self.reward.starts_at or 0), np.where(valid, score[t], last))
        return before, last

    def _score_obs(self, batch: Transitions, next_score: np.ndarray) -> np.ndarray:
        """The score of `obs`: along a rollout it is the previous row's, so only first rows are asked for."""
        before = np.empty_like(next_score)
        fresh = np.ones(batch.shape, bool)
        if len(batch.shape) == 2:
            before[1:] = next_score[:-1]
            fresh[1:] = (batch.step[1:] == 0) | ~batch.valid[:-1]
        if fresh.any():
            before[fresh] = values_of(self.reward.score(batch[fresh].at_obs()))
        return before

    def scaled(self, raw: np.ndarray) -> np.ndarray:
        """raw / scale; zero while a scaled stream warms up."""
        if not self.has_scale:
            return raw
        return np.zeros_like(raw) if self.scale.count < self.warmup else raw / np.float32(self.scale.value)

    def weighted(self, raw: np.ndarray, timesteps: Any) -> np.ndarray:
        """weight * raw / scale."""
        return self.scaled(raw) * self.weight(timesteps)

    def update(self, batch: Transitions, raw: np.ndarray) -> dict[str, float]:
        """Let the reward learn and its scale move."""
        if self.has_scale and not (self.freeze and self.scale.count >= self.freeze):
            self.scale.update(raw, batch.ended, batch.valid)
        return self.learning.update(batch)

    def __str__(self) -> str:
        text = self.name if str(self.weight.spec) in ("1", "1.0") else f"{self.weight.spec} * {self.name}"
        details = [] if self.shape == "none" else [self.shape]
        details += [f"/ {self.reward.config.scale}"] if self.has_scale else []
        details += [] if self.episodic else ["non-episodic"]
        return text + (f" ({', '.join(details)})" if details else "")
