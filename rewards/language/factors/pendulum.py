"""The task is to swing a pendulum up and to hold it upright with as little torque as possible (Pendulum-v1).

obs[:, 0]: cosine of the angle from upright, 1 is upright, -1 hangs down
obs[:, 1]: sine of the angle from upright, in [-1, 1]
obs[:, 2]: angular velocity, rad/s, in [-8, 8]
action[:, 0]: torque at the joint, N m, in [-2, 2]
"""

# Written by hand in the form that a language model is asked for; no model wrote it.
import numpy as np


def factors(obs, action):  # type: ignore[no-untyped-def]
    """How far from upright, how fast, how much torque."""
    angle = np.arctan2(obs[:, 1], obs[:, 0])
    speed = obs[:, 2]
    torque = action[:, 0]
    return np.stack([angle**2, speed**2, torque**2], axis=1)
