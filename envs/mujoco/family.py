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

from envs.family import Axis, Family, Goal, entry, simulator
from envs.observations import Recorded
from envs.render import before_opengl, name_of, opengl
from envs.transitions import Ends, never
from envs.types import Array


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


def _arguments(spec: EnvSpec, arguments: dict[str, Any], frame_size: int | None) -> dict[str, Any]:
    mujoco = opengl(frame_size is not None or arguments.get("render_mode") is not None)
    # By default warnings go to the terminal and to a file MUJOCO_LOG.TXT in the working directory.
    mujoco.set_mju_user_warning(_warn)
    if frame_size is None:
        return arguments
    # Twice the frame, so that there is something to average; the default of 480 costs up to ten times as much.
    side = max(2 * frame_size, 128)
    return {"width": side, "height": side, **arguments}


WRONG = "4.0.0"  # computes a wrong Hessian where Jacobians are sparse, repaired in 4.0.1; built-in robots are dense


def warn_if_sparse(env: Any) -> None:
    """Warn, once for an id, of an environment whose model that version solves wrongly."""
    mujoco: Any = sys.modules.get("mujoco")
    model = getattr(env.unwrapped, "model", None)
    wrong = mujoco is not None and mujoco.__version__ == WRONG
    if wrong and isinstance(model, mujoco.MjModel) and mujoco.mj_isSparse(model):
        _warn_of_sparse(name_of(env))


@functools.cache
def _warn_of_sparse(name: str) -> None:
    warnings.warn(
        f"MuJoCo {WRONG} computes a wrong Hessian for {name}, whose Jacobians are sparse; pip install 'mujoco>=4.0.1', "
        'or set <option jacobian="dense"/> in its model',
        RuntimeWarning,
        stacklevel=3,
    )


_UPRIGHT = math.radians(12)
_STANDING_HEIGHT = {"Hopper": 1.25, "Walker2d": 1.25, "Humanoid": 1.4}  # m


def _data(env: gym.Env) -> Any:
    return simulator(env).data


def _axis_up(env: gym.Env, axis: int) -> float:
    """How far the torso's own axis (0 forward, 2 up) points upwards, in [-1, 1]."""
    return float(_data(env).body("torso").xmat[6 + axis])


def _height(env: gym.Env) -> float:
    return float(_data(env).body("torso").xpos[2])


def _standing(env: gym.Env) -> bool:
    """Torso upright within 12 degrees and at 0.8 of the height it has when the robot stands."""
    return _axis_up(env, 2) > math.cos(_UPRIGHT) and _height(env) > 0.8 * _STANDING_HEIGHT[_robot(env.spec)]


def _pole_angle(env: gym.Env) -> float:
    return abs(float(_data(env).qpos[1]))


def _gap(env: gym.Env) -> float:
    """Metres from the tip of Reacher's arm to the target."""
    data = _data(env)
    return float(np.linalg.norm(data.body("fingertip").xpos[:2] - data.body("target").xpos[:2]))


def _stands(env: gym.Env) -> float:
    """1 upright at full height, less where it leans or is low."""
    return min(_axis_up(env, 2), _height(env) / _STANDING_HEIGHT[_robot(env.spec)])


def _standing_goal(robot: str) -> Goal:
    return Goal("standing", f"{robot} standing upright", robot, _standing, f"{robot} lying on the ground", _stands)


def _turned_goal(name: str, robot: str, pose: str, axis: int, sign: int = 1, negative: str = "") -> Goal:
    """The torso's own axis (0 forward, 2 up) points upwards, or with `sign` -1 downwards."""

    def degree(env: gym.Env) -> float:
        return sign * _axis_up(env, axis)

    return Goal(name, f"{robot} {pose}", robot, lambda env: degree(env) > 0.8, negative, degree)


_CHEETAH, _ANT = "a cheetah robot", "a four-legged robot"
_FEET, _FRONT = f"{_CHEETAH} standing on its feet", f"{_CHEETAH} standing on its front leg"
_GOALS: dict[str, list[Goal]] = {
    "HalfCheetah": [
        _turned_goal("on_its_back", _CHEETAH, "lying upside down on its back", 2, -1, _FEET),
        _turned_goal("rearing", _CHEETAH, "standing upright on its hind leg", 0, 1, _FRONT),
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
            lambda env: _pole_angle(env) < _UPRIGHT,
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


def _robot(spec: EnvSpec | None) -> str:
    return spec.name if spec is not None else ""


_FAST = {"HalfCheetah": 3.0, "Hopper": 1.5, "Walker2d": 1.5, "Humanoid": 1.5, "Ant": 1.5, "Swimmer": 0.15}  # m/s
_RUN, _WALK = "run forward as fast as possible", "move forward as fast as possible without falling"
_AIMS = {
    **{"HalfCheetah": _RUN, "Hopper": _WALK, "Walker2d": _WALK, "Ant": _RUN, "Humanoid": _WALK},
    "HumanoidStandup": "stand up from the ground and stay standing",
    "Swimmer": "swim forward as fast as possible",
    "Reacher": "bring the tip of the arm to the target and keep it there",
    "Pusher": "push the object to the target with the tip of the arm",
    "InvertedPendulum": "keep the pole upright on the cart",
    "InvertedDoublePendulum": "keep both poles upright on the cart, one on top of the other",
}


def _caption(env: gym.Env, memory: dict[str, Any]) -> str:
    robot = _robot(env.spec)
    if robot == "Pusher":
        return _pusher_caption(env)
    if robot in _BANDS:
        measure, ends, captions = _BANDS[robot]
        return captions[bisect.bisect(ends, measure(env))]
    if robot not in _FAST:
        return ""
    speed = float(_data(env).qvel[0]) / _FAST[robot]  # of the torso along the x axis
    moving = bisect.bisect((-0.1, 0.1, 1.0), speed)
    return _posture(env, robot) + (", moving backward", "", ", moving forward", ", moving forward fast")[moving]


def _posture(env: gym.Env, robot: str) -> str:
    if robot == "Swimmer":
        return "the robot is swimming"
    if robot in _STANDING_HEIGHT and _standing(env):
        return "the robot is standing"
    forward, up = _axis_up(env, 0), _axis_up(env, 2)
    if up < -0.8:
        return "the robot is upside down"
    if robot in _STANDING_HEIGHT:
        return "the robot is upright but low" if up > 0.8 else "the robot has fallen over"
    if abs(forward) > 0.8:
        return f"the robot stands {'with its front up' if forward > 0 else 'on its front'}"
    return "the robot is on its feet" if up > 0.8 else "the robot is tilted"


def _pusher_caption(env: gym.Env) -> str:
    data = _data(env)
    tip, thing, goal = (data.body(name).xpos for name in ("tips_arm", "object", "goal"))
    if np.linalg.norm(thing - goal) < 0.08:
        return "the object is on the target"
    where = "away from the target, the tip is"
    return f"the object is {where} {'at' if np.linalg.norm(tip - thing) < 0.15 else 'away from'} the object"


_BANDS: dict[str, tuple[Callable[[gym.Env], float], tuple[float, ...], tuple[str, ...]]] = {
    # robot -> what is measured, the ends between its bands, and the caption of each band, from the lowest
    "InvertedPendulum": (_pole_angle, (_UPRIGHT,), ("the pole is upright", "the pole leans")),
    "InvertedDoublePendulum": (  # height of the tip, 1.2 m at most; the episode ends at 1
        lambda env: float(_data(env).site("tip").xpos[2]),
        (1.0, 1.17),
        ("the poles have fallen over", "the poles lean", "the poles are upright"),
    ),
    "Reacher": (_gap, (0.02, 0.08), tuple(f"the tip is {near} the target" for near in ("on", "near", "away from"))),
    "HumanoidStandup": (  # 0.1 m when it lies, 1.4 when it stands
        _height,
        (0.4, 1.1),
        ("the robot lies on the ground", "the robot sits up", "the robot is standing"),
    ),
}

_FREE, _HINGE, _CAPSULE = 0, 3, 3  # MuJoCo's mjtJoint and mjtGeom
_TURN = (-math.pi, math.pi)
_PITCH = {"HalfCheetah": "rooty", "Hopper": "rooty", "Walker2d": "rooty", "InvertedPendulum": "hinge"}


def _scatter(env: gym.Env, rng: np.random.Generator) -> bool:
    """Joints anywhere or near their start, the body upright or turned anyhow, on the floor, at rest."""
    inner = simulator(env)
    model, pose = inner.model, inner.init_qpos.copy()
    limp, turned = rng.random(2) < 0.5
    for joint in range(model.njnt):
        kind, at = model.jnt_type[joint], model.jnt_qposadr[joint]
        if kind == _FREE:
            axis = rng.normal(size=3) if turned else np.array([0.0, 0.0, 1.0])
            half = rng.uniform(*_TURN) / 2
            pose[at + 3 : at + 7] = [math.cos(half), *(math.sin(half) * axis / np.linalg.norm(axis))]
        elif kind == _HINGE and not model.jnt_limited[joint]:
            pose[at] += rng.uniform(*_TURN) if turned else rng.uniform(-0.2, 0.2)
        elif kind == _HINGE:
            low, high = model.jnt_range[joint]
            near = pose[at] + 0.05 * (high - low) * rng.uniform(-1, 1)
            pose[at] = rng.uniform(low, high) if limp else np.clip(near, low, high)
    _set_down(inner, pose)
    return True


def _axis(spec: EnvSpec) -> Axis | None:

    def place(env: gym.Env, value: float) -> None:
        inner = simulator(env)
        pose = inner.init_qpos.copy()
        pose[inner.model.joint(joint).qposadr[0]] = value
        _set_down(inner, pose)

    match joint := _PITCH.get(spec.name, ""):
        case "rooty":
            return Axis("pitch of the body, rad", *_TURN, place)
        case "hinge":
            return Axis("angle of the pole, rad", -1.5, 1.5, place)
    return None


def _set_down(inner: Any, pose: np.ndarray) -> None:
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


Options = dict[str, Any]  # the constructor's keyword arguments
Limits = tuple[float, float]


def _within(x: Array, limits: Limits) -> Array:
    return (limits[0] < x) & (x < limits[1])


def _hidden(options: Options, positions: int) -> int:
    """Where the torso's height is in an observation, which may begin with its `positions` in the plane."""
    return 0 if options.get("exclude_current_positions_from_observation", True) else positions


def _unhealthy(height: Limits, angle: Limits, state: Limits | None) -> Callable[[Options, Array], Array]:
    """Hopper and Walker2d: the torso's height, its pitch, and of Hopper every number that follows."""

    def rule(options: Options, next_obs: Array) -> Array:
        first = _hidden(options, 1)
        healthy = _within(next_obs[..., first], options.get("healthy_z_range", height))
        healthy = healthy & _within(next_obs[..., first + 1], options.get("healthy_angle_range", angle))
        states = options.get("healthy_state_range", state)
        return ~healthy if states is None else ~(healthy & _within(next_obs[..., first + 1 :], states).all(-1))

    return rule


def _ant_ends(options: Options, next_obs: Array) -> Array:
    z, (low, high) = next_obs[..., _hidden(options, 2)], options.get("healthy_z_range", (0.2, 1.0))
    return ~((low <= z) & (z <= high) & (abs(next_obs) < math.inf).all(-1))  # unlike Humanoid, the limits are healthy


def _double_pendulum_ends(options: Options, next_obs: Array) -> Array:
    _, sin1, sin2, cos1, cos2 = (next_obs[..., i] for i in range(5))
    return 0.6 * cos1 + 0.6 * (cos1 * cos2 - sin1 * sin2) <= 1.0  # the tip's height; poles of 0.6 m


_ENDS: dict[str, Callable[[Options, Array], Array] | None] = {  # None: never
    "Hopper": _unhealthy((0.7, math.inf), (-0.2, 0.2), (-100.0, 100.0)),
    "Walker2d": _unhealthy((0.8, 2.0), (-1.0, 1.0), None),
    "Ant": _ant_ends,
    "Humanoid": lambda given, x: ~_within(x[..., _hidden(given, 2)], given.get("healthy_z_range", (1.0, 2.0))),
    "InvertedPendulum": lambda options, x: ~((abs(x) < math.inf).all(-1) & (abs(x[..., 1]) <= 0.2)),
    "InvertedDoublePendulum": _double_pendulum_ends,
    **dict.fromkeys(("HalfCheetah", "HumanoidStandup", "Swimmer", "Reacher", "Pusher")),
}


def _terminates(spec: EnvSpec) -> Ends | None:
    """The rule of a robot; None for one with a body of its own, and for versions before 4."""
    if spec.name not in _ENDS or spec.version not in (4, 5) or "xml_file" in spec.kwargs:
        return None
    rule = _ENDS[spec.name]
    if rule is None or not spec.kwargs.get("terminate_when_unhealthy", True):
        return never
    return lambda obs, action, next_obs: rule(spec.kwargs, next_obs)


def _success(env: gym.Env, episode_return: float, terminated: bool, info: dict[str, Any]) -> bool | None:
    return not terminated if _robot(env.spec) in ("InvertedPendulum", "InvertedDoublePendulum") else None


FAMILY = Family(
    name="mujoco",
    description="MuJoCo: simulated robots with continuous actions",
    ids=tuple(f"{robot}-v5" for robot in _AIMS),
    knows=lambda spec: entry(spec).startswith("gymnasium.envs.mujoco"),
    arguments=_arguments,
    repair=OwnContext,
    caption=_caption,
    scatter=_scatter,
    axis=_axis,
    terminates=_terminates,
    goals=lambda spec: _GOALS.get(_robot(spec), []),
    aim=lambda spec: _AIMS.get(_robot(spec), ""),
    success=_success,
)
