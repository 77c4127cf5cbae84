"""Rollouts that stay where a batched environment computes: actions, steps and updates never leave the device.

Once a rollout, what rewards and advantages are computed from is copied to the host: rewards, flags, values, and the
observations if a reward reads them. Meant for environments made with `array="torch"` on a GPU; on the CPU the NumPy
ones are faster. Feed-forward policies only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.ppo.collector import Collector
from agents.ppo.update import Batch


class DeviceCollector(Collector):
    """As `Collector`, with tensors.

    Attributes:
        vector: float32 (T + 1, N, D) on the device; what the host needs is in the attributes of `Collector`.

    Raises:
        ValueError: for a recurrent policy, and for one on another device than the environments.
    """

    def __init__(self, envs: Any, learner: Any, length: int, streams: int, requires: frozenset[str], seed: int) -> None:
        super().__init__(envs, learner, length, streams, requires, seed, length)
        device = envs.arrays.device
        if self.recurrent:
            raise ValueError('agent.gru is for environments on the host; make them with array="numpy"')
        if learner.device.type != device.type:
            raise ValueError(f"the environments compute on {device}, the policy on {learner.device}; give one device")
        n = envs.num_envs
        self.reads_obs = bool(requires & {"obs", "next_obs"})
        self.generator = torch.Generator(device).manual_seed(seed)
        self.vector: Any = torch.zeros(length + 1, n, self.inputs.size, device=device)
        kind = torch.float32 if self.actions.gaussian else torch.int64
        self._chosen = torch.zeros(length, n, self.actions.choices, dtype=kind, device=device)
        self._values = torch.zeros(length + 1, n, streams, device=device)
        self._log_prob, self._reward = (torch.zeros(length, n, device=device) for _ in range(2))
        self._flags = torch.zeros(2, length, n, dtype=torch.bool, device=device)  # terminated, truncated
        self._ends: list[tuple[int, Tensor, Tensor, Tensor]] = []  # time, mask, last observations, success

    def begin(self) -> bool:
        fresh = not self.began
        if fresh:
            obs, _ = self.envs.reset(seed=self.seed)
            self.vector[0] = obs
            self.episodes.running[:] = 0
            self.rollout.first_step[:] = 0
            self.began = True
        return fresh

    def collect(self, on_step: Callable[[int], bool]) -> bool:
        length, clock = self.rollout.length, time.perf_counter()
        noise = self._draw()
        for t in range(length):
            action, self._values[t], self._log_prob[t] = self.learner.choose(self.vector[t], {}, noise[t])
            self._chosen[t] = action
            obs, self._reward[t], self._flags[0, t], self._flags[1, t], infos = self.envs.step(self._to_env(action))
            self.vector[t + 1] = obs
            if "final_obs" in infos:
                success = infos["final_info"]["is_success"]
                self._ends.append((t, infos["_final_obs"].clone(), infos["final_obs"].clone(), success.clone()))
            if not on_step(t):
                self._ends.clear()
                self.began = False
                return False
        self._to_host()
        self.seconds["environment"] += time.perf_counter() - clock  # the device works on all parts at once
        self._refuse()
        rollout = self.rollout
        self.episodes.count(rollout.reward, rollout.valid, rollout.ended, rollout.success)
        return True

    def _draw(self) -> Tensor:
        shape = (self.rollout.length, self.rollout.n, self.actions.outputs)
        empty = torch.empty(shape, device=self.vector.device)
        if self.actions.gaussian:
            return empty.normal_(generator=self.generator)
        return -empty.exponential_(generator=self.generator).clamp_(min=1e-30).log_()

    def _to_env(self, action: Tensor) -> Tensor:
        if self.actions.gaussian:
            low, high = (torch.as_tensor(x, device=action.device) for x in (self.actions.low, self.actions.high))
            action = action.clamp(low, high)
        else:
            action = action + torch.as_tensor(self.actions.start, device=action.device)
        return action.reshape(len(action), *self.actions.shape)

    def _to_host(self) -> None:
        rollout = self.rollout
        rollout.reward[:] = self._reward.cpu().numpy()
        rollout.terminated[:], rollout.truncated[:] = self._flags.cpu().numpy()
        rollout.action[:] = self._to_env(self._chosen.flatten(0, 1)).cpu().numpy().reshape(rollout.action.shape)
        if self.reads_obs:
            rollout.obs[:] = self.vector.cpu().numpy()
        for t, mask, last, success in self._ends:
            columns = np.flatnonzero(mask.cpu().numpy())
            rollout.finals.append((t, columns, last[mask].cpu().numpy()))
            rollout.success[t, columns] = success[mask].cpu().numpy()

    def evaluate(self) -> None:
        self.values[:], self.log_prob[:] = self._values.cpu().numpy(), self._log_prob.cpu().numpy()
        self.values[-1] = self.learner.values(self.vector[-1], {})
        for t, mask, last, _ in self._ends:
            self.last_values[t, mask.cpu().numpy()] = self.learner.values(last[mask], {})
        self._ends.clear()

    def batch(self, numbers: np.ndarray) -> Batch:
        tensors = (self.vector[:-1], self._chosen, torch.as_tensor(numbers, device=self.vector.device))
        vector, chosen, flat = (x.flatten(0, 1) for x in tensors)
        return Batch(vector, {}, chosen, flat)

    def roll(self) -> None:
        self.rollout.obs[-1] = self.vector[-1].cpu().numpy()
        super().roll()
        self.vector[0] = self.vector[-1]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.vector[0] = torch.as_tensor(self.rollout.obs[0], device=self.vector.device)
        self.generator.set_state(torch.as_tensor(state["generator"]))
