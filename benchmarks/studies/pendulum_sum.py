"""Height, spin and torque of Pendulum added with equal weights, as one would who does not know better; study heron."""

import numpy as np


def reward(obs, action, next_obs):  # type: ignore[no-untyped-def]
    """High, slow, with little torque."""
    return {"height": next_obs[:, 0], "spin": -np.abs(next_obs[:, 2]), "torque": -np.abs(action[:, 0])}
