"""A replay buffer that stores no learned reward: sampled transitions are scored by the reward as it is now.

`relabelling(B)` extends Stable-Baselines3's buffers (plain, dict, n-step, HER) without copying their samplers:
whatever they read from `self.rewards[rows, columns]` is scored on the way out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from envs.steps import from_replay, innermost, lost_in, modalities_in
from envs.transitions import Transitions, refuse, stack
from envs.types import MODALITIES
from rewards.adapters.driver import EpisodeTracker
from rewards.mix.mix import Mix


def relabelling(buffer_class: type[ReplayBuffer]) -> type[ReplayBuffer]:
    """A replay buffer like `buffer_class` (plain, dict, n-step or HER) that takes `mix=` and relabels at sampling."""
    return type(f"Relabelling{buffer_class.__name__}", (_Relabelling, buffer_class), {})


class _Rewards:
    """Stands in for a buffer's `rewards`: writing stores the task's reward, reading scores what is read."""

    def __init__(self, buffer: Any, task: np.ndarray) -> None:
        self.buffer = buffer
        self.task = task

    def __setitem__(self, index: Any, value: Any) -> None:
        self.task[index] = value

    def __getitem__(self, index: Any) -> np.ndarray:
        rows, columns = index
        self.buffer.flush()  # before the columns are read
        return self.buffer.relabel(from_replay(self.buffer, *np.broadcast_arrays(rows, columns)))

    @property
    def nbytes(self) -> int:
        return self.task.nbytes


if TYPE_CHECKING:  # the class that `relabelling` is given comes behind it
    _Base = ReplayBuffer
else:
    _Base = object


class _Relabelling(_Base):
    """What `relabelling` adds: embeddings and episodic scores as columns, rewards computed when they are read.

    Frames are embedded in batches, before the next sample or update; `Mix.keep` lists what else is kept.
    """

    PENDING = 256  # steps after which frames are embedded even without a sample

    def __init__(self, *args: Any, mix: Mix, update_every: int = 1024, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if getattr(self, "optimize_memory_usage", False):
            raise ValueError("optimize_memory_usage=True drops the true successors; a relabelling buffer needs False")
        self.mix = mix
        shape = (self.buffer_size, self.n_envs)
        self.task_rewards: np.ndarray = self.rewards
        self.rewards: Any = _Rewards(self, self.task_rewards)
        self.steps = np.zeros(shape, np.int64)
        self.columns: dict[str, np.ndarray] = {}
        self.tracker = EpisodeTracker(mix.streams, self.n_envs, mix.frame_size)
        self.timesteps = 0
        self.metrics: dict[str, float] = {}
        self._update_rows = min(max(update_every // self.n_envs, 1), self.buffer_size)
        self._fresh = 0  # rows since the last update
        self._pending: list[tuple[int, Transitions]] = []
        self._modality_names = any(name in mix.requires for name in MODALITIES)
        self._venv: Any = None

    def attach(self, venv: VecEnv) -> None:
        """Read the modalities that come with the first observations; needed only if a reward reads them."""
        self._venv = innermost(venv)
        self.tracker.begin(modalities_in(self._venv.reset_infos))

    def environment_action(self, action: np.ndarray) -> np.ndarray:
        """Stored actions (..., A) in the environment's range and shape: SB3 stores Box actions scaled to [-1, 1]."""
        space: Any = self.action_space
        action = action.reshape(*action.shape[:-1], *space.shape)
        if isinstance(space, spaces.Box):
            action = (space.low + 0.5 * (action + 1.0) * (space.high - space.low)).astype(space.dtype)
        return action

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        pos, cursor, first = self.pos, self.tracker.cursor, self.pos == 0 and not self.full
        reward = self.mix.on_nan(np.asarray(reward))
        kept = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs}
        refuse({"action": action, "reward": reward, "observation": next_obs}, cursor.step, kept)
        lost = lost_in(infos)
        self.steps[pos] = cursor.step
        super().add(obs, next_obs, action, reward, done, infos)
        if self.mix.keeps:
            rows, columns = np.full(self.n_envs, pos), np.arange(self.n_envs)
            batch = from_replay(self, rows, columns).replace(
                valid=~lost, extras={}, frame=None, text=None, signals=None
            )
            if self._modality_names:
                modalities = modalities_in(infos)
                batch = batch.replace(**modalities, **cursor.of_obs())
                cursor.modalities = dict(modalities)
                if np.any(done) and self._venv is not None:
                    ended = np.asarray(done, bool)
                    cursor.show(modalities_in(self._venv.reset_infos, ended), ended)
            self._pending.append((pos, batch))
            if len(self._pending) >= self.PENDING or lost.any():
                self.flush()
        if lost.any() and not first:
            self._repeat(pos, lost)
        cursor.step = np.where(np.asarray(done, bool), 0, self.steps[pos] + 1)
        self.timesteps += self.n_envs
        self._fresh += 1
        if self._fresh >= self._update_rows:
            self._learn()

    def _repeat(self, pos: int, lost: np.ndarray) -> None:
        """A row in which episodes were lost with their worker holds the transitions before once more, as their ends."""
        before = (pos - 1) % self.buffer_size
        continues = lost & (self.dones[before] == 0)
        self.dones[before, continues] = self.timeouts[before, continues] = 1
        kept: Any = (self.observations, self.next_observations)
        arrays = [array for one in kept for array in (one.values() if isinstance(one, dict) else [one])]
        arrays += [self.actions, self.task_rewards, self.dones, self.timeouts, self.steps]
        for array in (*arrays, *self.columns.values()):
            array[pos, lost] = array[before, lost]

    def flush(self) -> None:
        """Let the mix keep what it needs of the pending transitions, in time order."""
        if not self._pending:
            return
        positions = np.array([pos for pos, _ in self._pending])
        batch, tracker = stack([batch for _, batch in self._pending]), self.tracker
        new, tracker.memory = self.mix.keep(batch, tracker.memory)
        self._pending = []
        for key, value in new.items():
            if key not in self.columns:
                self.columns[key] = np.zeros((self.buffer_size, *value.shape[1:]), value.dtype)
            self.columns[key][positions] = value

    def relabel(self, batch: Transitions) -> np.ndarray:
        """The mix's reward of entries of this buffer, already flushed, as it stands now."""
        return self.mix.combine(self.mix.relabel(batch), self.timesteps)

    def _learn(self) -> None:
        """Update the rewards with the rows that came since the last update."""
        self.flush()
        rows = (self.pos - self._fresh + np.arange(self._fresh)) % self.buffer_size
        rows, columns = np.broadcast_arrays(rows[:, None], np.arange(self.n_envs))
        batch = from_replay(self, rows, columns)
        self.metrics = self.mix.update(batch, self.mix.relabel(batch), self.timesteps)
        self._fresh = 0

    def _get_virtual_samples(self, batch_indices: np.ndarray, env_indices: np.ndarray, env: Any = None) -> Any:
        """HER: the environment computes its part for the new goal, the other streams are scored with it."""
        self.flush()
        samples = super()._get_virtual_samples(batch_indices, env_indices, env)  # type: ignore[misc]
        batch = from_replay(self, batch_indices, env_indices).replace(
            obs={key: value.cpu().numpy() for key, value in samples.observations.items()},
            next_obs={key: value.cpu().numpy() for key, value in samples.next_observations.items()},
            reward=samples.rewards.cpu().numpy().reshape(-1),
        )
        total = self.relabel(batch)
        return samples._replace(rewards=torch.as_tensor(total, device=samples.rewards.device).reshape(-1, 1))

    def state_dict(self) -> dict[str, Any]:
        """What the buffer knows beyond SB3's arrays; the filled part of its columns only.

        What is pending stays so: embedded with other neighbours it would differ in its last bit, and a run that was
        saved at another moment with it.
        """
        pending = [batch for _, batch in self._pending]
        filled = self.buffer_size if self.full else self.pos
        return {
            "steps": self.steps[:filled],
            "columns": {key: value[:filled] for key, value in self.columns.items()},
            **self.tracker.state_dict(),
            "timesteps": self.timesteps,
            "fresh": self._fresh,
            "pending": {"rows": [row for row, _ in self._pending], "batch": vars(stack(pending)) if pending else None},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        filled = len(state["steps"])
        self.steps[:filled] = state["steps"]
        self.columns = {}
        for key, value in state["columns"].items():
            self.columns[key] = np.zeros((self.buffer_size, *value.shape[1:]), value.dtype)
            self.columns[key][:filled] = value
        self.tracker.load_state_dict(state)
        self.timesteps, self._fresh = int(state["timesteps"]), int(state["fresh"])
        self._pending = []
        if (pending := state.get("pending")) and pending["rows"]:
            batch = Transitions(**pending["batch"])
            self._pending = [(int(row), batch[index]) for index, row in enumerate(pending["rows"])]


class RelabelCallback(BaseCallback):
    """Attaches a relabelling buffer to the environment and writes its metrics to the log."""

    def __init__(self, buffer: Any = None) -> None:
        super().__init__()
        self.buffer = buffer

    def _on_training_start(self) -> None:
        self.buffer = self.model.replay_buffer if self.buffer is None else self.buffer  # type: ignore[attr-defined]
        if self.buffer.timesteps == 0:
            self.buffer.attach(self.training_env)
        self.buffer._venv = innermost(self.training_env)

    def _on_step(self) -> bool:
        if self.buffer.metrics:
            for tag, value in self.buffer.metrics.items():
                self.logger.record(tag, value)
            self.buffer.metrics = {}
        return True
