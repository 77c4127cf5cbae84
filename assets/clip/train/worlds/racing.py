"""The world of CarRacing: a red car on a grey track through grass.

Facts: `on_road` in [0, 1], falling where the car's centre leaves the track; `bend` in rad, the track's turn over the
next 30 m, left positive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from assets.clip.train.worlds.highway import HIGHWAY, RACING
from assets.clip.train.worlds.shapes import bump, fact, step
from rewards.vision.training.lexicon import Attribute, Lexicon, Scene, SubjectNames, World, phrases

TURN_AHEAD = 9  # tiles of 3.5 m

_ATTRIBUTES = {
    "on_track": Attribute(
        "racer",
        fact("on_road"),
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


def _facts(env: Any) -> dict[str, float]:
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


def _scenes(rng: np.random.Generator, count: int, look: np.random.Generator) -> Iterator[Scene]:
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
        yield env, _facts(env)
    env.close()


def _walk(rng: np.random.Generator, steps: int) -> Iterator[Scene]:
    """A random policy that likes the gas, three frames to an action, from a new track every 100 steps."""
    from envs.make import make

    env = make("CarRacing-v3", render_mode="rgb_array")
    for t in range(steps):
        if t % 100 == 0:
            env.reset(seed=int(rng.integers(2**31)))
        action = np.array([rng.uniform(-1, 1), rng.uniform(0, 0.5), 0.0])
        for _ in range(3):
            env.step(action)
        yield env, _facts(env)
    env.close()


def _racers(text: str) -> tuple[str, ...]:
    return (RACING,) if any(word in text for word in ("red", "rac", "track", "grass")) else (HIGHWAY, RACING)


_GOALS = (
    ("a red car on the grey track", "on_track"),
    ("a red car on the green grass", "off_track"),
)


LEXICON = Lexicon(
    worlds=(World(RACING, ("CarRacing-*",), _scenes, _walk, 0.75, _GOALS),),
    attributes=_ATTRIBUTES,
    opposites=(("on_track", "off_track"), ("straight", "curve"), ("curve_left", "curve_right")),
    subjects={
        "racer": SubjectNames(
            _racers,
            phrases(
                "red car, red car, race car, racing car, red race car, car, small red car, red vehicle, sports car"
            ),
            phrases("red buggy, racer"),
            phrases(
                "red roadster",
            ),
        ),
        "track": SubjectNames(
            lambda text: (RACING,),
            phrases("track, race track, grey track, racing track, track ahead, course ahead"),
            phrases("circuit, raceway"),
            phrases(
                "speedway",
            ),
        ),
    },
    baselines={
        "racer": phrases("a red car, a race car, a picture of a red car, a racing game, a red car from above"),
    },
    pairs=((("on_track", "off_track"), ("curve_left", "curve_right", "straight")),),
    pairs_held_out={"off_track": "straight"},
)
