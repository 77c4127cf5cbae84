"""The wish of a careful driver of Speed-v0, who taught the first policy of the study kl_reference_sac."""

import numpy as np


def reward(obs, action, next_obs):  # type: ignore[no-untyped-def]
    """A speed of 0.6."""
    return {"speed": -np.square(next_obs[:, 0] - 0.6)}
