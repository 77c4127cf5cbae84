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

BLACK_RGB = (0, 0, 0)
GREY_RGB = (128, 128, 128)
POLE = (202, 152, 101)
AXLE = (129, 132, 203)
ROD = (204, 77, 77)
LINK = (0, 204, 204)
JOINT = (204, 204, 0)
# By the corner of a rectangle, the corner that follows it.
NEXT_CORNER = [1, 2, 3, 0]

Array = np.ndarray


class Canvas(Recorded):
    """Reads small frames straight from the surface Gymnasium drew on: the same pixels at three times the speed."""

    def small_frame(self, size: int) -> np.ndarray | None:
        """uint8 (size, size, 3), equal to `render.resize(self.render(), size)`; None where there is no short way."""
        inner: Any = self.unwrapped
        if self.render_mode != "rgb_array" or not isinstance(inner, _DRAW_THEN_COPY):
            return None
        # A mode that Gymnasium does not know: it draws, without the costly copy.
        inner.render_mode = "surface"
        try:
            inner.render()
        finally:
            inner.render_mode = "rgb_array"
        screen: Any = inner.screen
        if screen.get_bitsize() != 32 or screen.get_masks()[:3] != (0xFF0000, 0xFF00, 0xFF):
            return None
        from PIL import Image

        pixels = screen.get_buffer().raw
        picture = Image.frombuffer("RGBX", screen.get_size(), pixels, "raw", "RGBX", 0, 1)
        # In memory it is blue, green, red; turning the small picture round costs less than turning the large one.
        return np.ascontiguousarray(np.asarray(render.shrink(picture, size))[..., 2::-1])


_DRAW_THEN_COPY = (CartPoleEnv, MountainCarEnv, Continuous_MountainCarEnv, AcrobotEnv)


class ClassicPainter:
    """Draws states of `world`, an original environment, unwrapped, whose sizes and scales are read."""

    def __init__(self, world: Any, size: int) -> None:
        self.world = world
        self.size = size
        base_names = {base.__name__ for base in type(world).__mro__}
        name = next(name for name in _DRAW if name in base_names)
        self._draw = _DRAW[name]
        # Gymnasium's square pictures have a `screen_dim`, in Acrobot a constant of the class.
        side = getattr(world, "screen_dim", None) or getattr(world, "SCREEN_DIM", None)
        self.width = side or world.screen_width
        self.height = side or world.screen_height
        # The centres of small pixels in large ones, y upwards.
        pixels = np.arange(size, dtype=np.float32)
        centre = (pixels + 0.5) / size
        self._x = centre * self.width
        self._y = (1 - centre) * self.height
        # The width and height of a small pixel in large ones.
        self._pixel = (self.width / size, self.height / size)
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
        width, height = self._pixel
        # Rows go downwards while y grows upwards, so they begin at the highest y.
        lowest, highest = y
        top, rows = self._span((self.height - highest) / height, (self.height - lowest) / height, margin / height)
        left, columns = self._span(x[0] / width, x[1] / width, margin / width)
        return top, left, self._y[rows][..., None], self._x[columns][:, None]

    def _span(self, first: Array, last: Array, margin: float) -> tuple[Array, Array]:
        """First pixels (N,) along one axis, and the numbers (N, count) of all, from ends in small pixels."""
        begin = np.floor(first - margin)
        lengths = np.ceil(last + margin) - begin
        # All windows are as long as the longest, so that they make one array.
        count = int(min(lengths.max(initial=1), self.size))
        begin = np.maximum(begin, 0)
        start = np.minimum(begin, self.size - count).astype(np.int64)
        return start, start[:, None] + np.arange(count)

    def _paint(self, image: Array, cover: Array, colour: tuple[int, int, int], top: Array, left: Array) -> None:
        """Mix a colour into windows of pictures (N, size, size, 3), of which a shape covers some."""
        n, rows, columns = cover.shape
        # A view of all windows that there are, overlapping: (picture, top, left, row, column, colour).
        shape = (n, self.size - rows + 1, self.size - columns + 1, rows, columns, 3)
        strides = (*image.strides[:3], *image.strides[1:])
        windows = np.ndarray(shape, image.dtype, image, 0, strides)
        index = (np.arange(n), top, left)
        part = windows[index]
        # Changed in place, as new arrays of pixels cost more than the arithmetic.
        change = np.array(colour, np.float32) - part
        change *= cover[..., None]
        part += change
        windows[index] = part

    def _draw_line(self, image: Array, y: int) -> None:
        """A black horizontal line, one large pixel wide, across the whole picture."""
        height = self._pixel[1]
        half = height / 2
        top = np.minimum(y + 1, self._y + half)
        bottom = np.maximum(y, self._y - half)
        overlap = top - bottom
        rows = np.flatnonzero(overlap > 0)
        cover = overlap[rows, None, None] / height
        image[:, rows] += cover * (0 - image[:, rows])

    def _box(self, image: Array, corners: tuple[float, ...], turn: Array, x: Array, y: Array, colour: Any) -> None:
        """A rectangle given by two opposite corners, turned by `turn` (N,) about 0 and moved to (x, y), each (N,)."""
        left, bottom, right, top = corners
        # Axes: corner; environment.
        across = np.array([left, right, right, left], np.float32)[:, None]
        up = np.array([bottom, bottom, top, top], np.float32)[:, None]
        cos = np.cos(turn)
        sin = np.sin(turn)
        # Gymnasium draws corners at whole pixels.
        xs = np.trunc(across * cos - up * sin + x) + 0.5
        ys = np.trunc(across * sin + up * cos + y) + 0.5
        x_ends = (xs.min(axis=0), xs.max(axis=0))
        y_ends = (ys.min(axis=0), ys.max(axis=0))
        first, column, *pixels = self._window(x_ends, y_ends, 2 + 2 * math.hypot(*self._pixel))
        # Opposite sides together cover what lies between them: their sum is 1 outside, 2 inside.
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
        width, height = self._pixel
        dx = xs[NEXT_CORNER] - xs
        dy = ys[NEXT_CORNER] - ys
        length = np.hypot(dx, dy) + 1e-6
        # The normal of each side, and how far a small pixel reaches along it.
        nx = -dy / length
        ny = dx / length
        reach = np.abs(nx) * width + np.abs(ny) * height
        # Axes: corner, environment, row, column.
        x_share = (nx / reach)[..., None, None]
        y_share = (ny / reach)[..., None, None]
        middle = (0.5 + 0.5 / reach)[..., None, None]
        along = x_share * (x - xs[..., None, None])
        up = y_share * (y - ys[..., None, None])
        # This order of sums needs one array of all pixels less.
        cover = along + (up + middle)
        return np.clip(cover, 0, 1, out=cover)

    def _disc(self, image: Array, x: Array, y: Array, radius: int, colour: Any) -> None:
        width, height = self._pixel
        x = np.trunc(x) + 0.5
        y = np.trunc(y) + 0.5
        top, left, ys, xs = self._window((x, x), (y, y), radius + 1 + math.hypot(width, height))
        dx = xs - x[:, None, None]
        dy = ys - y[:, None, None]
        distance = np.sqrt(dx * dx + dy * dy) + 1e-6
        reach = (np.abs(dx) * width + np.abs(dy) * height) / distance
        reach = np.maximum(reach, 1e-6)
        inside = radius + 0.5 - distance
        cover = np.clip(0.5 + inside / reach, 0, 1)
        self._paint(image, cover, colour, top, left)


def _background(world: Any, name: str, size: int) -> Array:
    """What stands still, float32 (size, size, 3): the original's own picture with everything else out of sight."""
    if "MountainCar" not in name:
        return np.full((size, size, 3), 255, np.float32)
    inner: Any = gym.make(world.spec.id, render_mode="rgb_array").unwrapped
    inner.reset(seed=0)
    inner.state = np.array([-3.0, 0.0])
    image = render.resize(inner.render(), size).astype(np.float32)
    inner.close()
    return image


def _cartpole(view: ClassicPainter, image: Array, state: Array) -> None:
    world = view.world
    scale = view.width / (2 * world.x_threshold)
    x = state[:, 0] * scale + view.width / 2
    y = np.full(len(state), 100.0, np.float32)
    still = np.zeros(len(state), np.float32)
    axle = y + 7.5
    pole_top = scale * 2 * world.length - 5
    view._box(image, (-25, -15, 25, 15), still, x, y, BLACK_RGB)
    view._box(image, (-5, -5, 5, pole_top), -state[:, 2], x, axle, POLE)
    view._disc(image, x, axle, 5, AXLE)
    # The track lies in front of the cart.
    view._draw_line(image, 100)


def _mountaincar(view: ClassicPainter, image: Array, state: Array) -> None:
    world = view.world
    position = state[:, 0]
    scale = view.width / (world.max_position - world.min_position)
    height = np.sin(3 * position) * 0.45 + 0.55
    x = (position - world.min_position) * scale
    y = 10 + height * scale
    slope = np.cos(3 * position)
    view._box(image, (-20, 0, 20, 20), slope, x, y, BLACK_RGB)
    for side in (10, -10):
        wheel_x = x + side * np.cos(slope)
        wheel_y = y + side * np.sin(slope)
        view._disc(image, wheel_x, wheel_y, 8, GREY_RGB)


def _pendulum(view: ClassicPainter, image: Array, state: Array) -> None:
    scale = view.width / 4.4
    radius = 0.1 * scale
    centre = np.full(len(state), float(view.width // 2), np.float32)
    turn = state[:, 0] + math.pi / 2
    tip_x = centre + scale * np.cos(turn)
    tip_y = centre + scale * np.sin(turn)
    view._box(image, (0, -radius, scale, radius), turn, centre, centre, ROD)
    view._disc(image, centre, centre, int(radius), ROD)
    view._disc(image, tip_x, tip_y, int(radius), ROD)
    view._disc(image, centre, centre, int(0.05 * scale), BLACK_RGB)


def _acrobot(view: ClassicPainter, image: Array, state: Array) -> None:
    first = view.world.LINK_LENGTH_1
    second = view.world.LINK_LENGTH_2
    scale = view.width / (2 * (first + second + 0.2))
    radius = 0.1 * scale
    centre = np.full(len(state), view.width / 2, np.float32)
    view._draw_line(image, int(scale + view.height / 2))
    elbow_x = centre + first * np.sin(state[:, 0]) * scale
    elbow_y = centre - first * np.cos(state[:, 0]) * scale
    upper = state[:, 0] - math.pi / 2
    lower = state[:, 0] + state[:, 1] - math.pi / 2
    for length, x, y, turn in ((first, centre, centre, upper), (second, elbow_x, elbow_y, lower)):
        view._box(image, (0, -radius, length * scale, radius), turn, x, y, LINK)
        view._disc(image, x, y, int(radius), JOINT)


_DRAW: dict[str, Callable[[ClassicPainter, Array, Array], None]] = {
    "CartPoleEnv": _cartpole,
    "MountainCarEnv": _mountaincar,
    "Continuous_MountainCarEnv": _mountaincar,
    "PendulumEnv": _pendulum,
    "AcrobotEnv": _acrobot,
}
