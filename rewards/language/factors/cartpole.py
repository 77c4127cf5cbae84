"""The task is to keep a pole upright on a cart that stays near the middle of its track (CartPole-v1).

obs[:, 0]: position of the cart, m, the episode ends beyond 2.4 on either side
obs[:, 1]: velocity of the cart, m/s
obs[:, 2]: angle of the pole from upright, rad, the episode ends beyond 0.209 on either side
obs[:, 3]: angular velocity of the pole, rad/s
action[:, 0]: 0 pushes the cart to the left, 1 to the right
"""

# Written by hand in the form that a language model is asked for; no model wrote it.
import numpy as np


def factors(obs, action):  # type: ignore[no-untyped-def]
    """How near the edges cart and pole are, how fast, and whether the push counters the fall."""
    drift = np.abs(obs[:, 0]) / 2.4
    tilt = np.abs(obs[:, 2]) / 0.209
    speed = obs[:, 1] ** 2
    spin = obs[:, 3] ** 2
    push = 2.0 * action[:, 0] - 1.0
    falling = obs[:, 2] + 0.5 * obs[:, 3]
    counters = push * np.sign(falling)
    return np.stack([drift, tilt, speed, spin, counters], axis=1)
