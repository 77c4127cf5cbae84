"""MuJoCo: Gymnasium's robots, with observations as flat float32 and frames that are fast and never silently black.

Observations: Gymnasium's own vectors, float32; HalfCheetah-v5 (17,), Hopper-v5 (11,), Humanoid-v5 (348,).

Captions say how a robot stands or lies, and whether it moves forward, fast, or backward; of arms and poles, how near
they are to where they should be. Scattered states have hinges within their limits or near where they start, the body
upright or turned anyhow, then set down on the floor; slides stay.

Terminations are those of versions 4 and 5; Hopper's by velocity (100) is not seen, as observations clip at 10.

Frames differ from Gymnasium's: without shadows and reflections, nine tenths of the time without a GPU; and each
environment makes its own OpenGL context current, else all are black once another of the process has been closed.
"""

import bisect
import functools
import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from envs.family import Axis, Family, Goal, aims_of, simulator
from envs.observations import Recorded
from envs.render import before_opengl, name_of, opengl
from envs.transitions import Ends, never
from envs.types import Array, Info, Notes, Options


class OwnContext(Recorded):
    """Draws in the environment's own OpenGL context, without shadows and reflections; physics stays as it is."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        model: Any = getattr(env.unwrapped, "model", None)
        if model is not None and env.render_mode != "human":
            model.vis.quality.shadowsize = 0
            model.mat_reflectance[:] = 0.0

    def render(self) -> Any:
        before_opengl()
        renderer: Any = getattr(self.unwrapped, "mujoco_renderer", None)
        viewer = getattr(renderer, "viewer", None)
        if viewer is not None and self.render_mode != "human":
            viewer.make_context_current()
        return self.env.render()


def _warn(message: str) -> None:
    # Gymnasium's own models give this one at every start, and users cannot change it.
    if "settotalmass" not in message:
        warnings.warn(f"MuJoCo: {message.strip()}", RuntimeWarning, stacklevel=2)


def _arguments(spec: EnvSpec, arguments: Options, frame_size: int | None) -> Options:
    mujoco = opengl(frame_size is not None or arguments.get("render_mode") is not None)
    # By default warnings go to the terminal and to a file MUJOCO_LOG.TXT in the working directory.
    mujoco.set_mju_user_warning(_warn)
    if frame_size is None:
        return arguments
    # Twice the frame, so that there is something to average; the default of 480 costs up to ten times as much.
    side = max(2 * frame_size, 128)
    return {"width": side, "height": side, **arguments}


# Computes a wrong Hessian where Jacobians are sparse, repaired in 4.0.1; built-in robots are dense.
WRONG_SPARSE_VERSION = "4.0.0"


def warn_if_sparse(env: Any) -> None:
    """Warn, once for an id, of an environment whose model that version solves wrongly."""
    mujoco: Any = sys.modules.get("mujoco")
    if mujoco is None or mujoco.__version__ != WRONG_SPARSE_VERSION:
        return
    model = getattr(env.unwrapped, "model", None)
    if isinstance(model, mujoco.MjModel) and mujoco.mj_isSparse(model):
        _warn_of_sparse(name_of(env))


@functools.cache
def _warn_of_sparse(name: str) -> None:
    warnings.warn(
        f"MuJoCo {WRONG_SPARSE_VERSION} computes a wrong Hessian for {name}, whose Jacobians are sparse; "
        "pip install 'mujoco>=4.0.1', or set <option jacobian=\"dense\"/> in its model",
        RuntimeWarning,
        stacklevel=3,
    )


_UPRIGHT_RAD = math.radians(12)
_STANDING_HEIGHT_M = {"Hopper": 1.25, "Walker2d": 1.25, "Humanoid": 1.4}


def _data(env: gym.Env) -> Any:
    return simulator(env).data


def _axis_up(env: gym.Env, axis: int) -> float:
    """How far the torso's own axis (0 forward, 2 up) points upwards, in [-1, 1]."""
    return float(_data(env).body("torso").xmat[6 + axis])


def _height(env: gym.Env) -> float:
    return float(_data(env).body("torso").xpos[2])


def _is_standing(env: gym.Env) -> bool:
    """Torso upright within 12 degrees and at 0.8 of the height it has when the robot stands."""
    is_upright = _axis_up(env, 2) > math.cos(_UPRIGHT_RAD)
    return is_upright and _height(env) > 0.8 * _STANDING_HEIGHT_M[_robot(env)]


def _pole_angle(env: gym.Env) -> float:
    return abs(float(_data(env).qpos[1]))


def _gap(env: gym.Env) -> float:
    """Metres from the tip of Reacher's arm to the target."""
    tip, target = (_data(env).body(name).xpos[:2] for name in ("fingertip", "target"))
    return float(np.linalg.norm(tip - target))


def _standing_degree(env: gym.Env) -> float:
    """1 upright at full height, less where it leans or is low."""
    return min(_axis_up(env, 2), _height(env) / _STANDING_HEIGHT_M[_robot(env)])


def _standing_goal(robot: str) -> Goal:
    return Goal(
        "standing",
        f"{robot} standing upright",
        robot,
        _is_standing,
        f"{robot} lying on the ground",
        _standing_degree,
    )


def _turned_goal(name: str, robot: str, pose: str, axis: int, sign: int = 1, negative: str = "") -> Goal:
    """The torso's own axis (0 forward, 2 up) points upwards, or with `sign` -1 downwards."""

    def degree(env: gym.Env) -> float:
        return sign * _axis_up(env, axis)

    return Goal(name, f"{robot} {pose}", robot, lambda env: degree(env) > 0.8, negative, degree)


_CHEETAH = "a cheetah robot"
_ANT = "a four-legged robot"
_GOALS: dict[str, list[Goal]] = {
    "HalfCheetah": [
        _turned_goal(
            "on_its_back", _CHEETAH, "lying upside down on its back", 2, -1, f"{_CHEETAH} standing on its feet"
        ),
        _turned_goal(
            "rearing", _CHEETAH, "standing upright on its hind leg", 0, 1, f"{_CHEETAH} standing on its front leg"
        ),
    ],
    "Hopper": [_standing_goal("a one-legged robot")],
    "Walker2d": [_standing_goal("a two-legged robot")],
    "Humanoid": [_standing_goal("a humanoid robot")],
    "Ant": [
        _turned_goal("on_its_feet", _ANT, "standing on its feet", 2),
        _turned_goal("on_its_back", _ANT, "lying upside down", 2, -1),
    ],
    "InvertedPendulum": [
        Goal(
            "upright",
            "pole vertically upright on top of the cart",
            "pole and cart",
            lambda env: _pole_angle(env) < _UPRIGHT_RAD,
            degree=lambda env: math.cos(_pole_angle(env)),
        )
    ],
    "Reacher": [
        Goal(
            "on_target",
            "the tip of the arm touching the target",
            "an arm and a target",
            lambda env: _gap(env) < 0.02,
            degree=lambda env: -_gap(env),
        )
    ],
}


def _robot(env: gym.Env) -> str:
    return simulator(env).spec.name


# The speeds, in m/s, from which on captions say "fast".
_FAST_SPEED = {
    "HalfCheetah": 3.0,
    "Hopper": 1.5,
    "Walker2d": 1.5,
    "Humanoid": 1.5,
    "Ant": 1.5,
    "Swimmer": 0.15,
}


def _caption(env: gym.Env, memory: Notes) -> str:
    robot = _robot(env)
    if robot == "Pusher":
        return _pusher_caption(env)
    if robot in _BANDS:
        measure, ends, captions = _BANDS[robot]
        return captions[bisect.bisect(ends, measure(env))]
    if robot in _FAST_SPEED:
        return _posture(env, robot) + _motion(env, robot)
    return ""


def _motion(env: gym.Env, robot: str) -> str:
    # Of the torso along the x axis, as a share of what counts as fast.
    speed = float(_data(env).qvel[0]) / _FAST_SPEED[robot]
    if speed < -0.1:
        return ", moving backward"
    if speed < 0.1:
        return ""
    return ", moving forward" if speed < 1.0 else ", moving forward fast"


def _posture(env: gym.Env, robot: str) -> str:
    if robot == "Swimmer":
        return "the robot is swimming"
    can_stand = robot in _STANDING_HEIGHT_M
    if can_stand and _is_standing(env):
        return "the robot is standing"
    forward = _axis_up(env, 0)
    up = _axis_up(env, 2)
    if up < -0.8:
        return "the robot is upside down"
    if can_stand:
        return "the robot is upright but low" if up > 0.8 else "the robot has fallen over"
    if forward > 0.8:
        return "the robot stands with its front up"
    if forward < -0.8:
        return "the robot stands on its front"
    return "the robot is on its feet" if up > 0.8 else "the robot is tilted"


def _pusher_caption(env: gym.Env) -> str:
    data = _data(env)
    tip = data.body("tips_arm").xpos
    thing = data.body("object").xpos
    if np.linalg.norm(thing - data.body("goal").xpos) < 0.08:
        return "the object is on the target"
    place = "at" if np.linalg.norm(tip - thing) < 0.15 else "away from"
    return f"the object is away from the target, the tip is {place} the object"


# Robot -> what is measured, the ends between its bands, and the caption of each band, from the lowest.
_BANDS: dict[str, tuple[Callable[[gym.Env], float], tuple[float, ...], tuple[str, ...]]] = {
    "InvertedPendulum": (_pole_angle, (_UPRIGHT_RAD,), ("the pole is upright", "the pole leans")),
    # The height of the tip, 1.2 m at most; the episode ends at 1.
    "InvertedDoublePendulum": (
        lambda env: float(_data(env).site("tip").xpos[2]),
        (1.0, 1.17),
        ("the poles have fallen over", "the poles lean", "the poles are upright"),
    ),
    "Reacher": (
        _gap,
        (0.02, 0.08),
        ("the tip is on the target", "the tip is near the target", "the tip is away from the target"),
    ),
    # 0.1 m when it lies, 1.4 when it stands.
    "HumanoidStandup": (
        _height,
        (0.4, 1.1),
        ("the robot lies on the ground", "the robot sits up", "the robot is standing"),
    ),
}

# MuJoCo's numbers in mjtJoint and mjtGeom.
_FREE_JOINT = 0
_HINGE_JOINT = 3
_CAPSULE_GEOM = 3
_TURN = (-math.pi, math.pi)
# The joint by which a robot is posed.
_PITCH = {"HalfCheetah": "rooty", "Hopper": "rooty", "Walker2d": "rooty", "InvertedPendulum": "hinge"}


def _scatter(env: gym.Env, rng: np.random.Generator) -> bool:
    """Joints anywhere or near their start, the body upright or turned anyhow, on the floor, at rest."""
    inner = simulator(env)
    model = inner.model
    pose = inner.init_qpos.copy()
    limp, turned = rng.random(2) < 0.5
    for joint in range(model.njnt):
        kind = model.jnt_type[joint]
        start = model.jnt_qposadr[joint]
        if kind == _FREE_JOINT:
            # Three numbers of place, then a quaternion: cos and sin of half the angle about an axis.
            axis = rng.normal(size=3) if turned else np.array([0.0, 0.0, 1.0])
            half = rng.uniform(*_TURN) / 2
            vector = math.sin(half) * axis / np.linalg.norm(axis)
            pose[start + 3 : start + 7] = [math.cos(half), *vector]
        elif kind == _HINGE_JOINT and not model.jnt_limited[joint]:
            pose[start] += rng.uniform(*_TURN) if turned else rng.uniform(-0.2, 0.2)
        elif kind == _HINGE_JOINT:
            low, high = model.jnt_range[joint]
            near = pose[start] + 0.05 * (high - low) * rng.uniform(-1, 1)
            pose[start] = rng.uniform(low, high) if limp else np.clip(near, low, high)
    _set_down(inner, pose)
    return True


def _start_axis(spec: EnvSpec) -> Axis | None:
    joint = _PITCH.get(spec.name)
    if joint is None:
        return None

    def place(env: gym.Env, value: float) -> None:
        inner = simulator(env)
        pose = inner.init_qpos.copy()
        pose[inner.model.joint(joint).qposadr[0]] = value
        _set_down(inner, pose)

    if joint == "rooty":
        return Axis("pitch of the body, rad", *_TURN, place)
    return Axis("angle of the pole, rad", -1.5, 1.5, place)


def _set_down(inner: Any, pose: np.ndarray) -> None:
    """Set a pose at rest, moved up or down until the lowest part of the body touches the floor."""
    model = inner.model
    data = inner.data
    at_rest = np.zeros(model.nv)
    inner.set_state(pose, at_rest)
    height_index = _height_index(model)
    if height_index is None:
        return
    # Geoms of body 0 are the world's.
    is_body = model.geom_bodyid != 0
    radius = model.geom_size[is_body, 0]
    half_length = model.geom_size[is_body, 1]
    # How far each geom reaches down: a capsule by its upright share, others by a sphere around them.
    capsule_reach = np.abs(data.geom_xmat[is_body, 8]) * half_length + radius
    is_capsule = model.geom_type[is_body] == _CAPSULE_GEOM
    reach = np.where(is_capsule, capsule_reach, model.geom_rbound[is_body])
    pose[height_index] -= (data.geom_xpos[is_body, 2] - reach).min()
    inner.set_state(pose, at_rest)


def _height_index(model: Any) -> int | None:
    """Where a pose has the height of the body; None for robots on a rail or a table."""
    if model.jnt_type[0] == _FREE_JOINT:
        return 2
    for joint in map(model.joint, range(model.njnt)):
        if joint.name == "rootz":
            return joint.qposadr[0]
    return None


Limits = tuple[float, float]


def _is_inside(x: Array, limits: Limits) -> Array:
    low, high = limits
    return (low < x) & (x < high)


def _height_column(options: Options, positions: int) -> int:
    """Where the torso's height is in an observation, which may begin with its `positions` in the plane."""
    return 0 if options.get("exclude_current_positions_from_observation", True) else positions


def _unhealthy_rule(height: Limits, angle: Limits, state: Limits | None) -> Callable[[Options, Array], Array]:
    """Hopper and Walker2d: the torso's height, its pitch, and of Hopper every number that follows."""

    def rule(options: Options, next_obs: Array) -> Array:
        first = _height_column(options, 1)
        states = options.get("healthy_state_range", state)
        healthy = _is_inside(next_obs[..., first], options.get("healthy_z_range", height))
        healthy &= _is_inside(next_obs[..., first + 1], options.get("healthy_angle_range", angle))
        if states is not None:
            healthy &= _is_inside(next_obs[..., first + 1 :], states).all(-1)
        return ~healthy

    return rule


def _is_finite(obs: Array) -> Array:
    return (abs(obs) < math.inf).all(-1)


def _ant_ends(options: Options, next_obs: Array) -> Array:
    height = next_obs[..., _height_column(options, 2)]
    low, high = options.get("healthy_z_range", (0.2, 1.0))
    # Unlike Humanoid's, the limits themselves are healthy.
    return ~((low <= height) & (height <= high) & _is_finite(next_obs))


def _humanoid_ends(options: Options, next_obs: Array) -> Array:
    height = next_obs[..., _height_column(options, 2)]
    return ~_is_inside(height, options.get("healthy_z_range", (1.0, 2.0)))


def _pendulum_ends(options: Options, next_obs: Array) -> Array:
    return ~(_is_finite(next_obs) & (abs(next_obs[..., 1]) <= 0.2))


def _double_pendulum_ends(options: Options, next_obs: Array) -> Array:
    sin_1, sin_2, cos_1, cos_2 = (next_obs[..., i] for i in range(1, 5))
    # The height of the tip of two poles of 0.6 m.
    return 0.6 * cos_1 + 0.6 * (cos_1 * cos_2 - sin_1 * sin_2) <= 1.0


# None: never.
ROBOT_ENDS: dict[str, Callable[[Options, Array], Array] | None] = {
    "HalfCheetah": None,
    "Hopper": _unhealthy_rule((0.7, math.inf), (-0.2, 0.2), (-100.0, 100.0)),
    "Walker2d": _unhealthy_rule((0.8, 2.0), (-1.0, 1.0), None),
    "Ant": _ant_ends,
    "Humanoid": _humanoid_ends,
    **dict.fromkeys(("HumanoidStandup", "Swimmer", "Reacher", "Pusher")),
    "InvertedPendulum": _pendulum_ends,
    "InvertedDoublePendulum": _double_pendulum_ends,
}


def _terminates(spec: EnvSpec) -> Ends | None:
    """The rule of a robot; None for one with a body of its own, and for versions before 4."""
    if spec.name not in ROBOT_ENDS or spec.version not in (4, 5) or "xml_file" in spec.kwargs:
        return None
    rule = ROBOT_ENDS[spec.name]
    if rule is None or not spec.kwargs.get("terminate_when_unhealthy", True):
        return never
    return lambda obs, action, next_obs: rule(spec.kwargs, next_obs)


def _success(env: gym.Env, episode_return: float, terminated: bool, info: Info) -> bool | None:
    return not terminated if _robot(env) in ("InvertedPendulum", "InvertedDoublePendulum") else None


MUJOCO_FAMILY = Family(
    name="mujoco",
    description="MuJoCo: simulated robots with continuous actions",
    ids=tuple(f"{robot}-v5" for robot in ROBOT_ENDS),
    entries=("gymnasium.envs.mujoco",),
    extra="robots",
    arguments=_arguments,
    repair=OwnContext,
    caption=_caption,
    scatter=_scatter,
    axis=_start_axis,
    terminates=_terminates,
    goals=lambda spec: _GOALS.get(spec.name, []),
    aim=aims_of("mujoco"),
    success=_success,
)
