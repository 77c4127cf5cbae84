"""Pictures of classic control for all environments at once, as `envs.render.frame` gives them of one.

Every pixel of the small picture gets how much of it a shape covers, from its distance to the shape's edges. Shapes,
order, colours and whole-pixel corners are Gymnasium's; the pictures differ by less than a grey level on average, and
leave out the arrow that shows Pendulum's torque. Each shape is computed in a window that holds it.
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
NEXT = [1, 2, 3, 0]  # corner of a rectangle

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
        image += 0.5
        return image.astype(np.uint8)

    def _window(self, x: tuple[Array, Array], y: tuple[Array, Array], margin: float) -> tuple[Array, Array, Any, Any]:
        """Windows that hold a shape between lowest and highest x and y, each (N,), in large pixels, and a margin.

        Returns their first rows and columns (N,), and where their pixels are: y (N, rows, 1), x (N, 1, columns).
        """
        sides = []
        for (low, high), pixel, centres in ((y[::-1], -self._pixel[1], self._y), (x, self._pixel[0], self._x)):
            first, room = (0.0 if pixel > 0 else self.height), margin / abs(pixel)
            begin = np.floor((low - first) / pixel - room)
            count = int(min((np.ceil((high - first) / pixel + room) - begin).max(initial=1), self.size))
            start = np.minimum(np.maximum(begin, 0), self.size - count).astype(np.int64)
            sides.append((start, centres.ravel()[start[:, None] + np.arange(count)]))
        (top, ys), (left, xs) = sides
        return top, left, ys[:, :, None], xs[:, None, :]

    def _paint(self, image: Array, cover: Array, colour: tuple[int, int, int], top: Array, left: Array) -> None:
        """Mix a colour into windows of pictures (N, size, size, 3), of which a shape covers some."""
        (n, rows, columns), step = cover.shape, image.strides
        shape = n, self.size - rows + 1, self.size - columns + 1, rows, columns, 3
        windows = np.ndarray(shape, image.dtype, image, 0, (*step[:3], *step[1:]))  # all that there are, overlapping
        where = np.arange(n), top, left
        part = windows[where]
        change = np.array(colour, np.float32) - part
        change *= cover[..., None]
        part += change
        windows[where] = part

    def _line(self, image: Array, y: int) -> None:
        """A black horizontal line, one large pixel wide, across the whole picture."""
        half = self._pixel[1] / 2
        overlap = np.minimum(y + 1, self._y + half) - np.maximum(y, self._y - half)
        rows = np.flatnonzero(overlap > 0)
        image[:, rows] += (overlap[:, rows] / self._pixel[1])[..., None] * (0 - image[:, rows])

    def _box(self, image: Array, corners: Corners, turn: Array, x: Array, y: Array, colour: Any) -> None:
        """A rectangle given by two opposite corners, turned by `turn` (N,) about 0 and moved to (x, y), each (N,)."""
        (left, bottom), (right, top) = corners
        across, up = np.array([(left, right, right, left), (bottom, bottom, top, top)], np.float32)[:, :, None]
        cos, sin = np.cos(turn), np.sin(turn)
        xs, ys = np.trunc(across * cos - up * sin + x) + 0.5, np.trunc(across * sin + up * cos + y) + 0.5
        x_ends, y_ends = ((values.min(axis=0), values.max(axis=0)) for values in (xs, ys))
        first, column, *pixels = self._window(x_ends, y_ends, 2 + 2 * math.hypot(*self._pixel))
        sides = self._sides(xs, ys, *pixels)
        inside = sides[:2]
        inside += sides[2:]
        inside -= 1
        np.maximum(inside, 0, out=inside)
        self._paint(image, inside[0] * inside[1], colour, first, column)

    def _sides(self, xs: Array, ys: Array, y: Array, x: Array) -> Array:
        """How much of pixels lies left of the line from each corner (4, N) to the next, (4, N, rows, columns).

        Half a large pixel is added.
        """
        dx, dy = xs[NEXT] - xs, ys[NEXT] - ys
        length = np.hypot(dx, dy) + 1e-6
        nx, ny = -dy / length, dx / length
        reach = np.abs(nx) * self._pixel[0] + np.abs(ny) * self._pixel[1]  # across a small pixel, along the normal
        along = (nx / reach)[..., None, None] * (x - xs[..., None, None])
        up = (ny / reach)[..., None, None] * (y - ys[..., None, None])
        cover = along + (up + (0.5 + 0.5 / reach)[..., None, None])
        return np.clip(cover, 0, 1, out=cover)

    def _disc(self, image: Array, x: Array, y: Array, radius: int, colour: Any) -> None:
        x, y = np.trunc(x) + 0.5, np.trunc(y) + 0.5
        top, left, ys, xs = self._window((x, x), (y, y), radius + 1 + math.hypot(*self._pixel))
        dx, dy = xs - x[:, None, None], ys - y[:, None, None]
        far = np.sqrt(dx * dx + dy * dy) + 1e-6
        reach = (np.abs(dx) * self._pixel[0] + np.abs(dy) * self._pixel[1]) / far
        cover = np.clip(0.5 + (radius + 0.5 - far) / np.maximum(reach, 1e-6), 0, 1)
        self._paint(image, cover, colour, top, left)


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
