"""The world of MiniGrid: a red triangle among walls, doors and keys, on its way to a green square.

Facts: `goal`, `key` and `door` say how near the agent is to the nearest of them, along the shortest path (doors count
as open), from 0 at the farthest cell to 1 where it is: on the green square, or beside the key or the door; 0 where
there is none. `goals`, `doors`, `keys` say whether there is one (`keys`: on the floor); `open` whether a door is open,
`carrying` whether the agent carries a key, which the picture shows only by the key's absence; `direction` 0 to 3 for
right, down, left, up; `across` and `down` where the agent is, in [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from assets.clip.train.worlds.shapes import fact, step
from rewards.vision.training.lexicon import Attribute, Lexicon, Scene, States, SubjectNames, World, phrases

GRID = "MiniGrid"
# How often an id is drawn. Small grids more often: in the large ones a cell has only 4 to 6 pixels.
IDS = {
    "MiniGrid-Empty-5x5-v0": 1,
    "MiniGrid-Empty-8x8-v0": 4,
    "MiniGrid-Empty-16x16-v0": 1,
    "MiniGrid-DoorKey-5x5-v0": 2,
    "MiniGrid-DoorKey-6x6-v0": 1,
    "MiniGrid-DoorKey-8x8-v0": 4,
    "MiniGrid-DoorKey-16x16-v0": 1,
    "MiniGrid-FourRooms-v0": 2,
    "MiniGrid-KeyCorridorS3R1-v0": 1,
    "MiniGrid-KeyCorridorS3R2-v0": 1,
    "MiniGrid-KeyCorridorS3R3-v0": 1,
    "MiniGrid-MultiRoom-N2-S4-v0": 1,
    "MiniGrid-Unlock-v0": 1,
}


def _climb(name: str) -> Callable[[States], np.ndarray]:
    """A slope along the path and a peak at its end."""
    return lambda s: 0.6 * s.fact(name) + 0.4 * (s.fact(name) == 1)


def _faces(direction: int) -> Callable[[States], np.ndarray]:
    return lambda s: np.asarray(s.fact("direction") == direction, np.float64)


_FACING = {"right": 0, "down": 1, "left": 2, "up": 3}
_ATTRIBUTES = {
    "at_goal": Attribute(
        "agent",
        _climb("goal"),
        phrases(
            "on the green square, at the green square, at the goal, on the goal, near the green square, in the green "
            "square, close to the green square, next to the green square, near the goal, at its destination, reaching "
            "the green square, standing on the green square, on the green field, on the green goal, inside the green "
            "square, at the exit, at the target, touching the green square, on top of the green square, moving to the "
            "green square, at the green goal"
        ),
        phrases("upon the green square, at the finish, within the green square, at the green spot, on the green tile"),
    ),
    "far_from_goal": Attribute(
        "agent",
        lambda s: s.fact("goals") * (1 - 0.6 * s.fact("goal") - 0.4 * (s.fact("goal") == 1)),
        phrases(
            "far from the green square, away from the green square, far away from the goal, not yet at the goal, far "
            "from the goal, distant from the green square, at a distance from the green square, off the green square, "
            "a long way from the green square, lost in the maze"
        ),
        phrases("remote from the green square, nowhere near the green square"),
    ),
    "at_key": Attribute(
        "agent",
        _climb("key"),
        phrases("next to the key, beside the key, near the key, close to the key, at the key, by the key"),
        phrases("alongside the key, in front of the key"),
    ),
    "at_door": Attribute(
        "agent",
        _climb("door"),
        phrases("next to the door, beside the door, near the door, at the door, in front of the door, by the door"),
        phrases("alongside the door, at the gate"),
    ),
    "carrying": Attribute(
        "agent",
        fact("carrying"),
        phrases(
            "carrying the key, holding the key, carrying a key, holding a key, in possession of the key, taking the key"
        ),
        phrases("bearing the key, equipped with the key"),
        alone=True,
    ),
    "open": Attribute(
        "door",
        fact("open"),
        phrases("open, opened, wide open, unlocked, standing open, open now, open between two rooms"),
        phrases("ajar, unbarred"),
    ),
    "closed": Attribute(
        "door",
        lambda s: s.fact("doors") * (1 - s.fact("open")),
        phrases("closed, locked, shut, still closed, closed now, blocked, still locked, closed between two rooms"),
        phrases("sealed, barred"),
    ),
    "key_there": Attribute(
        "key",
        fact("keys"),
        phrases("on the floor, on the ground, lying on the floor, in the room, lying there, still there, waiting"),
        phrases("lying around, visible"),
    ),
    "key_gone": Attribute(
        "key",
        fact("carrying"),
        phrases("gone, taken, picked up, taken away, missing, no longer there, in the hands of the agent, lifted"),
        phrases("removed, collected, vanished"),
    ),
    "agent_left": Attribute(
        "agent",
        lambda s: step(0.42 - s.fact("across"), 0.08),
        phrases("on the left, on the left side, in the left half, at the left edge, to the left, in the left room"),
        phrases(
            "at the left end",
        ),
    ),
    "agent_right": Attribute(
        "agent",
        lambda s: step(s.fact("across") - 0.58, 0.08),
        phrases(
            "on the right, on the right side, in the right half, at the right edge, to the right, in the right room"
        ),
        phrases(
            "at the right end",
        ),
    ),
    "agent_top": Attribute(
        "agent",
        lambda s: step(0.42 - s.fact("down"), 0.08),
        phrases("at the top, in the upper half, in the top row, near the top, at the upper edge, in the upper part"),
        phrases(
            "at the upper end",
        ),
    ),
    "agent_bottom": Attribute(
        "agent",
        lambda s: step(s.fact("down") - 0.58, 0.08),
        phrases(
            "at the bottom, in the lower half, in the bottom row, near the bottom, at the lower edge, in the lower part"
        ),
        phrases(
            "at the lower end",
        ),
    ),
} | {
    f"faces_{word}": Attribute(
        "agent",
        _faces(direction),
        (f"facing {word}", f"pointing {word}", f"looking {word}", f"turned {word}", f"heading {word}"),
        (f"directed {word}", f"oriented {word}"),
    )
    for word, direction in _FACING.items()
}


def _steps_from(grid: Any, targets: list[tuple[int, int]]) -> np.ndarray:
    """Path length from the nearest target to each cell, int (width, height); -1 where no path leads."""
    length = np.full((grid.width, grid.height), -1)
    front = list(targets)
    for cell in front:
        length[cell] = 0
    while front:
        following = []
        for x, y in front:
            for cell in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
                inside = 0 <= cell[0] < grid.width and 0 <= cell[1] < grid.height
                if inside and length[cell] < 0 and getattr(grid.get(*cell), "type", "") not in ("wall", "lava"):
                    length[cell] = length[x, y] + 1
                    following.append(cell)
        front = following
    return length


def _places(grid: Any, kind: str) -> list[tuple[int, int]]:
    return [
        (i % grid.width, i // grid.width)
        for i, thing in enumerate(grid.grid)
        if thing is not None and thing.type == kind
    ]


def facts(env: Any) -> dict[str, float]:
    """The facts of a live environment; the module says which."""
    inner = env.unwrapped
    grid, (x, y) = inner.grid, (int(v) for v in inner.agent_pos)
    found: dict[str, float] = {}
    for kind, arrived in (("goal", 0), ("key", 1), ("door", 1)):
        places = _places(grid, kind)
        length = _steps_from(grid, places)
        gap = max(0, int(length[x, y]) - arrived) if places and length[x, y] >= 0 else None
        found[kind] = 0.0 if gap is None else 1 - gap / max(1, int(length.max()) - arrived)
        found[f"{kind}s"] = float(bool(places))
    doors = [thing for thing in grid.grid if thing is not None and thing.type == "door"]
    found["open"] = float(any(door.is_open for door in doors))
    found["carrying"] = float(inner.carrying is not None and inner.carrying.type == "key")
    found["direction"] = float(inner.agent_dir)
    found["across"], found["down"] = x / (grid.width - 1), y / (grid.height - 1)
    return found


def _rearrange(env: Any, rng: np.random.Generator) -> None:
    """Key taken or not, doors open or not, the agent anywhere; one in four on or beside the goal, key or door."""
    inner = env.unwrapped
    grid = inner.grid
    keys = _places(grid, "key")
    if keys and rng.random() < 0.5:
        inner.carrying = grid.get(*keys[0])
        grid.set(*keys[0], None)
    opened = rng.random() < 0.6
    for x, y in _places(grid, "door"):
        door = grid.get(x, y)
        door.is_open = opened and rng.random() < 0.8
        door.is_locked = door.is_locked and not door.is_open
    free = [
        (x, y)
        for x in range(grid.width)
        for y in range(grid.height)
        if grid.get(x, y) is None or grid.get(x, y).type == "goal"
    ]
    targets = [place for kind in ("goal", "key", "door") for place in _places(grid, kind)]
    if targets and rng.random() < 0.35:
        target = targets[int(rng.integers(len(targets)))]
        reach = int(rng.integers(2)) if grid.get(*target).type == "goal" else 1
        free = [(x, y) for x, y in free if abs(x - target[0]) + abs(y - target[1]) <= reach] or free
    x, y = (int(v) for v in inner.agent_pos)
    length = _steps_from(grid, [(x, y)])
    free = [cell for cell in free if length[cell] >= 0] or free
    inner.agent_pos = np.array(free[int(rng.integers(len(free)))])
    inner.agent_dir = int(rng.integers(4))


def _scenes(rng: np.random.Generator, count: int, look: np.random.Generator) -> Iterator[Scene]:
    from envs.make import make

    shares = np.cumsum([0, *IDS.values()]) / sum(IDS.values())
    for i, env_id in enumerate(IDS):
        env = make(env_id, render_mode="rgb_array")
        for _ in range(round(shares[i] * count), round(shares[i + 1] * count)):
            env.reset(seed=int(rng.integers(2**31)))
            _rearrange(env, rng)
            yield env, facts(env)
        env.close()


def _seek(env: Any) -> int:
    """One step along the shortest path to the goal: forward where that is nearer, else a turn to the right."""
    inner = env.unwrapped
    length = _steps_from(inner.grid, _places(inner.grid, "goal"))
    (x, y), (ahead, below) = inner.agent_pos, inner.front_pos
    return 2 if 0 <= length[ahead, below] < length[x, y] else 1


def _walk(rng: np.random.Generator, steps: int) -> Iterator[Scene]:
    """A random policy in DoorKey and in Empty; there also one that seeks the goal, with three random steps in ten."""
    from envs.make import make

    for env_id, seeks in (("DoorKey-5x5", 0.0), ("Empty-8x8", 0.0), ("Empty-8x8", 0.7)):
        env = make(f"MiniGrid-{env_id}-v0", render_mode="rgb_array", seed=int(rng.integers(1000)))
        env.reset()
        for _ in range(steps // 3):
            action = int(rng.choice(6, p=[0.15, 0.15, 0.45, 0.1, 0.0, 0.15]))
            _, _, terminated, truncated, _ = env.step(_seek(env) if rng.random() < seeks else action)
            yield env, facts(env)
            if terminated or truncated:
                env.reset()
        env.close()


_WHERE = ("agent_left", "agent_right", "agent_top", "agent_bottom")

_GOALS = (
    ("a red triangle on the green square", "at_goal"),
    ("a red triangle far from the green square", "far_from_goal"),
    ("the door is open", "open"),
    ("the door is closed", "closed"),
)

LEXICON = Lexicon(
    worlds=(World(GRID, ("MiniGrid-*",), _scenes, _walk, 1.25, _GOALS),),
    attributes=_ATTRIBUTES,
    opposites=(
        ("at_goal", "far_from_goal"),
        ("open", "closed"),
        ("key_there", "key_gone"),
        ("agent_left", "agent_right"),
        ("agent_top", "agent_bottom"),
        ("faces_left", "faces_right"),
        ("faces_up", "faces_down"),
    ),
    subjects={
        "agent": SubjectNames(
            lambda text: (GRID,),
            phrases("red triangle, red triangle, triangle, agent, red agent, player, red arrow, arrow, red player"),
            phrases("red pointer, hero"),
            phrases("red wedge, explorer"),
        ),
        "door": SubjectNames(
            lambda text: (GRID,),
            phrases("door, gate, yellow door, coloured door, door of the room, door between the rooms, way"),
            phrases("doorway, entrance"),
            phrases("portal, hatch"),
        ),
        "key": SubjectNames(
            lambda text: (GRID,),
            phrases("key, yellow key, coloured key, little key"),
            phrases(
                "small key",
            ),
            phrases(
                "key object",
            ),
        ),
    },
    baselines={
        "agent": phrases(
            "a red triangle, a red triangle in a grid of rooms, a grid of rooms, a maze, a triangle in a room, a grid "
            "world, a picture of a grid, rooms with walls, an agent in a maze"
        )
    },
    pairs=(
        (("at_goal", "far_from_goal", "at_door", "carrying", *_WHERE), ("open", "closed")),
        (_WHERE, tuple(f"faces_{word}" for word in _FACING)),
        (("agent_left", "agent_right"), ("agent_top", "agent_bottom")),
        (("open", "closed"), ("key_there", "key_gone")),
    ),
    pairs_held_out={"at_goal": "open", "agent_left": "agent_top", "agent_right": "faces_up"},
)
