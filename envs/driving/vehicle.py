"""The signals of a car, in columns that every driving environment shares, and driving metrics counted from them.

Environments write them as `signals` (see `envs.family.Family.sense`); rewards that read them work on highway-env,
CarRacing and whatever `envs.driving.carla` adapts.

Source of the metrics: Huang et al., "VLM-RL: A Unified Vision Language Models and Reinforcement Learning Framework for
Safe Autonomous Driving", 2024, arXiv 2412.15544: average speed, route completion, distance, collision speed, success
rate; each is taken per episode and averaged over episodes.

Differences: distance is that of one episode, not the sum over ten routes. Collision speed is the higher one of the step
of the collision and of the step before: highway-env's cars brake within the step that they crash in. As in the source
an episode without a collision counts 0, so the figure falls with the collision rate too. Comfort is ours: accelerations
between steps of the policy, the same forwards and backwards, and their change.

When it fails: at one step a second, highway-env's default, what happens within a second is not seen; a car that brakes
and accelerates again within it is comfortable.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.types import Array

FAR = 100.0  # metres: the gap where no vehicle is ahead
KMH = 3.6  # km/h in a m/s


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


class Driving:
    """Counts whole episodes, by the signals (9,) of their states; a step takes so many `seconds`."""

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"seconds={seconds} is out of range; give the time of one step, above 0")
        self.seconds = seconds
        self._episodes: list[list[np.ndarray]] = []

    def begin(self, signals: np.ndarray) -> None:
        self._episodes.append([signals])

    def step(self, signals: np.ndarray) -> None:
        self._episodes[-1].append(signals)

    def summary(self) -> dict[str, float]:
        """Name with unit -> mean over the episodes so far; empty before the first."""
        rows = [self._episode(np.stack(episode)) for episode in self._episodes]
        return {name: float(np.mean([row[name] for row in rows])) for name in (rows[0] if rows else ())}

    def _episode(self, signals: np.ndarray) -> dict[str, float]:
        """One episode of T steps, from signals (T + 1, 9)."""
        car, dt = read(signals), self.seconds
        speed = np.abs(car.speed)
        acceleration = np.diff(car.speed) / dt
        hit = np.flatnonzero(car.crashed > 0)
        return {
            "speed, km/h": KMH * float(speed[1:].mean()) if len(speed) > 1 else 0.0,
            "route completion": float(car.completion[-1]),
            "distance, m": float((speed[1:] + speed[:-1]).sum()) * dt / 2,
            "collision rate": float(len(hit) > 0),
            "collision speed, km/h": KMH * float(speed[max(hit[0] - 1, 0) : hit[0] + 1].max()) if len(hit) else 0.0,
            "acceleration, m/s2": float(np.abs(acceleration).mean()) if len(acceleration) else 0.0,
            "jerk, m/s3": float(np.abs(np.diff(acceleration)).mean()) / dt if len(acceleration) > 1 else 0.0,
        }
