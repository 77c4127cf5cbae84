"""Gymnasium environments side by side, stepped by one lean loop in this process; `envs.workers` spreads them.

    Slots           the arrays that go in and out of N environments in a step
    Stepper         steps some environments and ends and begins their episodes, writing into slots
    SlotVectorEnv   the VectorEnv around slots: what `InProcess` and `envs.workers.Workers` have in common
    InProcess       all of it in this process

A `SlotVectorEnv` is a `gymnasium.vector.VectorEnv` in SAME_STEP mode. What differs from Gymnasium's SyncVectorEnv:
    - Arrays are returned as they are, not copied, and hold until the next step; rewards are float32.
    - infos are few and dense: `final_obs` with `_final_obs`, `final_info` with `episode` and `is_success`, and `frame`
      and `text` of an `Observer`. Anything else an environment says in its info is dropped.
    - `send` and `recv` step one of the `groups` alone.
    - `snapshot` and `restore` come back to exactly the same state, by the environments' `Journal`s.

Limits: all environments have the same spaces, which fit into arrays (Box, Discrete, MultiDiscrete, MultiBinary; for
observations also a Dict of them). They bring `make`'s `EpisodeStatistics`, and its `Journal` if snapshots are taken.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.types import MEDIA, Obs, map_obs, put
from envs.wrappers import Observer

Maker = Callable[[], gym.Env]
New = Callable[[tuple[int, ...], Any], np.ndarray]  # (shape, dtype) -> an array of zeros
Result = tuple[Obs, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Slots:
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
    frame: np.ndarray | None  # uint8 (N, H, W, 3)
    final_frame: np.ndarray | None
    signals: np.ndarray | None  # float32 (N, K)
    final_signals: np.ndarray | None
    text: np.ndarray | None  # object (N,); never in shared memory
    final_text: np.ndarray | None

    @classmethod
    def like(cls, env: gym.Env, n: int, new: New) -> Slots:
        """Slots for `n` environments like `env`, their arrays made by `new`, always in the same order."""
        size = env.frame_size if isinstance(env, Observer) else None
        width = len(env.signals) if isinstance(env, Observer) else 0
        text = isinstance(env, Observer) and env.caption is not None
        return cls(
            obs=_allocate(env.observation_space, n, new),
            action=_allocate(env.action_space, n, new, composite=False),
            reward=new((n,), np.float32),
            terminated=new((n,), bool),
            truncated=new((n,), bool),
            final_obs=_allocate(env.observation_space, n, new),
            episode_return=new((n,), np.float64),
            episode_length=new((n,), np.int64),
            success=new((n,), np.int8),
            frame=None if size is None else new((n, size, size, 3), np.uint8),
            final_frame=None if size is None else new((n, size, size, 3), np.uint8),
            signals=new((n, width), np.float32) if width else None,
            final_signals=new((n, width), np.float32) if width else None,
            text=np.full(n, "", object) if text else None,
            final_text=np.full(n, "", object) if text else None,
        )

    def view(self, rows: slice) -> Slots:
        """Some of the rows."""
        return Slots(**{f.name: _rows(getattr(self, f.name), rows) for f in fields(self)})


def _rows(x: Any, rows: slice) -> Any:
    return None if x is None else map_obs(lambda array: array[rows], x)


def _allocate(space: spaces.Space, n: int, new: New, composite: bool = True) -> Any:
    if composite and isinstance(space, spaces.Dict):
        return {key: _allocate(part, n, new) for key, part in space.spaces.items()}
    if space.shape is None or space.dtype is None:
        raise ValueError(f'{space} does not fit into an array; adapt the environment, or use backend="sync"')
    return new((n, *space.shape), space.dtype)


def _media(slots: Slots, prefix: str = "") -> dict[str, Any]:
    return {name: value for name in MEDIA if (value := getattr(slots, prefix + name)) is not None}


class Stepper:
    """Some environments, each with a row of the slots: steps them, and ends and begins their episodes.

    Args:
        envs: row -> environment.
        slots: where actions are read and everything else is written.
        shares: group -> its rows among `envs`.
    """

    def __init__(self, envs: Mapping[int, gym.Env], slots: Slots, shares: Sequence[slice]) -> None:
        self.row = min(envs)  # the one that works; where an error comes from
        self._envs = envs
        self._slots = slots
        self._shares = shares
        n = len(slots.reward)
        self._steps = [[(row, envs[row].step) for row in range(*share.indices(n))] for share in shares]
        self._ended = [False for _ in shares]
        self._flat = not isinstance(slots.obs, Mapping)
        self._media = tuple(_media(slots))

    def step(self, group: int) -> bool:
        """Step the environments of a group; returns whether an episode ended."""
        slots, share, flat, media = self._slots, self._shares[group], self._flat, self._media
        obs, rewards = slots.obs, slots.reward
        if self._ended[group]:
            slots.terminated[share] = slots.truncated[share] = False
        ended = False
        actions = slots.action[share]
        # Numbers as Python's own, which simulators compare fastest; arrays as rows of a copy that nobody overwrites.
        rows: list[Any] = actions.tolist() if actions.ndim == 1 else list(actions.copy())
        try:
            for (row, step), action in zip(self._steps[group], rows):
                value, rewards[row], terminated, truncated, info = step(action)
                if terminated or truncated:
                    ended = True
                    self._end(row, value, terminated, truncated, info)
                    value, info = self._envs[row].reset()
                if flat:
                    obs[row] = value
                else:
                    put(obs, row, value)
                if media:
                    self._show(row, info)
        except Exception:
            self.row = row
            raise
        self._ended[group] = ended
        return ended

    def _end(self, row: int, obs: Obs, terminated: bool, truncated: bool, info: dict[str, Any]) -> None:
        slots = self._slots
        slots.terminated[row], slots.truncated[row] = terminated, truncated
        put(slots.final_obs, row, obs)
        slots.episode_return[row], slots.episode_length[row] = info["episode"]["r"], info["episode"]["l"]
        slots.success[row] = 1 + info["is_success"] if "is_success" in info else 0
        for name in self._media:
            getattr(slots, f"final_{name}")[row] = info[name]

    def _show(self, row: int, info: dict[str, Any]) -> str | None:
        for name in self._media:
            getattr(self._slots, name)[row] = info[name]
        return info.get("text")

    def ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call one of the methods below for several rows."""
        results = {}
        for self.row, values in arguments.items():
            results[self.row] = getattr(self, method)(self.row, *values)
        return results

    def reset(self, row: int, seed: int | None, options: dict[str, Any] | None) -> str | None:
        """Begin an episode; returns the text, which shared memory cannot hold."""
        obs, info = self._envs[row].reset(seed=seed, options=options)
        put(self._slots.obs, row, obs)
        return self._show(row, info)

    def restore(self, row: int, state: dict[str, Any]) -> str | None:
        """Come back to a snapshot; returns the text."""
        obs, info = self._envs[row].get_wrapper_attr("restore")(state)
        put(self._slots.obs, row, obs)
        return self._show(row, info)

    def call(self, row: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the environment's method `name` returns, or its attribute of that name."""
        found = self._envs[row].get_wrapper_attr(name)
        return found(*args, **kwargs) if callable(found) else found

    def close(self) -> None:
        for env in self._envs.values():
            env.close()


class SlotVectorEnv(VectorEnv):
    """What `InProcess` and `Workers` have in common; they differ in `_ask`, `_start` and `_wait`."""

    groups: tuple[slice, ...]

    def _describe(self, env: gym.Env, n: int, groups: tuple[slice, ...], slots: Slots) -> None:
        self.num_envs = n
        self.groups = groups
        self.spec = env.spec
        self.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = env.render_mode
        self.single_observation_space = env.observation_space
        self.single_action_space = env.action_space
        self.observation_space = batch_space(env.observation_space, n)
        self.action_space = batch_space(env.action_space, n)
        self._slots = slots
        self._views = [slots.view(rows) for rows in groups] if len(groups) > 1 else [slots]
        self._sent: deque[int] = deque()

    @abstractmethod
    def _ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Have the environments of some rows do a `Stepper`'s method."""

    @abstractmethod
    def _start(self, group: int) -> None:
        """The actions of a group are in its slots."""

    @abstractmethod
    def _wait(self, group: int) -> bool:
        """Fill the slots of a group; returns whether an episode ended."""

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Begin episodes in all environments, or in those of `options["reset_mask"]`, bool (N,).

        Environment i is seeded with `seed + i`, or with the i-th of a list.
        """
        self._check_idle("reset")
        n = self.num_envs
        seeds = (
            [seed + i for i in range(n)]
            if isinstance(seed, int | np.integer)
            else [None] * n
            if seed is None
            else list(seed)
        )
        options = dict(options or {})
        mask = np.asarray(options.pop("reset_mask", np.ones(n, bool)), bool)
        if len(seeds) != n or mask.shape != (n,):
            raise ValueError(f"{len(seeds)} seeds and a reset_mask of shape {mask.shape} do not fit {n} environments")
        rows = np.flatnonzero(mask).tolist()
        self._tell(self._ask("reset", {row: (seeds[row], options or None) for row in rows}))
        return self._slots.obs, self._infos(self._slots, False)

    def send(self, actions: Any, group: int = 0) -> None:
        """Hand a group its actions, (group's length, *action_shape); workers begin to step at once."""
        if self.closed:
            raise RuntimeError("these environments are closed; make new ones")
        if group in self._sent:
            raise RuntimeError(f"group {group} has its actions already; call recv({group}) first")
        slots = self._views[group].action
        actions = np.asarray(actions)
        if actions.shape != slots.shape:
            raise ValueError(f"actions of shape {actions.shape} do not fit; give {slots.shape}")
        slots[...] = actions
        self._start(group)
        self._sent.append(group)

    def recv(self, group: int = 0) -> Result:
        """What `step` returns, for the rows of one group; groups come back in the order they were sent."""
        return self._result(self._views[group], self._finish(group))

    def step(self, actions: Any) -> Result:
        """Step all environments; see the module for what comes back."""
        if len(self.groups) == 1:
            self.send(actions)
            return self.recv()
        for group, rows in enumerate(self.groups):
            self.send(actions[rows], group)
        ended = [self._finish(group) for group in range(len(self.groups))]
        return self._result(self._slots, any(ended))

    def snapshot(self) -> dict[str, Any]:
        """Plain data from which `restore` brings these or fresh environments to this state."""
        return {"envs": list(self.call("snapshot"))}

    def restore(self, state: Mapping[str, Any]) -> Obs:
        """Come back to a snapshot, by playing each running episode again; returns the observations of that moment."""
        self._check_idle("restore")
        if len(state["envs"]) != self.num_envs:
            raise ValueError(f"the snapshot is of {len(state['envs'])} environments, not of {self.num_envs}")
        self._tell(self._ask("restore", {row: (one,) for row, one in enumerate(state["envs"])}))
        return self._slots.obs

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """What each environment's method `name` returns, or its attribute of that name."""
        self._check_idle("call")
        answers = self._ask("call", {row: (name, args, kwargs) for row in range(self.num_envs)})
        return tuple(answers[row] for row in range(self.num_envs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """As `call`."""
        return self.call(name)

    def _check_idle(self, verb: str) -> None:
        if self.closed:
            raise RuntimeError("these environments are closed; make new ones")
        if self._sent:
            raise RuntimeError(f"group {self._sent[0]} is stepping; call recv({self._sent[0]}) before {verb}()")

    def _finish(self, group: int) -> bool:
        if not self._sent or self._sent[0] != group:
            waiting = f"the next is group {self._sent[0]}" if self._sent else "none has been sent"
            raise RuntimeError(f"recv({group}) has nothing to wait for: {waiting}")
        self._sent.popleft()
        return self._wait(group)

    def _tell(self, texts: Mapping[int, str | None]) -> None:
        for row, text in texts.items():
            if self._slots.text is not None:
                self._slots.text[row] = text

    def _result(self, slots: Slots, ended: bool) -> Result:
        return slots.obs, slots.reward, slots.terminated, slots.truncated, self._infos(slots, ended)

    def _infos(self, slots: Slots, ended: bool) -> dict[str, Any]:
        infos = _media(slots)
        if not ended:
            return infos
        mask = slots.terminated | slots.truncated
        final = _media(slots, "final_")
        final["episode"], final["_episode"] = {"r": slots.episode_return, "l": slots.episode_length}, mask
        if slots.success.any():
            final["is_success"] = slots.success == 2
        infos["final_obs"], infos["_final_obs"] = slots.final_obs, mask
        infos["final_info"], infos["_final_info"] = final, mask
        return infos


class InProcess(SlotVectorEnv):
    """Steps environments one after the other in this process; one group.

    Args:
        makers: each makes one, as `envs.make.make` returns it.
    """

    def __init__(self, makers: Sequence[Maker]) -> None:
        if not makers:
            raise ValueError("no environments make no vector; give at least one maker")
        n, everything = len(makers), (slice(0, len(makers)),)
        self.envs: list[gym.Env] = []
        for make in makers:  # if one cannot be made, those before it are closed with this object
            self.envs.append(make())
        self._describe(self.envs[0], n, everything, Slots.like(self.envs[0], n, np.zeros))
        self._stepper = Stepper(dict(enumerate(self.envs)), self._slots, everything)

    def _ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        return self._stepper.ask(method, arguments)

    def _start(self, group: int) -> None:
        """`_wait` does the work."""

    def _wait(self, group: int) -> bool:
        return self._stepper.step(group)

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()
