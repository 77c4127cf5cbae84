"""Pictures of a straight road for all environments at once, as `envs.render.frame` gives them of one.

highway-env draws 600 x 150 pixels with pygame, which are then averaged over blocks. Here the road and every car that
drives straight, by itself, in its lane are products of rows and columns; only where cars turn or come close is each
pixel looked at. Geometry, colours and whole-pixel corners are those of highway-env 1.12.

Differences, less than a grey level on average: the edges of a car that is turned; four levels below 38 pixels.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from envs.transitions import index_obs

# Metres: the width of a lane, and a car's length and width. Lane k has its centre at y = WIDTH * k,
# the leftmost is 0.
WIDTH = 4.0
CAR = (5.0, 2.0)

# Grey levels of the road and its lines, and colours of cars.
ROAD_GREY_LEVEL = 100.0
WHITE = 255.0
_GREEN = (50, 200, 0)
_BLUE = (100, 200, 255)
_RED = (255, 100, 100)
_EDGE = (60, 60, 60)

# Metres: length, distance and breadth of the marks between lanes, size of a headlight, length of
# the road.
_STRIPE_LENGTH = 3.0
_STRIPE_SPACING = 4.33
_LINE_BREADTH = 0.3
_HEADLIGHT_LENGTH = 0.72
_HEADLIGHT_BREADTH = 0.6
_ROAD_LENGTH = 10_000.0

# A car whose heading is smaller, in radians, is drawn straight.
_MIN_TURN = np.deg2rad(2)

# A car is alone, and shares no pixel with others, if they are so many metres away along or across
# the road and it is so close to the middle of its lane.
_ALONE_ALONG = 6.5
_ALONE_ACROSS = 3.6
_ALONE_OFFSET = 0.6

# So many roads are drawn together, to spare memory.
_BATCH_ROADS = 16

# What a column of the screen has on it, and what kind of line a row is part of.
NONE = 0
STRIPED = 1
SOLID = 2

# The parts of a car's sprite.
_BODY_SHADE = 1
_HEADLIGHT_SHADE = 2
_EDGE_SHADE = 3

# The indices of some cars, (road, number), as `numpy.nonzero` returns them.
Cars = tuple[np.ndarray, ...]
# The numbers of blocks, int (P,), and by how much each of their colours changes, (3, P).
Changes = tuple[np.ndarray, np.ndarray]


class RoadPainter:
    """Draws roads around the agents' cars; of highway-env's `config`, the lanes and the screen are read."""

    def __init__(self, config: Mapping[str, Any], size: int) -> None:
        self._width = int(config["screen_width"])
        self._height = int(config["screen_height"])
        self._scale = float(config["scaling"])
        across, down = config["centering_position"]
        self._left_metres = across * self._width / self._scale
        self._top_metres = down * self._height / self._scale
        self._columns = _Blocks(self._width, size)
        self._rows = _Blocks(self._height, size)

        lanes = int(config["lanes_count"])
        self._lines = WIDTH * (np.arange(lanes + 1) - 0.5)
        self._line_kinds = np.full(lanes + 1, STRIPED)
        self._line_kinds[[0, -1]] = SOLID
        self._line_pixels = max(int(_LINE_BREADTH * self._scale), 1)

        # The offsets (2, pixels) of all pixels that a car may cover, however it turns.
        self._sprite = self._draw_sprite()
        self._middle = np.array(self._sprite.shape) // 2
        reach = np.arange(1 - self._middle.min(), self._middle.min())
        self._offsets = np.stack(np.meshgrid(reach, reach)).reshape(2, -1)

        # Body, headlights and edge for each colour of a car.
        self._palette = np.array([_shades(colour) for colour in (_BLUE, _GREEN, _RED)], np.float64)
        # A straight car's rows and columns, as offsets from its middle, and how it changes the grey
        # of the road, of shape (colours, 3, rows, columns).
        is_drawn = self._sprite > 0
        rows = np.flatnonzero(is_drawn.any(1))
        columns = np.flatnonzero(is_drawn.any(0))
        self._body_rows = rows - self._middle[0]
        self._body_columns = columns - self._middle[1]
        shade = self._sprite[np.ix_(rows, columns)] - 1
        self._body_change = self._palette[:, shade].transpose(0, 3, 1, 2) - ROAD_GREY_LEVEL
        self._last_drawn = np.zeros(0, np.int32)

    def _draw_sprite(self) -> np.ndarray:
        """A car as numbers (rows, columns): 0 nothing, 1 body, 2 headlight, 3 edge."""

        def pixels(metres: float) -> int:
            return int(metres * self._scale)

        def rectangle(x: float, y: float, length: float, breadth: float) -> tuple[slice, slice]:
            top = pixels(y)
            left = pixels(x)
            return slice(top, top + pixels(breadth)), slice(left, left + pixels(length))

        # highway-env leaves a metre for the tyres on either end.
        length, breadth = CAR
        tyre = 1.0
        side = length + 2.0
        middle = side / 2
        sprite = np.zeros((pixels(side), pixels(side)), np.int64)
        body = rectangle(tyre, middle - breadth / 2, length, breadth)
        sprite[body] = _BODY_SHADE
        front = tyre + length - _HEADLIGHT_LENGTH
        for y in (middle - 1.4 * breadth / 3, middle + 0.6 * breadth / 5):
            sprite[rectangle(front, y, _HEADLIGHT_LENGTH, _HEADLIGHT_BREADTH)] = _HEADLIGHT_SHADE
        inner = sprite[body][1:-1, 1:-1].copy()
        sprite[body] = _EDGE_SHADE
        sprite[body][1:-1, 1:-1] = inner
        return sprite

    def draw(self, **cars: np.ndarray) -> np.ndarray:
        """Pictures uint8 (K, size, size, 3) of K roads with V cars each: `x`, `y`, `heading` and `crashed`, (K, V)."""
        parts = []
        for start in range(0, len(cars["x"]), _BATCH_ROADS):
            batch = index_obs(cars, slice(start, start + _BATCH_ROADS))
            parts.append(self._draw(**batch))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _draw(self, x: np.ndarray, y: np.ndarray, heading: np.ndarray, crashed: np.ndarray) -> np.ndarray:
        left = x[:, :1] - self._left_metres
        top = y[:, :1] - self._top_metres
        marks = self._column_marks(left)
        kinds = self._line_rows(top)
        # Each line is brighter by the share of a block that its rows and its columns cover.
        row_shares = np.stack([self._rows.mean(kinds == kind) for kind in (STRIPED, SOLID)], 2)
        column_shares = self._columns.mean(marks[:, 1:])
        road = ROAD_GREY_LEVEL + (WHITE - ROAD_GREY_LEVEL) * (row_shares @ column_shares)

        across = self._to_pixels(x - left)
        down = self._to_pixels(y - top)
        # As in highway-env a car is drawn if its middle is at most 50 pixels outside of the screen.
        is_visible = np.abs(2 * across - self._width) < self._width + 100
        is_visible &= np.abs(2 * down - self._height) < self._height + 100
        heading = np.where(np.abs(heading) > _MIN_TURN, heading, 0.0)
        colour = np.where(crashed, 2, np.arange(x.shape[1]) == 0)

        is_straight = heading == 0
        is_alone = self._find_lonely_cars(x, y) & is_straight
        straight_cars = np.nonzero(is_visible & is_alone)
        other_cars = np.nonzero(is_visible & ~is_alone)
        straight_block, straight_change = self._draw_straight(straight_cars, across, down, colour)
        poses = (across, down, colour, heading)
        other_block, other_change = self._draw_pixels(other_cars, poses, marks, kinds)
        block = np.concatenate([straight_block, other_block], -1)
        picture = self._blend(road, block, np.concatenate([straight_change, other_change], -1))
        if self._rows.is_small:
            picture = picture.take(self._rows.spread, 1).take(self._columns.spread, 2)
        return picture

    @staticmethod
    def _find_lonely_cars(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Which cars are in the middle of their lanes and share no pixel with others, bool (K, V)."""
        offset = np.abs(y - WIDTH * np.round(y / WIDTH))
        along = np.abs(x[:, :, None] - x[:, None])
        across = np.abs(y[:, :, None] - y[:, None])
        is_near = (along < _ALONE_ALONG) & (across < _ALONE_ACROSS)
        # Every car is near to itself.
        return (offset < _ALONE_OFFSET) & (is_near.sum(2) == 1)

    def _to_pixels(self, metres: np.ndarray) -> np.ndarray:
        # Rounding is towards zero, as `int` does in highway-env.
        return (metres * self._scale).astype(np.int64)

    def _column_marks(self, left: np.ndarray) -> np.ndarray:
        """Which columns have nothing, a stripe, a line: bool (K, 3, width), for roads seen from `left` (K, 1) on."""
        screens = 2 * (self._height + self._width)
        count = int(screens / (_STRIPE_SPACING * self._scale))
        first_stripe = np.trunc(left) // _STRIPE_SPACING - count // 2
        first = first_stripe * _STRIPE_SPACING
        places = first + _STRIPE_SPACING * np.arange(count)
        starts = np.clip(places, 0, _ROAD_LENGTH)
        ends = np.clip(places + _STRIPE_LENGTH, 0, _ROAD_LENGTH)
        is_drawn = ends - starts > _STRIPE_LENGTH / 2

        # A stripe adds 1 where it begins and takes it away behind its end; the running sum says
        # what is covered.
        edges = np.zeros((len(left), 3, self._width + 1), np.int64)
        road = np.nonzero(is_drawn)[0]
        begin = self._to_pixels(starts - left)[is_drawn]
        end = self._to_pixels(ends - left)[is_drawn]
        begin = np.clip(begin, 0, self._width)
        end = np.clip(end + 1, 0, self._width)
        stripes = edges[:, STRIPED]
        np.add.at(stripes, (road, begin), 1)
        np.add.at(stripes, (road, end), -1)
        marks = np.cumsum(edges, -1)[..., :-1] > 0

        # A solid line goes from the first stripe to the end of the last, as far as there is road.
        line_start = np.clip(first, 0, _ROAD_LENGTH)
        last = first + count * _STRIPE_SPACING
        line_end = np.clip(last + _STRIPE_LENGTH, 0, _ROAD_LENGTH)
        begin = self._to_pixels(line_start - left)
        end = self._to_pixels(line_end - left)
        column = np.arange(self._width)
        marks[:, SOLID] = (column >= begin) & (column <= end)
        return marks

    def _line_rows(self, top: np.ndarray) -> np.ndarray:
        """The kind of line in each row, int (K, height), for roads seen from `top` (K, 1) on."""
        kinds = np.zeros((len(top), self._height), np.int64)
        # The row of each line's middle, (K, lines).
        middle = self._to_pixels(self._lines - top)
        first = middle - (self._line_pixels - 1) // 2
        for shift in range(self._line_pixels):
            row = first + shift
            road, line = np.nonzero((row >= 0) & (row < self._height))
            kinds[road, row[road, line]] = self._line_kinds[line]
        return kinds

    def _draw_straight(self, cars: Cars, across: np.ndarray, down: np.ndarray, colour: np.ndarray) -> Changes:
        """What straight cars change, each a product of its rows and columns."""
        body_rows = down[cars][:, None] + self._body_rows
        body_columns = across[cars][:, None] + self._body_columns
        row, row_shares = self._rows.cover(body_rows)
        column, column_shares = self._columns.cover(body_columns)
        # The change of every block that a car touches, (cars, 3, rows, columns).
        body = self._body_change[colour[cars]]
        change = row_shares[:, None] @ body @ column_shares[:, None].swapaxes(2, 3)
        block = self._block_number(cars[0][:, None, None], row[:, :, None], column[:, None])
        return block, change.swapaxes(0, 1).reshape(3, -1)

    def _draw_pixels(self, cars: Cars, poses: tuple[np.ndarray, ...], marks: np.ndarray, kinds: np.ndarray) -> Changes:
        """What all other cars change, pixel by pixel."""
        across, down, colour, heading = (part[cars][:, None] for part in poses)
        row, column, shade = self._turn_sprite(across, down, heading)
        inside = (shade > 0) & (row >= 0) & (row < self._height)
        inside &= (column >= 0) & (column < self._width)
        road = np.broadcast_to(cars[0][:, None], inside.shape)[inside]
        colour = np.broadcast_to(colour, inside.shape)[inside]
        row = row[inside]
        column = column[inside]
        shade = shade[inside] - 1

        # Where cars overlap, the one that is drawn last is seen.
        pixel = (road * self._height + row) * self._width + column
        if len(self._last_drawn) < kinds.size * self._width:
            self._last_drawn = np.zeros(kinds.size * self._width, np.int32)
        turn = np.arange(len(pixel))
        self._last_drawn[pixel] = turn
        is_seen = self._last_drawn[pixel] == turn

        under = np.where(marks[road, kinds[road, row], column], WHITE, ROAD_GREY_LEVEL)
        block_row = self._rows.block[row]
        block_column = self._columns.block[column]
        pixel_share = self._rows.share[block_row] * self._columns.share[block_column]
        change = self._palette[colour, shade].T - under
        change = change * (pixel_share * is_seen)
        return self._block_number(road, block_row, block_column), change

    def _turn_sprite(self, across: np.ndarray, down: np.ndarray, heading: np.ndarray) -> Cars:
        """Row, column and shade of each pixel around C cars, int (C, pixels)."""
        dx, dy = self._offsets
        cos = np.cos(heading)
        sin = np.sin(heading)
        # A pixel's centre, turned back, is a place of the sprite.
        along = cos * (dx + 0.5) + sin * (dy + 0.5)
        sideways = cos * (dy + 0.5) - sin * (dx + 0.5)
        u = np.floor(along).astype(np.int64) + self._middle[1]
        v = np.floor(sideways).astype(np.int64) + self._middle[0]
        height, width = self._sprite.shape
        v = np.clip(v, 0, height - 1)
        u = np.clip(u, 0, width - 1)
        return down + dy, across + dx, self._sprite[v, u]

    def _block_number(self, road: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """The numbers of blocks, int (P,)."""
        number = (road * len(self._rows.share) + row) * len(self._columns.share) + column
        return number.ravel()

    @staticmethod
    def _blend(road: np.ndarray, block: np.ndarray, change: np.ndarray) -> np.ndarray:
        """Averaged roads (K, size, size) with changes (3, P) to `block`s: uint8 (K, size, size, 3)."""
        is_changed = np.zeros(road.size, bool)
        is_changed[block] = True
        changed = np.flatnonzero(is_changed)
        rank = np.empty(road.size, np.int64)
        rank[changed] = np.arange(len(changed))
        rank = rank[block]
        picture = np.repeat((road + 0.5).astype(np.uint8).reshape(-1, 1), 3, 1)
        for channel in range(3):
            mean = road.ravel()[changed]
            mean = mean + np.bincount(rank, change[channel], len(changed))
            picture[changed, channel] = np.clip(mean + 0.5, 0, 255)
        return picture.reshape(*road.shape, 3)


def _shades(colour: tuple[int, ...]) -> list[Any]:
    """The colours of a car's body, headlights and edge; headlights are brighter."""
    headlight = [min(int(level / 0.68), 255) for level in colour]
    return [colour, headlight, _EDGE]


class _Blocks:
    """Which of `size` blocks each of `length` pixels belongs to, as Pillow's box filter has them."""

    def __init__(self, length: int, size: int) -> None:
        self.is_small = length < size
        count = min(length, size)
        self._starts = (np.arange(count) * (length / count) + 0.5).astype(np.int64)
        counts = np.diff(self._starts, append=length)
        # What one pixel contributes to a block, (count,); the block of each pixel, (length,); and
        # the block that is to be seen at each place of a picture that is larger than the screen,
        # (size,).
        self.share = 1 / counts
        self.block = np.repeat(np.arange(count), counts)
        self.spread = ((np.arange(size) + 0.5) * (count / size)).astype(np.int64)

    def mean(self, x: np.ndarray) -> np.ndarray:
        """Means over blocks of the last axis."""
        return np.add.reduceat(x.astype(np.float64), self._starts, -1) * self.share

    def cover(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The blocks, int (C, B), that C runs of L `pixels` (C, L) lie in, and what each gives to them, (C, B, L)."""
        inside = (pixels >= 0) & (pixels < len(self.block))
        block = self.block[np.clip(pixels, 0, len(self.block) - 1)]
        breadth = int((block[:, -1] - block[:, 0]).max(initial=0)) + 1
        blocks = block[:, :1] + np.arange(breadth)
        is_in_block = blocks[:, :, None] == block[:, None]
        pixel_share = self.share[block] * inside
        return np.minimum(blocks, len(self.share) - 1), is_in_block * pixel_share[:, None]
