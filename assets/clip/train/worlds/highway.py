"""The world of highway-env: a green car on a straight road from above, among blue ones.

Facts: `clear` in [0, 1], how free the lane is ahead (half at 22 m, nothing ahead counts as 100 m), 0 after a crash;
`crashed`; `lane` from 0 at the top of the picture, the left, to 1 at its bottom; `traffic`, the share of a full
picture's cars; `on_road`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from assets.clip.train.worlds.shapes import bump, fact, step
from rewards.vision.training.lexicon import Attribute, Lexicon, Scene, States, SubjectNames, World, phrases

HIGHWAY, RACING = "highway", "CarRacing"  # a car of no colour may be either's
MANY = 10  # cars in a full picture
LANE = 4.0  # m


def _collision(s: States) -> np.ndarray:
    return s.fact("crashed") + 0.35 * (1 - s.fact("crashed")) * (1 - s.fact("clear"))


def _lowest(s: States) -> np.ndarray:
    return 0.6 * s.fact("lane") + 0.4 * step(s.fact("lane") - 0.85, 0.05)


def _highest(s: States) -> np.ndarray:
    return 0.6 * (1 - s.fact("lane")) + 0.4 * step(0.15 - s.fact("lane"), 0.05)


_ATTRIBUTES = {
    "clear": Attribute(
        "car",
        fact("clear"),
        phrases(
            "with no car close ahead of it, with a clear road ahead, with a free road ahead, far from other cars, with "
            "no car ahead, with no car close in front of it, with nothing ahead, alone in its lane, in no danger, on a "
            "clear road, on a free road, free to drive, with an empty lane ahead, driving freely, safe, far behind the "
            "next car, with no other car ahead, driving safely"
        ),
        phrases("with no vehicle ahead, unobstructed, with plenty of room ahead, out of danger"),
        worlds=(HIGHWAY,),
    ),
    "close": Attribute(
        "car",
        lambda s: (1 - s.fact("clear")) * (1 - 0.5 * s.fact("crashed")),
        phrases(
            "close behind another car, too close to the car ahead, with a car close ahead of it, right behind a blue "
            "car, about to hit the car ahead, with another car close ahead, blocked by a car, with a car in front of "
            "it, near the car ahead, in danger, behind another car, stuck behind a car, close to a collision"
        ),
        phrases("shortly behind a vehicle, tailing another car, obstructed by a car"),
        worlds=(HIGHWAY,),
    ),
    "crashed": Attribute(
        "car",
        fact("crashed"),
        phrases(
            "crashed, in an accident, in a collision, in a crash, hit by another car, crashed into another car, "
            "wrecked, red after a crash, destroyed in an accident, colliding with another car, touching another car"
        ),
        phrases("smashed, bumping into another car"),
        worlds=(HIGHWAY,),
    ),
    "collision": Attribute(
        "cars",
        _collision,
        phrases(
            "crashed on the road, in a collision, crashed into each other, hitting each other, in an accident, "
            "colliding, in a crash, crashed into each other on the road, collided with each other, colliding on the "
            "road, in an accident on the road, collided"
        ),
        phrases("smashed into each other, involved in an accident"),
        worlds=(HIGHWAY,),
    ),
    "road_clear": Attribute(
        "road",
        fact("clear"),
        phrases(
            "clear, free, clear ahead, free ahead, safe, clear without accidents, free of accidents, clear with no "
            "accident, safe with no collisions, clear and without crashes, open ahead, without an accident, clear with "
            "no crash, free of crashes, clear of cars, without any accidents"
        ),
        phrases("unobstructed, passable"),
        worlds=(HIGHWAY,),
    ),
    "road_blocked": Attribute(
        "road",
        lambda s: 1 - s.fact("clear"),
        phrases("blocked, blocked ahead, not free, blocked by a car, dangerous, unsafe, obstructed, closed by a car"),
        phrases(
            "jammed ahead",
        ),
        worlds=(HIGHWAY,),
    ),
    "lowest": Attribute(
        "car",
        _lowest,
        phrases(
            "in the lowest lane of the road, in the lowest lane, in the right lane, in the rightmost lane, in the "
            "bottom lane, on the right side of the road, in the slow lane, in the lower lane, in the lane at the "
            "bottom, at the bottom of the road, on the lowest lane of the road"
        ),
        phrases("in the last lane, in the lane furthest down"),
        worlds=(HIGHWAY,),
    ),
    "highest": Attribute(
        "car",
        _highest,
        phrases(
            "in the highest lane of the road, in the highest lane, in the left lane, in the leftmost lane, in the top "
            "lane, on the left side of the road, in the fast lane, in the upper lane, in the lane at the top, at the "
            "top of the road, in the top lane of the road"
        ),
        phrases("in the first lane, in the lane furthest up"),
        worlds=(HIGHWAY,),
    ),
    "middle": Attribute(
        "car",
        lambda s: bump(s.fact("lane") - 0.5, 0.18),
        phrases("in the middle lane, in the centre lane, in the middle of the road, in the center of the road"),
        phrases(
            "in the central lane",
        ),
        worlds=(HIGHWAY,),
    ),
    "busy": Attribute(
        "road",
        lambda s: np.minimum(1, s.fact("traffic")),
        phrases("full of cars, busy, crowded, full, packed with cars, full of traffic"),
        phrases("congested, teeming with vehicles"),
        worlds=(HIGHWAY,),
    ),
    "empty": Attribute(
        "road",
        lambda s: 1 - np.minimum(1, s.fact("traffic")),
        phrases("empty, deserted, without other cars, without traffic, quiet, almost empty"),
        phrases("vacant, abandoned"),
        worlds=(HIGHWAY,),
    ),
}


def _facts(env: Any) -> dict[str, float]:
    from envs.driving.vehicle import read, sense

    inner = env.unwrapped
    ego, car = inner.vehicle, read(sense(env))
    last = len(inner.road.network.all_side_lanes(ego.lane_index)) - 1
    ahead = [v.position[0] - ego.position[0] for v in inner.road.vehicles if v is not ego]
    return {
        "clear": float(step(car.gap - 22, 5)) * (1 - float(car.crashed)),
        "crashed": float(car.crashed),
        "lane": float(np.clip(ego.position[1] / (LANE * last), 0, 1)) if last else 0.5,
        "traffic": sum(-30 < gap < 75 for gap in ahead) / MANY,
        "on_road": float(car.on_road),
    }


def _rearrange(env: Any, rng: np.random.Generator) -> None:
    """Other cars anywhere in the picture, none on top of another; one in seven scenes is a crash."""
    inner = env.unwrapped
    ego, road = inner.vehicle, inner.road
    lanes = len(road.network.all_side_lanes(ego.lane_index))
    x, lane = float(rng.uniform(150, 400)), int(rng.integers(lanes))
    y = LANE * lane + (rng.normal(0, 0.8) if rng.random() < 0.3 else 0.0)
    _place(ego, x, float(np.clip(y, -0.5, LANE * lanes - 3.5)), float(rng.normal(0, 0.03)))
    ego.crashed = False
    others = [v for v in road.vehicles if v is not ego]
    rng.shuffle(others)  # type: ignore[arg-type]
    keep = int(rng.integers(1, MANY + 1))
    taken = [(x, ego.position[1])]
    placed = []
    for i, other in enumerate(others[:keep]):
        if i == 0 and rng.random() < 0.6:  # the car ahead, at any distance
            at, row = x + 5.5 + float(rng.exponential(25)), int(ego.lane_index[2])
        else:
            at, row = x + float(rng.uniform(-32, 78)), int(rng.integers(lanes))
        if all(abs(at - a) > 6.5 or abs(LANE * row - b) > 2.5 for a, b in taken[1:]) and (
            abs(at - x) > 5.5 or abs(LANE * row - ego.position[1]) > 2.5
        ):
            _place(other, at, LANE * row, 0.0)
            other.crashed = False
            taken.append((at, LANE * row))
            placed.append(other)
    road.vehicles = [ego, *placed]
    if placed and rng.random() < 0.15:
        _crash(ego, placed[0], rng)


def _crash(ego: Any, other: Any, rng: np.random.Generator) -> None:
    side = rng.choice([0.0, 0.0, -1.9, 1.9])
    offset = float(rng.uniform(3.5, 5.0)) if side == 0 else float(rng.uniform(-4, 4))
    _place(other, ego.position[0] + offset, ego.position[1] + side, float(rng.normal(0, 0.1)))
    ego.crashed = other.crashed = True


def _place(vehicle: Any, x: float, y: float, heading: float) -> None:
    vehicle.position = np.array([x, y])
    vehicle.heading = heading
    vehicle.on_state_update()


def _scenes(rng: np.random.Generator, count: int, look: np.random.Generator) -> Iterator[Scene]:
    """Roads of 3 and 4 lanes, more rarely 2; the heaviest traffic has 14 cars in the picture's reach."""
    from envs.make import make

    shares = ((3, 0.5), (4, 0.35), (2, 0.15))
    for lanes, share in shares:
        config = {"lanes_count": lanes, "vehicles_count": 14}
        env = make("highway-fast-v0", render_mode="rgb_array", config=config)
        for i in range(round(share * count)):
            if i % 50 == 0:
                env.reset(seed=int(rng.integers(2**31)))
                everybody = list(env.unwrapped.road.vehicles)  # type: ignore[attr-defined]
            env.unwrapped.road.vehicles = list(everybody)  # type: ignore[attr-defined]
            _rearrange(env, rng)
            yield env, _facts(env)
        env.close()


def _walk(rng: np.random.Generator, steps: int) -> Iterator[Scene]:
    from envs.make import make

    env = make("highway-fast-v0", render_mode="rgb_array", config={"vehicles_count": 12})
    env.reset(seed=int(rng.integers(1000)))
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(int(rng.integers(5)))
        yield env, _facts(env)
        if terminated or truncated:
            env.reset()
    env.close()


def _cars(text: str) -> tuple[str, ...]:
    return (HIGHWAY,) if "green" in text or "cars" in text else (HIGHWAY, RACING)


_VERBATIM = (
    "The road is clear with no car accidents",
    "Two cars have collided with each other on the road",
)  # VLM-RL's two sentences
_GOALS = (
    ("a green car with no car close ahead of it", "clear"),
    ("a green car with another car close ahead of it", "close"),
    (_VERBATIM[0], "road_clear"),
    (_VERBATIM[1], "collision"),
    ("a green car in the lowest lane of the road", "lowest"),
    ("a green car in the highest lane of the road", "highest"),
)

LEXICON = Lexicon(
    worlds=(World(HIGHWAY, ("highway-*",), _scenes, _walk, goals=_GOALS),),
    attributes=_ATTRIBUTES,
    opposites=(
        ("clear", "close"),
        ("road_clear", "collision"),
        ("crashed", "road_blocked"),
        ("lowest", "highest"),
        ("busy", "empty"),
    ),
    subjects={
        "car": SubjectNames(
            _cars,
            phrases(
                "green car, green car, green vehicle, green automobile, car, green rectangle, green box, own car, sedan"
            ),
            phrases("green truck, green cab"),
            phrases("green block, green van"),
        ),
        "cars": SubjectNames(
            lambda text: (HIGHWAY,),
            phrases("two cars, cars, two vehicles, vehicles, two cars on the road, pair of cars"),
            phrases("two automobiles, trucks"),
            phrases(
                "two sedans",
            ),
        ),
        "road": SubjectNames(
            lambda text: (HIGHWAY,),
            phrases("road, road ahead, lane, highway, street, lane ahead, way, motorway, way ahead"),
            phrases("freeway, roadway"),
            phrases(
                "expressway",
            ),
        ),
    },
    baselines={
        "car": phrases(
            "a green car on a road, a green car, green car on a highway, a highway with cars in green and blue, a "
            "picture of a highway with a green car"
        ),
    },
    pairs=(
        (("clear", "close", "crashed"), ("lowest", "highest", "middle")),
        (("lowest", "highest"), ("busy", "empty")),
    ),
    pairs_held_out={"clear": "lowest"},
    verbatim=_VERBATIM,
)
