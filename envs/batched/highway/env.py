"""highway-env's straight road as an array program: `highway-v0` and `highway-fast-v0`, N roads at once.

Source: highway-env 1.12 (Leurent, 2018, https://github.com/Farama-Foundation/HighwayEnv); `traffic.py` has its
cars, `view.py` its pictures. Observations, rewards, ends and signals are those of `envs.make.make`.

Differences: the random numbers; what `traffic.py` lists. Of `config`, the entries of `SUPPORTED` may be set.

When it fails: beyond 10 km, where the original's road ends: at 30 m/s and with the usual traffic, after five minutes.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from envs.batched.base import BatchedEnv
from envs.batched.highway.traffic import CAR, MAX_SPEED, SPEED_LIMIT, WIDTH, Traffic
from envs.batched.highway.view import RoadPainter
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


class BatchedHighway(BatchedEnv):
    """N roads; `state` is that of `Traffic`.

    Raises:
        ValueError: if `config` has an entry that is not supported, or the arrays are torch's.
    """

    SIGNALS = VEHICLE

    def _setup(self, original: gym.Env) -> None:
        if self.arrays.is_torch:
            raise ValueError('array="torch" has no highway; leave it out, NumPy\'s arrays are quick enough here')
        config, usual = dict(self.world.config), type(self.world).default_config()
        for key, value in config.items():
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
        """The number of the nearest of the agent's speeds."""
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
        """The signals (K, 9) of some rows."""
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

    def _read(self, original: Any) -> dict[str, Any]:
        cars = original.road.vehicles
        pushed = [car.impact is not None for car in cars]
        numbers = ("heading", "speed", "target_speed")
        return {
            **{key: np.array([car.position[i] for car in cars]) for i, key in enumerate("xy")},
            **{key: np.array([getattr(car, key) for car in cars], float) for key in numbers},
            "timer": np.array([getattr(car, "timer", 0.0) for car in cars], float),
            "delta": np.array([getattr(car, "DELTA", DELTAS[0]) for car in cars], float),
            "lane": np.array([car.lane_index[2] for car in cars], np.int64),
            "target": np.array([car.target_lane_index[2] for car in cars], np.int64),
            "crashed": np.array([car.crashed for car in cars], bool),
            "hit": np.array(pushed),
            "impact": np.array([car.impact if there else (0.0, 0.0) for car, there in zip(cars, pushed)]),
        }
