"""Physics drawn at random for every episode: a policy that does well in all of it does not rely on one robot's masses.

    make("HalfCheetah-v5", physics=0.3)

Source: dynamics randomisation, Peng et al. 2018 (arXiv 1710.06537, section V).

Differences: the source also draws damping, gains, latency and noise, and some masses on a logarithmic scale. Here
masses (with their inertia) and frictions are multiplied by factors that are uniform in [1 - physics, 1 + physics], one
for each body and each geometry. The policy does not observe them.
"""

import itertools
import sys
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.utils import seeding

from envs.observations import Recorded
from envs.types import EnvReset, Options

# Gymnasium's class -> its masses.
CLASSIC_MASSES: dict[str, tuple[str, ...]] = {
    "CartPoleEnv": ("masscart", "masspole"),
    "PendulumEnv": ("m",),
    "AcrobotEnv": ("LINK_MASS_1", "LINK_MASS_2"),
}
# Arrays of MuJoCo's model, a row a body and a row a geometry.
BODY_ARRAYS = ("body_mass", "body_inertia")
GEOMETRY_ARRAYS = ("geom_friction",)


class RandomPhysics(Recorded):
    """Multiplies masses and frictions by new factors at every reset."""

    def __init__(self, env: gym.Env, *, physics: float) -> None:
        super().__init__(env, physics=physics)
        if not 0 < physics < 1:
            raise ValueError(f"physics={physics} is out of range; give a share of more than 0 and less than 1")
        self.share = physics
        world: Any = env.unwrapped
        mujoco: Any = sys.modules.get("mujoco")
        self._is_mujoco = mujoco is not None and isinstance(vars(world).get("model"), mujoco.MjModel)
        # Groups of names that share a factor, and the object that has them.
        self._owner = world.model if self._is_mujoco else world
        self._groups: list[tuple[str, ...]] = [BODY_ARRAYS, GEOMETRY_ARRAYS]
        if not self._is_mujoco:
            self._groups = [(name,) for name in _masses_of(world)]
        names = itertools.chain(*self._groups)
        self._own = {name: np.array(getattr(self._owner, name)) for name in names}

    def reset(self, *, seed: int | None = None, options: Options | None = None) -> EnvReset:
        # The factors come from the environment's own generator, so that a replay of the seed draws the same ones.
        if seed is not None:
            self.unwrapped.np_random = seeding.np_random(seed)[0]
        for group in self._groups:
            rows = self._own[group[0]].shape[:1]
            factors = self.np_random.uniform(1.0 - self.share, 1.0 + self.share, rows)
            for name in group:
                own = self._own[name]
                # One factor a row; MuJoCo copies what is set into its own arrays.
                setattr(self._owner, name, (own.T * factors).T.tolist())
        self._derive()
        return self.env.reset(options=options)

    def _derive(self) -> None:
        """What is computed from the masses once, when the environment is made."""
        world: Any = self.unwrapped
        if self._is_mujoco:
            sys.modules["mujoco"].mj_setConst(world.model, world.data)
        elif isinstance(world, CartPoleEnv):
            world.total_mass = world.masscart + world.masspole
            world.polemass_length = world.masspole * world.length


def _masses_of(world: Any) -> tuple[str, ...]:
    for kind in type(world).__mro__:
        if kind.__name__ in CLASSIC_MASSES:
            return CLASSIC_MASSES[kind.__name__]
    known = ", ".join(name.removesuffix("Env") for name in CLASSIC_MASSES)
    raise ValueError(
        f"physics= draws masses and frictions of MuJoCo's robots and of {known}; {type(world).__name__} has none "
        "that are known, leave it out"
    )
