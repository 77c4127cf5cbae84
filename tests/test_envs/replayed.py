"""Two environments that play `carla_trace.json`, with the interface of the old gym: no Gymnasium class in sight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

TRACE = json.loads((Path(__file__).parent / "carla_trace.json").read_text())


class Box:
    """As the old gym's."""

    def __init__(self, low: float, high: float, shape: tuple, dtype: type) -> None:
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)
        self.shape, self.dtype = shape, np.dtype(dtype)


class Discrete:
    def __init__(self, n: int) -> None:
        self.n = n


class Dict:
    def __init__(self, **parts: Any) -> None:
        self.spaces = parts


def picture(square: list[int]) -> np.ndarray:
    """A white square of 3 pixels on grey, (16, 16, 3)."""
    image = np.full((16, 16, 3), 90, np.uint8)
    image[square[0] : square[0] + 3, square[1] : square[1] + 3] = 255
    return image


class Replay:
    """Plays its rows in order; one without an info begins an episode, and a reset goes to the next of these."""

    name = ""

    def __init__(self) -> None:
        self.rows, self.at = TRACE[self.name], -1

    def reset(self) -> Any:
        starts = [i for i, row in enumerate(self.rows) if "info" not in row]
        self.at = next((i for i in starts if i > self.at), starts[0])
        return self.see()

    def step(self, action: Any) -> tuple:
        self.at += 1
        row = self.rows[self.at]
        ended = self.at + 1 == len(self.rows) or "info" not in self.rows[self.at + 1]
        return self.see(), row["reward"], ended, dict(row["info"])

    def see(self) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        self.at = -1


class CarDreamer(Replay):
    """Four of its infos are arrays of one flag; an evaluation adds entries to the observation."""

    name = "cardreamer"
    action_space = Discrete(9)
    observation_space = Dict(birdeye_wpt=Box(0, 255, (16, 16, 3), np.uint8), collision=Box(0, np.inf, (1,), np.float32))

    def see(self) -> Any:
        row = self.rows[self.at]
        return {
            "birdeye_wpt": picture(row["square"]),
            "collision": np.array(row["collision"], np.float32),
            "eval_speed_norm": 0.0,
        }

    def step(self, action: Any) -> tuple:
        *rest, info = super().step(action)
        return (*rest, {key: np.array(value) if isinstance(value, list) else value for key, value in info.items()})


class Car:
    def __init__(self, world: Any) -> None:
        self.world = world

    def get_speed(self) -> float:
        """In km/h."""
        return self.world.row["kmh"]

    def get_angle(self, waypoint: str) -> float:
        assert waypoint == "waypoint"
        return self.world.row["angle"]


class VlmRl(Replay):
    """Keeps the car in attributes."""

    name = "vlm-rl"
    action_space = Box(-1, 1, (2,), np.float32)
    observation_space = Dict(vehicle_measures=Box(-1, 120, (3,), np.float32))
    current_waypoint = "waypoint"

    def __init__(self) -> None:
        super().__init__()
        self.vehicle = Car(self)

    def see(self) -> Any:
        self.row = row = self.rows[self.at]
        self.bev_data, self.collision_state = picture(row["square"]), row["collision"]
        self.distance_from_center, self.routes_completed = row["distance"], row["routes"]
        return {"vehicle_measures": np.array([0.0, 0.0, row["kmh"]], np.float32)}
