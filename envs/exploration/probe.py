"""Tiny environments. Five isolate one thing each that an agent must get right; the first that fails says where to look.

    lodestar/ProbeValue-v0         one step, reward 1: the value of the only observation becomes 1
    lodestar/ProbeObservation-v0   one step, reward = observation, +1 or -1: the value must distinguish two observations
    lodestar/ProbeDiscount-v0      two steps, reward 1 at the end: values become gamma at obs 0 and 1 at obs 1
    lodestar/ProbePolicy-v0        one step, two actions, reward 1 for action 1, else -1: the policy becomes action 1
    lodestar/ProbeJoint-v0         one step, reward 1 iff the action is 1 at obs +1 or 0 at obs -1, else -1
    lodestar/ProbeArms-v0          one step, three actions, reward 0: a bandit whose arms only a judge tells apart

Observations are Box(-1, 1, (1,)) float32, episodes terminate. The first three have a single action, so that nothing but
the value can go wrong. The idea is folklore in debugging deep reinforcement learning.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from envs.family import Family, aims_of, simulator
from envs.transitions import Ends, always
from envs.types import EnvReset, EnvStep, Info, Options


class Probe(gym.Env):
    """One environment per `kind`; see the module."""

    metadata: dict[str, Any] = {"render_modes": []}
    KINDS = ("value", "observation", "discount", "policy", "joint", "arms")

    def __init__(self, kind: str, render_mode: str | None = None) -> None:
        if kind not in self.KINDS:
            raise ValueError(f"kind={kind!r} is no probe; give one of {', '.join(self.KINDS)}")
        if render_mode is not None:
            raise ValueError(f"probes have nothing to render; leave render_mode={render_mode!r} and frames out")
        self.kind = kind
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete({"policy": 2, "joint": 2, "arms": 3}.get(kind, 1))

    def reset(self, *, seed: int | None = None, options: Options | None = None) -> EnvReset:
        super().reset(seed=seed)
        self._step = 0
        self._value = 0.0
        if self.kind in ("observation", "joint"):
            self._value = float(self.np_random.choice([-1.0, 1.0]))
        return self._obs(), {}

    def step(self, action: Any) -> EnvStep:
        self._step += 1
        if self.kind == "discount" and self._step == 1:
            self._value = 1.0
            return self._obs(), 0.0, False, False, {}
        return self._obs(), self._reward(action), True, False, {}

    def _reward(self, action: Any) -> float:
        if self.kind == "observation":
            return self._value
        if self.kind == "policy":
            return 1.0 if action == 1 else -1.0
        if self.kind == "joint":
            return 1.0 if (action == 1) == (self._value > 0) else -1.0
        return 0.0 if self.kind == "arms" else 1.0

    def _obs(self) -> np.ndarray:
        return np.array([self._value], dtype=np.float32)


def _terminates(spec: EnvSpec) -> Ends:
    """One step, except for the probe of discounts, which ends where the observation before the step is 1."""
    if spec.kwargs.get("kind") == "discount":
        return lambda obs, action, next_obs: obs[..., 0] > 0.5
    return always


def _success(env: gym.Env, episode_return: float, terminated: bool, info: Info) -> bool | None:
    # The probes with a single action cannot fail, and no arm is a success.
    if simulator(env).action_space.n != 2:
        return None
    return episode_return > 0


PROBE_FAMILY = Family(
    name="probe",
    description="probes: tiny environments to debug an agent with, and a bandit without rewards",
    ids=tuple(f"lodestar/Probe{kind.capitalize()}-v0" for kind in Probe.KINDS),
    entries=("envs.exploration.probe:",),
    aim=aims_of("probe"),
    terminates=_terminates,
    success=_success,
)
