"""Discounted sums of rewards, of many episodes at once."""

from typing import Any

import numpy as np


def returns(reward: np.ndarray, ends: np.ndarray, tail: np.ndarray, gamma: Any) -> np.ndarray:
    """R_t = r_t + gamma R_{t+1} of rows (M, ...) in time order, with `tail` for R_{t+1} where an episode ends.

    Example:
        >>> returns(np.array([0.0, 1.0, 1.0]), np.array([False, True, True]), np.array([9.0, 0.0, 4.0]), 0.5).tolist()
        [0.5, 1.0, 3.0]
    """
    total = np.array(reward, np.float32)
    last = np.flatnonzero(ends)
    total[last] += gamma * tail[last]
    lengths = np.diff(last, prepend=-1)
    # All episodes go back side by side, a step at a time.
    for back in range(1, int(lengths.max(initial=1))):
        row = last[lengths > back] - back
        total[row] += gamma * total[row + 1]
    return total
