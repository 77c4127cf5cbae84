"""What classic control says: where the pole, the car or the arm is, in a small vocabulary; for N states at once.

    CartPole      the pole {is upright | is upright but tilts to the left | leans to the left | lies to the left |
                  hangs down to the left | hangs straight down}, the cart is {in the middle | at the left}[, near the
                  edge]; and the same to the right
    Pendulum      the pendulum {as the pole}
    MountainCar   the car is {in the valley | on the left slope | high on the left slope | at the peak of the mountain,
                  next to the flag}; and the same on the right
    Acrobot       the tip is {above the line | below the line, nearly up to it | below the line, half way up | below
                  the line, hanging low}

A state's caption is the entry of an array of strings; its number is counted from the edges below. One environment is N
of them with N = 1, so single environments and array programs say the same by construction.

When it fails: velocities are not told, so a pendulum that stands is not told from one that races through.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

UPRIGHT = math.radians(12)  # CartPole-v1's own limit
FLAG = 0.45  # position on MountainCar's track from which the drawn car overlaps the flag, which stands at 0.5

_LEAN = np.array([UPRIGHT / 2, UPRIGHT, math.pi / 3, 2 * math.pi / 3, math.pi - UPRIGHT])  # rad from upright
_CART = np.array([-2.1, -0.8, 0.8, 2.1])  # m; the track ends at 2.4, CartPoleUpright's at 2.2
_HIGH = math.asin(0.3)  # MountainCar's height is sin(3 x)
_CAR = np.array([-(math.pi + _HIGH) / 3, -math.pi / 6 - 0.3, -math.pi / 6 + 0.3, _HIGH / 3, FLAG])
_TIP = np.array([-1.0, 0.0, 1.0])  # lengths of a link, from the joint that hangs on the wall; the line is at 1

_POSES = (
    "is upright",
    "is upright but tilts to the {}",
    "leans to the {}",
    "lies to the {}",
    "hangs down to the {}",
    "hangs straight down",
)
_PLACES = ("at the left, near the edge", "at the left", "in the middle", "at the right", "at the right, near the edge")
_HILLS = (
    "high on the left slope",
    "on the left slope",
    "in the valley",
    "on the right slope",
    "high on the right slope",
    "at the peak of the mountain, next to the flag",
)
_TIPS = (
    "below the line, hanging low",
    "below the line, half way up",
    "below the line, nearly up to it",
    "above the line",
)

Teller = Callable[[np.ndarray], np.ndarray]


def _table(*texts: str) -> np.ndarray:
    return np.array(texts, object)


def _lean(angle: np.ndarray) -> np.ndarray:
    """Numbers of `_POSES`, and len(_POSES) more to the side of positive angles."""
    angle = np.remainder(angle + math.pi, 2 * math.pi) - math.pi
    return np.searchsorted(_LEAN, abs(angle), side="right") + len(_POSES) * (angle >= 0)


@functools.cache
def _cartpole() -> Teller:
    # In the picture a positive angle leans right here, and left in Pendulum.
    poses = [pose.format(side) for side in ("left", "right") for pose in _POSES]
    table = _table(*(f"the pole {pose}, the cart is {place}" for pose in poses for place in _PLACES))
    return lambda x: table[_lean(x[:, 2]) * len(_PLACES) + np.searchsorted(_CART, x[:, 0], side="right")]


@functools.cache
def _mountaincar() -> Teller:
    table = _table(*(f"the car is {place}" for place in _HILLS))
    return lambda x: table[np.searchsorted(_CAR, x[:, 0], side="right")]


@functools.cache
def _pendulum() -> Teller:
    table = _table(*(f"the pendulum {pose.format(side)}" for side in ("right", "left") for pose in _POSES))
    return lambda x: table[_lean(x[:, 0])]


@functools.cache
def _acrobot() -> Teller:
    table = _table(*(f"the tip is {place}" for place in _TIPS))
    return lambda x: table[np.searchsorted(_TIP, -np.cos(x[:, 0]) - np.cos(x[:, 0] + x[:, 1]))]


_TELLERS: dict[str, Callable[[], Teller]] = {
    "CartPoleEnv": _cartpole,
    "MountainCarEnv": _mountaincar,
    "Continuous_MountainCarEnv": _mountaincar,
    "PendulumEnv": _pendulum,
    "AcrobotEnv": _acrobot,
}


def teller(kind: Any) -> Teller | None:
    """What captions states (N, D) of a class of environments, as object (N,) of str; None for a class without words."""
    return next((_TELLERS[base.__name__]() for base in kind.__mro__ if base.__name__ in _TELLERS), None)


def caption(env: gym.Env, memory: dict[str, Any]) -> str:
    """The state of one environment in words; see `envs.family.Family.caption`."""
    inner: Any = env.unwrapped
    tell = teller(type(inner))
    return "" if tell is None else tell(np.asarray(inner.state)[None])[0]
