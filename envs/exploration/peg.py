"""A task of precision: put a peg into a hole that is hardly wider, `lodestar/Peg-v0`.

Source: what ResiP is about (Ankile et al. 2024, arXiv 2407.16677: assembly by a cloned policy that is right but for the
last millimetres), reduced to a plane: cloning comes near the hole, sparse rewards alone never find it.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.exploration.family import AGENT, FLOOR_RGB, WALL_RGB, CellWorld, enlarge
from envs.family import Family, aims_of, simulator
from envs.types import Array, EnvStep, Info

# A step's distance and angle at an action of 1.
SPEED = 0.05
# The depth at which the peg is in.
INSERTED_DEPTH = 0.1
# The height above the surface at which the demonstrator aligns.
FREE_HEIGHT = 0.1


class Peg(CellWorld):
    """A peg in a plane, with place and angle, above a surface with a hole in it, which lies anywhere at any angle.

    Observation, float32 (6,): x, y and angle of the peg's tip and of the hole's mouth. Action: the peg's velocity, (3,)
    in [-1, 1]. Nothing gets below the surface unless it is within `eps` of the hole's middle and of its angle. The
    reward is 1 at the end, 0.1 deep in the hole; 60 steps are given.
    """

    STATE = ("pose", "hole")

    def __init__(self, eps: float = 0.02, render_mode: str | None = None) -> None:
        if not 0 < eps <= 1:
            raise ValueError(f"eps={eps} is out of range; give half the play of the hole, such as 0.02")
        self._setup(render_mode, 6, 1)
        self.eps = eps
        self.observation_space = spaces.Box(-2.0, 2.0, (6,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.pose = np.zeros(3, np.float32)
        self.hole = np.zeros(3, np.float32)

    def _begin(self) -> None:
        poses, holes = begin(self.np_random, 1)
        self.pose = poses[0]
        self.hole = holes[0]

    def step(self, action: Any) -> EnvStep:
        action = np.asarray(action, np.float32)
        self.pose = next_pose(np, self.pose, self.hole, action, self.eps)
        inside = _is_inserted(self.pose)
        return self._obs(), float(inside), inside, False, {}

    def _obs(self) -> np.ndarray:
        return observe(np, self.pose, self.hole)

    def _picture(self) -> np.ndarray:
        """The surface, the hole, and the last third of the peg."""
        across = np.linspace(-1.2, 1.2, 25, dtype=np.float32)
        points = np.meshgrid(across, -across)
        beside, above = _seen_from(self.hole, *points)
        is_in_hole = np.abs(beside) < 0.08
        is_open = (above > 0) | is_in_hole
        plan = np.where(is_open[..., None], FLOOR_RGB, WALL_RGB)
        plan = plan.astype(np.uint8)
        side, up = _seen_from(self._obs()[:3], *points)
        is_peg = (np.abs(side) < 0.08) & (up > -0.05) & (up < 0.4)
        plan[is_peg] = AGENT
        return enlarge(plan)


def _seen_from(place: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[Array, Array]:
    """Points of the plane as something at this place (x, y, angle) sees them."""
    place_x, place_y, angle = place
    return rotate(np, x - place_x, y - place_y, -angle)


def begin(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Poses of pegs as the holes see them (beside, above, turned) and of holes (x, y, angle); float32 (count, 3)."""
    low = np.full((2, 3), -0.5)
    high = np.full((2, 3), 0.5)
    # Pegs begin above the surface.
    low[0, 1] = 0.3
    high[0, 1] = 0.8
    samples = rng.uniform(low, high, (count, 2, 3)).astype(np.float32)
    return samples[:, 0], samples[:, 1]


def _is_inserted(pose: np.ndarray) -> bool:
    return bool(pose[1] <= -INSERTED_DEPTH)


def components(x: Array) -> tuple[Array, Array, Array]:
    """The last axis of an array (..., 3): two coordinates and an angle, or their velocities."""
    return x[..., 0], x[..., 1], x[..., 2]


def rotate(xp: Any, x: Array, y: Array, angle: Array) -> tuple[Array, Array]:
    """The vector (x, y), turned by an angle."""
    cos = xp.cos(angle)
    sin = xp.sin(angle)
    return cos * x - sin * y, sin * x + cos * y


def next_pose(xp: Any, pose: Array, hole: Array, action: Array, eps: float) -> Array:
    """The pose (..., 3) after a step, as the hole sees it; all are arrays of `xp`, NumPy or torch."""
    velocity = SPEED * xp.clip(action, -1, 1)
    velocity_x, velocity_y, turn = components(velocity)
    hole_angle = hole[..., 2]
    right, up = rotate(xp, velocity_x, velocity_y, -hole_angle)
    beside, above, angle = components(pose)
    inside = above < 0
    beside = xp.clip(beside + right, -1, 1)
    above = xp.clip(above + up, -1, 1)
    angle = xp.clip(angle + turn, -1, 1)
    # The walls of the hole hold a peg that is in it.
    beside = xp.where(inside, xp.clip(beside, -eps, eps), beside)
    angle = xp.where(inside, xp.clip(angle, -eps, eps), angle)
    # The surface stops a peg that does not fit.
    fits = (abs(beside) <= eps) & (abs(angle) <= eps)
    above = xp.where(fits, above, xp.clip(above, 0, 1))
    return xp.stack([beside, above, angle], -1)


def observe(xp: Any, pose: Array, hole: Array) -> Array:
    """What is seen of a pose (..., 3) and a hole (..., 3): (..., 6), in the plane."""
    beside, above, angle = components(pose)
    hole_x, hole_y, hole_angle = components(hole)
    x, y = rotate(xp, beside, above, hole_angle)
    tip = xp.stack([hole_x + x, hole_y + y, hole_angle + angle], -1)
    return xp.concatenate([tip, hole], -1)


def demonstrator(obs: np.ndarray) -> np.ndarray:
    """A script that knows the way: align above the hole, then go down; float32 (N, 6) -> (N, 3)."""
    tip = obs[..., :3]
    hole = obs[..., 3:]
    hole_angle = hole[..., 2]
    dx, dy, angle = components(tip - hole)
    beside, above = rotate(np, dx, dy, -hole_angle)
    is_aligned = (np.abs(beside) < 0.005) & (np.abs(angle) < 0.005)
    way_up = np.where(is_aligned, -1, FREE_HEIGHT - above)
    right = np.clip(-beside / SPEED, -1, 1)
    up = np.clip(way_up / SPEED, -1, 1)
    x, y = rotate(np, right, up, hole_angle)
    return np.clip(np.stack([x, y, -angle / SPEED], -1), -1, 1).astype(np.float32)


def _success(env: gym.Env, episode_return: float, terminated: bool, info: Info) -> bool:
    return _is_inserted(simulator(env).pose)


PEG_FAMILY = Family(
    name="precision",
    description="a peg and a hole that is hardly wider",
    ids=("lodestar/Peg-v0",),
    entries=("envs.exploration.peg:",),
    aim=aims_of("precision"),
    success=_success,
)
