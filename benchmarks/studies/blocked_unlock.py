"""The stages of MiniGrid-BlockedUnlockPickup, for the study `stages`."""

import numpy as np


def stages(next_obs: np.ndarray, signals: np.ndarray) -> dict[str, np.ndarray]:
    """Whether each stage holds, bool (B,), in the order in which they count."""
    carried = signals[:, 3]
    objects = signals[:, 7::3]
    states = signals[:, 9::3]
    door_is_open = ((objects == 4) & (states == 0)).any(axis=1)
    return {
        "ball": carried == 6,
        "moved": carried == 1,
        "key": carried == 5,
        "door": door_is_open,
        "dropped": carried == 1,
        "box": carried == 7,
    }
