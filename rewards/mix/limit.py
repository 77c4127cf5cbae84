"""A limit on a stream: its score is a cost, whose mean stays below the limit by a multiplier that is learned.

    maximise the other streams   subject to   c <= d          c the mean cost a step, or an episode; d the limit
    relative error   e = (c - d) / max(d, m)                  m the running mean of c
    price            p = mean |other rewards| * sum |c_t| / sum c_t^2    where one cost counts as one step's rewards
    integral         I <- max(0, I + rate * max(p, I) * e)    of the newest costs, once an update
    multiplier       lambda = max(0, I + max(p, I) * 5 rate * (m - d) / max(d, m))
    weights          -lambda / (1 + lambda) of the cost, 1 / (1 + lambda) of the others

The cost is a stream like the others: PPO gives it a value of its own, and a replay is relabelled with the weights of
now. `rate=0` with `limit_start` is a fixed penalty.

Sources: Achiam and Amodei 2019, "Benchmarking Safe Exploration in Deep Reinforcement Learning", section 5.2 (PPO and
SAC with a Lagrange multiplier); the proportional term and the division by 1 + lambda are those of Stooke, Achiam and
Abbeel 2020 (arXiv 2007.03964), equations 6 and 8, algorithm 2.
Differences: no derivative, which small rollouts fill with noise; errors are relative to the cost, and steps to the
price or the multiplier, so that one rate serves costs and rewards of all sizes; costs are not discounted in c.
Fails when: the limit binds in the mean alone, so that single episodes exceed it; costs are so rare that hundreds of
episodes pass between two.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.transitions import Transitions
from lodestar.state import Stateful
from rewards.base import Metrics, Reward

# How much of the running mean is kept from one update to the next.
COST_MEMORY = 0.9
# Gain of the proportional term, as a multiple of the rate.
PROPORTIONAL_GAIN = 5.0
# After so many updates in a row above the limit a sentence says what was reached.
UPDATES_BEFORE_WARNING = 50


@dataclass(eq=False)
class Limit(Stateful):
    """The multiplier of one stream, in the place of its weight: called with timesteps it gives -lambda.

    Example:
        >>> limit = Limit("speed", 0.5, "step", rate=0.1)
        >>> limit.observe(cost=1.0, count=1)
        >>> round(limit.multiplier, 3)
        0.3
    """

    saved = (
        "integral",
        "multiplier",
        "cost_sum",
        "count_sum",
        "pending_cost",
        "price",
        "sizes",
        "newest",
        "updates_above",
        "lowest",
        "has_warned",
    )

    name: str
    limit: float
    per: str
    rate: float
    # The multiplier, and at first the part of it that is summed up, too.
    multiplier: float = 0.0
    # Fading sums of costs, and of the steps or episodes in which they came up.
    cost_sum: float = 0.0
    count_sum: float = 0.0
    # Costs since an episode ended.
    pending_cost: float = 0.0
    # The price p.
    price: float = 1.0
    # Mean cost of the last update; in how many in a row it was above the limit, and the lowest of these means.
    newest: float = 0.0
    updates_above: int = 0
    lowest: float = 0.0
    has_warned: bool = False

    def __post_init__(self) -> None:
        self.integral = self.multiplier
        # Fading sums of |other rewards|, of rows, of |c| and of c^2.
        self.sizes = np.zeros(4)

    @property
    def spec(self) -> str:
        return f"(at most {self.limit:g} {self.span})"

    @property
    def span(self) -> str:
        """What costs are averaged over, in words."""
        article = "an" if self.per == "episode" else "a"
        return f"{article} {self.per}"

    @property
    def mean(self) -> float:
        """The running mean of the cost."""
        if not self.count_sum:
            return 0.0
        return self.cost_sum / self.count_sum

    def __call__(self, timesteps: Any) -> Any:
        """The stream's weight, before it is divided by 1 + lambda."""
        return -self.multiplier

    def update(self, batch: Transitions, raw: np.ndarray, rewards: np.ndarray) -> Metrics:
        """Learn from the costs (T, N) of fresh transitions, beside all other rewards (T, N); metrics by tag."""
        valid = batch.valid
        costs = raw[valid].astype(np.float64)
        sizes = [np.abs(rewards[valid]).sum(), valid.sum(), np.abs(costs).sum(), np.square(costs).sum()]
        self.sizes = COST_MEMORY * self.sizes + sizes
        reward_sum, rows, cost_sum, square_sum = self.sizes.tolist()
        # Of rewards or costs that have all been 0 nothing can be said.
        if reward_sum > 0 and square_sum > 0:
            self.price = reward_sum / rows * cost_sum / square_sum
        cost = float(costs.sum())
        count = int(valid.sum())
        if self.per == "episode":
            count = int((batch.ended & valid).sum())
        self.observe(cost, count)
        return {
            f"limit/{self.name}_cost": self.newest,
            f"limit/{self.name}_multiplier": self.multiplier,
            f"limit/{self.name}": self.limit,
        }

    def observe(self, cost: float, count: int) -> None:
        """Learn from the sum of the costs of so many steps, or ended episodes; of none it waits."""
        self.pending_cost += cost
        if not count:
            return
        self.newest = self.pending_cost / count
        self.cost_sum = COST_MEMORY * self.cost_sum + self.pending_cost
        self.count_sum = COST_MEMORY * self.count_sum + count
        self.pending_cost = 0.0
        # Relative to a running mean, so that the mean of the errors is 0 where that of the costs is the limit.
        size = max(self.limit, abs(self.mean))
        if size > 0:
            error = (self.newest - self.limit) / size
            self.integral = max(0.0, self.integral + self.rate * max(self.price, self.integral) * error)
            proportional = PROPORTIONAL_GAIN * self.rate * (self.mean - self.limit) / size
            self.multiplier = max(0.0, self.integral + max(self.price, self.integral) * proportional)
        self._watch()

    def _watch(self) -> None:
        """Warn, once, of a limit that not one of many updates in a row held."""
        if self.newest <= self.limit:
            self.updates_above = 0
            return
        self.updates_above += 1
        if self.updates_above == 1:
            self.lowest = self.newest
        self.lowest = min(self.lowest, self.newest)
        if self.updates_above < UPDATES_BEFORE_WARNING or self.has_warned:
            return
        self.has_warned = True
        warnings.warn(
            f"reward.{self.name}.limit={self.limit:g} was not held in {self.updates_above} updates: the mean cost "
            f"{self.span} is {self.mean:.4g}, at its lowest it was {self.lowest:.4g}, and a cost of 1 counts as much "
            f"as {self.multiplier:.4g} of the other rewards by now; no policy may hold it: raise the limit, or train "
            "longer",
            RuntimeWarning,
            stacklevel=2,
        )


def refuse_limit(name: str, reward: Reward, learns: bool) -> None:
    """Refuse (ValueError) a limit on what is no cost: a score that `learns`, has no fixed unit, or another use."""
    config = reward.config
    if learns:
        raise ValueError(
            f"reward.{name}.limit={config.limit:g} has no meaning: the scores of {name} drift while it learns; limit "
            "what has a fixed unit, as a signal of the environment (reward=[task,signal]) or the task's own reward"
        )
    fixed = {"weight": 1, "credit": "sum", "scale": "none"}
    for option, value in fixed.items():
        given = getattr(config, option)
        if str(given) not in (str(value), f"{value}.0"):
            raise ValueError(
                f"reward.{name}.limit={config.limit:g} beside {option}={given}: the multiplier decides what a cost "
                f"counts, and the limit is in units of the score; leave reward.{name}.{option}={value}"
            )
    if config.shape not in ("none", "sigmoid", "par_step"):
        raise ValueError(
            f"reward.{name}.limit={config.limit:g} has no meaning with shape={config.shape}, whose mean is no mean "
            f"cost; give reward.{name}.shape=none or sigmoid"
        )
