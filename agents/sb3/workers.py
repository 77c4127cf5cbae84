"""Stable-Baselines3's VecEnv over `envs.vector.workers`: shared arrays, and a worker that is lost is replaced.

Agents get the numbers of a DummyVecEnv. In infos an episode lost with its worker ends as truncated with
`info["lost"] = True` and no return; the drivers of rewards make no transition of it.

Differences from SubprocVecEnv: several environments to a worker, arrays in shared memory, workers that import no torch,
and nothing that can hang. Of an environment's info only what `envs.vector.in_process` keeps arrives: an episode's
return and length, success, frames, texts and signals.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from envs.types import MODALITIES, map_obs
from envs.vector.in_process import Maker
from envs.vector.workers import Workers


class WorkerVecEnv(VecEnv):
    """Environments in worker processes as an SB3 VecEnv; `options` are those of `envs.vector.workers.Workers`."""

    def __init__(self, makers: Sequence[Maker], **options: Any) -> None:
        self.workers = Workers(makers, **options)
        self._began = time.perf_counter()
        try:
            workers = self.workers
            super().__init__(workers.num_envs, workers.single_observation_space, workers.single_action_space)
        except BaseException:
            self.close()
            raise
        self.metadata = self.workers.metadata

    @property
    def say(self) -> Callable[[str], object]:
        """Called with a sentence about each worker that was replaced."""
        return self.workers.say

    @say.setter
    def say(self, say: Callable[[str], object]) -> None:
        self.workers.say = say

    @property
    def restarts(self) -> int:
        """How many workers have been replaced so far."""
        return self.workers.restarts

    def reset(self) -> Any:
        if any(options != self._options[0] for options in self._options):
            raise ValueError("environments in workers are reset with the same options; give set_options one dict")
        obs, modalities = self.workers.reset(seed=self._seeds, options=self._options[0] or None)
        self.reset_infos = self._rows(modalities)
        self._reset_seeds()
        self._reset_options()
        return map_obs(np.copy, obs)

    def step_async(self, actions: np.ndarray) -> None:
        for group, rows in enumerate(self.workers.groups):  # all workers begin before the first is waited for
            self.workers.send(actions[rows], group)

    def step_wait(self) -> Any:
        obs, rewards, terminations, truncations, infos = self.workers.recv_all()
        ended = terminations | truncations
        rows = self._rows(infos)
        for info, truncated in zip(rows, (truncations & ~terminations).tolist()):
            info["TimeLimit.truncated"] = truncated
        for row in np.flatnonzero(ended).tolist():
            self.reset_infos[row] = {name: value for name, value in rows[row].items() if name in MODALITIES}
            rows[row] |= self._last(infos, row)
        return map_obs(np.copy, obs), rewards.copy(), ended, rows

    def _rows(self, infos: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What the environments show, copied, a dict each."""
        modalities = {name: np.copy(infos[name]) for name in MODALITIES if name in infos}
        return [{name: value[row] for name, value in modalities.items()} for row in range(self.num_envs)]

    def _last(self, infos: Mapping[str, Any], row: int) -> dict[str, Any]:
        """What an episode's end adds to, or exchanges in, the info of its row."""
        final = infos["final_info"]
        last = {name: copy.copy(final[name][row]) for name in MODALITIES if name in final}
        last["terminal_observation"] = map_obs(lambda x: np.copy(x[row]), infos["final_obs"])
        if "lost" in infos and infos["lost"][row]:
            return {**last, "lost": True}
        account, elapsed = final["episode"], round(time.perf_counter() - self._began, 6)
        last["episode"] = {"r": float(account["r"][row]), "l": int(account["l"][row]), "t": elapsed}
        if "is_success" in final and final["_is_success"][row]:
            last["is_success"] = bool(final["is_success"][row])
        return last

    def close(self) -> None:
        self.workers.close()

    def snapshot(self) -> dict[str, Any]:
        """Plain data from which `restore` brings these or fresh environments to this state."""
        return self.workers.snapshot()

    def restore(self, state: Mapping[str, Any]) -> Any:
        """Come back to a snapshot; returns the observations of that moment."""
        return map_obs(np.copy, self.workers.restore(state))

    def _each(self, method: str, indices: Any, *arguments: Any) -> list[Any]:
        rows = list(self._get_indices(indices))
        answers = self.workers.ask(method, dict.fromkeys(rows, arguments))
        return [answers[row] for row in rows]

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return self._each("get", indices, attr_name)

    def has_attr(self, attr_name: str) -> bool:
        return all(self._each("has", None, attr_name))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        self._each("assign", indices, attr_name, value)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        return self._each("call", indices, method_name, method_args, method_kwargs)

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: Any = None) -> list[bool]:
        return self._each("wrapped", indices, wrapper_class)

    def get_images(self) -> Sequence[np.ndarray | None]:
        return self.env_method("render")
