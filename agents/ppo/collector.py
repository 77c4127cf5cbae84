"""The environments' side of PPO: rollouts, written row by row into arrays that are allocated once."""

import math
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from agents.base import Episodes, has_reset
from agents.ppo.update import Batch, sequences
from envs.masks import allows, checked
from envs.transitions import OneGroup, OnNan, Rollout, map_obs, refuse
from envs.types import MASK, MODALITIES
from lodestar.state import Stateful


class Collector(Stateful):
    """The environments' side of an on-policy agent; its state is where they stand between two rollouts.

    `vector`, float32 (T + 1, N, D), is what the policy read, `chosen` (T, N, choices) its actions, `starts` bool (T +
    1, N) where an episode begins; `values` (T + 1, N, K), `log_prob` (T, N) and `last_values` (T, N, K), of the last
    observation of an episode that was truncated; `importance` (T, N), of rows that another policy acted (`catch_up`);
    `seconds` say where time went. Environments elsewhere bring a `collector` class of their own.
    """

    importance: np.ndarray | None = None
    kind_of_rollout: type[Rollout] = Rollout

    saved: ClassVar[dict[str, str]] = {
        "rollout": "rollout",
        **{key: f"episodes.{name}" for key, name in Episodes.saved.items()},
        **{"rng": "rng", "hidden": "learner.hidden", "began": "began"},
    }

    def __init__(
        self, envs: Any, learner: Any, length: int, streams: int, requires: frozenset[str], seed: int, sequence: int
    ) -> None:
        self.envs, self.learner, self.seed, self.sequence = envs, learner, seed, sequence
        self.inputs, self.actions = learner.net.inputs, learner.net.actions
        self.recurrent = learner.net.gru is not None
        self.stepper = envs if hasattr(envs, "recv") else OneGroup(envs)
        self.rollout = self.kind_of_rollout(length, envs, requires & set(MODALITIES))
        self.observed: Any = self.rollout.obs  # row t + 1 is there once step t is made
        n, flat = envs.num_envs, self.inputs.vector(self.rollout.obs, 2)
        self._shared = isinstance(self.rollout.obs, np.ndarray) and np.shares_memory(flat, self.rollout.obs)
        self.vector: Any = flat  # the observations themselves, where they are flat float32 numbers
        self.chosen = np.zeros((length, n, self.actions.choices), np.float32 if self.actions.gaussian else np.int64)
        self.values = np.zeros((length + 1, n, streams), np.float32)
        self.log_prob = np.zeros((length, n), np.float32)
        self.last_values = np.zeros((length, n, streams), np.float32)
        self.starts = np.zeros((length + 1, n), bool)
        self.episodes = Episodes(n)
        self.seconds = dict.fromkeys(("environment", "inference", "reward", "update"), 0.0)
        self.rng = np.random.default_rng([seed, 1])
        self.hidden: list[Any] = []  # (N, units) of a recurrent policy, before the first row of each sequence
        if self.recurrent:
            learner.start(n)
        self.began = self._known = False  # _known: that they have been reset
        self.on_nan = OnNan()
        self.uses_masks, self.masked = True, False  # masked: the environments give masks, and they are used

    def begin(self) -> bool:
        began = self.began and (self._known or has_reset(self.envs))
        self.began = self._known = True
        if began:
            return False
        self._begin(*self.envs.reset(seed=self.seed))
        self.episodes.running[:] = 0
        return True

    def _begin(self, obs: Any, infos: Any) -> None:
        self.masked = MASK in infos and self.uses_masks and bool(self.actions.sizes)
        if self.masked:
            checked(infos[MASK][0], self.actions.sizes, "of environment 0 at step 0 of its episode")
            self._read_masks()
        self.rollout.begin(obs, infos)
        self.starts[0] = True
        if self.recurrent:
            self.learner.start(self.rollout.n)

    def _read_masks(self) -> None:
        self.masked = True
        self.rollout.modality_names = tuple(sorted({*self.rollout.modality_names, MASK}))

    def _mask(self, t: int, group: slice) -> np.ndarray | None:
        """The actions allowed at row t, bool (B, outputs); None for all. A `MaskFault` where none is."""
        if not self.masked:
            return None
        rollout, groups = self.rollout, self.actions.sizes
        mask = rollout.modalities[MASK][t, group] | rollout.resetting[group, None]
        if not (fine := allows(mask, groups)).all():
            row = group.start + int(np.argmin(fine))
            step = 0 if t == 0 or rollout.restarted[t - 1, row] else int(rollout.steps()[t - 1, row]) + 1
            checked(rollout.modalities[MASK][t, row], groups, f"of environment {row} at step {step} of its episode")
        return mask

    def collect(self, on_step: Callable[[int], bool]) -> bool:
        """Fill the rollout, group by group; `on_step` gets the row that all have just stepped; its False stops."""
        rollout, stepper = self.rollout, self.stepper
        groups, length = stepper.groups, rollout.length
        noise = self.actions.draw(self.rng, length, rollout.n)
        self.learner.begin_rollout()
        if self.recurrent:
            self.hidden = [self.learner.hidden.clone() for _ in range(length // self.sequence)]
        self._read(0, slice(0, rollout.n), map_obs(lambda x: x[0], rollout.obs))
        now = time.perf_counter()
        environment = inference = 0.0
        for t in range(length + 1):
            for number, group in enumerate(groups):
                if t > 0:
                    step = stepper.recv(number)
                    rollout.write(t - 1, group, *step)
                    self._read(t, group, step[0])
                    if self.recurrent:
                        self._mark(t, group)
                    before, now = now, time.perf_counter()
                    environment += now - before
                if t < length:
                    self._act(t, group, noise[t, group])
                    before, now = now, time.perf_counter()
                    inference += now - before
                    stepper.send(rollout.action[t, group], number)
            if t > 0 and not on_step(t - 1):
                self._abandon(t)
                return False
        self.seconds["environment"] += environment
        self.seconds["inference"] += inference
        self._refuse()
        self.episodes.count(rollout.reward, rollout.valid, rollout.ended, rollout.success)
        return True

    def _refuse(self) -> None:
        """Stop before NaN or infinity reaches a weight."""
        rollout, length = self.rollout, self.rollout.length
        rollout.reward[:] = reward = self.on_nan(rollout.reward)
        given = {"reward": reward, "observation": self.vector, "action": rollout.action}
        kept = {"obs": map_obs(lambda x: x[:length], rollout.obs), "action": rollout.action, "reward": reward}
        refuse(given, rollout.steps, kept | {"next_obs": map_obs(lambda x: x[1:], rollout.obs)})

    def _read(self, t: int, group: slice, obs: Any) -> None:
        if not self._shared:
            self.vector[t, group] = self.inputs.vector(obs)

    def _act(self, t: int, group: slice, noise: np.ndarray) -> None:
        pixels = self.inputs.pixels(map_obs(lambda x: x[t, group], self.rollout.obs)) if self.inputs.images else {}
        vector = self.vector[t, group]
        if self.recurrent and t % self.sequence == 0:
            self.hidden[t // self.sequence][group] = self.learner.hidden[group]
        mask = self._mask(t, group)
        if self.learner.deferred:
            action = self.learner.act(vector, pixels, noise, mask)
        else:
            action, values, log_prob = self.learner.act(vector, pixels, noise, mask, group, self.starts[t, group])
            self.values[t, group], self.log_prob[t, group] = values, log_prob
        self.chosen[t, group] = action
        self.rollout.action[t, group] = self.actions.to_env(action)

    def _mark(self, t: int, group: slice) -> None:
        """Where episodes begin; and the value of a last observation, which needs the state of this moment."""
        rollout = self.rollout
        ended = rollout.terminated[t - 1, group] | rollout.truncated[t - 1, group]
        self.starts[t, group] = ended if rollout.same_step else ~rollout.valid[t - 1, group]
        if ended.any() and rollout.finals and rollout.finals[-1][0] == t - 1:
            _, columns, last = rollout.finals[-1]
            read = (self.inputs.vector(last), self.inputs.pixels(last), self.learner.hidden[columns])
            self.last_values[t - 1, columns] = self.learner.values(*read)

    def _abandon(self, t: int) -> None:
        """Stop in the middle: what was collected is dropped."""
        for number in range(len(self.stepper.groups) if t < self.rollout.length else 0):
            self.stepper.recv(number)  # already on its way
        self.rollout.finals.clear()
        self.rollout.valid[:] = self.rollout.same_step
        self.began = False

    def batch(self, numbers: np.ndarray) -> Batch:
        """The rollout as rows to learn from; `numbers` (T, N, 2 + K) as in `Batch`."""
        length, n = self.rollout.length, self.rollout.n
        vector, chosen = self.vector[:length], self.chosen
        pixels = self.inputs.pixels(map_obs(lambda x: x[:length], self.rollout.obs))

        def cut(x: Any) -> Any:
            return sequences(x, self.sequence) if self.recurrent else x.reshape(length * n, *x.shape[2:])

        batch = Batch(cut(vector), map_obs(cut, pixels), cut(chosen), cut(numbers), mask=map_obs(cut, self._masks()))
        if self.recurrent:
            batch.valid, batch.starts = cut(self.rollout.valid), cut(self.starts[:length])
            batch.hidden = self.learner.tensor(torch.cat(self.hidden))
        return batch

    def _masks(self) -> np.ndarray | None:
        """The actions that were allowed, bool (T, N, outputs); None for all."""
        if not self.masked:
            return None
        mask = self.rollout.modalities[MASK][: self.rollout.length]
        return mask | ~self.rollout.valid[..., None]  # a row that only resets

    def evaluate(self) -> None:
        """Values and log-probabilities that acting left out, and the values of the observations episodes ended on."""
        length, learner = self.rollout.length, self.learner
        if self.recurrent:
            hidden = learner.hidden.clone()
            hidden[learner.tensor(self.starts[length])] = 0
            self.values[length] = learner.values(self.vector[length], self._pixels(length), hidden)
        elif learner.deferred:
            self.evaluate_by(learner)
        else:
            self.values[length] = learner.evaluate(self.vector[length], self._pixels(length), None)[0]
            self._evaluate_late(learner)

    def evaluate_by(self, learner: Any) -> None:
        """All values and log-probabilities, by a learner that need not be the one that acted; none with a memory."""
        length, n = self.rollout.length, self.rollout.n
        rows = self.vector.reshape((length + 1) * n, -1)
        pixels = map_obs(lambda x: x.reshape(-1, *x.shape[2:]), self._pixels(slice(None)))
        masks = map_obs(lambda x: x.reshape(length * n, -1), self._masks())
        values, log_prob = learner.evaluate(rows, pixels, self.chosen.reshape(length * n, -1), masks)
        self.values[:], self.log_prob[:] = values.reshape(self.values.shape), log_prob.reshape(length, n)
        self._evaluate_late(learner)

    def catch_up(self, learner: Any) -> None:
        """Of a rollout that mu acted and the learner's pi learns from: what pi says of it, and each row's importance.

        Values, and the log-probabilities that PPO's ratio is taken to, become pi's; how far a row's advantage is above
        the mean counts pi(a | s) / mu(a | s) times, at most twice.
        """
        acted = self.log_prob.copy()
        self.evaluate_by(learner)
        self.importance = np.exp(np.minimum(self.log_prob - acted, math.log(2)))

    def _evaluate_late(self, learner: Any) -> None:
        if late := self.rollout.timed_out():
            times, columns, last = late
            read = (self.inputs.vector(last), self.inputs.pixels(last), None)
            self.last_values[times, columns] = learner.evaluate(*read)[0]

    def _pixels(self, rows: Any) -> dict[str, Any]:
        return self.inputs.pixels(map_obs(lambda x: x[rows], self.rollout.obs)) if self.inputs.images else {}

    def roll(self) -> None:
        self.rollout.roll()
        self.starts[0] = self.starts[-1]

    def follow(self, before: "Collector") -> None:
        """Begin where another one, of the same environments, has ended its rollout."""
        self.rollout.follow(before.rollout)
        self.starts[0] = before.starts[-1]
        self.began, self._known, self.masked = before.began, before._known, before.masked

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"starts": self.starts[0].copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if MASK in state["rollout"]["shown"] and self.uses_masks:
            self._read_masks()
        super().load_state_dict(state)
        self.starts[0] = state["starts"]


class DeviceCollector(Collector):
    """Rollouts that stay where a batched environment computes: actions, steps and updates never leave the device.

    Once a rollout, what rewards and advantages are computed from is copied to the host, where `Collector` keeps it. For
    `array="torch"` on a GPU; on the CPU the NumPy ones are faster. A ValueError refuses recurrence and another device.
    """

    saved: ClassVar[dict[str, str]] = Collector.saved | {"generator": "generator"}

    def __init__(
        self, envs: Any, learner: Any, length: int, streams: int, requires: frozenset[str], seed: int, sequence: int
    ) -> None:
        super().__init__(envs, learner, length, streams, requires, seed, sequence)
        device = envs.arrays.device
        if self.recurrent:
            raise ValueError('agent.gru is for environments on the host; make them with array="numpy"')
        if learner.device.type != device.type:
            raise ValueError(f"the environments compute on {device}, the policy on {learner.device}; give one device")
        n = self.rollout.n
        self.reads_obs = bool(requires & {"obs", "next_obs"})
        self.generator = torch.Generator(device).manual_seed(seed)
        self.vector = self.observed = torch.zeros(length + 1, n, self.inputs.size, device=device)
        kind = torch.float32 if self.actions.gaussian else torch.int64
        self._chosen = torch.zeros(length, n, self.actions.choices, dtype=kind, device=device)
        self._values = torch.zeros(length + 1, n, streams, device=device)
        self._log_prob, self._reward = (torch.zeros(length, n, device=device) for _ in range(2))
        self._flags = torch.zeros(2, length, n, dtype=torch.bool, device=device)  # terminated, truncated
        self._ends: list[tuple[int, Tensor, Tensor, Tensor | None]] = []  # time, mask, last observations, success

    def _begin(self, obs: Any, infos: Any) -> None:
        if MASK in infos and self.uses_masks:
            raise ValueError('action masks are read on the host; make the environments with array="numpy"')
        self.vector[0] = obs
        self.rollout.first_step[:] = 0

    def collect(self, on_step: Callable[[int], bool]) -> bool:
        length, clock = self.rollout.length, time.perf_counter()
        noise = self.actions.draw_on(self.generator, length, self.rollout.n)
        for t in range(length):
            action, self._values[t], self._log_prob[t] = self.learner.choose(self.vector[t], {}, noise[t], None)
            self._chosen[t] = action
            step = self.envs.step(self.actions.to_env_on(action))
            self.vector[t + 1], self._reward[t], self._flags[0, t], self._flags[1, t], infos = step
            if "final_obs" in infos:
                success = infos["final_info"].get("is_success")
                success = None if success is None else success.clone()
                self._ends.append((t, infos["_final_obs"].clone(), infos["final_obs"].clone(), success))
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

    def _to_host(self) -> None:
        rollout = self.rollout
        rollout.reward[:] = self._reward.cpu().numpy()
        rollout.terminated[:], rollout.truncated[:] = self._flags.cpu().numpy()
        actions = self.actions.to_env_on(self._chosen.flatten(0, 1)).cpu().numpy()
        rollout.action[:] = actions.reshape(rollout.action.shape)
        if self.reads_obs:
            rollout.obs[:] = self.vector.cpu().numpy()
        for t, mask, last, success in self._ends:
            columns = np.flatnonzero(mask.cpu().numpy())
            rollout.finals.append((t, columns, last[mask].cpu().numpy()))
            if success is not None:
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

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.vector[0] = torch.as_tensor(self.rollout.obs[0], device=self.vector.device)
