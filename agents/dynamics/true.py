"""The simulator itself as a model: an oracle, for tests and as the upper bound of what a model can give.

A state is read back from an observation, the simulator is set to it, and takes one step: classic control for all rows
at once, robots row by row. The outcome is what the environment would have returned.

When it fails: whatever an observation lacks is lost. Hopper and Walker2d clip observed speeds at 10, so a faster state
continues slower; Ant's and Humanoid's forward reward begins at the body's position a substep before; MuJoCo's solver
forgets the step before, which moves about the eighth digit. Robots cost as much as the environment. No gradient flows.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.dynamics import Predicted
from agents.networks.actor_critic import SpaceEncoding
from agents.replay.replay import Replay
from envs.batched import PROGRAMS
from envs.family import family_of
from envs.make import make, make_batched, spec_of
from lodestar.state import Stateful

State = tuple[np.ndarray, np.ndarray]  # positions and velocities
Outcome = tuple[np.ndarray, np.ndarray, np.ndarray]  # next_obs (B, D), reward (B,), terminated bool (B,)


class TrueModel(Stateful):
    """`Dynamics` that steps the simulator of an id of classic control or MuJoCo, not Pusher; `options` are its own."""

    def __init__(self, env_id: str, encoding: SpaceEncoding, **options: Any) -> None:
        self._encoding, self._outcome = encoding, _simulator(env_id, options)

    def step(self, obs: Tensor, action: Tensor, *, sample: bool = True, member_predictions: bool = False) -> Predicted:
        state = obs.detach().cpu().numpy()
        outcome = self._outcome(state, self._encoding.decode(action.detach().cpu().numpy()))
        after, task, ends = (torch.as_tensor(np.asarray(x, state.dtype), device=obs.device) for x in outcome)
        return Predicted(after, task, ends, after[None] if member_predictions else None)

    def fit(self, replay: Replay, steps: int | None = None) -> dict[str, float]:
        return {}


def _simulator(env_id: str, options: dict[str, Any]) -> Callable[[np.ndarray, np.ndarray], Outcome]:
    spec = spec_of(env_id)
    family = family_of(spec).name
    if family == "classic" and env_id in PROGRAMS:
        return make_batched(env_id, 1, **options).outcome  # type: ignore[attr-defined]
    if family == "mujoco" and spec.version in (4, 5) and spec.name in (*_HIDDEN, *_STATES):
        return _Robot(env_id, spec.name, options)
    raise ValueError(f"model=true supports classic control and MuJoCo's robots, not of {env_id}; use model=ensemble")


class _Robot:
    """One robot, put into state after state."""

    def __init__(self, env_id: str, name: str, options: dict[str, Any]) -> None:
        env: Any = make(env_id, **options)
        self._inner = env.unwrapped
        excludes = getattr(self._inner, "_exclude_current_positions_from_observation", True)
        self._hidden = _HIDDEN.get(name, 0) if excludes else 0
        self._nq, self._nv = self._inner.model.nq, self._inner.model.nv
        self._state = _STATES.get(name, self._read)

    def __call__(self, obs: np.ndarray, actions: np.ndarray) -> Outcome:
        import mujoco

        inner, rows = self._inner, []
        for row, action in zip(obs, actions):
            mujoco.mj_resetData(inner.model, inner.data)  # the solver's start does not depend on earlier calls
            inner.set_state(*self._state(row.astype(np.float64)))
            rows.append(inner.step(action)[:3])
        next_obs, reward, terminated = (np.array(column) for column in zip(*rows))
        return next_obs, reward, terminated

    def _read(self, row: np.ndarray) -> State:
        shown = self._nq - self._hidden
        return np.concatenate([np.zeros(self._hidden), row[:shown]]), row[shown : shown + self._nv]


_HIDDEN = {  # robots whose observations are all positions but the first ones, and then all velocities
    "InvertedPendulum": 0,
    **dict.fromkeys(("HalfCheetah", "Hopper", "Walker2d"), 1),
    **dict.fromkeys(("Swimmer", "Ant", "Humanoid", "HumanoidStandup"), 2),
}
_STATES: dict[str, Callable[[np.ndarray], State]] = {
    "InvertedDoublePendulum": lambda row: (np.array([row[0], *np.arctan2(row[1:3], row[3:5])]), row[5:8]),
    "Reacher": lambda row: (np.array([*np.arctan2(row[2:4], row[:2]), *row[4:6]]), np.array([*row[6:8], 0.0, 0.0])),
}
