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

import numpy as np

TEMPERATURE = 0.1


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
    columns = [column for column, kind in enumerate(credit) if kind == "min"]
    if not columns:
        return
    lost = truncated & ~valid  # an episode was lost here: the row before is followed by this row's observation
    least = values[-1][:, columns]
    for t in range(len(rewards) - 1, -1, -1):
        following = np.where(truncated[t][:, None], last_values[t][:, columns], least)
        following = np.where(terminated[t][:, None], np.inf, following)
        now = np.minimum(rewards[t][:, columns], following)
        value = values[t][:, columns]
        least = np.where(valid[t][:, None], now, np.where(lost[t][:, None], value, least))
        advantage[t][:, columns] = np.where(valid[t][:, None], now - value, 0)


def soften(
    rewards: np.ndarray, credit: Sequence[str], terminated: np.ndarray, truncated: np.ndarray, valid: np.ndarray
) -> np.ndarray:
    """Rewards (T, N, K), weighted within each episode where the credit is `soft_min`; the same array if none is."""
    columns = [column for column, kind in enumerate(credit) if kind == "soft_min"]
    if not columns:
        return rewards
    r = rewards[..., columns].astype(np.float64)
    logits = np.where(valid[..., None], -r / TEMPERATURE, -np.inf)
    ended = (terminated | truncated)[..., None]
    total, running = np.empty_like(logits), np.full_like(logits[0], -np.inf)
    for t, row in enumerate(logits):
        running = total[t] = np.logaddexp(running, row)
        running = np.where(ended[t], -np.inf, running)
    for t in range(len(logits) - 2, -1, -1):  # the whole episode's sum, at each of its steps
        total[t] = np.where(ended[t], total[t], total[t + 1])
    weighted = rewards.copy()
    weighted[..., columns] = np.where(valid[..., None], np.exp(logits - total) * r, 0)
    return weighted
