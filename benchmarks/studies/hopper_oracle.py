"""Hopper's reward as a person writes it who knows the limit of the study limits: no gain above 0.9 m/s, but a loss."""

import numpy as np


def reward(obs, action, next_obs):  # type: ignore[no-untyped-def]
    """What standing and hopping slowly earn."""
    speed = next_obs[:, 5]
    return {
        "alive": np.ones(len(speed)),
        "forward": np.minimum(speed, 0.9),
        "fast": -5 * np.maximum(speed - 0.9, 0),
    }
