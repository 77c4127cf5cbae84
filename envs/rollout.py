"""T steps of N environments, written in place, and the transitions they make.

    rollout.begin(obs, infos)                  once, after the first reset
    rollout.write(t, group, *step)             what a vector environment returned; a group of columns at a time
    rollout.transitions()                      the (T, N) batch, true successors included
    rollout.roll()                             the last observation becomes the first of the next rollout

An episode's true last observation is kept aside, because SAME_STEP puts the next episode's first in its place. In
NEXT_STEP mode the step that only resets is written too, as a row with `valid == False`; so is one in which an episode
was lost with its worker, which is truncated besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from envs.types import Array, Obs, Transitions, map_obs, put

Final = tuple[int, np.ndarray, Obs]  # time, columns (M,), their last observations (M, ...)


class Rollout:
    """Arrays that are allocated once.

    Attributes:
        obs: (T + 1, N, ...); row T is what the agent acts on next.
        action: (T, N, ...) as the environment received it; the caller fills it in.
        reward: float32 (T, N), the task's; terminated, truncated, valid: bool (T, N).
        finals: where episodes ended, and on which observation.

    Raises:
        ValueError: for an environment that leaves resets to its caller, or does not say when it resets.
    """

    def __init__(self, length: int, envs: Any, modality_names: frozenset[str] = frozenset()) -> None:
        mode = envs.metadata.get("autoreset_mode")
        if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
            raise ValueError(
                f'{envs} declares metadata["autoreset_mode"]={mode!r}; it must reset its environments itself, in '
                "SAME_STEP mode (or NEXT_STEP, which spends a step on it)"
            )
        n = envs.num_envs
        self.length, self.n, self.same_step = length, n, mode == AutoresetMode.SAME_STEP
        self.modality_names = tuple(sorted(modality_names))
        self.obs = _allocate((length + 1, n), envs.single_observation_space)
        self.action = _allocate((length, n), envs.single_action_space)
        self.reward = np.zeros((length, n), np.float32)
        self.terminated, self.truncated, self.valid = (np.zeros((length, n), bool) for _ in range(3))
        self.valid[:] = self.same_step
        self.success = np.full(
            (length, n), np.nan, np.float32
        )  # of the episode that ended here, where somebody says so
        self.resetting = np.zeros(n, bool)  # NEXT_STEP: the coming step only resets
        self.first_step = np.zeros(n, np.int64)
        self.finals: list[Final] = []
        self.modalities: dict[
            str, Any
        ] = {}  # frame, text, signals: (T + 1, N, ...), of the observation in the same row
        self.final_modalities: list[tuple[str, int, np.ndarray, Array]] = []
        self._next_obs: Any = None

    def begin(self, obs: Obs, infos: Mapping[str, Any]) -> None:
        """Episodes begin in all environments."""
        put(self.obs, 0, obs)
        self.first_step[:] = 0
        self.resetting[:] = False
        self._show(0, slice(None), infos)

    def write(
        self,
        t: int,
        group: slice,
        obs: Obs,
        rewards: Array,
        terminations: Array,
        truncations: Array,
        infos: Mapping[str, Any],
    ) -> None:
        """Step t of the environments in `group`, as `VectorEnv.step` returned it; copied."""
        put(self.obs, (t + 1, group), obs)
        self.reward[t, group] = rewards
        self.terminated[t, group] = terminations
        self.truncated[t, group] = truncations
        if self.modality_names:
            self._show(t + 1, group, infos)
        if self.same_step:
            if "final_obs" in infos:
                self._keep_finals(t, group, infos)
            if "lost" in infos:
                self.valid[t, group] = ~infos["lost"]
                self.success[t, group][infos["lost"]] = np.nan
        else:
            self._mark_resets(t, group, obs)
            if "is_success" in infos:
                said = np.asarray(infos.get("_is_success", infos["is_success"]), bool)
                self.success[t, group] = np.where(said, infos["is_success"], np.nan)

    def _keep_finals(self, t: int, group: slice, infos: Mapping[str, Any]) -> None:
        ended = np.flatnonzero(self.terminated[t, group] | self.truncated[t, group])
        columns = ended + group.start
        self.finals.append((t, columns, _rows(infos["final_obs"], ended)))
        last = infos.get("final_info", {})
        for name in self.modality_names:
            if name in last:
                self.final_modalities.append((name, t, columns, np.asarray(last[name])[ended]))
        if "is_success" in last:
            self.success[t, columns] = np.asarray(last["is_success"], np.float32)[ended]

    def _mark_resets(self, t: int, group: slice, obs: Obs) -> None:
        self.valid[t, group] = ~self.resetting[group]
        ended = (self.terminated[t, group] | self.truncated[t, group]) & self.valid[t, group]
        self.resetting[group] = ended
        self.truncated[t, group] &= self.valid[t, group]
        if ended.any():
            rows = np.flatnonzero(ended)
            self.finals.append((t, rows + group.start, map_obs(lambda x: np.array(x[rows]), obs)))

    def _show(self, row: int, group: slice, infos: Mapping[str, Any]) -> None:
        for name in self.modality_names:
            if name not in infos:
                option = "frame_size=..." if name == "frame" else f"{name}=True"
                raise ValueError(f'the reward reads {name}, but infos["{name}"] is missing; make them with {option}')
            value = np.asarray(infos[name], object) if name == "text" else np.asarray(infos[name])
            if name not in self.modalities:
                shape = (self.length + 1, self.n, *value.shape[1:])
                self.modalities[name] = np.empty(shape, value.dtype)
            self.modalities[name][row, group] = value

    @property
    def ended(self) -> np.ndarray:
        """Bool (T, N): the last step of an episode."""
        ended = self.terminated | self.truncated
        return ended if self.same_step else ended & self.valid

    def steps(self) -> np.ndarray:
        """Int64 (T, N): each row's step within its episode."""
        rows = np.arange(self.length)[:, None]
        starts = np.zeros((self.length, self.n), bool)
        starts[1:] = self.ended[:-1] if self.same_step else ~self.valid[:-1]
        last = np.maximum.accumulate(np.where(starts, rows, -1), axis=0)
        return np.where(last >= 0, rows - last, rows + self.first_step)

    def transitions(self, requires: frozenset[str]) -> Transitions:
        """The batch (T, N): views, but for successors, which are copied only if somebody reads them."""
        next_obs = map_obs(lambda x: x[1:], self.obs)
        if self.same_step and self.finals and "next_obs" in requires:
            if self._next_obs is None:
                self._next_obs = map_obs(np.empty_like, next_obs)
            put(self._next_obs, slice(None), next_obs)
            next_obs = self._next_obs
            for t, columns, last in self.finals:
                put(next_obs, (t, columns), last)
        modalities: dict[str, Any] = {}
        for name, value in self.modalities.items():
            modalities[name] = value[1:].copy()
            if f"obs_{name}" in requires:
                modalities[f"obs_{name}"] = value[:-1]
        for name, t, columns, last in self.final_modalities:
            modalities[name][t, columns] = last
        return Transitions(
            obs=map_obs(lambda x: x[:-1], self.obs),
            action=self.action,
            reward=self.reward,
            next_obs=next_obs,
            terminated=self.terminated,
            truncated=self.truncated,
            valid=self.valid,
            step=self.steps(),
            **modalities,
        )

    def roll(self) -> None:
        """Begin the next rollout where this one ended."""
        steps = self.steps()[-1] + 1
        reset = self.ended[-1] if self.same_step else ~self.valid[-1]
        self.first_step = np.where(reset, 0, steps)
        put(self.obs, 0, map_obs(lambda x: x[-1], self.obs))
        for value in self.modalities.values():
            value[0] = value[-1]
        self.finals.clear()
        self.final_modalities.clear()
        self.valid[:] = self.same_step
        self.success[:] = np.nan

    def state_dict(self) -> dict[str, Any]:
        """The first row, between two rollouts."""
        return {
            "obs": map_obs(lambda x: x[0].copy(), self.obs),
            "first_step": self.first_step,
            "resetting": self.resetting,
            "shown": {
                name: value[0].tolist() if name == "text" else value[0] for name, value in self.modalities.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._show(0, slice(None), state["shown"])
        put(self.obs, 0, state["obs"])
        self.first_step, self.resetting = np.array(state["first_step"]), np.array(state["resetting"])


def _allocate(leading: tuple[int, ...], space: spaces.Space) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _allocate(leading, part) for key, part in space.spaces.items()}
    if space.shape is None or space.dtype is None:
        raise ValueError(f"{space} has no array form; wrap the environment so that it gives numbers")
    return np.zeros((*leading, *space.shape), space.dtype)


def _rows(final_obs: Any, rows: np.ndarray) -> Obs:
    """Rows of what `infos["final_obs"]` holds: a dense array, a dict of them, or Gymnasium's array of objects."""
    if isinstance(final_obs, Mapping):
        return {key: _rows(value, rows) for key, value in final_obs.items()}
    values = final_obs[rows]
    if values.dtype != object:
        return values
    if isinstance(values[0], Mapping):
        return {key: np.stack([value[key] for value in values]) for key in values[0]}
    return np.stack(list(values))


class OneGroup:
    """Any vector environment, for a learner that sends actions to groups of environments and receives their steps."""

    def __init__(self, envs: Any) -> None:
        self.envs = envs
        self.groups = (slice(0, envs.num_envs),)
        self._actions: Any = None

    def send(self, actions: Array, group: int) -> None:
        """Remember the actions (N, ...)."""
        self._actions = actions

    def recv(self, group: int) -> tuple[Obs, Array, Array, Array, Mapping[str, Any]]:
        """Step with them."""
        return self.envs.step(self._actions)
