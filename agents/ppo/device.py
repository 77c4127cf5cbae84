"""Rollouts that stay where a batched environment computes."""

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.networks.actor_critic import correlate
from agents.ppo.collector import Collector
from agents.ppo.seams import Batch, Targets
from envs.types import MASK

if TYPE_CHECKING:
    from agents.ppo.agent import PPO


class EpisodeEnds(NamedTuple):
    """The episodes that ended at one step, on the device."""

    t: int
    # Bool (N,): in which environments.
    ended: Tensor
    last_obs: Tensor
    success: Tensor | None


class DeviceCollector(Collector):
    """Rollouts that stay where a batched environment computes: actions, steps and updates never leave the device.

    Once a rollout, what rewards and advantages are computed from is copied to the host, where `Collector` keeps it. For
    `array="torch"` on a GPU; on the CPU the NumPy ones are faster. A ValueError refuses recurrence and another device.
    """

    saved = Collector.saved | {"generator": "generator"}

    def __init__(self, agent: "PPO") -> None:
        super().__init__(agent)
        device = self.envs.arrays.device
        if self.recurrent:
            raise ValueError('agent.gru is for environments on the host; make them with array="numpy"')
        if agent.device.type != device.type:
            raise ValueError(f"the environments compute on {device}, the policy on {agent.device}; give one device")
        length = self.rollout.length
        n = self.rollout.n
        zeros = functools.partial(torch.zeros, length, n, device=device)
        self.reads_obs = bool(agent.scorer.requires & {"obs", "next_obs"})
        self.generator = torch.Generator(device).manual_seed(agent.seed)
        # The device's own of what `Collector` has on the host.
        self.vector = torch.zeros(length + 1, n, self.inputs.size, device=device)
        self.observed = self.vector
        kind = torch.float32 if self.actions.gaussian else torch.int64
        self._chosen = zeros(self.actions.choices, dtype=kind)
        self._values = torch.zeros(*self.values.shape, device=device)
        self._log_prob = zeros()
        self._reward = zeros()
        self._terminated = zeros(dtype=torch.bool)
        self._truncated = zeros(dtype=torch.bool)
        self._ends: list[EpisodeEnds] = []

    def _begin(self, obs: Any, infos: Any) -> None:
        if MASK in infos and self.uses_masks:
            raise ValueError('action masks are read on the host; make the environments with array="numpy"')
        self.vector[0] = obs
        self.rollout.first_step[:] = 0

    def collect(self, on_step: Callable[[int], bool]) -> bool:
        started = time.perf_counter()
        length = self.rollout.length
        noise = self.actions.draw_on(self.generator, length, self.rollout.n)
        correlate(noise, self.learner.config.noise_correlation)
        for t in range(length):
            chosen = self.learner.choose(self.vector[t], {}, noise[t], None)
            action, self._values[t], self._log_prob[t] = chosen
            self._chosen[t] = action
            step = self.envs.step(self.actions.to_env_on(action))
            self.vector[t + 1], self._reward[t], self._terminated[t], self._truncated[t], infos = step
            if "final_obs" in infos:
                self._keep_ends(t, infos)
            if not on_step(t):
                self._ends.clear()
                self.began = False
                return False
        self._copy_to_host()
        # The device works on all parts at once, which cannot be told apart.
        self.seconds["environment"] += time.perf_counter() - started
        self._finish()
        return True

    def _keep_ends(self, t: int, infos: Any) -> None:
        success = infos["final_info"].get("is_success")
        if success is not None:
            success = success.clone()
        ended = infos["_final_obs"].clone()
        last_obs = infos["final_obs"].clone()
        self._ends.append(EpisodeEnds(t, ended, last_obs, success))

    def _copy_to_host(self) -> None:
        rollout = self.rollout
        rollout.reward[:] = self._reward.cpu().numpy()
        rollout.terminated[:] = self._terminated.cpu().numpy()
        rollout.truncated[:] = self._truncated.cpu().numpy()
        actions = self.actions.to_env_on(self._chosen.flatten(0, 1))
        actions = actions.cpu().numpy()
        rollout.action[:] = actions.reshape(rollout.action.shape)
        if self.reads_obs:
            rollout.obs[:] = self.vector.cpu().numpy()
        for end in self._ends:
            columns = np.flatnonzero(end.ended.cpu().numpy())
            last_obs = end.last_obs[end.ended].cpu().numpy()
            rollout.finals.append((end.t, columns, last_obs))
            if end.success is not None:
                success = end.success[end.ended].cpu().numpy()
                rollout.success[end.t, columns] = success

    def evaluate(self) -> None:
        self.values[:] = self._values.cpu().numpy()
        self.log_prob[:] = self._log_prob.cpu().numpy()
        self.values[-1] = self.learner.values(self.vector[-1], {})
        for end in self._ends:
            last_obs = end.last_obs[end.ended]
            columns = end.ended.cpu().numpy()
            self.last_values[end.t, columns] = self.learner.values(last_obs, {})
        self._ends.clear()

    def batch(self, targets: Targets) -> Batch:
        rows = torch.as_tensor(targets.rows, device=self.vector.device)
        vector = self.vector[:-1].flatten(0, 1)
        action = self._chosen.flatten(0, 1)
        return Batch(vector, {}, action, Targets(rows.flatten(0, 1)))

    def roll(self) -> None:
        self.rollout.obs[-1] = self.vector[-1].cpu().numpy()
        super().roll()
        self.vector[0] = self.vector[-1]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        first_obs = self.rollout.obs[0]
        self.vector[0] = torch.as_tensor(first_obs, device=self.vector.device)


def on_device(envs: Any) -> bool:
    """Whether environments give tensors, and take them."""
    arrays = getattr(envs, "arrays", None)
    return bool(getattr(arrays, "is_torch", False))


def collector_class(envs: Any) -> type[Collector]:
    """What collects in these environments; those that run elsewhere bring a class of their own."""
    default = DeviceCollector if on_device(envs) else Collector
    return getattr(envs, "collector", default)
