"""The world of Acrobot: two links that hang from a pivot below a line.

Facts: `tip` is the height of the tip above the pivot in links, in [-2, 2]; `side` how far right it is, in [-2, 2];
`bend` the angle between the links, in [0, pi], 0 where they make one straight line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from assets.clip.train.worlds.shapes import bump, step, turn
from rewards.vision.training.lexicon import Attribute, Lexicon, Scene, SubjectNames, World, phrases

ACROBOT = "Acrobot"

_ATTRIBUTES = {
    "acrobot_high": Attribute(
        "acrobot",
        lambda s: 0.6 * (s.fact("tip") + 2) / 4 + 0.4 * step(s.fact("tip") - 1, 0.15),
        phrases(
            "above the line, stretched out above the line, with its tip above the line, swung up, raised, up, upright, "
            "pointing up, standing up, reaching above the line, held up, high up, higher than the line, over the line, "
            "standing tall, up in the air, pointing upwards, up at the line, reaching the line"
        ),
        phrases("beyond the line, pointing skyward, vertical, lifted above the line"),
        alone=True,
    ),
    "acrobot_low": Attribute(
        "acrobot",
        lambda s: 0.6 * (2 - s.fact("tip")) / 4 + 0.4 * step(-1 - s.fact("tip"), 0.15),
        phrases(
            "hanging down, below the line, far below the line, with its tip below the line, hanging, pointing down, "
            "down, at rest at the bottom, lowered, straight down, hanging still, hanging below, low, under the line"
        ),
        phrases("dangling, beneath the line, drooping"),
        alone=True,
    ),
    "acrobot_straight": Attribute(
        "acrobot",
        lambda s: bump(s.fact("bend"), 0.5),
        phrases("straight, stretched out, extended, fully stretched, in one line, unfolded, fully extended"),
        phrases("elongated, aligned"),
    ),
    "acrobot_bent": Attribute(
        "acrobot",
        lambda s: step(s.fact("bend") - 1.6, 0.3),
        phrases("bent, folded, folded up, bent at the joint, bent in the middle, doubled up, curled up"),
        phrases("crooked, bent over"),
    ),
    "acrobot_left": Attribute(
        "acrobot",
        lambda s: step(-s.fact("side") - 0.5, 0.25),
        phrases("on the left, on the left side, swung to the left, pointing left, pointing to the left, to the left"),
        phrases("directed to the left, leftward"),
    ),
    "acrobot_right": Attribute(
        "acrobot",
        lambda s: step(s.fact("side") - 0.5, 0.25),
        phrases(
            "on the right, on the right side, swung to the right, pointing right, pointing to the right, to the right"
        ),
        phrases("directed to the right, rightward"),
    ),
}


def _facts(state: Any) -> Mapping[str, float]:
    first, second = float(state[0]), float(state[0] + state[1])
    return {
        "tip": -np.cos(first) - np.cos(second),
        "side": np.sin(first) + np.sin(second),
        "bend": abs(float(turn(state[1]))),
    }


def _scenes(rng: np.random.Generator, count: int, look: np.random.Generator) -> Iterator[Scene]:
    """Any angles; two in five near the top or hanging, links nearly in line."""
    from envs.make import make

    env: Any = make("Acrobot-v1", render_mode="rgb_array")
    env.reset(seed=0)
    for _ in range(count):
        if rng.random() < 0.4:
            angles = [rng.normal(rng.choice([0.0, np.pi]), 0.5), rng.normal(0, 0.5)]
        else:
            angles = list(rng.uniform(-np.pi, np.pi, 2))
        env.unwrapped.state = np.array([*angles, 0.0, 0.0])
        yield env, _facts(env.unwrapped.state)
    env.close()


def _walk(rng: np.random.Generator, steps: int) -> Iterator[Scene]:
    """A random policy, then one that pushes the way the first link moves."""
    from envs.make import make

    env: Any = make("Acrobot-v1", render_mode="rgb_array", seed=int(rng.integers(1000)))
    env.reset()
    for t in range(steps):
        action = int(rng.integers(3)) if t < steps // 2 else 2 * int(env.unwrapped.state[2] < 0)
        _, _, terminated, truncated, _ = env.step(action)
        yield env, _facts(env.unwrapped.state)
        if terminated or truncated:
            env.reset()
    env.close()


_GOALS = (
    ("an acrobot stretched out above the line", "acrobot_high"),
    ("an acrobot hanging down below the line", "acrobot_low"),
)

LEXICON = Lexicon(
    worlds=(World(ACROBOT, ("Acrobot-*",), _scenes, _walk, 0.6, _GOALS),),
    attributes=_ATTRIBUTES,
    opposites=(
        ("acrobot_high", "acrobot_low"),
        ("acrobot_straight", "acrobot_bent"),
        ("acrobot_left", "acrobot_right"),
    ),
    subjects={
        "acrobot": SubjectNames(
            lambda text: (ACROBOT,),
            phrases(
                "acrobot, double pendulum, arm, blue arm, pendulum, swinging arm, robot arm, chain of two links, "
                "pair of arms, long arm, rod, arm of two links, tip of the arm, end of the arm, tip of the acrobot, "
                "gymnast"
            ),
            phrases("stick, limb"),
            phrases("lever, acrobatic robot"),
        )
    },
    baselines={
        "acrobot": phrases(
            "an acrobot, a double pendulum, two links and a line, a picture of an acrobot, an arm and a line, "
            "an image of a double pendulum, a robot arm"
        )
    },
    pairs=(
        (("acrobot_high", "acrobot_low"), ("acrobot_left", "acrobot_right", "acrobot_straight", "acrobot_bent")),
        (("acrobot_left", "acrobot_right"), ("acrobot_straight", "acrobot_bent")),
    ),
    pairs_held_out={"acrobot_high": "acrobot_bent", "acrobot_low": "acrobot_straight"},
)
