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
from envs.types import Options
from lodestar.state import Stateful

# Positions and velocities.
State = tuple[np.ndarray, np.ndarray]
# next_obs (B, D), reward (B,), terminated bool (B,).
Outcome = tuple[np.ndarray, np.ndarray, np.ndarray]


class TrueModel(Stateful):
    """`Dynamics` that steps the simulator of an id of classic control or MuJoCo, not Pusher; `options` are its own."""

    def __init__(self, env_id: str, encoding: SpaceEncoding, **options: Any) -> None:
        self._encoding = encoding
        self._outcome = _simulator(env_id, options)

    def step(self, obs: Tensor, action: Tensor, *, sample: bool = True, member_predictions: bool = False) -> Predicted:
        state = obs.detach().cpu().numpy()
        env_action = self._encoding.decode(action.detach().cpu().numpy())

        def to_tensor(column: np.ndarray) -> Tensor:
            # The simulator computes in float64, the columns have the type of the observations.
            typed = np.asarray(column, state.dtype)
            return torch.as_tensor(typed, device=obs.device)

        outcome = self._outcome(state, env_action)
        next_obs, task, terminated = map(to_tensor, outcome)
        means = next_obs[None] if member_predictions else None
        return Predicted(next_obs, task, terminated, means)

    def fit(self, replay: Replay, steps: int | None = None) -> dict[str, float]:
        return {}


def _simulator(env_id: str, options: Options) -> Callable[[np.ndarray, np.ndarray], Outcome]:
    """What takes states and actions of the environment to their outcomes."""
    spec = spec_of(env_id)
    family = family_of(spec).name
    if family == "classic" and env_id in PROGRAMS:
        return make_batched(env_id, 1, **options).outcome  # type: ignore[attr-defined]
    readable = spec.name in _HIDDEN or spec.name in _STATES
    if family == "mujoco" and spec.version in (4, 5) and readable:
        return _Robot(env_id, spec.name, options)
    raise ValueError(f"model=true supports classic control and MuJoCo's robots, not of {env_id}; use model=ensemble")


class _Robot:
    """One robot, put into state after state."""

    def __init__(self, env_id: str, name: str, options: Options) -> None:
        env: Any = make(env_id, **options)
        self._inner = env.unwrapped
        # Robots without the setting show all their positions.
        excludes = getattr(self._inner, "_exclude_current_positions_from_observation", True)
        self._n_hidden = _HIDDEN.get(name, 0) if excludes else 0
        self._n_positions = self._inner.model.nq
        self._n_velocities = self._inner.model.nv
        self._state = _STATES.get(name, self._read)

    def __call__(self, obs: np.ndarray, actions: np.ndarray) -> Outcome:
        import mujoco

        inner = self._inner
        outcomes = []
        for row, action in zip(obs, actions):
            # The solver's start must not depend on earlier calls.
            mujoco.mj_resetData(inner.model, inner.data)
            state = self._state(row.astype(np.float64))
            inner.set_state(*state)
            outcome = inner.step(action)
            outcomes.append(outcome[:3])
        next_obs, reward, terminated = map(np.array, zip(*outcomes))
        return next_obs, reward, terminated

    def _read(self, row: np.ndarray) -> State:
        """Positions and velocities of an observation that lists them; hidden positions are 0."""
        n_shown = self._n_positions - self._n_hidden
        hidden = np.zeros(self._n_hidden)
        positions = np.concatenate([hidden, row[:n_shown]])
        end = n_shown + self._n_velocities
        return positions, row[n_shown:end]


def _read_double_pendulum(row: np.ndarray) -> State:
    """Angles are observed as sines, then cosines."""
    angles = np.arctan2(row[1:3], row[3:5])
    return np.array([row[0], *angles]), row[5:8]


def _read_reacher(row: np.ndarray) -> State:
    """Angles are observed as cosines, then sines; the target, the last two positions, does not move."""
    angles = np.arctan2(row[2:4], row[:2])
    positions = np.array([*angles, *row[4:6]])
    return positions, np.array([*row[6:8], 0.0, 0.0])


# Robots whose observations are all positions but the first ones, here their number, and then all velocities.
_HIDDEN = {
    "InvertedPendulum": 0,
    "HalfCheetah": 1,
    "Hopper": 1,
    "Walker2d": 1,
    "Swimmer": 2,
    "Ant": 2,
    "Humanoid": 2,
    "HumanoidStandup": 2,
}
_STATES: dict[str, Callable[[np.ndarray], State]] = {
    "InvertedDoublePendulum": _read_double_pendulum,
    "Reacher": _read_reacher,
}
