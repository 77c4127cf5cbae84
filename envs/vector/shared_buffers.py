"""What goes in and out of environments that step side by side, and the loop that steps some of them.

    Slots      the arrays of N environments in a step, anywhere in memory
    Stepper    steps some environments and ends and begins their episodes, writing into slots

`envs.vector.in_process` wraps them into a vector environment, `envs.vector.workers` puts the loops into processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np

from envs.observations import empty_batch
from envs.types import MODALITIES, Obs, map_obs, put
from envs.wrappers import Observer

New = Callable[[tuple[int, ...], Any], np.ndarray]  # (shape, dtype) -> an array of zeros


@dataclass(frozen=True, eq=False)
class SharedBuffers:
    """What goes in and out of N environments in one step, one row each."""

    obs: Obs  # (N, *obs_shape)
    action: np.ndarray  # (N, *action_shape)
    reward: np.ndarray  # float32 (N,)
    terminated: np.ndarray  # bool (N,)
    truncated: np.ndarray  # bool (N,)
    final_obs: Obs  # (N, *obs_shape); this and the rest are of the last episode that ended in the row
    episode_return: np.ndarray  # float64 (N,)
    episode_length: np.ndarray  # int64 (N,)
    success: np.ndarray  # int8 (N,): 0 where nothing tells, 1 failed, 2 succeeded
    lost: np.ndarray  # bool (N,): the episode was lost with its worker
    turn: np.ndarray  # int64 (N,): by the first row of whoever steps, the row it works on; -1 between two steps
    frame: np.ndarray | None  # uint8 (N, H, W, 3)
    final_frame: np.ndarray | None
    signals: np.ndarray | None  # float32 (N, K)
    final_signals: np.ndarray | None
    text: np.ndarray | None  # object (N,); never in shared memory
    final_text: np.ndarray | None

    @classmethod
    def like(cls, env: gym.Env, n: int, new: New) -> SharedBuffers:
        """Slots for `n` environments like `env`, their arrays made by `new`, always in the same order."""
        size = env.frame_size if isinstance(env, Observer) else None
        width = len(env.signals) if isinstance(env, Observer) else 0
        text = isinstance(env, Observer) and env.caption is not None
        return cls(
            obs=empty_batch(env.observation_space, (n,), new),
            action=empty_batch(env.action_space, (n,), new, nested=False),
            reward=new((n,), np.float32),
            terminated=new((n,), bool),
            truncated=new((n,), bool),
            final_obs=empty_batch(env.observation_space, (n,), new),
            episode_return=new((n,), np.float64),
            episode_length=new((n,), np.int64),
            success=new((n,), np.int8),
            lost=new((n,), bool),
            turn=new((n,), np.int64),
            frame=None if size is None else new((n, size, size, 3), np.uint8),
            final_frame=None if size is None else new((n, size, size, 3), np.uint8),
            signals=new((n, width), np.float32) if width else None,
            final_signals=new((n, width), np.float32) if width else None,
            text=np.full(n, "", object) if text else None,
            final_text=np.full(n, "", object) if text else None,
        )

    def view(self, rows: slice) -> SharedBuffers:
        """Some of the rows."""
        return SharedBuffers(**{f.name: _rows(getattr(self, f.name), rows) for f in fields(self)})


def _rows(x: Any, rows: slice) -> Any:
    return None if x is None else map_obs(lambda array: array[rows], x)


def modality_names(slots: SharedBuffers, prefix: str = "") -> dict[str, Any]:
    """Frames, texts and signals, as far as there are any; with the prefix `final_`, those of last observations."""
    return {name: value for name in MODALITIES if (value := getattr(slots, prefix + name)) is not None}


class Stepper:
    """Some environments, each with a row of the slots: steps them, and ends and begins their episodes.

    Args:
        envs: row -> environment.
        slots: where actions are read and everything else is written.
        shares: group -> its rows among `envs`.
        lost: row -> seed, where an episode was lost: the row's next step ends it, and begins one with that seed.
    """

    def __init__(
        self,
        envs: Mapping[int, gym.Env],
        slots: SharedBuffers,
        shares: Sequence[slice],
        lost: Mapping[int, int] | None = None,
    ) -> None:
        self.row = min(envs)  # the one that works; where an error comes from
        self._me = self.row
        self._envs = envs
        self._slots = slots
        self._shares = shares
        n = len(slots.reward)
        self._steps = [[(row, envs[row].step) for row in range(*share.indices(n))] for share in shares]
        self._ended = [True for _ in shares]
        self._flat = not isinstance(slots.obs, Mapping)
        self._modality_names = tuple(modality_names(slots))
        self._lost: dict[int, tuple[int, Obs, dict[str, Any]]] = {}
        for self.row, seed in (lost or {}).items():
            self._begin_anew(self.row, seed)

    def step(self, group: int) -> bool:
        """Step the environments of a group; returns whether an episode ended."""
        slots, share, flat, modality_names = self._slots, self._shares[group], self._flat, self._modality_names
        obs, rewards = slots.obs, slots.reward
        if self._ended[group]:
            slots.terminated[share] = slots.truncated[share] = slots.lost[share] = False
        ended = False
        lost, turn, me = self._lost, slots.turn, self._me
        actions = slots.action[share]
        # Numbers as Python's own, which simulators compare fastest; arrays as rows of a copy that nobody overwrites.
        rows: list[Any] = actions.tolist() if actions.ndim == 1 else list(actions.copy())
        try:
            for (row, step), action in zip(self._steps[group], rows):
                if lost and row in lost:
                    self._end_lost(row)
                    ended = True
                    continue
                turn[me] = row
                value, rewards[row], terminated, truncated, info = step(action)
                if terminated or truncated:
                    ended = True
                    self._end(row, value, terminated, truncated, info)
                    value, info = self._envs[row].reset()
                if flat:
                    obs[row] = value
                else:
                    put(obs, row, value)
                if modality_names:
                    self._show(row, info)
        except Exception:
            self.row = row
            raise
        turn[me] = -1
        self._ended[group] = ended
        return ended

    def _begin_anew(self, row: int, seed: int) -> None:
        """The row has a new environment, whose first episode waits for the lost one to be accounted for."""
        self._lost[row] = (seed, *self._envs[row].reset(seed=seed))

    def _end_lost(self, row: int) -> None:
        """The lost episode ends on the last observation known, and the new one begins."""
        slots = self._slots
        _, obs, info = self._lost.pop(row)
        slots.reward[row], slots.terminated[row], slots.truncated[row], slots.lost[row] = 0.0, False, True, True
        put(slots.final_obs, row, map_obs(lambda x: x[row], slots.obs))
        slots.success[row] = 0
        for name in self._modality_names:
            getattr(slots, f"final_{name}")[row] = getattr(slots, name)[row]
        put(slots.obs, row, obs)
        self._show(row, info)

    def _end(self, row: int, obs: Obs, terminated: bool, truncated: bool, info: dict[str, Any]) -> None:
        slots = self._slots
        slots.terminated[row], slots.truncated[row] = terminated, truncated
        put(slots.final_obs, row, obs)
        slots.episode_return[row], slots.episode_length[row] = info["episode"]["r"], info["episode"]["l"]
        slots.success[row] = 1 + info["is_success"] if "is_success" in info else 0
        for name in self._modality_names:
            getattr(slots, f"final_{name}")[row] = info[name]

    def _show(self, row: int, info: dict[str, Any]) -> str | None:
        for name in self._modality_names:
            getattr(self._slots, name)[row] = info[name]
        return info.get("text")

    def ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call one of the methods below for several rows."""
        results = {}
        for self.row, values in arguments.items():
            self._slots.turn[self._me] = self.row
            results[self.row] = getattr(self, method)(self.row, *values)
        self._slots.turn[self._me] = -1
        return results

    def reset(self, row: int, seed: int | None, options: dict[str, Any] | None) -> str | None:
        """Begin an episode; returns the text, which shared memory cannot hold."""
        self._lost.pop(row, None)
        obs, info = self._envs[row].reset(seed=seed, options=options)
        put(self._slots.obs, row, obs)
        return self._show(row, info)

    def restore(self, row: int, state: dict[str, Any]) -> str | None:
        """Come back to a snapshot; returns the text."""
        self._lost.pop(row, None)
        if "lost" in state:
            self._begin_anew(row, state["lost"])
            return None if self._slots.text is None else self._slots.text[row]
        obs, info = self._envs[row].get_wrapper_attr("restore")(state)
        put(self._slots.obs, row, obs)
        return self._show(row, info)

    def call(self, row: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the environment's method `name` returns, or its attribute of that name."""
        if name == "snapshot" and row in self._lost:  # the agent has not been told of the loss yet
            return {"lost": self._lost[row][0]}
        found = self._envs[row].get_wrapper_attr(name)
        return found(*args, **kwargs) if callable(found) else found

    def get(self, row: int, name: str) -> Any:
        """The environment's attribute `name`, or a wrapper's."""
        return self._envs[row].get_wrapper_attr(name)

    def has(self, row: int, name: str) -> bool:
        """Whether the environment, or a wrapper around it, has that attribute."""
        return self._envs[row].has_wrapper_attr(name)

    def assign(self, row: int, name: str, value: Any) -> None:
        """Set an attribute of the outermost wrapper."""
        setattr(self._envs[row], name, value)

    def wrapped(self, row: int, kind: type) -> bool:
        """Whether a wrapper of that class is around the environment."""
        env = self._envs[row]
        while isinstance(env, gym.Wrapper):
            if isinstance(env, kind):
                return True
            env = env.env
        return False

    def close(self) -> None:
        for env in self._envs.values():
            env.close()
