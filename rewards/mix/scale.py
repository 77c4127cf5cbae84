"""Every running statistic of the project: mean and variance, and the four scales of a reward.

A scale is a divisor, never a shift: subtracting a mean would turn a bonus into a penalty for ordinary states.
Statistics move in `update` alone, in float64, with the population variance, so that one row is as safe as a thousand.

Sources: Chan, Golub, LeVeque 1979 (merging variances); Burda et al. 2018, arXiv 1810.12894, section 2.4 (dividing a
bonus by the standard deviation of its discounted return, filtered along time for each environment).
Differences: the filter never crosses environments (both implementations that people copy run it across them); an
`ema` scale and a freeze, because a vanishing bonus divided by its own all-time deviation either dies early or has
its noise amplified.
"""

from __future__ import annotations

from typing import Any

import numpy as np

EPSILON = 1e-8


class RunningMeanStd:
    """Mean and variance over everything seen so far, per element of `shape`.

    With a `window`, rows count as if only that many had been seen before an update: what is older fades.
    """

    def __init__(self, shape: tuple[int, ...] = (), window: int | None = None) -> None:
        self.window = window
        self.mean = np.zeros(shape)
        self.var = np.ones(shape)
        self.count = 0

    def update(self, x: np.ndarray) -> None:
        """Take in `x` (N, *shape); an empty batch changes nothing."""
        n = len(x)
        if n == 0:
            return
        away = x.astype(np.float64)
        mean = away.mean(axis=0)
        away -= mean
        var = np.einsum("n...,n...->...", away, away) / n  # without another array of its size
        total = self.count + n
        delta = mean - self.mean
        self.var = (self.var * self.count + var * n + delta**2 * self.count * n / total) / total
        self.mean = self.mean + delta * n / total
        self.count = total if self.window is None else min(total, self.window)

    @property
    def std(self) -> np.ndarray:
        """Standard deviation, at least 1e-8."""
        return np.maximum(np.sqrt(self.var), EPSILON)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "var": self.var, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.var = np.array(state["mean"]), np.array(state["var"])
        self.count = int(state["count"])


class StreamScale:
    """What divides the rewards of a stream: here nothing does.

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
