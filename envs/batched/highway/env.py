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

from envs.batched.base import BatchedEnv, Outcome, State
from envs.batched.highway.view import CAR, WIDTH, RoadPainter
from envs.driving.vehicle import CLEAR_GAP_M, VEHICLE, Vehicle, wrap
from envs.transitions import index_obs
from envs.types import Array

# The entries of highway-env's config that may differ from their defaults.
SUPPORTED_CONFIG_KEYS = frozenset(
    {"lanes_count", "vehicles_count", "duration", "ego_spacing", "vehicles_density", "initial_lane_id"}
    | {"collision_reward", "right_lane_reward", "high_speed_reward", "reward_speed_range", "normalize_reward"}
    | {"offroad_terminal", "simulation_frequency", "policy_frequency"}
    | {"screen_width", "screen_height", "scaling", "centering_position", "offscreen_rendering"}
)
CAR_LENGTH, CAR_WIDTH = CAR
# The agent's car starts at this speed in m/s; the others drive at 0.7 to 0.8 of the limit.
START_SPEED = 25.0
SPEED_LIMIT = 30.0
MAX_SPEED = 40.0
# The exponents of the other drivers' models are drawn between these two.
DELTAS = (3.5, 4.5)

# An observation lists so many other cars, seen so many metres around, and so many metres behind.
OBSERVED_CARS = 4
VIEW_DISTANCE = 200.0
VIEW_BEHIND = 10.0

# The actions; 1 changes nothing.
LANE_LEFT, LANE_RIGHT, FASTER, SLOWER = 0, 2, 3, 4

# The centres of two cars that touch are at most this many metres apart.
_DIAGONAL = float(np.hypot(*CAR))
_CORNERS = np.array([[-0.5, -0.5], [-0.5, 0.5], [0.5, 0.5], [0.5, -0.5]]) * CAR

# The Intelligent Driver Model: accelerations in m/s^2, then the distance kept behind a leader in metres and seconds.
_COMFORT_BRAKING = 5.0
_COMFORT_ACCELERATION = 3.0
_MAX_ACCELERATION = 6.0
_JAM_DISTANCE = 10.0
_TIME_HEADWAY = 1.5

# MOBIL: accelerations in m/s^2 that a change must gain, and may cost the follower; seconds between two attempts.
_MIN_GAIN = 0.2
_MAX_IMPOSED_BRAKING = 2.0
_CHANGE_DELAY_S = 1.0

# Gains of the controllers, in 1/s.
_KP_SPEED = 1 / 0.6
_KP_LATERAL = 1 / 0.6
_KP_HEADING = 1 / 0.2

# Wheels turn by at most 60 degrees, which makes the centre of a car slip by this angle in radians.
_MAX_SLIP = float(np.arctan(np.tan(np.pi / 3) / 2))


class BatchedHighway(BatchedEnv):
    """N roads; `state` is that of `Traffic`. A ValueError refuses other entries of `config`, and torch."""

    SIGNALS = VEHICLE

    def _setup(self, original: gym.Env) -> None:
        if self.arrays.is_torch:
            raise ValueError('array="torch" has no highway; leave it out, NumPy\'s arrays are quick enough here')
        config = dict(self.world.config)
        self._check_config(config)
        self.config = config
        self._lanes = int(config["lanes_count"])
        self._cars = int(config["vehicles_count"]) + 1

        frequency = config["simulation_frequency"]
        self._ticks = int(frequency // config["policy_frequency"])
        duration_steps = int(np.ceil(config["duration"] * config["policy_frequency"]))
        self.max_steps = min(self.max_steps, duration_steps)

        all_collide = type(self.world).__name__ != "HighwayEnvFast"
        self._traffic = Traffic(self.num_envs, self._cars, self._lanes, 1 / frequency, all_collide)
        self._speeds = np.array(self.world.action_type.target_speeds)
        if self.frame_size is not None:
            self._painter = RoadPainter(config, self.frame_size)

    def _check_config(self, config: dict) -> None:
        """Refuse entries that this program does not know, unless they have highway-env's default."""
        defaults = type(self.world).default_config()
        for key, value in config.items():
            if key == "action":
                # The target speeds of an action are supported, whatever they are.
                value = {part: setting for part, setting in value.items() if part != "target_speeds"}
            if key in SUPPORTED_CONFIG_KEYS or (key in defaults and value == defaults[key]):
                continue
            keys = ", ".join(sorted(SUPPORTED_CONFIG_KEYS))
            raise ValueError(
                f"config {key}={value!r} is not supported by the array program of highway, which knows "
                f'{keys}; leave it out, or use envs.make.make_vec with backend="gym"'
            )

    def _generate(self, rng: np.random.Generator, count: int) -> State:
        config = self.config
        shape = (count, self._cars)
        lane = rng.integers(self._lanes, size=shape)
        if config["initial_lane_id"] is not None:
            lane[:, 0] = config["initial_lane_id"]
        speed = rng.uniform(0.7 * SPEED_LIMIT, 0.8 * SPEED_LIMIT, shape)
        speed[:, 0] = START_SPEED

        # Each car starts a gap ahead of the one before it; the agent's stands three more gaps down the road.
        spacing = np.full(self._cars, 1 / config["vehicles_density"])
        spacing[0] = config["ego_spacing"]
        offset = spacing * (12.0 + speed) * np.exp(-5 / 40 * self._lanes)
        gap = offset * rng.uniform(0.9, 1.1, shape)
        gap[:, 0] += 3 * offset[:, 0]
        x = np.cumsum(gap, 1)
        y = WIDTH * lane

        target_speed = speed.copy()
        target_speed[:, 0] = self._speeds[self._speed_index(speed[:, 0])]
        never = np.zeros(shape, bool)
        # The pool copies them all, so lane and target, and the two that never happened, may be one array here.
        return dict(
            x=x,
            y=y,
            heading=np.zeros(shape),
            speed=speed,
            target_speed=target_speed,
            timer=(x + y) * np.pi % 1.0,
            delta=rng.uniform(*DELTAS, shape),
            lane=lane,
            target=lane,
            crashed=never,
            hit=never,
            impact=np.zeros((*shape, 2)),
        )

    def _speed_index(self, speed: np.ndarray) -> np.ndarray:
        """The index of the target speed nearest to `speed`."""
        last = len(self._speeds) - 1
        slowest, fastest = self._speeds[[0, -1]]
        share = (speed - slowest) / (fastest - slowest)
        return np.clip(np.round(share * last), 0, last).astype(np.int64)

    def _advance(self, actions: Array) -> Outcome:
        self._set_target_speed(actions)
        self._set_target_lane(actions)
        for _ in range(self._ticks):
            self._traffic.step(self.state)
        on_road = self._on_road(self.state)
        terminated = self.state["crashed"][:, 0].copy()
        if self.config["offroad_terminal"]:
            terminated |= ~on_road
        return self._reward(on_road), terminated

    def _set_target_speed(self, actions: Array) -> None:
        state = self.state
        change = (actions == FASTER).astype(np.int64) - (actions == SLOWER)
        index = self._speed_index(state["speed"][:, 0]) + change
        index = np.clip(index, 0, len(self._speeds) - 1)
        target_speed = state["target_speed"][:, 0]
        target_speed[...] = np.where(change, self._speeds[index], target_speed)

    def _set_target_lane(self, actions: Array) -> None:
        target = self.state["target"][:, 0]
        beside = target + (actions == LANE_RIGHT) - (actions == LANE_LEFT)
        beside = np.clip(beside, 0, self._lanes - 1)
        distance = np.abs(self.state["y"][:, 0] - WIDTH * beside)
        target[...] = np.where(distance <= 2 * WIDTH, beside, target)

    def _reward(self, on_road: np.ndarray) -> np.ndarray:
        config = self.config
        collision_reward = config["collision_reward"]
        right_lane_reward = config["right_lane_reward"]
        high_speed_reward = config["high_speed_reward"]

        slow, fast = config["reward_speed_range"]
        forward = self.state["speed"][:, 0] * np.cos(self.state["heading"][:, 0])
        reward = collision_reward * self.state["crashed"][:, 0]
        reward = reward + right_lane_reward * (self.state["target"][:, 0] / max(self._lanes - 1, 1))
        reward += high_speed_reward * np.clip((forward - slow) / (fast - slow), 0, 1)
        if config["normalize_reward"]:
            best = high_speed_reward + right_lane_reward
            reward = (reward - collision_reward) / (best - collision_reward)
        return reward * on_road

    @staticmethod
    def _on_road(state: State) -> np.ndarray:
        """Whether the agents are on their lanes, bool (N,)."""
        return np.abs(state["y"][:, 0] - WIDTH * state["lane"][:, 0]) <= WIDTH / 2

    def _observe(self, state: State, out: Array) -> None:
        # A row of the table is one car: presence, x, y, and the speed along both axes.
        x = state["x"]
        heading = state["heading"]
        speed = state["speed"]
        vx = speed * np.cos(heading)
        vy = speed * np.sin(heading)
        table = np.stack([np.ones_like(x), x, state["y"], vx, vy], -1)
        own = table[:, :1]
        others = table[:, 1:].copy()
        others[..., 1:] -= own[..., 1:]

        # The nearest cars in sight come first; the rows of all others are zeros.
        along = others[..., 1]
        distance = np.hypot(along, others[..., 2])
        visible = (along > -VIEW_BEHIND) & (distance < VIEW_DISTANCE)
        rank = np.where(visible, np.abs(along), np.inf)
        order = np.argsort(rank, axis=1, kind="stable")[:, :OBSERVED_CARS]
        others = np.take_along_axis(others, order[..., None], 1)
        others *= np.take_along_axis(visible, order, 1)[..., None]

        rows = out.reshape(len(x), 1 + OBSERVED_CARS, -1)
        rows[...] = 0.0
        speed_scale = 2 * MAX_SPEED
        scale = np.array([1.0, 5 * MAX_SPEED, WIDTH * self._lanes, speed_scale, speed_scale])
        rows[:, :1] = np.clip(own / scale, -1, 1)
        rows[:, 1 : 1 + order.shape[1]] = np.clip(others / scale, -1, 1)

    def _success(self, terminated: Array) -> Array:
        return ~terminated & ~self.state["crashed"][:, 0] & self._on_road(self.state)

    def _show(self, rows: Array) -> None:
        if "signals" in self.modalities:
            self.modalities["signals"][rows] = self._sense(index_obs(self.state, rows), rows)
        if "frame" in self.modalities:
            parts = {key: self.state[key][rows] for key in ("x", "y", "heading", "crashed")}
            self.modalities["frame"][rows] = self._painter.draw(**parts)

    def _sense(self, state: State, rows: Array) -> np.ndarray:
        """The signals of the agents' cars, float (K, signals), in the order of `VEHICLE`."""
        x = state["x"]
        y = state["y"]
        lane = state["lane"][:, 0]
        centre = WIDTH * lane

        # The gap is measured to the nearest car ahead that reaches into the agent's lane.
        ahead = x[:, 1:] - x[:, :1]
        in_lane = np.abs(y[:, 1:] - centre[:, None]) <= WIDTH / 2 + 1
        gaps = np.where((ahead >= 0) & in_lane, np.maximum(ahead - CAR_LENGTH, 0.0), CLEAR_GAP_M)

        seconds = self._steps[rows] / self.config["policy_frequency"]
        lane_share = np.full(len(x), 0.5)
        if self._lanes > 1:
            lane_share = lane / (self._lanes - 1)
        signals = Vehicle(
            speed=state["speed"][:, 0],
            lane_offset=y[:, 0] - centre,
            heading=wrap(state["heading"][:, 0]),
            on_road=self._on_road(state),
            crashed=state["crashed"][:, 0],
            completion=np.clip(seconds / self.config["duration"], 0, 1),
            gap=gaps.min(1, initial=CLEAR_GAP_M),
            lane=lane_share,
            speed_limit=np.full(len(x), SPEED_LIMIT),
        )
        return np.stack(signals, -1)


def nonzero(x: np.ndarray) -> np.ndarray:
    """`x`, but at least 0.01 away from zero."""
    smallest = np.where(x >= 0, 1e-2, -1e-2)
    return np.where(np.abs(x) > 1e-2, x, smallest)


def closest_lane(y: np.ndarray, lanes: int) -> np.ndarray:
    """The number of the lane nearest to `y`; the left one of two equally near."""
    return np.clip(np.ceil(y / WIDTH - 0.5), 0, lanes - 1).astype(np.int64)


class Traffic:
    """N roads with V cars each, whose steps take `dt` seconds; car 0 of a road is the agent's.

    `state` holds x, y, heading, speed, target_speed, timer (s since a car last thought of changing lanes), delta
    (exponent of the driver model), float64 (N, V); lane and target, int64; crashed and hit, bool; impact (N, V, 2), the
    metres by which a car that is `hit` is moved. If `all_collide`, every car collides with every other, else only the
    agent's. Between methods a car is one index among all N * V, in the arrays that start with an underscore.
    """

    def __init__(self, n: int, cars: int, lanes: int, dt: float, all_collide: bool) -> None:
        total = n * cars
        self.lanes = lanes
        self._dt = dt
        self._cars = cars
        self._all_collide = all_collide
        self._ranks = np.arange(cars)
        self._all = np.arange(total)
        self._road, self._number = np.divmod(self._all, cars)
        self._base = cars * np.arange(n)[:, None]
        self._centres = WIDTH * np.arange(lanes)[:, None]

        # Two entries more than there are cars: they are infinitely far ahead and behind, and mean that no car is there.
        self._table = np.zeros((6, total + 2))
        self._x, self._vx, self._vy, self._cos, self._sin, self._speed = self._table
        self._x[-2:] = np.inf, -np.inf
        self._target_speed = np.ones(total + 2)

        # Cars of a road in order of x, between the two that stand for none.
        self._order = np.empty((n, cars + 2), np.int64)
        self._order[:, 0] = total + 1
        self._order[:, -1] = total

    def step(self, state: State) -> None:
        """All cars decide, move, and collide; `state` is changed in place."""
        self._look(state)
        self._move(state, self._decide(state))
        self._collide(state)

    def _look(self, state: State) -> None:
        """Sort the cars of each road, and mark for every place and lane who is next ahead and next behind."""
        total = len(self._all)
        heading = state["heading"].ravel()
        self._x[:total] = state["x"].ravel()
        self._speed[:total] = state["speed"].ravel()
        np.cos(heading, out=self._cos[:total])
        np.sin(heading, out=self._sin[:total])
        np.multiply(self._speed, self._cos, out=self._vx)
        np.multiply(self._speed, self._sin, out=self._vy)
        legal_speed = np.clip(state["target_speed"], 0, SPEED_LIMIT)
        self._target_speed[:total] = nonzero(legal_speed).ravel()

        order = np.argsort(state["x"], axis=1, kind="stable") + self._base
        self._order[:, 1:-1] = order
        self._place = np.empty(total, np.int64)
        self._place[order] = self._ranks

        # A car reaches into a lane within a metre of its edge, bool (N, lanes, V). Running minima and maxima of the
        # places then say which place is next for each place and lane, its own place not counted.
        y = state["y"].take(order)
        in_lane = np.abs(y[:, None] - self._centres) <= WIDTH / 2 + 1
        ahead = np.where(in_lane, self._ranks, self._cars)
        behind = np.where(in_lane, self._ranks, -1)
        self._ahead = np.full_like(ahead, self._cars)
        self._behind = np.full_like(behind, -1)
        self._ahead[..., :-1] = np.minimum.accumulate(ahead[..., :0:-1], axis=-1)[..., ::-1]
        self._behind[..., 1:] = np.maximum.accumulate(behind[..., :-1], axis=-1)

    def neighbours(self, cars: np.ndarray, lane: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The cars next ahead and next behind of K cars, int (K,), if they were in `lane`, int (K,)."""
        road = self._road[cars]
        place = (road * self.lanes + lane) * self._cars + self._place[cars]
        first = road * (self._cars + 2) + 1
        leader = self._order.take(first + self._ahead.take(place))
        follower = self._order.take(first + self._behind.take(place))
        return leader, follower

    def _desired_distance(self, car: np.ndarray, ahead: np.ndarray) -> np.ndarray:
        """The distance that K cars would keep to those ahead, in metres."""
        speed = self._speed[car]
        relative_vx = self._vx[car] - self._vx[ahead]
        relative_vy = self._vy[car] - self._vy[ahead]
        closing = relative_vx * self._cos[car]
        closing += relative_vy * self._sin[car]
        comfort = 2 * np.sqrt(_COMFORT_ACCELERATION * _COMFORT_BRAKING)
        return _JAM_DISTANCE + speed * _TIME_HEADWAY + speed * closing / comfort

    def _follow(self, car: np.ndarray, ahead: np.ndarray, delta: np.ndarray) -> np.ndarray:
        """The acceleration of K cars behind others, by a driver whose exponent is `delta`, in m/s^2."""
        speed = np.maximum(self._speed[car], 0)
        free = 1 - (speed / self._target_speed[car]) ** delta
        gap = nonzero(self._x[ahead] - self._x[car])
        crowding = (self._desired_distance(car, ahead) / gap) ** 2
        return _COMFORT_ACCELERATION * free - _COMFORT_ACCELERATION * crowding

    def _decide(self, state: State) -> np.ndarray:
        """Lane changes are begun and given up; returns accelerations (N, V)."""
        lane = state["lane"].ravel()
        target = state["target"].ravel()
        delta = state["delta"].ravel()
        ahead, _ = self.neighbours(self._all, lane)

        driven_by_model = ~state["crashed"].ravel() & (self._number > 0)
        target_before = target.copy()
        changing = lane != target_before
        self._begin_changes(state, driven_by_model & ~changing, ahead)
        self._give_up(lane, target, target_before, np.flatnonzero(driven_by_model & changing))

        # A car between two lanes keeps its distance in both.
        acceleration = self._follow(self._all, ahead, delta)
        between = np.flatnonzero(lane != target)
        ahead_in_target, _ = self.neighbours(between, target[between])
        in_target = self._follow(between, ahead_in_target, delta[between])
        acceleration[between] = np.minimum(acceleration[between], in_target)
        acceleration = np.clip(acceleration, -_MAX_ACCELERATION, _MAX_ACCELERATION)
        acceleration = acceleration.reshape(state["x"].shape)
        speed_error = state["target_speed"][:, 0] - state["speed"][:, 0]
        acceleration[:, 0] = _KP_SPEED * speed_error
        return acceleration

    def _begin_changes(self, state: State, free: np.ndarray, ahead: np.ndarray) -> None:
        """MOBIL, for those cars of `free` whose time has come."""
        timer = state["timer"].ravel()
        cars = np.flatnonzero(free & (timer > _CHANGE_DELAY_S))
        timer[cars] = 0.0
        cars = cars[np.abs(self._speed[cars]) >= 1]
        y = state["y"].ravel()
        lane = state["lane"].ravel()
        target = state["target"].ravel()
        delta = state["delta"].ravel()
        # The right side comes last, so that it is chosen where both are better.
        for side in (-1, 1):
            beside = lane[cars] + side
            exists = (beside >= 0) & (beside < self.lanes)
            reachable = exists & (np.abs(y[cars] - WIDTH * beside) <= 2 * WIDTH)
            car = cars[reachable]
            beside = beside[reachable]
            leader, follower = self.neighbours(car, beside)
            is_safe = self._follow(follower, car, delta[car]) >= -_MAX_IMPOSED_BRAKING
            acceleration_there = self._follow(car, leader, delta[car])
            acceleration_here = self._follow(car, ahead[car], delta[car])
            gain = acceleration_there - acceleration_here
            change = is_safe & (gain >= _MIN_GAIN)
            target[car[change]] = beside[change]

    def _give_up(self, lane: np.ndarray, target: np.ndarray, before: np.ndarray, cars: np.ndarray) -> None:
        """K `cars` on their way to a lane stay where they are if a car close ahead is on the way there too."""
        if not len(cars):
            return
        # Axes of what follows: (K, V), a changing car and all cars of its road.
        others = self._base[self._road[cars]] + self._ranks
        car = np.broadcast_to(cars[:, None], others.shape)
        goal = before[cars][:, None]
        gap = self._x[others] - self._x[car]
        is_close = (gap > 0) & (gap < self._desired_distance(car, others))
        is_rival = is_close & (lane[others] != goal)
        decides_earlier = others < car
        # Cars decide in turn, and those that decide earlier have done so already. Each round settles at least one
        # more car.
        while True:
            goal_of_others = np.where(decides_earlier, target[others], before[others])
            stay = (is_rival & (goal_of_others == goal)).any(1)
            decided = np.where(stay, lane[cars], before[cars])
            if np.array_equal(decided, target[cars]):
                return
            target[cars] = decided

    def _move(self, state: State, acceleration: np.ndarray) -> None:
        """Steer towards the target lanes and move by the kinematic bicycle model."""
        x = state["x"]
        y = state["y"]
        heading = state["heading"]
        speed = state["speed"]
        crashed = state["crashed"]

        # The lateral error commands a heading, the heading error a yaw rate, and that the slip of the car's centre.
        nonzero_speed = nonzero(speed)
        half_length = CAR_LENGTH / 2
        lateral_command = _KP_LATERAL * (WIDTH * state["target"] - y) / nonzero_speed
        heading_command = np.arcsin(np.clip(lateral_command, -1, 1))
        heading_command = np.clip(heading_command, -np.pi / 4, np.pi / 4)
        yaw_rate = _KP_HEADING * wrap(heading_command - heading)
        slip = np.arcsin(np.clip(half_length / nonzero_speed * yaw_rate, -1, 1))
        slip = np.clip(slip, -_MAX_SLIP, _MAX_SLIP)
        slip[crashed] = 0.0

        # Crashed cars come to a halt, and none drives faster than MAX_SPEED either way.
        acceleration = np.where(crashed, -speed, acceleration)
        capped = np.minimum(acceleration, MAX_SPEED - speed)
        acceleration = np.where(speed > MAX_SPEED, capped, acceleration)
        capped = np.maximum(acceleration, -MAX_SPEED - speed)
        acceleration = np.where(speed < -MAX_SPEED, capped, acceleration)

        x += speed * np.cos(heading + slip) * self._dt
        y += speed * np.sin(heading + slip) * self._dt
        hit = state["hit"]
        if hit.any():
            x += state["impact"][..., 0] * hit
            y += state["impact"][..., 1] * hit
            crashed |= hit
            hit[...] = False
        heading += speed * np.sin(slip) / half_length * self._dt
        speed += acceleration * self._dt
        state["timer"] += self._dt
        state["lane"][...] = closest_lane(y, self.lanes)

    def _near_pairs(self, x: np.ndarray, reach: float) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of cars that collide if they meet, within `reach` metres along the road, in the original's order."""
        if not self._all_collide:
            road, other = np.nonzero(np.abs(x[:, 1:] - x[:, :1]) <= reach)
            agent = road * self._cars
            return agent, agent + other + 1

        # Compare each car with the next on the road, then with the one after it, until none is within reach.
        order = np.argsort(x, axis=1) + self._base
        sorted_x = x.take(order)
        pairs = np.zeros((2, 0), np.int64)
        for apart in range(1, self._cars):
            road, rank = np.nonzero(sorted_x[:, apart:] - sorted_x[:, :-apart] <= reach)
            if not len(road):
                break
            one = order[road, rank]
            other = order[road, rank + apart]
            pairs = np.concatenate([pairs, [one, other]], 1)
        pairs = np.sort(pairs, 0)
        one, other = pairs[:, np.lexsort(pairs[::-1])]
        return one, other

    def _collide(self, state: State) -> None:
        x = state["x"].ravel()
        y = state["y"].ravel()
        heading = state["heading"].ravel()
        speed = state["speed"].ravel()
        one, other = self._near_pairs(state["x"], _DIAGONAL + np.abs(speed).max() * self._dt)
        dx = x[one] - x[other]
        dy = y[one] - y[other]
        near = np.hypot(dx, dy) <= _DIAGONAL + speed[one] * self._dt

        # Most pairs are in lanes of their own, so far apart across one's heading that no move of this step lets them
        # touch. They are left out, because the exact test below is slow.
        bend = heading[other] - heading[one]
        length_reach = CAR_LENGTH / 2 + np.abs(speed[other]) * self._dt
        width_reach = CAR_WIDTH / 2 * (1 + np.abs(np.cos(bend)))
        sideways_reach = width_reach + np.abs(np.sin(bend)) * length_reach
        cos = np.cos(heading[one])
        sin = np.sin(heading[one])
        sideways = cos * dy - sin * dx
        near &= np.abs(sideways) <= sideways_reach + 1e-6
        if not near.any():
            return

        one = one[near]
        other = other[near]
        centre = np.stack([x, y], -1)
        vx = speed * np.cos(heading)
        vy = speed * np.sin(heading)
        velocity = np.stack([vx, vy], -1)
        one_shape = corners(centre[one], heading[one])
        other_shape = corners(centre[other], heading[other])
        approach = (velocity[one] - velocity[other]) * self._dt
        touching, will_touch, push = overlap(one_shape, other_shape, approach)
        crashed = state["crashed"].reshape(-1)
        crashed[one[touching]] = True
        crashed[other[touching]] = True

        # Each of the two is pushed by half. Pairs are written in turn, so that a car's last push counts.
        half_push = push[will_touch] / 2
        pushed = np.stack([one[will_touch], other[will_touch]], 1).ravel()
        impact = state["impact"].reshape(-1, 2)
        impact[pushed] = np.stack([half_push, -half_push], 1).reshape(-1, 2)
        state["hit"].reshape(-1)[pushed] = True


def corners(centre: np.ndarray, heading: np.ndarray) -> np.ndarray:
    """The corners (K, 4, 2) of K cars around `centre` (K, 2), in metres."""
    cos = np.cos(heading)[:, None]
    sin = np.sin(heading)[:, None]
    x, y = _CORNERS.T
    turned = np.stack([cos * x - sin * y, sin * x + cos * y], -1)
    return centre[:, None] + turned


def overlap(one: np.ndarray, other: np.ndarray, way: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whether K pairs of rectangles (K, 4, 2) overlap, and whether they will once `one` has moved by `way` (K, 2).

    Two times bool (K,), and the shortest move (K, 2) of `one` that keeps the second from being true.
    """
    # The axes (K, 8, 2) are the normals of all edges. Rectangles overlap if their shadows do on every axis.
    one_edges = np.roll(one, -1, 1) - one
    other_edges = np.roll(other, -1, 1) - other
    edges = np.concatenate([one_edges, other_edges], 1)
    axes = np.stack([-edges[..., 1], edges[..., 0]], -1)
    axes /= np.linalg.norm(axes, axis=-1, keepdims=True)

    # The shadows' ends on each axis, all (K, 8).
    one_shadow = axes @ one.swapaxes(1, 2)
    other_shadow = axes @ other.swapaxes(1, 2)
    low = one_shadow.min(-1)
    high = one_shadow.max(-1)
    other_low = other_shadow.min(-1)
    other_high = other_shadow.max(-1)
    gap = np.where(low < other_low, other_low - high, low - other_high)
    overlaps_now = (gap <= 0).all(1)

    # The same for the shadow that `one` sweeps during its move.
    along = (axes @ way[..., None])[..., 0]
    low = low + np.minimum(along, 0)
    high = high + np.maximum(along, 0)
    gap = np.where(low < other_low, other_low - high, low - other_high)
    will_overlap = (gap <= 0).all(1)

    # The shortest way apart is along the axis of the smallest gap, away from the other's centre.
    rows = np.arange(len(gap))
    smallest = np.abs(gap).argmin(1)
    axis = axes[rows, smallest]
    distance = np.abs(gap[rows, smallest])[:, None]
    between_centres = one.mean(1) - other.mean(1)
    points_away = (between_centres * axis).sum(1) > 0
    direction = np.where(points_away[:, None], axis, -axis)
    return overlaps_now, will_overlap, distance * direction
