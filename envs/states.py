"""States to look at a reward in before anything is trained: scattered over a world, along an axis, graded.

    scatter   a random state, so that many of them cover the world; from the generator alone
    axis      one number to pose the world by, for a plot of a reward over it
    degree    how near a state is to a goal

    classic   any angle or place, at moderate speeds
    MiniGrid  the agent on any free cell, every seventh time on the goal; doors open or closed; something in its hands
    MuJoCo    hinges within their limits or near where they start, the body upright or turned anyhow, then set down
              on the floor; slides stay

A scattered state need not be one that the task can reach: MiniGrid's agent may stand behind a locked door.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from envs.family import Axis, entry

TURN = (-math.pi, math.pi)
_RANGES: dict[str, tuple[tuple[float, float], ...]] = {  # class -> the ends of each state variable
    "CartPole": ((-2.2, 2.2), (-1.0, 1.0), TURN, (-2.0, 2.0)),
    "MountainCar": ((-1.2, 0.6), (-0.07, 0.07)),
    "Pendulum": (TURN, (-4.0, 4.0)),
    "Acrobot": (TURN, TURN, (-2.0, 2.0), (-2.0, 2.0)),
}
_AXES = {  # class -> the state variable to draw over, and its name; the others are 0
    "CartPole": (2, "angle of the pole, rad"),
    "MountainCar": (0, "position of the car, m"),
    "Pendulum": (0, "angle of the pendulum, rad"),
    "Acrobot": (0, "angle of the stretched arm, rad"),
}
_PITCH = {"HalfCheetah": "rooty", "Hopper": "rooty", "Walker2d": "rooty", "InvertedPendulum": "hinge"}


def _kind(name: str) -> str:
    return next((kind for kind in _RANGES if kind in name), "")


def scatter_classic(env: gym.Env, rng: np.random.Generator) -> bool:
    """Any state of CartPole, MountainCar, Pendulum or Acrobot, at moderate speeds."""
    inner: Any = env.unwrapped
    low, high = np.array(_RANGES[_kind(type(inner).__name__)]).T
    inner.state = rng.uniform(low, high)
    if hasattr(inner, "last_u"):
        inner.last_u = None  # the arrow belongs to a torque that was not applied here
    return True


def axis_classic(spec: EnvSpec) -> Axis | None:
    """The angle, or the car's position."""
    kind = _kind(entry(spec))
    if not kind:
        return None
    index, name = _AXES[kind]

    def place(env: gym.Env, value: float) -> None:
        inner: Any = env.unwrapped
        inner.state = np.zeros(len(_RANGES[kind]))
        inner.state[index] = value

    return Axis(name, *_RANGES[kind][index], place)


def uprightness(env: gym.Env) -> float:
    """Cosine of CartPole's or Pendulum's angle from upright."""
    inner: Any = env.unwrapped
    return math.cos(inner.state[2 if _kind(type(inner).__name__) == "CartPole" else 0])


def way_to_flag(env: gym.Env) -> float:
    """MountainCar's position, m."""
    inner: Any = env.unwrapped
    return float(inner.state[0])


def tip_height(env: gym.Env) -> float:
    """Height of Acrobot's tip, in arm lengths above the pivot."""
    inner: Any = env.unwrapped
    return -math.cos(inner.state[0]) - math.cos(inner.state[0] + inner.state[1])


def signals_classic(spec: EnvSpec) -> tuple[str, ...]:
    """What `sense_pendulum` reads, for Pendulum; nothing for the others."""
    return ("height", "spin", "torque") if entry(spec).endswith(":PendulumEnv") else ()


def sense_pendulum(env: gym.Env) -> np.ndarray:
    """Pendulum in numbers: the cosine of its angle from upright, its spin in |rad/s|, the last torque in |N m|."""
    inner: Any = env.unwrapped
    angle, velocity = inner.state
    return np.array([math.cos(angle), abs(velocity), abs(inner.last_u or 0.0)], np.float32)


def scatter_grid(env: gym.Env, rng: np.random.Generator) -> bool:
    """The agent anywhere in a MiniGrid; BabyAI, whose missions remember what happened, is left alone."""
    inner: Any = env.unwrapped
    if type(inner).__module__.startswith("minigrid.envs.babyai"):
        return False
    things = [thing for thing in inner.grid.grid if thing is not None]
    for door in (thing for thing in things if thing.type == "door"):
        door.is_open = bool(rng.random() < 0.5)
        door.is_locked = door.is_locked and not door.is_open
    loose = [thing for thing in things if thing.can_pickup()]
    if loose and rng.random() < 1 / 3:
        inner.carrying = loose[rng.integers(len(loose))]
        inner.grid.grid[inner.grid.grid.index(inner.carrying)] = None
        inner.carrying.cur_pos = np.array([-1, -1])
    free: list[tuple[int, ...]] = []
    goals: list[tuple[int, ...]] = []
    for place in np.ndindex(inner.grid.width, inner.grid.height):
        cell = inner.grid.get(*place)
        if cell is None or (cell.can_overlap() and cell.type != "lava"):
            (goals if cell is not None and cell.type == "goal" else free).append(place)
    chosen = goals if goals and rng.random() < 1 / 7 else free
    inner.agent_pos = tuple(map(int, chosen[rng.integers(len(chosen))]))
    inner.agent_dir = int(rng.integers(4))
    return True


def nearness_to_goal(env: gym.Env) -> float:
    """Minus the steps from a MiniGrid's agent to the green square, through doors; without a way, minus all cells."""
    inner: Any = env.unwrapped
    seen = {tuple(map(int, inner.agent_pos)): 0}
    queue = deque(seen)
    while queue:
        x, y = queue.popleft()
        cell = inner.grid.get(x, y)
        if cell is not None and cell.type == "goal":
            return -float(seen[x, y])
        for step in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
            other = inner.grid.get(*step)
            if step not in seen and (other is None or other.type not in ("wall", "lava")):
                seen[step] = seen[x, y] + 1
                queue.append(step)
    return -float(inner.grid.width * inner.grid.height)


def scatter_robot(env: gym.Env, rng: np.random.Generator) -> bool:
    """Joints anywhere or near their start, the body upright or turned anyhow, on the floor, at rest."""
    inner: Any = env.unwrapped
    model, pose = inner.model, inner.init_qpos.copy()
    limp, turned = rng.random(2) < 0.5
    for joint in range(model.njnt):
        kind, at = model.jnt_type[joint], model.jnt_qposadr[joint]
        if kind == _FREE:
            axis = rng.normal(size=3) if turned else np.array([0.0, 0.0, 1.0])
            half = rng.uniform(*TURN) / 2
            pose[at + 3 : at + 7] = [math.cos(half), *(math.sin(half) * axis / np.linalg.norm(axis))]
        elif kind == _HINGE and not model.jnt_limited[joint]:
            pose[at] += rng.uniform(*TURN) if turned else rng.uniform(-0.2, 0.2)
        elif kind == _HINGE:
            low, high = model.jnt_range[joint]
            near = pose[at] + 0.05 * (high - low) * rng.uniform(-1, 1)
            pose[at] = rng.uniform(low, high) if limp else np.clip(near, low, high)
    _set_down(inner, pose)
    return True


def axis_robot(spec: EnvSpec) -> Axis | None:
    """The pitch of the body, or the angle of the pole."""
    joint = _PITCH.get(spec.name)
    if joint is None:
        return None

    def place(env: gym.Env, value: float) -> None:
        inner: Any = env.unwrapped
        pose = inner.init_qpos.copy()
        pose[inner.model.joint(joint).qposadr[0]] = value
        _set_down(inner, pose)

    low, high = TURN if joint == "rooty" else (-1.5, 1.5)
    return Axis("pitch of the body, rad" if joint == "rooty" else "angle of the pole, rad", low, high, place)


_FREE, _SLIDE, _HINGE, _CAPSULE = 0, 2, 3, 3  # MuJoCo's mjtJoint and mjtGeom


def _set_down(inner: Any, pose: np.ndarray) -> None:
    """Take a pose at rest, and stand a robot that can leave the floor on it with its lowest point."""
    still = np.zeros(inner.model.nv)
    inner.set_state(pose, still)
    model, data = inner.model, inner.data
    names = [model.joint(j).name for j in range(model.njnt)]
    root = 2 if model.jnt_type[0] == _FREE else model.joint("rootz").qposadr[0] if "rootz" in names else None
    if root is None:
        return
    body = model.geom_bodyid != 0
    upright = np.abs(data.geom_xmat[body, 8]) * model.geom_size[body, 1]  # of a capsule's half length
    reach = np.where(model.geom_type[body] == _CAPSULE, upright + model.geom_size[body, 0], model.geom_rbound[body])
    pose[root] -= (data.geom_xpos[body, 2] - reach).min()
    inner.set_state(pose, still)
