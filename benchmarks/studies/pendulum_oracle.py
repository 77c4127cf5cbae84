"""Pendulum's own reward as the only factor of `lare`: what the best factors are worth, in the study lare."""

import numpy as np


def factors(obs, action):  # type: ignore[no-untyped-def]
    """The reward of a step."""
    angle = np.arctan2(obs[:, 1], obs[:, 0])
    return (-(angle**2) - 0.1 * obs[:, 2] ** 2 - 0.001 * action[:, 0] ** 2)[:, None]
