"""Gymnasium environments side by side, stepped by one lean loop in this process; `envs.vector.workers` spreads them.

    SlotVectorEnv   the VectorEnv around `envs.vector.shared_buffers`: what `InProcess` and `envs.vector.workers.Workers` have in common
    InProcess       all of it in this process

A `SlotVectorEnv` is a `gymnasium.vector.VectorEnv` in SAME_STEP mode. What differs from Gymnasium's SyncVectorEnv:
    - Arrays are returned as they are, not copied, and hold until the next step; rewards are float32.
    - infos are few and dense: `final_obs` with `_final_obs`, `final_info` with `episode` and `is_success`, and `frame`
      and `text` of an `Observer`. Anything else an environment says in its info is dropped.
    - Where a worker was lost, its running episodes end as truncated, in a row that is no transition and is no episode
      in the account: `infos["lost"]`, bool (N,), which is there only then.
    - `send` and `recv` step one of the `groups` alone.
    - `snapshot` and `restore` come back to exactly the same state, by the environments' `Journal`s.

Limits: all environments have the same spaces, which fit into arrays (Box, Discrete, MultiDiscrete, MultiBinary; for
observations also a Dict of them). They bring `make`'s `EpisodeStatistics`, and its `Journal` if snapshots are taken.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.types import Obs
from envs.vector.shared_buffers import SharedBuffers, Stepper, modality_names

Maker = Callable[[], gym.Env]
Result = tuple[Obs, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class SlotVectorEnv(VectorEnv):
    """What `InProcess` and `Workers` have in common; they differ in `_ask`, `_start` and `_wait`."""

    groups: tuple[slice, ...]

    def _describe(self, env: gym.Env, n: int, groups: tuple[slice, ...], slots: SharedBuffers) -> None:
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
        return self.recv_all()

    def recv_all(self) -> Result:
        """What `step` returns, once all groups have their actions."""
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
        answers = self.ask("call", {row: (name, args, kwargs) for row in range(self.num_envs)})
        return tuple(answers[row] for row in range(self.num_envs))

    def ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Have some rows do a method of `Stepper`: row -> its arguments; returns row -> what it gave back."""
        self._check_idle(method)
        return self._ask(method, arguments)

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

    def _result(self, slots: SharedBuffers, ended: bool) -> Result:
        return slots.obs, slots.reward, slots.terminated, slots.truncated, self._infos(slots, ended)

    def _infos(self, slots: SharedBuffers, ended: bool) -> dict[str, Any]:
        infos = modality_names(slots)
        if not ended:
            return infos
        mask = slots.terminated | slots.truncated
        final = modality_names(slots, "final_")
        counted = mask
        if slots.lost.any():
            infos["lost"], counted = slots.lost, mask & ~slots.lost
        final["episode"], final["_episode"] = {"r": slots.episode_return, "l": slots.episode_length}, counted
        if slots.success.any():
            final["is_success"], final["_is_success"] = slots.success == 2, counted & (slots.success > 0)
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
        self._describe(self.envs[0], n, everything, SharedBuffers.like(self.envs[0], n, np.zeros))
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
