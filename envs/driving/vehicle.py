"""What a car knows about itself, in columns that every driving environment shares.

Environments write them as `signals` (see `envs.family.Family.sense`); rewards that read them work on highway-env,
CarRacing and whatever `envs.driving.carla` adapts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.types import Array

FAR = 100.0  # metres: the gap where no vehicle is ahead


class Vehicle(NamedTuple):
    """One array (...,) for each column of `signals`."""

    speed: Array  # m/s, along the car's own heading
    lane_offset: Array  # m from the centre of its lane, to the right positive
    heading: Array  # rad relative to the lane's direction, in [-pi, pi)
    on_road: Array  # 1 on the road, 0 off it
    crashed: Array  # 1 after a collision
    completion: Array  # share of the route, in [0, 1]
    gap: Array  # m to the next vehicle ahead in its lane; FAR where there is none
    lane: Array  # 0 leftmost to 1 rightmost; 0.5 on a road of one lane
    speed_limit: Array  # m/s


VEHICLE = Vehicle._fields


def read(signals: np.ndarray) -> Vehicle:
    """The columns of `signals` (..., K) by name.

    Raises:
        ValueError: if they are not those of a vehicle.
    """
    if signals.shape[-1] != len(VEHICLE):
        raise ValueError(
            f"signals of {signals.shape[-1]} columns are no vehicle's, which has {len(VEHICLE)} "
            f"({', '.join(VEHICLE)}); use a driving environment, or envs.driving.carla for one of your own"
        )
    return Vehicle(*np.moveaxis(signals, -1, 0))
