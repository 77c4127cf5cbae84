"""MuJoCo: Gymnasium's robots, with observations as flat float32 and frames that are fast and never silently black.

Observations: Gymnasium's own vectors, float32; HalfCheetah-v5 (17,), Hopper-v5 (11,), Humanoid-v5 (348,).

Captions tell how a robot stands or lies, and whether it moves forward, fast, or backward; of arms and poles, how near
they are to where they should be.

Frames differ from Gymnasium's in two ways. Shadows and reflections are left out: without a GPU they cost nine tenths of
the time. And each environment makes its own OpenGL context current before it draws, which Gymnasium does not: as soon
as another environment of the process has been closed, Gymnasium's pictures are black, with no error.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import RecordConstructorArgs

from envs import states, terminations
from envs.family import Family, Goal, entry
from envs.render import before_opengl, opengl


class OwnContext(gym.Wrapper, RecordConstructorArgs):
    """Draws in the environment's own OpenGL context, without shadows and reflections; physics stays as it is."""

    def __init__(self, env: gym.Env) -> None:
        RecordConstructorArgs.__init__(self)
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
    # Gymnasium's own models bring this one at every start, and nobody who uses them can change it.
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


def _axis_up(env: gym.Env, axis: int) -> float:
    """How far the torso's own axis (0 forward, 2 up) points upwards, in [-1, 1]."""
    data: Any = env.unwrapped.data  # type: ignore[attr-defined]
    return float(data.body("torso").xmat[6 + axis])


def _height(env: gym.Env) -> float:
    data: Any = env.unwrapped.data  # type: ignore[attr-defined]
    return float(data.body("torso").xpos[2])


def _on_its_back(env: gym.Env) -> bool:
    return _axis_up(env, 2) < -0.8


def _on_its_feet(env: gym.Env) -> bool:
    return _axis_up(env, 2) > 0.8


def _nose_up(env: gym.Env) -> bool:
    return _axis_up(env, 0) > 0.8


def _standing(env: gym.Env) -> bool:
    """Torso upright within 12 degrees and at 0.8 of the height it has when the robot stands."""
    return _axis_up(env, 2) > math.cos(math.radians(12)) and _height(env) > 0.8 * _STANDING_HEIGHT[_robot(env.spec)]


def _pole_up(env: gym.Env) -> bool:
    data: Any = env.unwrapped.data  # type: ignore[attr-defined]
    return abs(float(data.qpos[1])) < math.radians(12)


def _gap(env: gym.Env) -> float:
    """Metres from the tip of Reacher's arm to the target."""
    data: Any = env.unwrapped.data  # type: ignore[attr-defined]
    return float(np.linalg.norm(data.body("fingertip").xpos[:2] - data.body("target").xpos[:2]))


def _on_target(env: gym.Env) -> bool:
    return _gap(env) < 0.02


def _stands(env: gym.Env) -> float:
    """1 upright at full height, less where it leans or is low."""
    return min(_axis_up(env, 2), _height(env) / _STANDING_HEIGHT[_robot(env.spec)])


def _pole(env: gym.Env) -> float:
    data: Any = env.unwrapped.data  # type: ignore[attr-defined]
    return math.cos(float(data.qpos[1]))


_STANDING_HEIGHT = {"Hopper": 1.25, "Walker2d": 1.25, "Humanoid": 1.4}

_GOALS: dict[str, list[Goal]] = {
    "HalfCheetah": [
        Goal(
            "on_its_back",
            "a cheetah robot lying upside down on its back",
            "a cheetah robot",
            _on_its_back,
            negative="a cheetah robot standing on its feet",
            degree=lambda env: -_axis_up(env, 2),
        ),
        Goal(
            "rearing",
            "a cheetah robot standing upright on its hind leg",
            "a cheetah robot",
            _nose_up,
            negative="a cheetah robot standing on its front leg",
            degree=lambda env: _axis_up(env, 0),
        ),
    ],
    "Hopper": [
        Goal(
            "standing",
            "a one-legged robot standing upright",
            "a one-legged robot",
            _standing,
            negative="a one-legged robot lying on the ground",
            degree=_stands,
        )
    ],
    "Walker2d": [
        Goal(
            "standing",
            "a two-legged robot standing upright",
            "a two-legged robot",
            _standing,
            negative="a two-legged robot lying on the ground",
            degree=_stands,
        )
    ],
    "Humanoid": [
        Goal(
            "standing",
            "a humanoid robot standing upright",
            "a humanoid robot",
            _standing,
            negative="a humanoid robot lying on the ground",
            degree=_stands,
        )
    ],
    "Ant": [
        Goal(
            "on_its_feet",
            "a four-legged robot standing on its feet",
            "a four-legged robot",
            _on_its_feet,
            degree=lambda env: _axis_up(env, 2),
        ),
        Goal(
            "on_its_back",
            "a four-legged robot lying upside down",
            "a four-legged robot",
            _on_its_back,
            degree=lambda env: -_axis_up(env, 2),
        ),
    ],
    "InvertedPendulum": [
        Goal("upright", "pole vertically upright on top of the cart", "pole and cart", _pole_up, degree=_pole)
    ],
    "Reacher": [
        Goal(
            "on_target",
            "the tip of the arm touching the target",
            "an arm and a target",
            _on_target,
            degree=lambda env: -_gap(env),
        )
    ],
}


def _robot(spec: EnvSpec | None) -> str:
    return spec.name if spec is not None else ""


_FAST = {"HalfCheetah": 3.0, "Hopper": 1.5, "Walker2d": 1.5, "Humanoid": 1.5, "Ant": 1.5, "Swimmer": 0.15}  # m/s
_AIMS = {
    **{robot: "run forward as fast as possible" for robot in ("HalfCheetah", "Ant")},
    **{robot: "move forward as fast as possible without falling" for robot in ("Hopper", "Walker2d", "Humanoid")},
    "HumanoidStandup": "stand up from the ground and stay standing",
    "Swimmer": "swim forward as fast as possible",
    "Reacher": "bring the tip of the arm to the target and keep it there",
    "Pusher": "push the object to the target with the tip of the arm",
    "InvertedPendulum": "keep the pole upright on the cart",
    "InvertedDoublePendulum": "keep both poles upright on the cart, one on top of the other",
}


def _caption(env: gym.Env, memory: dict[str, Any]) -> str:
    robot = _robot(env.spec)
    if robot in _ARMS_AND_POLES:
        return _ARMS_AND_POLES[robot](env)
    return _posture(env, robot) + _moving(env, robot) if robot in _FAST else ""


def _moving(env: gym.Env, robot: str) -> str:
    """How the torso moves along the x axis, where it moves at a tenth of what is fast or more."""
    speed = float(env.unwrapped.data.qvel[0]) / _FAST[robot]  # type: ignore[attr-defined]
    if abs(speed) < 0.1:
        return ""
    return ", moving backward" if speed < 0 else ", moving forward fast" if speed > 1 else ", moving forward"


def _posture(env: gym.Env, robot: str) -> str:
    if robot == "Swimmer":
        return "the robot is swimming"
    if robot in _STANDING_HEIGHT and _standing(env):
        return "the robot is standing"
    if _on_its_back(env):
        return "the robot is upside down"
    if robot in _STANDING_HEIGHT:
        return "the robot is upright but low" if _on_its_feet(env) else "the robot has fallen over"
    if _axis_up(env, 0) > 0.8:
        return "the robot stands with its front up"
    if _axis_up(env, 0) < -0.8:
        return "the robot stands on its front"
    return "the robot is on its feet" if _on_its_feet(env) else "the robot is tilted"


def _rising(env: gym.Env) -> str:
    height = _height(env)  # 0.1 m when it lies, 1.4 when it stands
    return (
        "the robot lies on the ground" if height < 0.4 else f"the robot {'is standing' if height > 1.1 else 'sits up'}"
    )


def _reaching(env: gym.Env) -> str:
    gap = _gap(env)
    return f"the tip is {'on' if gap < 0.02 else 'near' if gap < 0.08 else 'away from'} the target"


def _pushing(env: gym.Env) -> str:
    data: Any = env.unwrapped.data  # type: ignore[attr-defined]
    tip, thing, goal = (data.body(name).xpos for name in ("tips_arm", "object", "goal"))
    if np.linalg.norm(thing - goal) < 0.08:
        return "the object is on the target"
    where = "away from the target, the tip is"
    return f"the object is {where} {'at' if np.linalg.norm(tip - thing) < 0.15 else 'away from'} the object"


def _two_poles(env: gym.Env) -> str:
    data: Any = env.unwrapped.data  # type: ignore[attr-defined]
    height = float(data.site("tip").xpos[2])  # 1.2 m at most; the episode ends at 1
    return f"the poles {'are upright' if height > 1.17 else 'lean' if height > 1 else 'have fallen over'}"


_ARMS_AND_POLES: dict[str, Callable[[gym.Env], str]] = {
    "InvertedPendulum": lambda env: "the pole is upright" if _pole_up(env) else "the pole leans",
    "InvertedDoublePendulum": _two_poles,
    "Reacher": _reaching,
    "Pusher": _pushing,
    "HumanoidStandup": _rising,
}


def _success(env: gym.Env, episode_return: float, terminated: bool, info: dict[str, Any]) -> bool | None:
    return not terminated if _robot(env.spec) in ("InvertedPendulum", "InvertedDoublePendulum") else None


FAMILY = Family(
    name="mujoco",
    description="MuJoCo: simulated robots with continuous actions",
    ids=(
        "HalfCheetah-v5",
        "Hopper-v5",
        "Walker2d-v5",
        "Ant-v5",
        "Humanoid-v5",
        "HumanoidStandup-v5",
        "Swimmer-v5",
        "Reacher-v5",
        "Pusher-v5",
        "InvertedPendulum-v5",
        "InvertedDoublePendulum-v5",
    ),
    knows=lambda spec: entry(spec).startswith("gymnasium.envs.mujoco"),
    arguments=_arguments,
    repair=OwnContext,
    caption=_caption,
    scatter=states.scatter_robot,
    axis=states.axis_robot,
    terminates=terminations.robot,
    goals=lambda spec: _GOALS.get(_robot(spec), []),
    aim=lambda spec: _AIMS.get(_robot(spec), ""),
    success=_success,
)
