"""A stream of a mix: one reward with its weight, scale, shape and discount, guarded against losses not finite."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch

from envs.types import MODALITIES, Memory, NotFinite, OnNan, Transitions, is_finite, map_obs
from rewards.base import EPSILON, Reward, RewardConfig, RunningMeanStd, values_at_obs, values_of
from rewards.mix.shaping import clip, delta, potential, sigmoid

SCHEDULES = ("linear", "cosine", "exp", "step")
LAST = "last score"  # in the memory of a stream
PATIENCE = 3  # updates in a row whose loss is not finite
EVERY = 10  # finite updates between two copies of the weights


class Stream:
    """One reward inside a mix."""

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
        self.updates = GuardedUpdates(reward)
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
        """The reward's memory for `n` fresh episodes; with their first score, where the next is compared with it."""
        memory = self.reward.initial_memory(n)
        return {**memory, LAST: np.full(n, self.reward.starts_at, np.float32)} if self.keeps_score else memory

    def score(self, batch: Transitions, memory: Memory, again: bool = False) -> tuple[np.ndarray, Memory]:
        """Shaped scores, float32, leading shape of the batch; 0 in rows that are no transitions or not ready.

        `again`: the rows come from a replay, in any order.
        """
        if self.has_memory and len(batch.shape) == 1:  # one step of a rollout
            raw, memory = self.score(batch.map(lambda x: x[None]), memory, again)
            return raw[0], memory
        if self.has_memory:
            given = memory
            raw, memory = self.reward.scan(batch, memory)
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
                before = values_at_obs(batch, raw, lambda rows: values_of(self.reward.score(batch[rows].at_obs())))
            if self.shape == "delta":
                raw = delta(before, raw)
            else:
                raw = potential(before, raw, batch.terminated, self.gamma)
        if not batch.valid.all():
            raw = np.where(batch.valid, raw, np.float32(0))
        return raw, memory

    def _refuse(self, raw: np.ndarray, batch: Transitions, again: bool) -> None:
        """Name the first score that is NaN or infinite; of rows from a replay the environment is unknown.

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

    def _last_scores(self, batch: Transitions, score: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores of a reward with a memory one step before, `starts_at` where an episode begins; and the last (N,)."""
        before = np.empty_like(score)
        for t, (valid, ended) in enumerate(zip(batch.valid, batch.ended)):
            before[t] = last
            last = np.where(ended, np.float32(self.reward.starts_at or 0), np.where(valid, score[t], last))
        return before, last

    def scaled(self, raw: np.ndarray) -> np.ndarray:
        """raw / scale; zero while a scaled stream warms up."""
        if not self.has_scale:
            return raw
        return np.zeros_like(raw) if self.scale.count < self.warmup else raw / np.float32(self.scale.value)

    def weighted(self, raw: np.ndarray, timesteps: Any) -> np.ndarray:
        """weight * raw / scale."""
        return self.scaled(raw) * self.weight(timesteps)

    def update(self, batch: Transitions, raw: np.ndarray) -> dict[str, float]:
        """Update the reward and its scale."""
        if self.has_scale and not (self.freeze and self.scale.count >= self.freeze):
            self.scale.update(raw, batch.ended, batch.valid)
        return self.updates.update(batch)

    def __str__(self) -> str:
        text = self.name if str(self.weight.spec) in ("1", "1.0") else f"{self.weight.spec} * {self.name}"
        details = [] if self.shape == "none" else [self.shape]
        details += [f"/ {self.reward.config.scale}"] if self.has_scale else []
        details += [] if self.episodic else ["non-episodic"]
        return text + (f" ({', '.join(details)})" if details else "")


class GuardedUpdates:
    """`Reward.update`, with recovery from losses that are NaN or infinite.

    Such a loss means that the batch, or the model, is spoilt. `Learned.descend` takes no step on it. If it happens
    `PATIENCE` times in a row the model itself is suspected, and the last weights that gave finite losses are restored;
    weights that are not finite are restored at once. Training continues; `<name>/skipped` and `<name>/restored` count.

    Attributes:
        skipped: updates with a loss that was not finite so far.
        restored: how often weights were restored so far.
    """

    def __init__(self, reward: Reward) -> None:
        self.reward = reward
        self.skipped = self.restored = 0
        self._in_a_row = self._finite_updates = 0
        self._good: list[Any] | None = None  # a resumed run takes its first copy at its first finite update

    def update(self, batch: Transitions) -> dict[str, float]:
        """`Reward.update`, with the counts beside its metrics once there are any."""
        optimizers = [value for value in vars(self.reward).values() if isinstance(value, torch.optim.Optimizer)]
        if optimizers and self._good is None and _finite(optimizers):
            self._keep(optimizers)
        metrics = self.reward.update(batch)
        if not optimizers or not metrics:
            return metrics
        spoilt = not _finite(optimizers)
        if spoilt or not all(math.isfinite(value) for key, value in metrics.items() if "loss" in key):
            self.skipped += 1
            self._in_a_row += 1
            if spoilt or self._in_a_row >= PATIENCE:
                self._restore(optimizers)
        else:
            self._in_a_row = 0
            self._finite_updates += 1
            if self._finite_updates % EVERY == 0:
                self._keep(optimizers)
        if not self.skipped:
            return metrics
        return {**metrics, "skipped": float(self.skipped), "restored": float(self.restored)}

    def _keep(self, optimizers: list[Any]) -> None:
        self._good = [copy.deepcopy(([p.detach() for p in _weights(o)], o.state_dict())) for o in optimizers]

    def _restore(self, optimizers: list[Any]) -> None:
        self.restored += 1
        self._in_a_row = 0
        for optimizer, (weights, state) in zip(optimizers, self._good or ()):
            with torch.no_grad():
                for parameter, good in zip(_weights(optimizer), weights):
                    parameter.copy_(good)
            optimizer.load_state_dict(copy.deepcopy(state))

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": self.skipped, "restored": self.restored, "row": self._in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skipped, self.restored, self._in_a_row = state["skipped"], state["restored"], state["row"]


def _weights(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _finite(optimizers: list[Any]) -> bool:
    return all(is_finite(parameter.detach()) for optimizer in optimizers for parameter in _weights(optimizer))


class Schedule:
    """A weight over environment steps: a number, or `kind:start:end:steps`, standing at `end` afterwards."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        kind, *numbers = str(spec).split(":")
        try:
            if not numbers:
                self.kind, self.start, self.end, self.steps = "constant", float(kind), float(kind), 1.0
            else:
                self.kind = kind
                self.start, self.end, self.steps = (float(x) for x in numbers)
        except ValueError:
            self.kind = "unreadable"
        if self.kind not in ("constant", *SCHEDULES):
            raise ValueError(
                f"weight={spec!r} is neither a number nor KIND:START:END:STEPS "
                f"with KIND one of {', '.join(SCHEDULES)}, as in linear:1:0:200000"
            )
        if not (math.isfinite(self.start) and math.isfinite(self.end) and min(self.start, self.end) >= 0):
            raise ValueError(f"weight={spec!r} must be finite and at least 0; to penalise, change the reward's sign")
        if not (math.isfinite(self.steps) and self.steps >= 1):
            raise ValueError(f"weight={spec!r} must reach its end in at least 1 environment step")
        if self.kind == "exp" and min(self.start, self.end) <= 0:
            raise ValueError(f"weight={spec!r} cannot reach or leave 0 exponentially; end above 0, or use linear")

    def __call__(self, timesteps: Any) -> Any:
        """The weight after `timesteps` environment steps; an array gives an array."""
        if self.kind == "constant":
            return self.start
        progress = np.minimum(np.asarray(timesteps) / self.steps, 1.0)
        if self.kind == "linear":
            return self.start + (self.end - self.start) * progress
        if self.kind == "cosine":
            return self.end + (self.start - self.end) * 0.5 * (1 + np.cos(np.pi * progress))
        if self.kind == "exp":
            return self.start * (self.end / self.start) ** progress
        return np.where(progress < 1, self.start, self.end)


class StreamScale:
    """What divides the rewards of a stream: here nothing does.

    A scale is a divisor, never a shift: subtracting a mean would turn a bonus into a penalty for ordinary states.
    Source: Burda et al. 2018, arXiv 1810.12894, section 2.4 (dividing a bonus by the standard deviation of its
    discounted return, filtered along time for each environment). Differences: the filter never crosses environments
    (both implementations that people copy run it across them); an `ema` scale and a freeze, because a vanishing bonus
    divided by its own all-time deviation either dies early or has its noise amplified.

    Attributes:
        value: the divisor.
        count: transitions seen.
    """

    value = 1.0
    count = 0

    def update(self, reward: np.ndarray, ended: np.ndarray, valid: np.ndarray) -> None:
        """Take in rewards (T, N) in time order; `ended` and `valid` are bool (T, N)."""
        self.count += int(valid.sum())

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = int(state["count"])


class RewardStd(StreamScale):
    """Divide by the standard deviation of all rewards so far."""

    def __init__(self) -> None:
        self.statistics = RunningMeanStd()

    @property
    def value(self) -> float:  # type: ignore[override]
        return float(self.statistics.std) if self.statistics.count else 1.0

    @property
    def count(self) -> int:  # type: ignore[override]
        return self.statistics.count

    def update(self, reward: np.ndarray, ended: np.ndarray, valid: np.ndarray) -> None:
        self.statistics.update(reward[valid])

    def state_dict(self) -> dict[str, Any]:
        return self.statistics.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.statistics.load_state_dict(state)


class ReturnStd(RewardStd):
    """Divide by the deviation of the discounted return R_t = gamma R_{t-1} + r_t, along time, per environment.

    The filtered return is only measured, never given as a reward. It restarts at an episode's end if the stream is
    episodic.
    """

    def __init__(self, gamma: float, episodic: bool) -> None:
        super().__init__()
        self.gamma = gamma
        self.episodic = episodic
        self.running = np.zeros(0)  # R of each environment

    def update(self, reward: np.ndarray, ended: np.ndarray, valid: np.ndarray) -> None:
        if len(self.running) != reward.shape[1]:
            self.running = np.zeros(reward.shape[1])
        returns = np.empty(reward.shape)
        running = self.running
        for t in range(len(reward)):
            # a row that is no transition neither discounts nor adds
            running = np.where(valid[t], self.gamma * running + reward[t], running)
            returns[t] = running
            if self.episodic:
                running = np.where(ended[t], 0.0, running)
        self.running = running
        self.statistics.update(returns[valid])

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "running": self.running}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.running = np.array(state["running"])


class RewardEma(StreamScale):
    """Divide by an exponential moving average of the rewards' standard deviation, one step of the average an update."""

    def __init__(self, decay: float = 0.9) -> None:
        self.decay = decay
        self.average = 0.0
        self.updates = 0

    @property
    def value(self) -> float:  # type: ignore[override]
        if self.updates == 0:
            return 1.0
        return max(self.average / (1 - self.decay**self.updates), EPSILON)  # undo the bias towards the initial zero

    def update(self, reward: np.ndarray, ended: np.ndarray, valid: np.ndarray) -> None:
        rewards = reward[valid]
        if len(rewards) == 0:
            return
        self.average = self.decay * self.average + (1 - self.decay) * float(rewards.std())
        self.updates += 1
        self.count += len(rewards)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average, "updates": self.updates, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average, self.updates = float(state["average"]), int(state["updates"])
        self.count = int(state["count"])


def make_scale(name: str, gamma: float, episodic: bool) -> StreamScale:
    """The scale called `name`; the discount and the episode's role matter to `return` alone."""
    if name == "return":
        return ReturnStd(gamma, episodic)
    return {"none": StreamScale, "ema": RewardEma, "std": RewardStd}[name]()
