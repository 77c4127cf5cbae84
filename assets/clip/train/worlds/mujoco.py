"""The worlds of MuJoCo's robots: poses of HalfCheetah, Hopper, Walker2d and Humanoid.

Facts: `pitch` is how the torso is turned in the picture's plane, 0 as it stands, pi/2 nose up (the cheetah) or on its
back (the others), in [-pi, pi]; `height` the torso's height over what it has standing, in about [0, 1.3]; for the
humanoid `upright` is the cosine of its torso's lean, `hands` how high its hands are over its head, m, `knees` how high
its knees are, m.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from assets.clip.train.worlds.shapes import near, step
from rewards.vision.training.lexicon import Attribute, Lexicon, Scene, States, SubjectNames, World, phrases

CHEETAH, HOPPER, WALKER, HUMANOID = "HalfCheetah", "Hopper", "Walker2d", "Humanoid"
STANDING = {CHEETAH: 0.65, HOPPER: 1.25, WALKER: 1.25, HUMANOID: 1.3}  # height of the torso, m


def _standing(s: States) -> np.ndarray:
    return near(s.fact("pitch"), 0) * step(s.fact("height") - 0.75, 0.07)


def _fallen(s: States) -> np.ndarray:
    return 0.25 * (1 - np.cos(s.fact("pitch"))) / 2 + 0.75 * step(0.5 - s.fact("height"), 0.1)


_CHEETAH_ATTRIBUTES = {
    "cheetah_back": Attribute(
        "cheetah",
        lambda s: near(s.fact("pitch"), np.pi),
        phrases(
            "lying upside down on its back, on its back, upside down, flipped over, lying on its back, with its legs "
            "in the air, flipped on its back, turned over, rolled onto its back, with its feet up in the air, "
            "flipped, lying upside down"
        ),
        phrases("overturned, capsized, on its spine"),
        alone=True,
    ),
    "cheetah_feet": Attribute(
        "cheetah",
        lambda s: near(s.fact("pitch"), 0),
        phrases(
            "on its feet, standing on its feet, standing on its legs, on both legs, right side up, running on its "
            "feet, standing on both legs, standing normally, on its legs, running, walking on its feet, standing"
        ),
        phrases("on its paws, upright on both feet"),
        alone=True,
    ),
    "cheetah_rear": Attribute(
        "cheetah",
        lambda s: near(s.fact("pitch"), np.pi / 2),
        phrases(
            "standing upright on its hind leg, rearing up, standing on its hind leg, on its back leg, with its nose "
            "up, with its head up, with its front raised, standing upright, standing on its back leg, standing up on "
            "its hind leg, with its head at the top, vertical with its head up"
        ),
        phrases("on its rear leg, erect, reared up"),
    ),
    "cheetah_front": Attribute(
        "cheetah",
        lambda s: near(s.fact("pitch"), -np.pi / 2),
        phrases(
            "standing on its front leg, standing on its head, with its nose down, on its nose, with its head down, on "
            "its front leg, on its head, with its back raised, standing on its nose, with its head at the bottom"
        ),
        phrases("doing a headstand, on its snout"),
    ),
}
_ROBOT_ATTRIBUTES = {
    "standing": Attribute(
        "robot",
        _standing,
        phrases(
            "standing upright, standing, standing up, upright, on its feet, standing straight, standing tall, standing "
            "on its feet, balanced, standing straight up, in a standing position, up on its feet"
        ),
        phrases("erect, vertical, stable on its feet"),
    ),
    "fallen": Attribute(
        "robot",
        _fallen,
        phrases(
            "lying on the ground, fallen, fallen over, lying on the floor, lying down, lying, down on the ground, on "
            "the ground, on the floor, collapsed on the ground, fallen down, lying flat"
        ),
        phrases("toppled, sprawled on the floor, knocked over"),
    ),
    "arms_raised": Attribute(
        "humanoid",
        lambda s: step(s.fact("hands") + 0.05, 0.1),
        phrases(
            "with both arms raised, with its arms raised, with its arms up, holding its hands up, with its hands above "
            "its head, raising its arms, with raised arms, with its hands in the air"
        ),
        phrases("with lifted arms, reaching for the sky"),
    ),
    "arms_down": Attribute(
        "humanoid",
        lambda s: step(-s.fact("hands") - 0.35, 0.1),
        phrases("with its arms down, with lowered arms, with its hands down, with its arms at its sides"),
        phrases(
            "with hanging arms",
        ),
    ),
    "kneeling": Attribute(
        "humanoid",
        lambda s: step(s.fact("upright") - 0.7, 0.1) * step(0.24 - s.fact("knees"), 0.05),
        phrases("kneeling, on its knees, kneeling on the floor, down on its knees, kneeling on the ground"),
        phrases(
            "on bended knees",
        ),
    ),
}


def _lowest(model: Any, data: Any) -> float:
    """Height of the lowest point of the robot's capsules and spheres, m."""
    geoms = [i for i in range(model.ngeom) if model.geom_bodyid[i] != 0]
    ends = [
        data.geom_xpos[i, 2] - model.geom_size[i, 0] - abs(data.geom_xmat[i, 8]) * _half_length(model, i) for i in geoms
    ]
    return float(min(ends))


def _half_length(model: Any, geom: int) -> float:
    return float(model.geom_size[geom, 1]) if model.geom_type[geom] == 3 else 0.0  # 3 is MuJoCo's capsule


def _facts(robot: str) -> Callable[[Any], dict[str, float]]:
    def facts(env: Any) -> dict[str, float]:
        data = env.unwrapped.data
        torso = data.body("torso")
        forward, up = float(torso.xmat[6]), float(torso.xmat[8])
        found = {"height": float(torso.xpos[2]) / STANDING[robot]}
        if robot == HUMANOID:
            found |= {"upright": up, "pitch": float(np.arccos(np.clip(up, -1, 1)))}
            hands = (data.geom("left_hand").xpos[2], data.geom("right_hand").xpos[2])
            found["hands"] = float(min(hands) - data.geom("head").xpos[2])
            found["knees"] = max(float(data.body(f"{side}_shin").xpos[2]) for side in ("left", "right"))
        else:
            found["pitch"] = float(np.arctan2(forward, up))
        return found

    return facts


def _planar(robot: str, rng: np.random.Generator, model: Any, qpos: np.ndarray) -> None:
    """Any pitch, three in ten of them near a multiple of a right angle; joints anywhere in their range."""
    pitch = rng.uniform(-np.pi, np.pi)
    if rng.random() < 0.45:
        corners = [0, np.pi / 2, np.pi, -np.pi / 2] if robot == CHEETAH else [0, 0, 0, np.pi / 2, -np.pi / 2]
        pitch = rng.normal(rng.choice(corners), 0.2)
    qpos[0] = rng.uniform(-3, 3)
    qpos[2] = -pitch if robot == CHEETAH else pitch
    span = model.jnt_range[3:]
    spread = rng.choice([0.2, 0.6, 1.0])
    middle = np.clip(0, span[:, 0], span[:, 1])
    qpos[3:] = middle + spread * (rng.uniform(span[:, 0], span[:, 1]) - middle)


def _spatial(robot: str, rng: np.random.Generator, model: Any, qpos: np.ndarray) -> None:
    """Two in three upright, arms and knees in all positions; the others lie or tumble."""
    yaw = rng.uniform(-0.6, 0.6)
    lean = abs(rng.normal(0, 0.2)) if rng.random() < 0.65 else rng.uniform(0.9, np.pi)
    axis = rng.normal(size=2)
    axis /= np.linalg.norm(axis)
    tilt = np.array([np.cos(lean / 2), *(np.sin(lean / 2) * axis), 0.0])
    turned = np.array([np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)])
    w, x, y, _ = tilt
    c, s = turned[0], turned[3]
    qpos[3:7] = [c * w, c * x - s * y, c * y + s * x, s * w]
    span = model.jnt_range[1:]
    qpos[7:] = rng.choice([0.1, 0.3]) * rng.uniform(span[:, 0], span[:, 1])
    joints = {model.joint(i).name: i + 6 for i in range(1, model.njnt)}
    if rng.random() < 0.3:
        for side in ("left", "right"):
            qpos[joints[f"{side}_knee"]] = rng.uniform(-2.7, -1.8)
            qpos[joints[f"{side}_hip_y"]] = rng.uniform(-0.3, 0.3)
    low, high = span[:, 0], span[:, 1]
    for name in ("shoulder1", "shoulder2", "elbow"):
        for side in ("left", "right"):
            i = joints[f"{side}_{name}"]
            qpos[i] = rng.uniform(low[i - 7], high[i - 7])


def _scenes(robot: str, pose: Callable[..., None]) -> Callable[..., Iterator[Scene]]:
    """Poses set down on the floor; in one of three, a few random actions move the robot from there."""

    def scenes(rng: np.random.Generator, count: int, look: np.random.Generator) -> Iterator[Scene]:
        import mujoco

        from envs.make import make

        facts = _facts(robot)
        env: Any = make(f"{robot}-v5", frame_size=96)  # for the size that it renders at
        inner = env.unwrapped
        env.reset(seed=0)
        env.action_space.seed(int(rng.integers(1000)))
        rest = inner.init_qpos.copy()
        for _ in range(count):
            qpos = rest.copy()
            pose(robot, rng, inner.model, qpos)
            vertical = 2 if robot == HUMANOID else 1
            inner.set_state(qpos, np.zeros_like(inner.init_qvel))
            gap = _lowest(inner.model, inner.data)
            qpos[vertical] += 0.005 - gap
            inner.set_state(qpos, np.zeros_like(inner.init_qvel))
            if rng.random() < 0.33:
                for _ in range(int(rng.integers(1, 6))):
                    inner.do_simulation(env.action_space.sample(), inner.frame_skip)
                mujoco.mj_forward(inner.model, inner.data)
            yield env, facts(env)
        env.close()

    return scenes


def _walk(robot: str) -> Callable[..., Iterator[Scene]]:
    """A random policy, on its way also after a fall."""

    def walk(rng: np.random.Generator, steps: int) -> Iterator[Scene]:
        from envs.make import make

        facts = _facts(robot)
        arguments: dict[str, Any] = {} if robot == CHEETAH else {"terminate_when_unhealthy": False}
        env = make(f"{robot}-v5", frame_size=96, **arguments)
        env.action_space.seed(int(rng.integers(1000)))
        for t in range(steps):
            if t % 100 == 0:
                env.reset(seed=int(rng.integers(1000)))
            env.step(env.action_space.sample())
            yield env, facts(env)
        env.close()

    return walk


def _robots(text: str) -> tuple[str, ...]:
    """A robot by its name; a robot without one may be any."""
    if any(word in text for word in ("humanoid", "human", "man")):
        return (HUMANOID,)
    if any(word in text for word in ("one", "hop", "single")):
        return (HOPPER,)
    return (WALKER,) if any(word in text for word in ("two", "walk")) else (HOPPER, WALKER, HUMANOID)


def _stands(robot: str) -> tuple[tuple[str, str], ...]:
    return ((f"{robot} standing upright", "standing"), (f"{robot} lying on the ground", "fallen"))


_CHEETAH_GOALS = (
    ("a cheetah robot lying upside down on its back", "cheetah_back"),
    ("a cheetah robot standing on its feet", "cheetah_feet"),
    ("a cheetah robot standing upright on its hind leg", "cheetah_rear"),
    ("a cheetah robot standing on its front leg", "cheetah_front"),
)

LEXICON = Lexicon(
    worlds=(
        World(CHEETAH, ("HalfCheetah-*",), _scenes(CHEETAH, _planar), _walk(CHEETAH), 0.6, _CHEETAH_GOALS),
        World(HOPPER, ("Hopper-*",), _scenes(HOPPER, _planar), _walk(HOPPER), 0.4, _stands("a one-legged robot")),
        World(WALKER, ("Walker2d-*",), _scenes(WALKER, _planar), _walk(WALKER), 0.4, _stands("a two-legged robot")),
        World(
            HUMANOID,
            ("Humanoid-*", "HumanoidStandup-*"),
            _scenes(HUMANOID, _spatial),
            _walk(HUMANOID),
            0.4,
            _stands("a humanoid robot"),
        ),
    ),
    attributes=_CHEETAH_ATTRIBUTES | _ROBOT_ATTRIBUTES,
    opposites=(
        ("cheetah_back", "cheetah_feet"),
        ("cheetah_rear", "cheetah_front"),
        ("standing", "fallen"),
        ("arms_raised", "arms_down"),
    ),
    subjects={
        "cheetah": SubjectNames(
            lambda text: (CHEETAH,),
            phrases(
                "cheetah robot, cheetah robot, cheetah, robot cheetah, running robot, half cheetah, cheetah machine"
            ),
            phrases("cheetah creature, leopard robot"),
            phrases(
                "robotic cheetah",
            ),
        ),
        "robot": SubjectNames(
            _robots,
            phrases(
                "one-legged robot, two-legged robot, humanoid robot, robot, hopping robot, walking robot, robot with "
                "one leg, robot with two legs, humanoid, hopper, walker, human robot"
            ),
            phrases("machine, one-legged machine"),
            phrases("monopod, biped"),
        ),
        "humanoid": SubjectNames(
            lambda text: (HUMANOID,),
            phrases("humanoid robot, humanoid, human robot, humanoid figure, robot, human figure"),
            phrases("android, mannequin"),
            phrases(
                "robotic man",
            ),
        ),
    },
    baselines={
        "cheetah": phrases("a cheetah robot, a cheetah, a picture of a cheetah robot, a running robot"),
        "robot": phrases("a humanoid robot, a one-legged robot, a two-legged robot, a robot, a picture of a robot"),
    },
    pairs=((("standing", "fallen"), ("arms_raised", "arms_down")), (("kneeling",), ("arms_raised", "arms_down"))),
    pairs_held_out={"standing": "arms_raised"},
    verbatim=("a humanoid robot standing up, with both arms raised",),  # VLM-RM's, as are other humanoid poses
)
