"""What an action answers for, where it is not the discounted sum of the rewards that follow: the least of them.

A sum of scores is what gets hacked: steps that look good are repeated. `credit=min` makes an episode as good as its
worst step, which suits dense scores ("never let the pole lean"), no others: where most are 0, so is the least.

    min         G_t = min(r_t, G_{t+1}),  A_t = G_t - V(s_t): Monte Carlo, without discount; V follows G. Where an
                episode goes on beyond what is known (time ran out, the rollout ended), G = min(r_t, V(s_{t+1})).
    soft_min    r*_t = w_t r_t with w = softmax(-r / T) over the episode's steps, T = 0.1, and then the usual sum of r*:
                it tends to min r as T falls. Only the part of an episode inside the rollout is weighted.

Source: Cheng et al. 2025 (PURE), arXiv 2504.15275. Differences: their r* is summed without discount, here with the
stream's; `min` itself, with bootstrapped values, is ours.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from agents.ppo.extensions import credit_of
from agents.ppo.seams import advantages

if TYPE_CHECKING:
    from agents.ppo.agent import PPO

# T of the softmax: as it falls, the weighted sum tends to the least reward.
SOFT_MIN_TEMPERATURE = 0.1


class CreditEstimator:
    """Advantages of streams with a credit each: `sum`, `min` or `soft_min`."""

    def __init__(self, credit: Sequence[str]) -> None:
        self.credit = credit

    @classmethod
    def of_streams(cls, streams: Mapping[str, Any]) -> Self:
        return cls([credit_of(stream) for stream in streams.values()])

    @classmethod
    def for_agent(cls, agent: "PPO") -> Self:
        return cls.of_streams(agent.streams)

    def __call__(
        self,
        rewards: np.ndarray,
        values: np.ndarray,
        last_values: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        valid: np.ndarray,
        *discounts: Any,
    ) -> np.ndarray:
        """As `agents.ppo.seams.advantages`."""
        ends = (terminated, truncated, valid)
        softened = soften(rewards, self.credit, *ends)
        advantage = advantages(softened, values, last_values, *ends, *discounts)
        weakest_link(advantage, rewards, self.credit, values, last_values, *ends)
        return advantage


def weakest_link(
    advantage: np.ndarray,
    rewards: np.ndarray,
    credit: Sequence[str],
    values: np.ndarray,
    last_values: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    valid: np.ndarray,
) -> None:
    """Write G - V into the columns of `advantage` (T, N, K) whose credit is `min`; shapes as in `advantages`."""
    columns = find_columns(credit, "min")
    if not columns:
        return
    rewards = rewards[..., columns]
    values = values[..., columns]
    last_values = last_values[..., columns]
    # Where an episode was lost, the row before is followed by this row's observation.
    lost = truncated & ~valid
    least = values[-1]
    for t in range(len(rewards) - 1, -1, -1):
        following = np.where(truncated[t][:, None], last_values[t], least)
        following = np.where(terminated[t][:, None], np.inf, following)
        least_from_here = np.minimum(rewards[t], following)
        value = values[t]
        passed_over = np.where(lost[t][:, None], value, least)
        is_valid = valid[t][:, None]
        least = np.where(is_valid, least_from_here, passed_over)
        advantage[t][:, columns] = np.where(is_valid, least_from_here - value, 0)


def find_columns(credit: Sequence[str], kind: str) -> list[int]:
    """The streams with this kind of credit."""
    return [column for column, stream_kind in enumerate(credit) if stream_kind == kind]


def soften(
    rewards: np.ndarray,
    credit: Sequence[str],
    terminated: np.ndarray,
    truncated: np.ndarray,
    valid: np.ndarray,
) -> np.ndarray:
    """Rewards (T, N, K), weighted within each episode where the credit is `soft_min`; the same array if none is."""
    columns = find_columns(credit, "soft_min")
    if not columns:
        return rewards
    is_valid = valid[..., None]
    rewards_of_columns = rewards[..., columns].astype(np.float64)
    logits = -rewards_of_columns / SOFT_MIN_TEMPERATURE
    logits = np.where(is_valid, logits, -np.inf)
    ended = (terminated | truncated)[..., None]
    # The logarithm of the softmax's sum, up to each step, and then that of the whole episode.
    log_total = np.empty_like(logits)
    running = np.full_like(logits[0], -np.inf)
    for t, row in enumerate(logits):
        running = np.logaddexp(running, row)
        log_total[t] = running
        running = np.where(ended[t], -np.inf, running)
    for t in range(len(logits) - 2, -1, -1):
        log_total[t] = np.where(ended[t], log_total[t], log_total[t + 1])
    share = np.exp(logits - log_total)
    weighted = rewards.copy()
    weighted[..., columns] = np.where(is_valid, share * rewards_of_columns, 0)
    return weighted
