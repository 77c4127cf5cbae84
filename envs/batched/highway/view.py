"""Pictures of a straight road for all environments at once, as `envs.render.frame` gives them of one.

highway-env draws 600 x 150 pixels with pygame, which are then averaged over blocks. Here the road and every car that
drives straight, by itself, in its lane are products of rows and columns; only where cars turn or come close is each
pixel looked at. Geometry, colours and whole-pixel corners are those of highway-env 1.12.

Differences, less than a grey level on average: the edges of a car that is turned; four levels below 38 pixels.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

WIDTH = 4.0  # of a lane, in metres; lane k has its centre at y = WIDTH * k, the leftmost is 0
CAR = (5.0, 2.0)  # length and width in metres
GREY, WHITE = 100.0, 255.0
_GREEN, _BLUE, _RED, _EDGE = (50, 200, 0), (100, 200, 255), (255, 100, 100), (60, 60, 60)
_STRIPE, _EVERY, _LINE = 3.0, 4.33, 0.3  # metres: length, distance and breadth of the marks between lanes
_LIGHTS = (0.72, 0.6)  # metres: length and breadth of a headlight
_LENGTH = 10_000.0  # metres of road
_TURNED = np.deg2rad(2)  # below it, cars are drawn straight
_ALONE = (6.5, 3.6, 0.6)  # metres along and across to the next car, and from the lane's middle: pixels are their own
_AT_ONCE = 16  # roads drawn together, to spare memory
NONE, STRIPED, SOLID = 0, 1, 2
Cars = tuple[np.ndarray, ...]  # as `numpy.nonzero` returns them
Changes = tuple[np.ndarray, np.ndarray]


class RoadPainter:
    """Draws roads around the agents' cars; of highway-env's `config`, the lanes and the screen are read."""

    def __init__(self, config: Mapping[str, Any], size: int) -> None:
        self._width, self._height = int(config["screen_width"]), int(config["screen_height"])
        self._scale = float(config["scaling"])
        across, down = config["centering_position"]
        self._corner = across * self._width / self._scale, down * self._height / self._scale
        lanes = int(config["lanes_count"])
        self._lines = WIDTH * (np.arange(lanes + 1) - 0.5)
        self._kinds = np.array([SOLID, *[STRIPED] * (lanes - 1), SOLID])
        self._thick = max(int(_LINE * self._scale), 1)
        self._columns, self._rows = _Blocks(self._width, size), _Blocks(self._height, size)
        self._sprite = self._drawn()
        self._middle = np.array(self._sprite.shape) // 2
        reach = np.arange(1 - self._middle.min(), self._middle.min())
        self._grid = np.stack(np.meshgrid(reach, reach)).reshape(2, -1)  # offsets of a car's pixels, however it turns
        # Body, headlights and edge of a car.
        shades = [[colour, [min(int(x / 0.68), 255) for x in colour], _EDGE] for colour in (_BLUE, _GREEN, _RED)]
        self._palette = np.array(shades, np.float64)
        body = [np.flatnonzero((self._sprite > 0).any(axis)) for axis in (1, 0)]
        self._body = [place - middle for place, middle in zip(body, self._middle)]  # offsets of rows and of columns
        drawn = self._palette[:, self._sprite[np.ix_(*body)] - 1]
        self._change = drawn.transpose(0, 3, 1, 2) - GREY  # (colours, 3, rows, columns)
        self._last = np.zeros(0, np.int32)

    def _drawn(self) -> np.ndarray:
        """A car as numbers (rows, columns): 0 nothing, 1 body, 2 headlight, 3 edge."""

        def pixels(*metres: float) -> list[int]:
            return [int(x * self._scale) for x in metres]

        (length, breadth), (far, wide) = CAR, _LIGHTS
        side, tyre = length + 2.0, 1.0
        image = np.zeros(pixels(side, side), np.int64)

        def fill(x: float, y: float, w: float, h: float, shade: int) -> tuple[slice, slice]:
            left, top, across, down = pixels(x, y, w, h)
            image[top : top + down, left : left + across] = shade
            return slice(top, top + down), slice(left, left + across)

        body = fill(tyre, side / 2 - breadth / 2, length, breadth, 1)
        for y in (side / 2 - 1.4 * breadth / 3, side / 2 + 0.6 * breadth / 5):
            fill(tyre + length - far, y, far, wide, 2)
        inner = image[body][1:-1, 1:-1].copy()
        image[body] = 3
        image[body][1:-1, 1:-1] = inner
        return image

    def draw(self, x: np.ndarray, y: np.ndarray, heading: np.ndarray, crashed: np.ndarray) -> np.ndarray:
        """Pictures of K roads with V cars each, all (K, V): uint8 (K, size, size, 3)."""
        batches = (slice(i, i + _AT_ONCE) for i in range(0, len(x), _AT_ONCE))
        parts = [self._draw(x[rows], y[rows], heading[rows], crashed[rows]) for rows in batches]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _draw(self, x: np.ndarray, y: np.ndarray, heading: np.ndarray, crashed: np.ndarray) -> np.ndarray:
        left, top = x[:, :1] - self._corner[0], y[:, :1] - self._corner[1]
        marks, kinds = self._marks(left), self._line_rows(top)
        shares = np.stack([self._rows.mean(kinds == kind) for kind in (STRIPED, SOLID)], 2)  # (K, size, 2)
        road = GREY + (WHITE - GREY) * (shares @ self._columns.mean(marks[:, 1:]))
        across, down = self._pixel(x - left), self._pixel(y - top)
        visible = np.abs(2 * across - self._width) < self._width + 100
        visible &= np.abs(2 * down - self._height) < self._height + 100
        heading = np.where(np.abs(heading) > _TURNED, heading, 0.0)
        colour = np.where(crashed, 2, np.arange(x.shape[1]) == 0)
        alone = (heading == 0) & (np.abs(y - WIDTH * np.round(y / WIDTH)) < _ALONE[2])
        near = (np.abs(x[:, :, None] - x[:, None]) < _ALONE[0]) & (np.abs(y[:, :, None] - y[:, None]) < _ALONE[1])
        alone &= near.sum(2) == 1
        changes = [
            self._whole(np.nonzero(visible & alone), across, down, colour),
            self._pixels(np.nonzero(visible & ~alone), (across, down, colour, heading), marks, kinds),
        ]
        picture = self._blend(road, *(np.concatenate(part, -1) for part in zip(*changes)))
        return picture.take(self._rows.spread, 1).take(self._columns.spread, 2) if self._rows.small else picture

    def _pixel(self, metres: np.ndarray) -> np.ndarray:
        return (metres * self._scale).astype(np.int64)  # towards zero, as `int` does

    def _marks(self, left: np.ndarray) -> np.ndarray:
        """Which columns have nothing, a stripe, a line: bool (K, 3, width), for roads seen from `left` (K, 1) on."""
        count = int(2 * (self._height + self._width) / (_EVERY * self._scale))
        first = (np.trunc(left) // _EVERY - count // 2) * _EVERY
        starts = first + _EVERY * np.arange(count)
        starts, ends = np.clip(starts, 0, _LENGTH), np.clip(starts + _STRIPE, 0, _LENGTH)
        drawn = ends - starts > _STRIPE / 2
        edges = np.zeros((len(left), 3, self._width + 1), np.int64)
        rows = np.broadcast_to(np.arange(len(left))[:, None], starts.shape)[drawn]
        begin, end = (self._pixel(place - left)[drawn] for place in (starts, ends))
        np.add.at(edges, (rows, STRIPED, np.clip(begin, 0, self._width)), 1)
        np.add.at(edges, (rows, STRIPED, np.clip(end + 1, 0, self._width)), -1)
        whole = np.clip(np.stack([first, first + count * _EVERY + _STRIPE]), 0, _LENGTH)
        begin, end = self._pixel(whole - left)[..., 0]
        column = np.arange(self._width)
        marks = np.cumsum(edges, -1)[..., :-1] > 0
        marks[:, SOLID] = (column >= begin[:, None]) & (column <= end[:, None])
        return marks

    def _line_rows(self, top: np.ndarray) -> np.ndarray:
        """The kind of line in each row, int (K, height), for roads seen from `top` (K, 1) on."""
        kinds = np.zeros((len(top), self._height), np.int64)
        middle = self._pixel(self._lines - top)  # (K, lines)
        for shift in range(self._thick):
            row = middle + shift - (self._thick - 1) // 2
            road, line = np.nonzero((row >= 0) & (row < self._height))
            kinds[road, row[road, line]] = self._kinds[line]
        return kinds

    def _whole(self, cars: Cars, across: np.ndarray, down: np.ndarray, colour: np.ndarray) -> Changes:
        """What straight cars change: blocks, int (P,), and by how much, (3, P)."""
        row, rows = self._rows.cover(down[cars][:, None] + self._body[0])
        column, columns = self._columns.cover(across[cars][:, None] + self._body[1])
        change = rows[:, None] @ self._change[colour[cars]] @ columns[:, None].swapaxes(2, 3)  # (C, 3, rows, columns)
        block = self._block(cars[0][:, None, None], row[:, :, None], column[:, None])
        return block, change.swapaxes(0, 1).reshape(3, -1)

    def _pixels(self, cars: Cars, poses: tuple[np.ndarray, ...], marks: np.ndarray, kinds: np.ndarray) -> Changes:
        across, down, colour, heading = (part[cars][:, None] for part in poses)
        (dx, dy), cos, sin = self._grid, np.cos(heading), np.sin(heading)
        u = np.floor(cos * (dx + 0.5) + sin * (dy + 0.5)).astype(np.int64) + self._middle[1]
        v = np.floor(cos * (dy + 0.5) - sin * (dx + 0.5)).astype(np.int64) + self._middle[0]
        row, column = down + dy, across + dx
        shade = self._sprite[np.clip(v, 0, len(self._sprite) - 1), np.clip(u, 0, self._sprite.shape[1] - 1)]
        inside = (shade > 0) & (row >= 0) & (row < self._height) & (column >= 0) & (column < self._width)
        road, colour = (np.broadcast_to(part, inside.shape)[inside] for part in (cars[0][:, None], colour))
        row, column, shade = row[inside], column[inside], shade[inside] - 1
        pixel = (road * self._height + row) * self._width + column
        if len(self._last) < kinds.size * self._width:
            self._last = np.zeros(kinds.size * self._width, np.int32)
        self._last[pixel] = np.arange(len(pixel))
        seen = self._last[pixel] == np.arange(len(pixel))  # of cars that overlap, the last one
        under = np.where(marks[road, kinds[road, row], column], WHITE, GREY)
        row, column = self._rows.of[row], self._columns.of[column]
        share = self._rows.share[row] * self._columns.share[column] * seen
        return self._block(road, row, column), (self._palette[colour, shade].T - under) * share

    def _block(self, road: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """The numbers of blocks, int (P,)."""
        return ((road * len(self._rows.share) + row) * len(self._columns.share) + column).ravel()

    @staticmethod
    def _blend(road: np.ndarray, block: np.ndarray, change: np.ndarray) -> np.ndarray:
        """Averaged roads (K, size, size) with changes (3, P) to `block`s: uint8 (K, size, size, 3)."""
        touched = np.zeros(road.size, bool)
        touched[block] = True
        changed = np.flatnonzero(touched)
        number = np.empty(road.size, np.int64)
        number[changed] = np.arange(len(changed))
        number = number[block]
        picture = np.repeat((road + 0.5).astype(np.uint8).reshape(-1, 1), 3, 1)
        for channel in range(3):
            mean = road.ravel()[changed] + np.bincount(number, change[channel], len(changed))
            picture[changed, channel] = np.clip(mean + 0.5, 0, 255)
        return picture.reshape(*road.shape, 3)


class _Blocks:
    """Which of `size` blocks each of `length` pixels belongs to, as Pillow's box filter has them."""

    def __init__(self, length: int, size: int) -> None:
        self.small = length < size
        count = min(length, size)
        starts = (np.arange(count) * (length / count) + 0.5).astype(np.int64)
        counts = np.diff(starts, append=length)
        self._starts, self.share = starts, 1 / counts  # (count,)
        self.of = np.repeat(np.arange(count), counts)  # (length,)
        self.spread = ((np.arange(size) + 0.5) * (count / size)).astype(np.int64)  # (size,): the block to be seen there

    def mean(self, x: np.ndarray) -> np.ndarray:
        """Means over blocks of the last axis."""
        return np.add.reduceat(x.astype(np.float64), self._starts, -1) * self.share

    def cover(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The blocks, int (C, B), that C runs of L `pixels` (C, L) lie in, and what each gives to them, (C, B, L)."""
        inside = (pixels >= 0) & (pixels < len(self.of))
        of = self.of[np.clip(pixels, 0, len(self.of) - 1)]
        steps = np.arange(int((of[:, -1] - of[:, 0]).max(initial=0)) + 1)
        blocks = of[:, :1] + steps
        shares = (blocks[:, :, None] == of[:, None]) * (self.share[of] * inside)[:, None]
        return np.minimum(blocks, len(self.share) - 1), shares
