"""highway-env's straight road as an array program: `highway-v0` and `highway-fast-v0`, N roads at once.

Source: highway-env 1.12 (Leurent, 2018, https://github.com/Farama-Foundation/HighwayEnv), whose arithmetic this is;
observations, rewards, ends and signals are those of `envs.make.make`, `view.py` has the pictures.
    following        Intelligent Driver Model (Treiber, Hennecke and Helbing 2000, arXiv:cond-mat/0002177)
    changing lanes   MOBIL (Kesting, Treiber and Helbing 2007, doi:10.3141/1999-10), without politeness
    steering         a lateral position controller that commands a heading, on a kinematic bicycle
    collisions       separating axes of rectangles, now and after the next step

In the original each car decides in turn and sees what the ones before it decided. Here all decide at once: only giving
up a lane change depends on the turn, and there the turn is kept. Other differences: the random numbers; the road has no
end (10 km); of two cars at exactly the same place, one leads. Last bits may differ, and cars then decide otherwise.
"""

import gymnasium as gym
import numpy as np

from envs.batched.base import BatchedEnv
from envs.batched.highway.view import CAR, WIDTH, RoadPainter
from envs.driving.vehicle import FAR, VEHICLE, Vehicle
from envs.types import Array

SUPPORTED = frozenset(
    {"lanes_count", "vehicles_count", "duration", "ego_spacing", "vehicles_density", "initial_lane_id"}
    | {"collision_reward", "right_lane_reward", "high_speed_reward", "reward_speed_range", "normalize_reward"}
    | {"offroad_terminal", "simulation_frequency", "policy_frequency"}
    | {"screen_width", "screen_height", "scaling", "centering_position", "offscreen_rendering"}
)
START_SPEED = 25.0  # m/s, of the agent's car; the others drive at 0.7 to 0.8 of the limit
DELTAS = (3.5, 4.5)  # exponents of the others' driver models
SEEN, REACH, BEHIND = 4, 200.0, 10.0  # other cars in an observation; how far ahead and behind (m) they are seen
LEFT, RIGHT, FASTER, SLOWER = 0, 2, 3, 4  # 1 changes nothing
SPEED_LIMIT = 30.0  # m/s
MAX_SPEED = 40.0

_DIAGONAL = float(np.hypot(*CAR))
_CORNERS = np.array([[-0.5, -0.5], [-0.5, 0.5], [0.5, 0.5], [0.5, -0.5]]) * CAR
_BRAKING, _COMFORT, _LIMIT = 5.0, 3.0, 6.0  # m/s^2: comfortable deceleration and acceleration; the most there is
_JAM, _HEADWAY = 10.0, 1.5  # metres and seconds to keep behind a leader
_GAIN, _IMPOSED, _DELAY = 0.2, 2.0, 1.0  # what a lane change must gain, may impose (m/s^2), and how often (s)
_KP_SPEED, _KP_LATERAL, _KP_HEADING = 1 / 0.6, 1 / 0.6, 1 / 0.2  # 1/s
_MAX_SLIP = float(np.arctan(np.tan(np.pi / 3) / 2))  # of the centre of a car whose wheels are turned by 60 degrees


class BatchedHighway(BatchedEnv):
    """N roads; `state` is that of `Traffic`. A ValueError refuses other entries of `config`, and torch."""

    SIGNALS = VEHICLE

    def _setup(self, original: gym.Env) -> None:
        if self.arrays.is_torch:
            raise ValueError('array="torch" has no highway; leave it out, NumPy\'s arrays are quick enough here')
        config, usual = dict(self.world.config), type(self.world).default_config()
        for key, value in config.items():
            if key == "action":  # whatever the speeds
                value = {part: said for part, said in value.items() if part != "target_speeds"}
            if key not in SUPPORTED and (key not in usual or value != usual[key]):
                raise ValueError(
                    f"config {key}={value!r} is not supported by the array program of highway, which knows "
                    f'{", ".join(sorted(SUPPORTED))}; leave it out, or use envs.make.make_vec with backend="gym"'
                )
        self.config = config
        self._lanes, self._cars = int(config["lanes_count"]), int(config["vehicles_count"]) + 1
        rate = config["simulation_frequency"]
        self._ticks = int(rate // config["policy_frequency"])
        self.max_steps = min(self.max_steps, int(np.ceil(config["duration"] * config["policy_frequency"])))
        every = type(self.world).__name__ != "HighwayEnvFast"
        self._traffic = Traffic(self.num_envs, self._cars, self._lanes, 1 / rate, every)
        self._speeds = np.array(self.world.action_type.target_speeds)
        if self.frame_size is not None:
            self._painter = RoadPainter(config, self.frame_size)

    def _generate(self, rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        config, lanes, shape = self.config, self._lanes, (count, self._cars)
        lane = rng.integers(lanes, size=shape)
        if config["initial_lane_id"] is not None:
            lane[:, 0] = config["initial_lane_id"]
        speed = rng.uniform(0.7 * SPEED_LIMIT, 0.8 * SPEED_LIMIT, shape)
        speed[:, 0] = START_SPEED
        spacing = np.full(self._cars, 1 / config["vehicles_density"])
        spacing[0] = config["ego_spacing"]
        offset = spacing * (12.0 + speed) * np.exp(-5 / 40 * lanes)
        gap = offset * rng.uniform(0.9, 1.1, shape)
        gap[:, 0] += 3 * offset[:, 0]
        x, y = np.cumsum(gap, 1), WIDTH * lane
        wanted = speed.copy()
        wanted[:, 0] = self._speeds[self._nearest(speed[:, 0])]
        return {
            **{"x": x, "y": y, "heading": np.zeros(shape), "speed": speed, "target_speed": wanted},
            **{"timer": (x + y) * np.pi % 1.0, "delta": rng.uniform(*DELTAS, shape)},
            **{"lane": lane, "target": lane.copy(), "crashed": np.zeros(shape, bool)},
            **{"hit": np.zeros(shape, bool), "impact": np.zeros((*shape, 2))},
        }

    def _nearest(self, speed: np.ndarray) -> np.ndarray:
        last = len(self._speeds) - 1
        share = (speed - self._speeds[0]) / (self._speeds[-1] - self._speeds[0])
        return np.clip(np.round(share * last), 0, last).astype(np.int64)

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        state = self.state
        step = (actions == FASTER).astype(np.int64) - (actions == SLOWER)
        index = np.clip(self._nearest(state["speed"][:, 0]) + step, 0, len(self._speeds) - 1)
        state["target_speed"][:, 0] = np.where(step, self._speeds[index], state["target_speed"][:, 0])
        target = state["target"][:, 0]
        beside = np.clip(target + (actions == RIGHT) - (actions == LEFT), 0, self._lanes - 1)
        reachable = np.abs(state["y"][:, 0] - WIDTH * beside) <= 2 * WIDTH
        target[...] = np.where(reachable, beside, target)
        for _ in range(self._ticks):
            self._traffic.step(state)
        crashed, on_road = state["crashed"][:, 0], self._on_road(state)
        terminated = crashed | ~on_road if self.config["offroad_terminal"] else crashed.copy()
        return self._reward(on_road), terminated

    def _reward(self, on_road: np.ndarray) -> np.ndarray:
        config, state = self.config, self.state
        slow, fast = config["reward_speed_range"]
        forward = state["speed"][:, 0] * np.cos(state["heading"][:, 0])
        reward = config["collision_reward"] * state["crashed"][:, 0]
        reward = reward + config["right_lane_reward"] * (state["target"][:, 0] / max(self._lanes - 1, 1))
        reward += config["high_speed_reward"] * np.clip((forward - slow) / (fast - slow), 0, 1)
        if config["normalize_reward"]:
            low, high = config["collision_reward"], config["high_speed_reward"] + config["right_lane_reward"]
            reward = (reward - low) / (high - low)
        return reward * on_road

    @staticmethod
    def _on_road(state: dict[str, np.ndarray]) -> np.ndarray:
        """Whether the agents are on their lanes, bool (N,)."""
        return np.abs(state["y"][:, 0] - WIDTH * state["lane"][:, 0]) <= WIDTH / 2

    def _observe(self, state: dict[str, Array], out: Array) -> None:
        x, y, heading, speed = (state[key] for key in ("x", "y", "heading", "speed"))
        table = np.stack([np.ones_like(x), x, y, speed * np.cos(heading), speed * np.sin(heading)], -1)
        own, others = table[:, :1], table[:, 1:].copy()
        others[..., 1:] -= own[..., 1:]
        along = others[..., 1]
        seen = (along > -BEHIND) & (np.hypot(along, others[..., 2]) < REACH)
        far = np.where(seen, np.abs(along), np.inf)
        order = np.argsort(far, axis=1, kind="stable")[:, :SEEN]
        others = np.take_along_axis(others, order[..., None], 1)
        others *= np.take_along_axis(seen, order, 1)[..., None]
        rows = out.reshape(len(x), 1 + SEEN, -1)
        rows[...] = 0.0
        scale = np.array([1.0, 5 * MAX_SPEED, WIDTH * self._lanes, 2 * MAX_SPEED, 2 * MAX_SPEED])
        rows[:, :1] = np.clip(own / scale, -1, 1)
        rows[:, 1 : 1 + order.shape[1]] = np.clip(others / scale, -1, 1)

    def _success(self, terminated: Array) -> Array:
        return ~terminated & ~self.state["crashed"][:, 0] & self._on_road(self.state)

    def _show(self, rows: Array) -> None:
        if "signals" in self.modalities:
            state = {key: value[rows] for key, value in self.state.items()}
            self.modalities["signals"][rows] = self._sense(state, rows)
        if "frame" in self.modalities:
            parts = {key: self.state[key][rows] for key in ("x", "y", "heading", "crashed")}
            self.modalities["frame"][rows] = self._painter.draw(**parts)

    def _sense(self, state: dict[str, np.ndarray], rows: Array) -> np.ndarray:
        x, y, lane, speed = (state[key] for key in ("x", "y", "lane", "speed"))
        ahead = x[:, 1:] - x[:, :1]
        near = (ahead >= 0) & (np.abs(y[:, 1:] - WIDTH * lane[:, :1]) <= WIDTH / 2 + 1)
        gap = np.where(near, np.maximum(ahead - CAR[0], 0.0), FAR).min(1, initial=FAR)
        time = self._steps[rows] / self.config["policy_frequency"]
        car = Vehicle(
            speed=speed[:, 0],
            lane_offset=y[:, 0] - WIDTH * lane[:, 0],
            heading=(state["heading"][:, 0] + np.pi) % (2 * np.pi) - np.pi,
            on_road=self._on_road(state),
            crashed=state["crashed"][:, 0],
            completion=np.clip(time / self.config["duration"], 0, 1),
            gap=gap,
            lane=lane[:, 0] / (self._lanes - 1) if self._lanes > 1 else np.full(len(x), 0.5),
            speed_limit=np.full(len(x), SPEED_LIMIT),
        )
        return np.stack(car, -1)


def nonzero(x: np.ndarray) -> np.ndarray:
    """`x`, but at least 0.01 away from zero."""
    return np.where(np.abs(x) > 1e-2, x, np.where(x >= 0, 1e-2, -1e-2))


def closest_lane(y: np.ndarray, lanes: int) -> np.ndarray:
    """The number of the lane nearest to `y`; the left one of two equally near."""
    return np.clip(np.ceil(y / WIDTH - 0.5), 0, lanes - 1).astype(np.int64)


class Traffic:
    """N roads with V cars each, whose steps take `dt` seconds; car 0 of a road is the agent's.

    `state` holds x, y, heading, speed, target_speed, timer (s since a car last thought of changing lanes), delta
    (exponent of the driver model), float64 (N, V); lane and target, int64; crashed and hit, bool; impact (N, V, 2), the
    metres by which a car that is `hit` is moved. If `every`, all cars collide with each other, else only the agent's.
    """

    def __init__(self, n: int, cars: int, lanes: int, dt: float, every: bool) -> None:
        self.lanes, self._dt, self._cars = lanes, dt, cars
        self._ranks = np.arange(cars)
        self._all = np.arange(n * cars)
        self._road, self._number = np.divmod(self._all, cars)
        self._base = cars * np.arange(n)[:, None]
        self._centres = WIDTH * np.arange(lanes)[:, None]
        self._every = every
        # Of every car, and of two more that stand infinitely far ahead and behind, which stand for none.
        self._seen = np.zeros((6, n * cars + 2))
        self._x, self._vx, self._vy, self._cos, self._sin, self._speed = self._seen
        self._x[-2:] = np.inf, -np.inf
        self._wanted = np.ones(n * cars + 2)
        self._order = np.empty((n, cars + 2), np.int64)  # cars by place, between the two that stand for none
        self._order[:, 0], self._order[:, -1] = n * cars + 1, n * cars

    def step(self, state: dict[str, np.ndarray]) -> None:
        """All cars decide, move, and collide; `state` is changed in place."""
        self._look(state)
        self._move(state, self._decide(state))
        self._collide(state)

    def _look(self, state: dict[str, np.ndarray]) -> None:
        """Sort the cars of each road, and mark for every place and lane who is next ahead and next behind."""
        speed, heading, cars = state["speed"].ravel(), state["heading"].ravel(), len(self._all)
        self._x[:cars], self._speed[:cars] = state["x"].ravel(), speed
        np.cos(heading, out=self._cos[:cars])
        np.sin(heading, out=self._sin[:cars])
        np.multiply(self._speed, self._cos, out=self._vx)
        np.multiply(self._speed, self._sin, out=self._vy)
        self._wanted[:cars] = np.abs(nonzero(np.clip(state["target_speed"], 0, SPEED_LIMIT))).ravel()
        order = np.argsort(state["x"], axis=1, kind="stable") + self._base
        self._order[:, 1:-1] = order
        self._place = np.empty(cars, np.int64)
        self._place[order] = self._ranks
        there = np.abs(state["y"].take(order)[:, None] - self._centres) <= WIDTH / 2 + 1  # (N, lanes, V)
        ahead = np.where(there, self._ranks, self._cars)
        behind = np.where(there, self._ranks, -1)
        self._ahead, self._behind = np.full_like(ahead, self._cars), np.full_like(behind, -1)
        self._ahead[..., :-1] = np.minimum.accumulate(ahead[..., :0:-1], axis=-1)[..., ::-1]
        self._behind[..., 1:] = np.maximum.accumulate(behind[..., :-1], axis=-1)

    def neighbours(self, cars: np.ndarray, lane: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The cars next ahead and next behind of K cars, int (K,), if they were in `lane`, int (K,)."""
        road = self._road[cars]
        place = (road * self.lanes + lane) * self._cars + self._place[cars]
        first = road * (self._cars + 2) + 1
        return self._order.take(first + self._ahead.take(place)), self._order.take(first + self._behind.take(place))

    def _desired(self, car: np.ndarray, ahead: np.ndarray) -> np.ndarray:
        """The distance that K cars would keep to those ahead, in metres."""
        speed = self._speed[car]
        closing = (self._vx[car] - self._vx[ahead]) * self._cos[car]
        closing += (self._vy[car] - self._vy[ahead]) * self._sin[car]
        return _JAM + speed * _HEADWAY + speed * closing / (2 * np.sqrt(_COMFORT * _BRAKING))

    def _follow(self, car: np.ndarray, ahead: np.ndarray, delta: np.ndarray) -> np.ndarray:
        """The acceleration of K cars behind others, by a driver whose exponent is `delta`, in m/s^2."""
        free = 1 - (np.maximum(self._speed[car], 0) / self._wanted[car]) ** delta
        gap = nonzero(self._x[ahead] - self._x[car])
        return _COMFORT * free - _COMFORT * (self._desired(car, ahead) / gap) ** 2

    def _decide(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Lane changes are begun and given up; returns accelerations (N, V)."""
        lane, target, delta = (state[key].ravel() for key in ("lane", "target", "delta"))
        ahead, _ = self.neighbours(self._all, lane)
        free = ~state["crashed"].ravel() & (self._number > 0)
        before = target.copy()
        self._begin_changes(state, free & (lane == before), ahead)
        self._give_up(lane, target, before, np.flatnonzero(free & (lane != before)))
        acceleration = self._follow(self._all, ahead, delta)
        both = np.flatnonzero(lane != target)
        there, _ = self.neighbours(both, target[both])
        acceleration[both] = np.minimum(acceleration[both], self._follow(both, there, delta[both]))
        acceleration = np.clip(acceleration, -_LIMIT, _LIMIT).reshape(state["x"].shape)
        acceleration[:, 0] = _KP_SPEED * (state["target_speed"][:, 0] - state["speed"][:, 0])
        return acceleration

    def _begin_changes(self, state: dict[str, np.ndarray], free: np.ndarray, ahead: np.ndarray) -> None:
        """MOBIL, for those cars of `free` whose time has come."""
        timer, lane, target, delta = (state[key].ravel() for key in ("timer", "lane", "target", "delta"))
        cars = np.flatnonzero(free & (timer > _DELAY))
        timer[cars] = 0.0
        cars = cars[np.abs(self._speed[cars]) >= 1]
        y = state["y"].ravel()
        for side in (-1, 1):  # if both are better, it is the right one
            beside = lane[cars] + side
            reachable = (beside >= 0) & (beside < self.lanes) & (np.abs(y[cars] - WIDTH * beside) <= 2 * WIDTH)
            car, beside = cars[reachable], beside[reachable]
            leader, follower = self.neighbours(car, beside)
            safe = self._follow(follower, car, delta[car]) >= -_IMPOSED
            gain = self._follow(car, leader, delta[car]) - self._follow(car, ahead[car], delta[car])
            change = safe & (gain >= _GAIN)
            target[car[change]] = beside[change]

    def _give_up(self, lane: np.ndarray, target: np.ndarray, before: np.ndarray, cars: np.ndarray) -> None:
        """K `cars` on their way to a lane stay where they are if a car close ahead is on the way there too."""
        if not len(cars):
            return
        others = self._base[self._road[cars]] + self._ranks  # (K, V)
        one, goal = np.broadcast_to(cars[:, None], others.shape), before[cars][:, None]
        gap = self._x[others] - self._x[one]
        close = (gap > 0) & (gap < self._desired(one, others)) & (lane[others] != goal)
        earlier = others < one
        while True:  # each round settles at least the first car that is not settled yet
            stay = (close & (np.where(earlier, target[others], before[others]) == goal)).any(1)
            decided = np.where(stay, lane[cars], before[cars])
            if np.array_equal(decided, target[cars]):
                return
            target[cars] = decided

    def _move(self, state: dict[str, np.ndarray], acceleration: np.ndarray) -> None:
        x, y, heading, speed, crashed = (state[key] for key in ("x", "y", "heading", "speed", "crashed"))
        quick = nonzero(speed)
        aim = np.arcsin(np.clip(_KP_LATERAL * (WIDTH * state["target"] - y) / quick, -1, 1))
        turn = np.clip(aim, -np.pi / 4, np.pi / 4) - heading
        rate = _KP_HEADING * ((turn + np.pi) % (2 * np.pi) - np.pi)
        slip = np.clip(np.arcsin(np.clip(CAR[0] / 2 / quick * rate, -1, 1)), -_MAX_SLIP, _MAX_SLIP)
        slip[crashed] = 0.0
        acceleration = np.where(crashed, -speed, acceleration)
        acceleration = np.where(speed > MAX_SPEED, np.minimum(acceleration, MAX_SPEED - speed), acceleration)
        acceleration = np.where(speed < -MAX_SPEED, np.maximum(acceleration, -MAX_SPEED - speed), acceleration)
        x += speed * np.cos(heading + slip) * self._dt
        y += speed * np.sin(heading + slip) * self._dt
        hit = state["hit"]
        if hit.any():
            x += state["impact"][..., 0] * hit
            y += state["impact"][..., 1] * hit
            crashed |= hit
            hit[...] = False
        heading += speed * np.sin(slip) / (CAR[0] / 2) * self._dt
        speed += acceleration * self._dt
        state["timer"] += self._dt
        state["lane"][...] = closest_lane(y, self.lanes)

    def _near(self, x: np.ndarray, reach: float) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of cars that collide if they meet, within `reach` metres along the road, in the original's order."""
        if not self._every:
            road, other = np.nonzero(np.abs(x[:, 1:] - x[:, :1]) <= reach)
            return road * self._cars, road * self._cars + other + 1
        order = np.argsort(x, axis=1) + self._base
        place, found = x.take(order), []
        for apart in range(1, self._cars):  # the next car on the road, the one after it, until none is near
            road, rank = np.nonzero(place[:, apart:] - place[:, :-apart] <= reach)
            if not len(road):
                break
            found.append((order[road, rank], order[road, rank + apart]))
        pairs = np.sort(np.concatenate(found, 1) if found else np.zeros((2, 0), np.int64), 0)
        one, other = pairs[:, np.lexsort(pairs[::-1])]
        return one, other

    def _collide(self, state: dict[str, np.ndarray]) -> None:
        x, y, heading, speed = (state[key].ravel() for key in ("x", "y", "heading", "speed"))
        one, other = self._near(state["x"], _DIAGONAL + np.abs(speed).max() * self._dt)
        dx, dy = x[one] - x[other], y[one] - y[other]
        near = np.hypot(dx, dy) <= _DIAGONAL + speed[one] * self._dt
        # Most are in lanes of their own: far apart across one's heading, whatever they will do in this step.
        cos, sin, bent = np.cos(heading[one]), np.sin(heading[one]), heading[other] - heading[one]
        sideways = np.abs(np.sin(bent))
        slack = CAR[1] / 2 * (1 + np.abs(np.cos(bent))) + sideways * (CAR[0] / 2 + np.abs(speed[other]) * self._dt)
        near &= np.abs(cos * dy - sin * dx) <= slack + 1e-6
        if not near.any():
            return
        one, other = one[near], other[near]
        where, way = np.stack([x, y], -1), np.stack([speed * np.cos(heading), speed * np.sin(heading)], -1)
        shapes = corners(where[one], heading[one]), corners(where[other], heading[other])
        touch, soon, push = overlap(*shapes, (way[one] - way[other]) * self._dt)
        crashed, hit, impact = state["crashed"].reshape(-1), state["hit"].reshape(-1), state["impact"].reshape(-1, 2)
        crashed[one[touch]] = crashed[other[touch]] = True
        # In turn, one and other of each pair: the last push counts.
        cars = np.stack([one[soon], other[soon]], 1).ravel()
        impact[cars] = np.stack([push[soon] / 2, -push[soon] / 2], 1).reshape(-1, 2)
        hit[cars] = True


def corners(where: np.ndarray, heading: np.ndarray) -> np.ndarray:
    """The corners (K, 4, 2) of K cars at `where` (K, 2), in metres."""
    cos, sin = np.cos(heading)[:, None], np.sin(heading)[:, None]
    x, y = _CORNERS.T
    return where[:, None] + np.stack([cos * x - sin * y, sin * x + cos * y], -1)


def overlap(one: np.ndarray, other: np.ndarray, way: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whether K pairs of rectangles (K, 4, 2) overlap, and whether they will once `one` has moved by `way` (K, 2).

    Two times bool (K,), and the shortest move (K, 2) of `one` that keeps the second from being true.
    """
    edges = np.concatenate([np.roll(shape, -1, 1) - shape for shape in (one, other)], 1)  # (K, 8, 2)
    axes = np.stack([-edges[..., 1], edges[..., 0]], -1)
    axes /= np.linalg.norm(axes, axis=-1, keepdims=True)
    mine, its = axes @ one.swapaxes(1, 2), axes @ other.swapaxes(1, 2)  # (K, 8, 4)
    low, high, floor, top = mine.min(-1), mine.max(-1), its.min(-1), its.max(-1)
    touch = (np.where(low < floor, floor - high, low - top) <= 0).all(1)
    along = (axes @ way[..., None])[..., 0]
    low, high = low + np.minimum(along, 0), high + np.maximum(along, 0)
    gap = np.where(low < floor, floor - high, low - top)
    rows, best = np.arange(len(gap)), np.abs(gap).argmin(1)
    axis = axes[rows, best]
    away = ((one.mean(1) - other.mean(1)) * axis).sum(1) > 0
    push = np.abs(gap[rows, best])[:, None] * np.where(away[:, None], axis, -axis)
    return touch, (gap <= 0).all(1), push
