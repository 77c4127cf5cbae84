"""Generalised advantage estimation, one stream beside the other.

    delta_t = r_t + gamma * V(s_{t+1}) - V(s_t)         A_t = delta_t + gamma * lambda * A_{t+1}

An episodic stream ends with its episode: after a termination V is 0, where time ran out V is that of the true last
observation. A stream that is not episodic goes on into the next episode, as a novelty bonus should (Burda et al. 2018,
arXiv 1810.12894, section 2.3): dying must not look expensive to curiosity.

Source: Schulman et al. 2016, High-dimensional continuous control using generalized advantage estimation, arXiv
1506.02438, equation 16. Difference: streams (K) are an axis, with a discount and an end of their own.
"""

from __future__ import annotations

import numpy as np


def advantages(
    rewards: np.ndarray,
    values: np.ndarray,
    last_values: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    valid: np.ndarray,
    gamma: np.ndarray,
    gae_lambda: float,
    episodic: np.ndarray,
) -> np.ndarray:
    """Advantages of every stream.

    Args:
        rewards: (T, N, K).
        values: (T + 1, N, K), of the observations acted on; row T is the observation after the rollout.
        last_values: (T, N, K), value of an episode's true last observation where it was truncated; anything elsewhere.
        terminated: bool (T, N).
        truncated: bool (T, N).
        valid: bool (T, N); a row that is no transition has advantage 0 and is passed over. If it is truncated, an
            episode was lost there: what comes before it goes on to the value of its observation, and no further.
        gamma: (K,), in (0, 1].
        gae_lambda: in [0, 1].
        episodic: bool (K,).

    Returns:
        (T, N, K), float32; returns are advantages + values[:-1].
    """
    length, n, streams = rewards.shape
    following = values[1:]
    if not valid.all():
        following = following.copy()
        lost = truncated & ~valid
        for t in reversed(range(length - 1)):  # what follows a row that only resets is what follows its successor
            following[t] = np.where((valid | lost)[t + 1][:, None], following[t], following[t + 1])
    ended = (terminated | truncated) & valid
    stops = ended[..., None] & episodic
    at_end = np.where(truncated[..., None] & ~terminated[..., None], last_values, np.float32(0))
    delta = rewards + gamma * np.where(stops, at_end, following) - values[:-1]
    decay = np.where(stops, 0.0, gamma * gae_lambda).astype(np.float32)
    if not valid.all():
        delta[~valid], decay[~valid] = 0.0, 1.0
        decay[:-1][lost[1:]] = 0.0
    delta = delta.astype(np.float32, copy=False).reshape(length, n * streams)
    decay = decay.reshape(length, n * streams)
    out = delta.copy()
    scratch = np.empty(n * streams, np.float32)
    for t in range(length - 2, -1, -1):
        np.multiply(decay[t], out[t + 1], out=scratch)
        np.add(out[t], scratch, out=out[t])
    out = out.reshape(length, n, streams)
    return out if valid.all() else np.where(valid[..., None], out, np.float32(0))
