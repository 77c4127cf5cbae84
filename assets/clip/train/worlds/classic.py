"""The worlds of the in-domain CLIP `lodestar`: CartPole, MountainCar and Pendulum.

Facts: `angle` is 0 when the rod points up and grows clockwise, in [-pi, pi]; `x` is CartPole's cart or MountainCar's
car, in the environment's own units.

Held out of training, for `assets.clip.train.evaluate`: synonyms, phrasings, attribute pairs, VLM-RM's verbatim prompts.
The `fresh` lists were written when training was over: the held-out lists were known while the lexicon grew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from assets.clip.train.worlds.shapes import bump, near, step, turn
from rewards.vision.training.lexicon import Attribute, Lexicon, Scene, SubjectNames, World, phrases

CARTPOLE, MOUNTAINCAR, PENDULUM = "CartPole", "MountainCar", "Pendulum"

_ATTRIBUTES = {
    "up": Attribute(
        "rod",
        lambda s: near(s.fact("angle"), 0),
        phrases(
            "upright, standing upright, standing straight up, standing, pointing up, pointing upwards, straight up, "
            "in the upright position, balanced upright, balanced, raised, standing tall, held up, perpendicular to "
            "the ground, vertically balanced, pointing at the sky, pointing to the ceiling, aiming up, up in the "
            "air, on end, up, held vertically, standing vertically, straight, upwards, facing up, sticking up, "
            "stable and upright, in balance, perfectly balanced"
        ),
        phrases("vertical, erect, pointing skyward, upended, straight and tall"),
        fresh=phrases("plumb, upstanding, pointed upward, skywards"),
        alone=True,
    ),
    "down": Attribute(
        "rod",
        lambda s: near(s.fact("angle"), np.pi),
        phrases(
            "hanging down, hanging, pointing down, pointing downwards, straight down, upside down, lowered, in the "
            "hanging position, below the axis, suspended, fallen down, pointing at the ground, down, at the bottom, "
            "hanging vertically downwards, aiming down, sagging, downwards, facing down, dropped, below, swinging "
            "below, limp"
        ),
        phrases("dangling, drooping, pointing at the floor, flipped over"),
        fresh=phrases("hung downward, dangling down, pointed downward"),
        alone=True,
    ),
    "flat": Attribute(
        "rod",
        lambda s: (
            near(s.fact("angle"), np.pi / 2) * (np.sin(s.fact("angle")) > 0)
            + near(s.fact("angle"), -np.pi / 2) * (np.sin(s.fact("angle")) <= 0)
        ),
        phrases(
            "horizontal, lying flat, parallel to the ground, flat, in a horizontal position, horizontally aligned, "
            "lying on its side, pointing to the side, lying down"
        ),
        phrases("sideways, lying down flat, level with the ground"),
        fresh=phrases("laid flat, parallel to the floor"),
        alone=True,
    ),
    "right": Attribute(
        "rod",
        lambda s: near(s.fact("angle"), np.pi / 2),
        phrases(
            "pointing right, pointing to the right, turned to the right, on the right side, aiming right, facing right"
        ),
        ("directed to the right",),
    ),
    "left": Attribute(
        "rod",
        lambda s: near(s.fact("angle"), -np.pi / 2),
        phrases("pointing left, pointing to the left, turned to the left, on the left side, aiming left, facing left"),
        ("directed to the left",),
    ),
    "lean_right": Attribute(
        "rod",
        lambda s: bump(turn(s.fact("angle") - 0.5), 0.3),
        phrases(
            "leaning right, leaning to the right, tilted to the right, tilting right, falling to the right, slanted "
            "to the right"
        ),
        phrases("inclined to the right, tipping right"),
        fresh=phrases("bent to the right, sloping right"),
    ),
    "lean_left": Attribute(
        "rod",
        lambda s: bump(turn(s.fact("angle") + 0.5), 0.3),
        phrases(
            "leaning left, leaning to the left, tilted to the left, tilting left, falling to the left, slanted to the "
            "left"
        ),
        phrases("inclined to the left, tipping left"),
        fresh=phrases("bent to the left, sloping left"),
    ),
    "tilted": Attribute(
        "rod",
        lambda s: bump(np.abs(turn(s.fact("angle"))) - 0.7, 0.35),
        phrases("leaning, tilted, slanted, diagonal, at an angle, tilting, falling over, falling"),
        phrases("inclined, tipping over, askew"),
        alone=True,
    ),
    "above": Attribute(
        "rod",
        lambda s: step(np.cos(s.fact("angle")), 0.15),
        phrases(
            "above the cart, in the upper half, higher than the cart, above the axis, more upright than horizontal, "
            "on the upper side"
        ),
        ("over the cart",),
    ),
    "below": Attribute(
        "rod",
        lambda s: step(-np.cos(s.fact("angle")), 0.15),
        phrases(
            "below the cart, in the lower half, lower than the cart, under the cart, beneath the axis, on the lower "
            "side"
        ),
        ("underneath the cart",),
    ),
    "cart_left": Attribute(
        "cart",
        lambda s: step(-s.fact("x") - 0.8, 0.3),
        phrases(
            "on the left, on the left side, at the left edge, to the left, far left, near the left border of the "
            "picture"
        ),
        ("at the left end",),
        fresh=phrases("at the leftmost position"),
    ),
    "cart_right": Attribute(
        "cart",
        lambda s: step(s.fact("x") - 0.8, 0.3),
        phrases(
            "on the right, on the right side, at the right edge, to the right, far right, near the right border of "
            "the picture"
        ),
        ("at the right end",),
        fresh=phrases("at the rightmost position"),
    ),
    "cart_centre": Attribute(
        "cart",
        lambda s: bump(s.fact("x"), 0.5),
        phrases(
            "in the middle, in the center, centered, at the center of the track, near the middle, halfway between the "
            "edges"
        ),
        phrases("in the centre, midway"),
        fresh=phrases("dead center, central"),
    ),
    "peak": Attribute(
        "car",
        lambda s: 0.6 * np.clip((s.fact("x") + 0.55) / 1.1, 0, 1) + 0.4 * step(s.fact("x") - 0.42, 0.05),
        phrases(
            "at the top of the mountain, at the top of the hill, on top of the hill, at the flag, next to the flag, "
            "beside the yellow flag, on the peak, at the peak, at the goal, on the hilltop, near the yellow flag, "
            "at the highest point on the right, at the top of the right hill, up at the flag, on top, reaching the "
            "flag, at the target, at its destination, touching the flag, by the flag, at the end of the road"
        ),
        phrases("at the summit, on the mountaintop, at the crest of the hill, close to the flag, at the finish"),
        fresh=phrases("atop the hill, on the pinnacle, at the apex of the hill, alongside the flag"),
        alone=True,
    ),
    "valley": Attribute(
        "car",
        lambda s: bump(s.fact("x") + 0.52, 0.22),
        phrases(
            "in the valley, at the bottom of the valley, at the bottom of the hill, at the bottom, at the lowest "
            "point, between the hills, at the foot of the mountain, at the foot of the hill, down in the valley, "
            "stuck in the valley, in the hollow, in the trough, in the ditch"
        ),
        phrases("in the dip, in the basin, at the base of the mountain"),
        fresh=phrases("in the gorge, at the lowest spot, in the canyon"),
        alone=True,
    ),
    "left_hill": Attribute(
        "car",
        lambda s: step(-s.fact("x") - 0.9, 0.08),
        phrases(
            "on the left hill, on the left slope, at the left edge, on the left side, high on the left, at the far left"
        ),
        ("at the left border",),
    ),
    "right_slope": Attribute(
        "car",
        lambda s: bump(s.fact("x") - 0.05, 0.2),
        phrases(
            "on the right slope, halfway up the right hill, climbing the right hill, on the way to the flag, on the "
            "slope"
        ),
        ("partway up the right hill",),
    ),
    "high": Attribute(
        "car",
        lambda s: (1 + np.sin(3 * s.fact("x"))) / 2,
        phrases("high up, high, high above the valley, up on the mountain, elevated"),
        ("at a great height",),
    ),
}

_RODS = phrases(
    "pole, rod, bar, beam, post, brown pole, wooden pole, thin pole, long rod, mast, pipe, staff, baton, wooden rod, "
    "pole of the cart, pole on the cart, rod attached to the cart, pendulum, red pendulum, swinging rod, swinging "
    "arm, arm, red bar, red rod, pendulum arm, pendulum rod, needle, tube, cane, spear, plank, column, antenna, "
    "lever, pencil, ruler, log, flagpole"
)
_RODS_HELD_OUT = phrases("stick, shaft, pillar, wand")
_CARTS = phrases("cart, black cart, trolley, wagon, black box, sliding cart, platform, block, box, sled, slider")
_CARTS_HELD_OUT = phrases("carriage, buggy")
_CARS = phrases(
    "car, small car, toy car, black car, automobile, truck, little car, mountain car, van, taxi, lorry, bus, cab, "
    "sedan, race car"
)
_CARS_HELD_OUT = phrases("vehicle, motorcar, jeep")


def _rods(text: str) -> tuple[str, ...]:
    """Where a rod with this name and place can be seen: naming the cart rules the pendulum's world out."""
    return (CARTPOLE,) if "cart" in text else (CARTPOLE, PENDULUM)


_SUBJECTS = {
    "rod": SubjectNames(
        _rods,
        _RODS,
        _RODS_HELD_OUT,
        phrases("broomstick, stake, pointer"),
        ("", "", "", "", " on the cart", " on top of the cart", " above the cart", " over the cart"),
        lambda name, said: "cart" not in said and name != "down",
    ),
    "cart": SubjectNames(lambda text: (CARTPOLE,), _CARTS, _CARTS_HELD_OUT, phrases("dolly, carrier")),
    "car": SubjectNames(
        lambda text: (MOUNTAINCAR,),
        _CARS,
        _CARS_HELD_OUT,
        phrases("pickup, minivan, limousine"),
        ("", "", " in the mountains"),
        lambda name, said: "cart" not in said,
    ),
}
_BASELINES = {
    "rod": phrases(
        "pole, cart and pole, a pole on a cart, a cart, a rod, pendulum, a pendulum, a picture of a pole, a bar, a "
        "cart with a pole, a simulation of a cart and a pole, an image of a pendulum, a swinging pendulum"
    ),
    "car": phrases(
        "a car, car, a car in the hills, a mountain, a car and a mountain, a hill with a car, a picture of a car, a "
        "landscape with a car"
    ),
}


def _sample(rng: np.random.Generator, count: int, world: str) -> tuple[np.ndarray, np.ndarray]:
    """Angles and positions that cover a world: half uniform, half near its goal and its other extremes."""
    angle, x = np.zeros(count), np.zeros(count)
    close = rng.random(count) < 0.4
    if world == MOUNTAINCAR:
        x = np.where(close, rng.normal(rng.choice([0.5, -0.52], count), 0.12), rng.uniform(-1.2, 0.6, count)).clip(
            -1.2, 0.6
        )
    else:
        angle = turn(
            np.where(close, rng.normal(rng.choice([0, 0, np.pi], count), 0.3), rng.uniform(-np.pi, np.pi, count))
        )
    if world == CARTPOLE:
        x = rng.uniform(-2.4, 2.4, count)
    return angle, x


def _scenes(world: str, env_id: str) -> Callable[..., Iterator[Scene]]:
    """Random states, drawn by Gymnasium; half of Pendulum's show the arrow of a random torque, which means nothing."""

    def scenes(rng: np.random.Generator, count: int, look: np.random.Generator) -> Iterator[Scene]:
        import gymnasium as gym

        from envs.classic.family import pose
        from envs.render import prepare

        prepare()
        env: Any = gym.make(env_id, render_mode="rgb_array")
        env.reset(seed=0)
        for angle, x in zip(*_sample(rng, count, world)):
            if world == MOUNTAINCAR:
                pose(env, position=x)
            elif world == CARTPOLE:
                pose(env, position=x, angle=angle)
            else:
                pose(env, angle=-angle)  # Pendulum counts its angle counter-clockwise
                if look.random() < 0.5:
                    env.unwrapped.last_u = look.uniform(-2, 2)
            yield env, {"angle": angle, "x": x}
        env.close()

    return scenes


def _walk(world: str, env_id: str, script: Callable[[np.ndarray], Any]) -> Callable[..., Iterator[Scene]]:
    """States along trajectories: a random policy's, then a scripted one's; a reset every 100 steps."""

    def walk(rng: np.random.Generator, steps: int) -> Iterator[Scene]:
        from envs.make import make

        env: Any = make(env_id, render_mode="rgb_array")
        for policy in (lambda state: env.action_space.sample(), script):
            env.reset(seed=int(rng.integers(1000)))
            env.action_space.seed(int(rng.integers(1000)))
            for t in range(steps // 2):
                env.step(policy(env.unwrapped.state))
                state = env.unwrapped.state
                angle = {CARTPOLE: state[2] if world == CARTPOLE else 0, PENDULUM: -state[0]}.get(world, 0)
                yield env, {"angle": turn(float(angle)), "x": 0.0 if world == PENDULUM else float(state[0])}
                if t % 100 == 99:
                    env.reset()
        env.close()

    return walk


def _balance(state: np.ndarray) -> int:
    x, v, angle, spin = state
    return int(angle + 0.5 * spin + 0.1 * x + 0.15 * v > 0)


def _climb(state: np.ndarray) -> int:
    return 2 if state[1] >= 0 else 0


def _swing(state: np.ndarray) -> np.ndarray:
    angle, spin = np.arctan2(np.sin(state[0]), np.cos(state[0])), state[1]
    close = abs(angle) < 0.4
    return np.array([-12 * angle - 3 * spin if close else 2.0 * np.sign(spin or 1.0)]).clip(-2, 2)


def _world(
    name: str, env_id: str, task: str, ids: tuple[str, ...], script: Callable[[np.ndarray], Any], goal: tuple[str, str]
) -> World:
    return World(name, ids, _scenes(name, env_id), _walk(name, f"lodestar/{task}-v0", script), goals=(goal,))


_VERBATIM = (
    "pole vertically upright on top of the cart",
    "a car at the peak of the mountain, next to the yellow flag",
    "pole and cart",
    "a car in the mountain",
)  # VLM-RM's goals and baselines


_ROD_ATTRIBUTES = tuple(name for name, attribute in _ATTRIBUTES.items() if attribute.about == "rod")
_CART_ATTRIBUTES = tuple(name for name, attribute in _ATTRIBUTES.items() if attribute.about == "cart")

LEXICON = Lexicon(
    worlds=(
        _world(
            CARTPOLE,
            "CartPole-v1",
            "CartPoleUpright",
            ("CartPole-*", "lodestar/CartPole*"),
            _balance,
            (_VERBATIM[0], "up"),
        ),
        _world(
            MOUNTAINCAR,
            "MountainCar-v0",
            "MountainCarGoal",
            ("MountainCar*", "lodestar/MountainCar*"),
            _climb,
            (_VERBATIM[1], "peak"),
        ),
        _world(
            PENDULUM,
            "Pendulum-v1",
            "PendulumUpright",
            ("Pendulum-*", "lodestar/Pendulum*"),
            _swing,
            ("pendulum in the upright position", "up"),
        ),
    ),
    attributes=_ATTRIBUTES,
    opposites=(
        ("up", "down"),
        ("peak", "valley"),
        ("left", "right"),
        ("lean_left", "lean_right"),
        ("cart_left", "cart_right"),
        ("above", "below"),
    ),
    subjects=_SUBJECTS,
    baselines=_BASELINES,
    pairs=((_ROD_ATTRIBUTES, _CART_ATTRIBUTES),),
    pairs_held_out={
        "up": "cart_right",
        "down": "cart_left",
        "lean_left": "cart_centre",
        "flat": "cart_right",
        "tilted": "cart_left",
    },
    verbatim=_VERBATIM,
)
