"""A small environment that does not ship: push a red ball onto a green circle. Nothing of ours knows it.

It declares what a user's own environment may declare in its own file: goals, captions, signals, states, success.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.family import Family, Goal

# The field is the unit square. Radii of both things, the length of a step, and steps of an episode.
BALL_RADIUS = 0.06
CIRCLE_RADIUS = 0.16
STEP_LENGTH = 0.08
EPISODE_STEPS = 40
PICTURE_SIDE = 64
DIRECTIONS = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]])
RED = (220, 40, 40)
GREEN = (60, 170, 80)
GREY = (235, 235, 235)
NEAR = 0.35


class RedBall(gym.Env):
    """Observations are the places of the ball and the circle; the task's own reward is 0, or 1 on the circle."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None = None, rewarded: bool = False) -> None:
        self.render_mode = render_mode
        self.rewarded = rewarded
        self.observation_space = spaces.Box(-0.1, 1.1, (4,), np.float32)
        self.action_space = spaces.Discrete(len(DIRECTIONS))
        self.ball = np.zeros(2)
        self.circle = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place(self.np_random)
        return self._observe(), {}

    def place(self, rng: np.random.Generator) -> None:
        """Put both anywhere."""
        self.ball = rng.uniform(0.05, 0.95, 2)
        self.circle = rng.uniform(0.15, 0.85, 2)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.ball = np.clip(self.ball + STEP_LENGTH * DIRECTIONS[action], 0.05, 0.95)
        reward = float(self.rewarded and self.distance <= CIRCLE_RADIUS)
        return self._observe(), reward, False, False, {}

    def render(self) -> Any:
        ticks = (np.arange(PICTURE_SIDE) + 0.5) / PICTURE_SIDE
        # Axis 0 of a picture is its row, which is y from the top.
        y, x = np.meshgrid(ticks, ticks, indexing="ij")
        picture = np.full((PICTURE_SIDE, PICTURE_SIDE, 3), GREY, np.uint8)
        for place, radius, colour in ((self.circle, CIRCLE_RADIUS, GREEN), (self.ball, BALL_RADIUS, RED)):
            picture[np.hypot(x - place[0], y - place[1]) <= radius] = colour
        return picture

    @property
    def distance(self) -> float:
        """Between both centres."""
        return float(np.linalg.norm(self.ball - self.circle))

    def _observe(self) -> np.ndarray:
        return np.concatenate([self.ball, self.circle]).astype(np.float32)


def is_on_circle(env: gym.Env) -> bool:
    """Whether the ball's centre is."""
    world: Any = env.unwrapped
    return world.distance <= CIRCLE_RADIUS


def caption(env: gym.Env, memory: Any = None) -> str:
    """Where the ball lies, seen from the circle."""
    world: Any = env.unwrapped
    if is_on_circle(env):
        return "the red ball is on the green circle"
    if world.distance < NEAR:
        return "the red ball is near the green circle"
    right, down = world.ball - world.circle
    if abs(right) > abs(down):
        side = "right" if right > 0 else "left"
        return f"the red ball is far to the {side} of the green circle"
    side = "below" if down > 0 else "above"
    return f"the red ball is far {side} the green circle"


def scatter(env: gym.Env, rng: np.random.Generator) -> bool:
    """Anywhere; in a third of the states on the circle."""
    world: Any = env.unwrapped
    world.place(rng)
    if rng.random() < 1 / 3:
        world.ball = np.clip(world.circle + rng.normal(0, CIRCLE_RADIUS / 2, 2), 0.05, 0.95)
    return True


ON_CIRCLE = Goal(
    "on",
    prompt="the red ball is on the green circle",
    baseline="a red ball and a green circle",
    truth=is_on_circle,
    negative="the red ball is far from the green circle",
    degree=lambda env: -env.unwrapped.distance,  # type: ignore[attr-defined]
)
FAMILY = Family(
    "red ball",
    "a red ball, to be pushed onto a green circle",
    ids=("RedBall-v0", "RedBallRewarded-v0"),
    caption=caption,
    goals=lambda spec: [ON_CIRCLE],
    signals=lambda spec: ("distance",),
    sense=lambda env: np.array([env.unwrapped.distance], np.float32),  # type: ignore[attr-defined]
    scatter=scatter,
    success=lambda env, total, terminated, info: is_on_circle(env),
)
gym.register("RedBall-v0", f"{__name__}:RedBall", max_episode_steps=EPISODE_STEPS)
gym.register(
    "RedBallRewarded-v0",
    f"{__name__}:RedBall",
    max_episode_steps=EPISODE_STEPS,
    kwargs={"rewarded": True},
)
