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

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from agents.ppo.extensions import credit_of
from agents.ppo.seams import GAEInputs, advantages

if TYPE_CHECKING:
    from agents.ppo.agent import PPO

# T of the softmax: as it falls, the weighted sum tends to the least reward.
SOFT_MIN_TEMPERATURE = 0.1


class CreditEstimator:
    """Advantages of streams with a credit each: `sum`, `min` or `soft_min`."""

    def __init__(self, agent: "PPO") -> None:
        self.credit = list(map(credit_of, agent.streams.values()))

    def __call__(self, inputs: GAEInputs) -> np.ndarray:
        """As `agents.ppo.seams.advantages`."""
        softened = soften(inputs, self.credit)
        advantage = advantages(inputs._replace(rewards=softened))
        columns = find_columns(self.credit, "min")
        if columns:
            advantage[..., columns] = weakest_link(inputs.select_streams(columns))
        return advantage


def weakest_link(inputs: GAEInputs) -> np.ndarray:
    """Advantages G - V, (T, N, K), of streams whose credit is `min`."""
    advantage = np.zeros_like(inputs.rewards)
    # Where an episode was lost, the row before is followed by this row's observation.
    lost = inputs.truncated & ~inputs.valid
    least = inputs.values[-1]
    for t in reversed(range(len(advantage))):
        truncated = inputs.truncated[t][:, None]
        following = np.where(truncated, inputs.last_values[t], least)
        terminated = inputs.terminated[t][:, None]
        following = np.where(terminated, np.inf, following)
        least_from_here = np.minimum(inputs.rewards[t], following)
        value = inputs.values[t]
        passed_over = np.where(lost[t][:, None], value, least)
        is_valid = inputs.valid[t][:, None]
        least = np.where(is_valid, least_from_here, passed_over)
        advantage[t] = np.where(is_valid, least_from_here - value, 0)
    return advantage


def find_columns(credit: Sequence[str], kind: str) -> list[int]:
    """The streams with this kind of credit."""
    return [column for column, stream_kind in enumerate(credit) if stream_kind == kind]


def soften(inputs: GAEInputs, credit: Sequence[str]) -> np.ndarray:
    """Rewards (T, N, K), weighted within each episode where the credit is `soft_min`; the same array if none is."""
    rewards = inputs.rewards
    columns = find_columns(credit, "soft_min")
    if not columns:
        return rewards
    is_valid = inputs.valid[..., None]
    rewards_of_columns = rewards[..., columns].astype(np.float64)
    logits = -rewards_of_columns / SOFT_MIN_TEMPERATURE
    logits = np.where(is_valid, logits, -np.inf)
    ended = (inputs.terminated | inputs.truncated)[..., None]
    # The logarithm of the softmax's sum, up to each step, and then that of the whole episode.
    log_total = np.empty_like(logits)
    running = np.full_like(logits[0], -np.inf)
    for t, row in enumerate(logits):
        running = np.logaddexp(running, row)
        log_total[t] = running
        running = np.where(ended[t], -np.inf, running)
    for t in range(len(logits) - 2, -1, -1):
        continued = log_total[t + 1]
        log_total[t] = np.where(ended[t], log_total[t], continued)
    share = np.exp(logits - log_total)
    weighted = rewards.copy()
    weighted[..., columns] = np.where(is_valid, share * rewards_of_columns, 0)
    return weighted
