"""The task is to drive an underpowered car out of a valley to the flag with little force (MountainCarContinuous-v0).

obs[:, 0]: position of the car, in [-1.2, 0.6], the valley's bottom is near -0.52, the flag stands at 0.45
obs[:, 1]: velocity of the car, in [-0.07, 0.07], positive to the right
action[:, 0]: force on the car, in [-1, 1], positive to the right
"""

# Written by hand in the form that a language model is asked for; no model wrote it.
import numpy as np


def factors(obs, action):  # type: ignore[no-untyped-def]
    """Energy, height and speed, force spent, force along the motion, and whether the flag is reached."""
    height = np.sin(3 * obs[:, 0])
    speed = obs[:, 1] / 0.07
    force = action[:, 0]
    reached = np.where(obs[:, 0] > 0.44, 1.0, 0.0)
    energy = height + speed**2
    along = force * np.sign(speed)
    return np.stack([energy, height, speed**2, force**2, along, reached], axis=1)
