"""Pictures of classic control for all environments at once, as `envs.render.frame` gives them of one.

Every pixel of the small picture gets how much of it a shape covers, from its distance to the shape's edges. Shapes,
order, colours and whole-pixel corners are Gymnasium's; the pictures differ by less than a grey level on average, and
leave out the arrow that shows Pendulum's torque.
"""

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv
from gymnasium.envs.classic_control.mountain_car import MountainCarEnv

from envs import render
from envs.observations import Recorded

BLACK, GREY = (0, 0, 0), (128, 128, 128)
POLE, AXLE, ROD = (202, 152, 101), (129, 132, 203), (204, 77, 77)
LINK, JOINT = (0, 204, 204), (204, 204, 0)

Array = np.ndarray
Corners = list[tuple[float, float]]


class Canvas(Recorded):
    """Reads small frames straight from the surface Gymnasium drew on: the same pixels at three times the speed."""

    def small_frame(self, size: int) -> np.ndarray | None:
        """uint8 (size, size, 3), equal to `render.resize(self.render(), size)`; None where there is no short way."""
        inner: Any = self.unwrapped
        if self.render_mode != "rgb_array" or not isinstance(inner, _DRAW_THEN_COPY):
            return None
        inner.render_mode = "surface"  # a mode that Gymnasium does not know: it draws, without the costly copy
        try:
            inner.render()
        finally:
            inner.render_mode = "rgb_array"
        screen: Any = inner.screen
        if screen.get_bitsize() != 32 or screen.get_masks()[:3] != (0xFF0000, 0xFF00, 0xFF):
            return None
        from PIL import Image

        picture = Image.frombuffer("RGBX", screen.get_size(), screen.get_buffer().raw, "raw", "RGBX", 0, 1)
        # In memory it is blue, green, red; turning the small picture round costs less than turning the large one.
        return np.ascontiguousarray(np.asarray(render.shrink(picture, size))[..., 2::-1])


_DRAW_THEN_COPY = (CartPoleEnv, MountainCarEnv, Continuous_MountainCarEnv, AcrobotEnv)


class ClassicPainter:
    """Draws states of `world`, an original environment, unwrapped, whose sizes and scales are read."""

    def __init__(self, world: Any, size: int) -> None:
        self.world, self.size = world, size
        name = next(kind for kind in _DRAW if kind in {base.__name__ for base in type(world).__mro__})
        self._draw = _DRAW[name]
        square = getattr(world, "screen_dim", None) or getattr(world, "SCREEN_DIM", None)
        self.width, self.height = (square, square) if square else (world.screen_width, world.screen_height)
        centre = (np.arange(size, dtype=np.float32) + 0.5) / size
        self._x = centre[None, None, :] * self.width  # of the large picture's pixels, y upwards
        self._y = (1 - centre)[None, :, None] * self.height
        self._pixel = (self.width / size, self.height / size)  # a small pixel in large ones
        self._empty = _background(world, name, size)

    def draw(self, state: Array) -> Array:
        """Pictures of states (N, D): uint8 (N, size, size, 3)."""
        image = np.repeat(self._empty[None], len(state), axis=0)
        self._draw(self, image, np.asarray(state, np.float32))
        return (image + 0.5).astype(np.uint8)

    def _paint(self, image: Array, cover: Array, colour: tuple[int, int, int]) -> None:
        for channel, value in enumerate(colour):
            part = image[..., channel]
            part += cover * (value - part)

    def _line(self, image: Array, y: int) -> None:
        """A black horizontal line, one large pixel wide, across the whole picture."""
        half = self._pixel[1] / 2
        overlap = np.minimum(y + 1, self._y + half) - np.maximum(y, self._y - half)
        cover = np.clip(overlap, 0, None) / self._pixel[1]
        self._paint(image, np.broadcast_to(cover, image.shape[:3]), BLACK)

    def _box(self, image: Array, corners: Corners, turn: Array, x: Array, y: Array, colour: Any) -> None:
        """A rectangle given by two opposite corners, turned by `turn` (N,) about 0 and moved to (x, y), each (N,)."""
        (left, bottom), (right, top) = corners
        cos, sin = np.cos(turn), np.sin(turn)
        points = [
            (np.trunc(a * cos - b * sin + x) + 0.5, np.trunc(a * sin + b * cos + y) + 0.5)
            for a, b in ((left, bottom), (right, bottom), (right, top), (left, top))
        ]
        inside = [self._side(points[i], points[(i + 1) % 4]) for i in range(4)]
        cover = np.maximum(inside[0] + inside[2] - 1, 0) * np.maximum(inside[1] + inside[3] - 1, 0)
        self._paint(image, cover, colour)

    def _side(self, start: tuple[Array, Array], end: tuple[Array, Array]) -> Array:
        """How much of each pixel lies left of the line from start to end, (N, size, size); half a pixel is added."""
        dx, dy = end[0] - start[0], end[1] - start[1]
        length = np.hypot(dx, dy) + 1e-6
        nx, ny = -dy / length, dx / length
        reach = np.abs(nx) * self._pixel[0] + np.abs(ny) * self._pixel[1]  # across a small pixel, along the normal
        distance = nx[:, None, None] * (self._x - start[0][:, None, None])
        distance = distance + ny[:, None, None] * (self._y - start[1][:, None, None]) + 0.5
        return np.clip(0.5 + distance / reach[:, None, None], 0, 1)

    def _disc(self, image: Array, x: Array, y: Array, radius: int, colour: Any) -> None:
        dx = self._x - (np.trunc(x) + 0.5)[:, None, None]
        dy = self._y - (np.trunc(y) + 0.5)[:, None, None]
        far = np.sqrt(dx * dx + dy * dy) + 1e-6
        reach = (np.abs(dx) * self._pixel[0] + np.abs(dy) * self._pixel[1]) / far
        self._paint(image, np.clip(0.5 + (radius + 0.5 - far) / np.maximum(reach, 1e-6), 0, 1), colour)


def _background(world: Any, name: str, size: int) -> Array:
    """What stands still, float32 (size, size, 3): the original's own picture with everything else out of sight."""
    if "MountainCar" not in name:
        return np.full((size, size, 3), 255, np.float32)
    made: Any = gym.make(world.spec.id, render_mode="rgb_array") if world.spec else type(world)("rgb_array")
    inner = made.unwrapped
    inner.reset(seed=0)
    inner.state = np.array([-3.0, 0.0])
    image = render.resize(inner.render(), size).astype(np.float32)
    inner.close()
    return image


def _cartpole(view: ClassicPainter, image: Array, state: Array) -> None:
    world = view.world
    scale = view.width / (2 * world.x_threshold)
    x, y = state[:, 0] * scale + view.width / 2, np.full(len(state), 100.0, np.float32)
    still, axle = np.zeros(len(state), np.float32), y + 7.5
    view._box(image, [(-25, -15), (25, 15)], still, x, y, BLACK)
    view._box(image, [(-5, -5), (5, scale * 2 * world.length - 5)], -state[:, 2], x, axle, POLE)
    view._disc(image, x, axle, 5, AXLE)
    view._line(image, 100)  # the track, in front of the cart


def _mountaincar(view: ClassicPainter, image: Array, state: Array) -> None:
    world, position = view.world, state[:, 0]
    scale = view.width / (world.max_position - world.min_position)
    height = np.sin(3 * position) * 0.45 + 0.55
    x, y, slope = (position - world.min_position) * scale, 10 + height * scale, np.cos(3 * position)
    view._box(image, [(-20, 0), (20, 20)], slope, x, y, BLACK)
    for side in (10, -10):
        view._disc(image, x + side * np.cos(slope), y + side * np.sin(slope), 8, GREY)


def _pendulum(view: ClassicPainter, image: Array, state: Array) -> None:
    scale, centre = view.width / 4.4, np.full(len(state), float(view.width // 2), np.float32)
    turn = state[:, 0] + math.pi / 2
    view._box(image, [(0, -0.1 * scale), (scale, 0.1 * scale)], turn, centre, centre, ROD)
    view._disc(image, centre, centre, int(0.1 * scale), ROD)
    view._disc(image, centre + scale * np.cos(turn), centre + scale * np.sin(turn), int(0.1 * scale), ROD)
    view._disc(image, centre, centre, int(0.05 * scale), BLACK)


def _acrobot(view: ClassicPainter, image: Array, state: Array) -> None:
    first, second = view.world.LINK_LENGTH_1, view.world.LINK_LENGTH_2
    scale = view.width / (2 * (first + second + 0.2))
    centre = np.full(len(state), view.width / 2, np.float32)
    view._line(image, int(scale + view.height / 2))
    elbow_x, elbow_y = centre + first * np.sin(state[:, 0]) * scale, centre - first * np.cos(state[:, 0]) * scale
    upper, lower = state[:, 0] - math.pi / 2, state[:, 0] + state[:, 1] - math.pi / 2
    for length, x, y, turn in ((first, centre, centre, upper), (second, elbow_x, elbow_y, lower)):
        view._box(image, [(0, -0.1 * scale), (length * scale, 0.1 * scale)], turn, x, y, LINK)
        view._disc(image, x, y, int(0.1 * scale), JOINT)


_DRAW: dict[str, Callable[[ClassicPainter, Array, Array], None]] = {
    "CartPoleEnv": _cartpole,
    "MountainCarEnv": _mountaincar,
    "Continuous_MountainCarEnv": _mountaincar,
    "PendulumEnv": _pendulum,
    "AcrobotEnv": _acrobot,
}
