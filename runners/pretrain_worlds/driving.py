"""The worlds of driving: highway-env's straight road from above, and CarRacing's track.

Facts of the highway: `clear` in [0, 1], how free the lane is ahead (half at 22 m, nothing ahead counts as 100 m), 0
after a crash; `crashed`; `lane` from 0 at the top of the picture, the left, to 1 at its bottom; `traffic`, the share of
a full picture's cars; `on_road`. Facts of the track: `on_road` in [0, 1], falling where the car's centre leaves the
track; `bend` in rad, the track's turn over the next 30 m, left positive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from runners.pretrain_worlds.lexicon import Attribute, Lexicon, Scene, States, Subject, World, bump, fact, step
from runners.pretrain_worlds.templates import phrases

HIGHWAY, RACING = "highway", "CarRacing"
MANY = 10  # cars in a full picture
LANE = 4.0  # m
TURN_AHEAD = 9  # tiles of 3.5 m


def _collision(s: States) -> np.ndarray:
    return s.fact("crashed") + 0.35 * (1 - s.fact("crashed")) * (1 - s.fact("clear"))


def _on_track(s: States) -> np.ndarray:
    return s.fact("on_road")


def _lowest(s: States) -> np.ndarray:
    return 0.6 * s.fact("lane") + 0.4 * step(s.fact("lane") - 0.85, 0.05)


def _highest(s: States) -> np.ndarray:
    return 0.6 * (1 - s.fact("lane")) + 0.4 * step(0.15 - s.fact("lane"), 0.05)


_CAR_ATTRIBUTES = {
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
_TRACK_ATTRIBUTES = {
    "on_track": Attribute(
        "racer",
        _on_track,
        phrases(
            "on the track, on the grey track, on the road, on the grey road, on the asphalt, in the middle of the "
            "track, staying on the track, driving on the track, inside the track, on the race track, on the street, "
            "within the track, on the pavement"
        ),
        phrases("on the tarmac, on the racecourse, on the course"),
    ),
    "off_track": Attribute(
        "racer",
        lambda s: 1 - s.fact("on_road"),
        phrases(
            "on the grass, on the green grass, off the track, off the road, beside the track, in the grass, on the "
            "lawn, on the meadow, outside the track, next to the track, away from the track, on green ground, in the "
            "field"
        ),
        phrases("on the turf, in the greenery, astray"),
    ),
    "straight": Attribute(
        "track",
        lambda s: bump(s.fact("bend"), 0.3),
        phrases("straight, straight ahead, without a curve, leading straight ahead, going straight on"),
        phrases("unbent, not winding"),
    ),
    "curve": Attribute(
        "track",
        lambda s: 1 - bump(s.fact("bend"), 0.3),
        phrases("curved, bending, bent, turning, winding, making a turn, curving, not straight"),
        phrases("twisting, swerving"),
    ),
    "curve_left": Attribute(
        "track",
        lambda s: step(s.fact("bend") - 0.4, 0.15),
        phrases("turning left, bending to the left, curving to the left, turning to the left, leading left"),
        phrases(
            "veering left",
        ),
    ),
    "curve_right": Attribute(
        "track",
        lambda s: step(-s.fact("bend") - 0.4, 0.15),
        phrases("turning right, bending to the right, curving to the right, turning to the right, leading right"),
        phrases(
            "veering right",
        ),
    ),
}


def _highway_facts(env: Any) -> dict[str, float]:
    from envs.driving_sense import sense
    from envs.vehicle import read

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


def _highway_scenes(rng: np.random.Generator, count: int, look: np.random.Generator) -> Iterator[Scene]:
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
            yield env, _highway_facts(env)
        env.close()


def _highway_walk(rng: np.random.Generator, steps: int) -> Iterator[Scene]:
    from envs.make import make

    env = make("highway-fast-v0", render_mode="rgb_array", config={"vehicles_count": 12})
    env.reset(seed=int(rng.integers(1000)))
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(int(rng.integers(5)))
        yield env, _highway_facts(env)
        if terminated or truncated:
            env.reset()
    env.close()


def _track_facts(env: Any) -> dict[str, float]:
    from gymnasium.envs.box2d.car_racing import TRACK_WIDTH

    inner = env.unwrapped
    track = np.array(inner.track)  # angle around the field, direction, x, y
    hull = inner.car.hull
    gap = np.hypot(track[:, 2] - hull.position[0], track[:, 3] - hull.position[1])
    nearest = int(gap.argmin())
    ahead = _ahead(track, nearest, float(hull.angle))
    bend = np.diff(np.unwrap(track[ahead, 1])).sum()
    return {"on_road": float(step(TRACK_WIDTH - gap[nearest], 1.0)), "bend": float(bend)}


def _ahead(track: np.ndarray, nearest: int, angle: float) -> np.ndarray:
    """Indices of the next tiles in the direction the car faces; the track is a ring."""
    forward = np.cos(track[nearest, 1] - angle) >= 0
    return (nearest + (1 if forward else -1) * np.arange(TURN_AHEAD + 1)) % len(track)


def _track_scenes(rng: np.random.Generator, count: int, look: np.random.Generator) -> Iterator[Scene]:
    """Tracks of many seeds, 40 places each; half of them on the track. Speed, score and time show, and mean nothing."""
    from gymnasium.envs.box2d.car_dynamics import Car
    from gymnasium.envs.box2d.car_racing import TRACK_WIDTH

    from envs.make import make

    env: Any = make("CarRacing-v3", render_mode="rgb_array")
    inner = env.unwrapped
    for i in range(count):
        if i % 40 == 0:
            env.reset(seed=int(rng.integers(2**31)))
        _, direction, x, y = inner.track[int(rng.integers(len(inner.track)))]
        offset = float(rng.uniform(-1, 1)) * TRACK_WIDTH * (1.0 if rng.random() < 0.5 else 3.0)
        angle = direction + float(rng.normal(0, 0.25)) + (np.pi if rng.random() < 0.05 else 0.0)
        inner.car.destroy()
        inner.car = Car(inner.world, angle, x + offset * np.cos(direction), y + offset * np.sin(direction))
        inner.car.hull.linearVelocity = tuple(look.normal(0, 20, 2))
        inner.t, inner.reward = float(look.uniform(0.8, 20)), float(look.uniform(-100, 900))
        yield env, _track_facts(env)
    env.close()


def _track_walk(rng: np.random.Generator, steps: int) -> Iterator[Scene]:
    """A random policy that likes the gas, three frames to an action, from a new track every 100 steps."""
    from envs.make import make

    env = make("CarRacing-v3", render_mode="rgb_array")
    for t in range(steps):
        if t % 100 == 0:
            env.reset(seed=int(rng.integers(2**31)))
        action = np.array([rng.uniform(-1, 1), rng.uniform(0, 0.5), 0.0])
        for _ in range(3):
            env.step(action)
        yield env, _track_facts(env)
    env.close()


def _cars(text: str) -> tuple[str, ...]:
    return (HIGHWAY,) if "green" in text or "cars" in text else (HIGHWAY, RACING)


def _racers(text: str) -> tuple[str, ...]:
    return (RACING,) if any(word in text for word in ("red", "rac", "track", "grass")) else (HIGHWAY, RACING)


_VERBATIM = (
    "The road is clear with no car accidents",
    "Two cars have collided with each other on the road",
)  # VLM-RL's two sentences
_ROAD_GOALS = (
    ("a green car with no car close ahead of it", "clear"),
    ("a green car with another car close ahead of it", "close"),
    (_VERBATIM[0], "road_clear"),
    (_VERBATIM[1], "collision"),
    ("a green car in the lowest lane of the road", "lowest"),
    ("a green car in the highest lane of the road", "highest"),
)
_TRACK_GOALS = (
    ("a red car on the grey track", "on_track"),
    ("a red car on the green grass", "off_track"),
)

LEXICON = Lexicon(
    worlds=(
        World(HIGHWAY, ("highway-*",), _highway_scenes, _highway_walk, goals=_ROAD_GOALS),
        World(RACING, ("CarRacing-*",), _track_scenes, _track_walk, 0.75, _TRACK_GOALS),
    ),
    attributes=_CAR_ATTRIBUTES | _TRACK_ATTRIBUTES,
    opposites=(
        ("clear", "close"),
        ("road_clear", "collision"),
        ("crashed", "road_blocked"),
        ("lowest", "highest"),
        ("busy", "empty"),
        ("on_track", "off_track"),
        ("straight", "curve"),
        ("curve_left", "curve_right"),
    ),
    subjects={
        "car": Subject(
            _cars,
            phrases(
                "green car, green car, green vehicle, green automobile, car, green rectangle, green box, own car, sedan"
            ),
            phrases("green truck, green cab"),
            phrases("green block, green van"),
        ),
        "cars": Subject(
            lambda text: (HIGHWAY,),
            phrases("two cars, cars, two vehicles, vehicles, two cars on the road, pair of cars"),
            phrases("two automobiles, trucks"),
            phrases(
                "two sedans",
            ),
        ),
        "road": Subject(
            lambda text: (HIGHWAY,),
            phrases("road, road ahead, lane, highway, street, lane ahead, way, motorway, way ahead"),
            phrases("freeway, roadway"),
            phrases(
                "expressway",
            ),
        ),
        "racer": Subject(
            _racers,
            phrases(
                "red car, red car, race car, racing car, red race car, car, small red car, red vehicle, sports car"
            ),
            phrases("red buggy, racer"),
            phrases(
                "red roadster",
            ),
        ),
        "track": Subject(
            lambda text: (RACING,),
            phrases("track, race track, grey track, racing track, track ahead, course ahead"),
            phrases("circuit, raceway"),
            phrases(
                "speedway",
            ),
        ),
    },
    baselines={
        "car": phrases(
            "a green car on a road, a green car, green car on a highway, a highway with cars in green and blue, a "
            "picture of a highway with a green car"
        ),
        "racer": phrases("a red car, a race car, a picture of a red car, a racing game, a red car from above"),
    },
    pairs=(
        (("clear", "close", "crashed"), ("lowest", "highest", "middle")),
        (("lowest", "highest"), ("busy", "empty")),
        (("on_track", "off_track"), ("curve_left", "curve_right", "straight")),
    ),
    pairs_held_out={"clear": "lowest", "off_track": "straight"},
    verbatim=_VERBATIM,
)
