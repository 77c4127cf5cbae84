"""When episodes end, as functions of observations: for agents that imagine transitions.

    ends = envs.make.termination("Hopper-v5")
    ends(obs, action, next_obs)        bool (B,), arrays (B, D), (B, A), (B, D) of NumPy or torch

Observations are those of `envs.make.make`, actions those that the environment takes. The rules are the simulators' own,
for the robots of Gymnasium's v4 and v5, with their limits as the constructor was given them. Time limits are no ends.

When it fails: observations are float32 and the simulators compute in float64, so a state within a rounding of a limit
may fall on its other side; Hopper's speeds are cut at 10 in what it shows, so that an end by speed (100) is not seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gymnasium.envs.registration import EnvSpec

from envs.family import entry
from envs.types import Array

Ends = Callable[[Array, Array, Array], Array]


def never(obs: Array, action: Array, next_obs: Array) -> Array:
    """No episode ends by what happens in it."""
    return next_obs[..., 0] < -math.inf


def always(obs: Array, action: Array, next_obs: Array) -> Array:
    """Every episode has one step."""
    return ~never(obs, action, next_obs)


def _cartpole(options: dict[str, Any]) -> Ends:
    angle = 12 * 2 * math.pi / 360
    return lambda obs, action, next_obs: (abs(next_obs[..., 0]) > 2.4) | (abs(next_obs[..., 2]) > angle)


def _car(flag: float) -> Callable[[dict[str, Any]], Ends]:
    def rule(options: dict[str, Any]) -> Ends:
        speed = options.get("goal_velocity", 0)
        return lambda obs, action, next_obs: (next_obs[..., 0] >= flag) & (next_obs[..., 1] >= speed)

    return rule


def _acrobot(options: dict[str, Any]) -> Ends:
    def ends(obs: Array, action: Array, next_obs: Array) -> Array:
        cos1, sin1, cos2, sin2 = (next_obs[..., i] for i in range(4))
        return -cos1 - (cos1 * cos2 - sin1 * sin2) > 1.0

    return ends


_CLASSIC: dict[str, Callable[[dict[str, Any]], Ends]] = {
    "CartPoleEnv": _cartpole,
    "MountainCarEnv": _car(0.5),
    "MountainCarSparse": _car(0.5),
    "Continuous_MountainCarEnv": _car(0.45),
    "AcrobotEnv": _acrobot,
    **{
        name: lambda options: never
        for name in (
            "CartPoleUpright",
            "CartPoleSwingUp",
            "CartPoleSwingUpSparse",
            "MountainCarGoal",
            "PendulumEnv",
            "PendulumUpright",
            "PendulumSparse",
        )
    },
}


def classic(spec: EnvSpec) -> Ends | None:
    """The rule of classic control."""
    rule = _CLASSIC.get(entry(spec).split(":")[-1])
    return None if rule is None else rule(spec.kwargs)


def probe(spec: EnvSpec) -> Ends | None:
    """The rule of a probe: one step, but for the one about discounts, which ends where 1 is shown before the step."""
    return (lambda obs, action, next_obs: obs[..., 0] > 0.5) if spec.kwargs.get("kind") == "discount" else always


def _within(x: Array, limits: tuple[float, float]) -> Array:
    return (limits[0] < x) & (x < limits[1])


def _walking(height: tuple[float, float], angle: tuple[float, float], state: tuple[float, float] | None) -> Any:
    """Hopper and Walker2d: the torso's height, its pitch, and of Hopper every number that follows."""

    def rule(options: dict[str, Any]) -> Ends:
        first = 0 if options.get("exclude_current_positions_from_observation", True) else 1
        heights, angles = options.get("healthy_z_range", height), options.get("healthy_angle_range", angle)
        states = options.get("healthy_state_range", state)

        def ends(obs: Array, action: Array, next_obs: Array) -> Array:
            healthy = _within(next_obs[..., first], heights) & _within(next_obs[..., first + 1], angles)
            if states is not None:
                healthy = healthy & _within(next_obs[..., first + 1 :], states).all(-1)
            return ~healthy

        return ends

    return rule


def _tall(height: tuple[float, float], finite: bool) -> Any:
    """Ant and Humanoid: the torso's height, and of Ant that all positions and speeds are numbers."""

    def rule(options: dict[str, Any]) -> Ends:
        first = 0 if options.get("exclude_current_positions_from_observation", True) else 2
        low, high = options.get("healthy_z_range", height)

        def ends(obs: Array, action: Array, next_obs: Array) -> Array:
            z = next_obs[..., first]
            if finite:  # Ant's limits belong to what is healthy, Humanoid's do not
                return ~((low <= z) & (z <= high) & (abs(next_obs) < math.inf).all(-1))
            return ~((low < z) & (z < high))

        return ends

    return rule


def _pole(options: dict[str, Any]) -> Ends:
    def ends(obs: Array, action: Array, next_obs: Array) -> Array:
        return ~((abs(next_obs) < math.inf).all(-1) & (abs(next_obs[..., 1]) <= 0.2))

    return ends


def _two_poles(options: dict[str, Any]) -> Ends:
    def ends(obs: Array, action: Array, next_obs: Array) -> Array:
        _, sin1, sin2, cos1, cos2 = (next_obs[..., i] for i in range(5))
        return 0.6 * cos1 + 0.6 * (cos1 * cos2 - sin1 * sin2) <= 1.0  # the tip's height; poles of 0.6 m

    return ends


_ROBOTS: dict[str, Callable[[dict[str, Any]], Ends]] = {
    "Hopper": _walking((0.7, math.inf), (-0.2, 0.2), (-100.0, 100.0)),
    "Walker2d": _walking((0.8, 2.0), (-1.0, 1.0), None),
    "Ant": _tall((0.2, 1.0), True),
    "Humanoid": _tall((1.0, 2.0), False),
    "InvertedPendulum": _pole,
    "InvertedDoublePendulum": _two_poles,
    **{name: lambda options: never for name in ("HalfCheetah", "HumanoidStandup", "Swimmer", "Reacher", "Pusher")},
}


def robot(spec: EnvSpec) -> Ends | None:
    """The rule of a robot; None for one with a body of its own, and for versions before 4."""
    rule = _ROBOTS.get(spec.name)
    if rule is None or spec.version not in (4, 5) or "xml_file" in spec.kwargs:
        return None
    return rule(spec.kwargs) if spec.kwargs.get("terminate_when_unhealthy", True) else never
