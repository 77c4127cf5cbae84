"""The mix in Stable-Baselines3: around a VecEnv, at the end of a rollout, or whenever the replay buffer is sampled.

    RewardVecEnv      any algorithm; one `score` a step, the reward is frozen when it is stored
    RewardCallback    PPO, A2C, RecurrentPPO; one `score` a rollout, then returns and advantages are computed anew
    relabelling(B)    DQN, SAC, TD3, TQC, ...; a replay buffer B that stores the task's reward and scores what it samples

Never edit `locals["rewards"]` in a callback's `_on_step`: under VecNormalize the buffer stores something else.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from envs.transitions import Cursor, frames, from_replay, from_rollout_buffer, from_sb3_step, texts
from envs.types import Transitions
from rewards.mix import Mix
from rewards.side_critic import SideCritic
from rewards.wrappers import Driver, _require


class RewardVecEnv(VecEnvWrapper):
    """Pays the mix around an SB3 VecEnv. `infos[i]["reward/task"]` keeps the task's reward; Monitor belongs inside."""

    def __init__(self, venv: VecEnv, mix: Mix, update_every: int = 1024) -> None:
        super().__init__(venv)
        self.driver = Driver(mix, venv.num_envs, update_every)
        self._obs: Any = None
        self._actions: Any = None

    def reset(self) -> Any:
        obs = self.venv.reset()
        infos = _innermost(self.venv).reset_infos
        _require(self.driver.mix, infos[0])
        self.driver.begin(frames(infos), texts(infos))
        self._obs = copy.deepcopy(obs)
        return obs

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions
        self.venv.step_async(actions)

    def step_wait(self) -> Any:
        obs, rewards, dones, infos = self.venv.step_wait()
        reset_infos = _innermost(self.venv).reset_infos
        batch = from_sb3_step(self.driver.cursor, self._obs, self._actions, rewards, obs, dones, infos, reset_infos)
        total = self.driver(batch)
        for row, info in enumerate(infos):
            info["reward/task"] = float(rewards[row])
        self._obs = copy.deepcopy(obs)
        return obs, total, dones, infos

    def state_dict(self) -> dict[str, Any]:
        return {**self.driver.state_dict(), "obs": self._obs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.driver.load_state_dict(state)
        self._obs = state["obs"]


class RewardCallback(BaseCallback):
    """Scores each rollout of an on-policy algorithm in one batch, then recomputes returns and advantages.

    Streams with `episodic=False` get a critic of their own, whose advantages cross resets and are added to the agent's.
    Until the run has seen its first reward that is not zero, advantages are set to zero: normalising them would turn
    the noise of an untrained critic into a direction.
    """

    def __init__(self, mix: Mix) -> None:
        super().__init__()
        self.mix = mix
        self.memory: Any = None
        self.cursor: Cursor | None = None
        self.critics: dict[str, SideCritic] = {}
        self.seen_reward = False
        self._wants_frames = "frame" in mix.requires
        self._wants_texts = "text" in mix.requires
        self._t = 0
        self._final_obs: dict[tuple[int, int], Any] = {}
        self._seen: dict[str, np.ndarray] = {}

    def _init_callback(self) -> None:
        n = self.training_env.num_envs
        if self.cursor is None:
            self.cursor, self.memory = Cursor(n), self.mix.initial_memory(n)
        for name, stream in self.mix.streams.items():
            if not stream.episodic and name not in self.critics:
                self.critics[name] = SideCritic(self.model.policy, stream.gamma, self.model.gae_lambda)  # type: ignore[attr-defined]
        self._inner = _innermost(self.training_env)

    def _on_training_start(self) -> None:
        assert self.cursor is not None
        if self.cursor.frame is None and self.cursor.text is None:
            infos = self._inner.reset_infos
            _require(self.mix, infos[0])
            self.cursor.begin(frames(infos), texts(infos))

    def _on_rollout_start(self) -> None:
        assert self.cursor is not None
        self._t = 0
        self._final_obs = {}
        self._first_step = self.cursor.step.copy()

    def _on_step(self) -> bool:
        new, t = self.locals, self._t
        dones, infos = new["dones"], new["infos"]
        assert self.cursor is not None
        if t == 0:
            length = self.model.rollout_buffer.buffer_size  # type: ignore[attr-defined]
            actions = np.asarray(new["clipped_actions"])
            if self._seen.get("action", np.empty(0)).shape != (length, *actions.shape):
                self._seen = {
                    "action": np.empty((length, *actions.shape), actions.dtype),
                    "reward": np.empty((length, len(dones)), np.float32),
                    "done": np.empty((length, len(dones)), bool),
                    "truncated": np.empty((length, len(dones)), bool),
                }
        seen = self._seen
        seen["action"][t] = new["clipped_actions"]
        seen["reward"][t] = new["rewards"]  # before SB3 adds its bootstrap value in place
        seen["done"][t] = dones
        seen["truncated"][t] = False
        if dones.any():
            for n in np.flatnonzero(dones):
                seen["truncated"][t, n] = infos[n].get("TimeLimit.truncated", False)
                if infos[n].get("terminal_observation") is not None:
                    self._final_obs[t, int(n)] = infos[n]["terminal_observation"]
        if self._wants_frames or self._wants_texts:
            self._record_media(t, dones, infos)
        self.cursor.step = np.where(dones, 0, self.cursor.step + 1)
        self._t = t + 1
        return True

    def _record_media(self, t: int, dones: np.ndarray, infos: Any) -> None:
        """Keep the images and captions of a step: of its successor, and of the observation it started from."""
        cursor, seen = self.cursor, self._seen
        assert cursor is not None
        for field, now, current in (
            ("frame", frames(infos) if self._wants_frames else None, cursor.frame),
            ("text", texts(infos) if self._wants_texts else None, cursor.text),
        ):
            if now is None:
                continue
            wanted = {field: now, f"obs_{field}": current} if f"obs_{field}" in self.mix.requires else {field: now}
            for key, value in wanted.items():
                assert value is not None
                if key not in seen or seen[key].shape[1:] != value.shape:
                    seen[key] = np.empty((len(seen["done"]), *value.shape), value.dtype)
                seen[key][t] = value
        if self._wants_frames:
            cursor.frame = frames(infos)
        if self._wants_texts:
            cursor.text = texts(infos)
        if dones.any():
            resets = self._inner.reset_infos
            step = cursor.step
            cursor.begin(frames(resets, dones), texts(resets, dones), dones)
            cursor.step = step  # _on_step counts

    def _on_rollout_end(self) -> None:
        buffer, seen = self.model.rollout_buffer, self._seen  # type: ignore[attr-defined]
        batch = from_rollout_buffer(
            buffer,
            seen["action"],
            seen["reward"],
            self.locals["new_obs"],
            self._final_obs,
            seen["done"],
            seen["truncated"],
            self._first_step,
        )
        batch = batch.replace(**{key: seen[key] for key in ("frame", "obs_frame", "text", "obs_text") if key in seen})
        batch = self.mix.embed(batch)
        raw, self.memory = self.mix.score(batch, self.memory)
        length, n = batch.shape
        start = self.num_timesteps - length * n
        timesteps = start + n * np.arange(length)[:, None]  # (T, 1), the schedule's clock at each row
        parts = self.mix.parts(raw, timesteps)
        episodic = [part for name, part in parts.items() if name not in self.critics]
        bootstrap = buffer.rewards - seen["reward"]  # gamma * V(s') that SB3 added where time ran out
        buffer.rewards[:] = np.sum(episodic, axis=0) + bootstrap if episodic else bootstrap
        buffer.compute_returns_and_advantage(last_values=self.locals["values"], dones=self.locals["dones"])
        metrics = {}
        for name, critic in self.critics.items():
            advantages, loss = critic.advantages(batch, self.locals["new_obs"], parts[name])
            buffer.advantages += advantages
            metrics[f"{name}/critic_loss"] = loss
        self.seen_reward = self.seen_reward or any(bool(part.any()) for part in parts.values())
        if not self.seen_reward:
            buffer.advantages[:] = 0
        metrics.update(self.mix.update(batch, raw, timesteps))
        for tag, value in metrics.items():
            self.logger.record(tag, value)

    def state_dict(self) -> dict[str, Any]:
        """Memory, cursor and side critics, as they stand between two rollouts."""
        assert self.cursor is not None, "the callback has not been attached to a model yet"
        return {
            "memory": copy.deepcopy(self.memory),
            "cursor": self.cursor.state_dict(),
            "critics": {name: critic.state_dict() for name, critic in self.critics.items()},
            "seen_reward": self.seen_reward,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore; the callback must have been attached to its model (`init_callback`) before."""
        self.memory = {name: {k: np.array(v) for k, v in m.items()} for name, m in state["memory"].items()}
        self.cursor = Cursor(len(state["cursor"]["step"]))
        self.cursor.load_state_dict(state["cursor"])
        for name, critic in self.critics.items():
            critic.load_state_dict(state["critics"][name])
        self.seen_reward = bool(state["seen_reward"])


def relabelling(buffer_class: type[ReplayBuffer]) -> type[ReplayBuffer]:
    """A replay buffer like `buffer_class` (plain, dict, n-step or HER) that takes `mix=` and pays it at sampling."""
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
        return self.buffer.relabel(from_replay(self.buffer, *np.broadcast_arrays(rows, columns)), rows, columns)

    @property
    def nbytes(self) -> int:
        return self.task.nbytes


class _Relabelling:
    """What `relabelling` adds: embeddings and episodic scores as columns, rewards computed when they are read.

    Frames are embedded in batches, before the next sample or update. Rewards with a memory of the episode cannot be computed
    from a random sample: they are scored once, in time order, and only weighed and scaled anew.
    """

    PENDING = 256  # steps after which frames are embedded even if nobody samples

    def __init__(self, *args: Any, mix: Mix, update_every: int = 1024, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if getattr(self, "optimize_memory_usage", False):
            raise ValueError("optimize_memory_usage=True drops the true successors; a relabelling buffer needs False")
        self.mix = mix
        shape = (self.buffer_size, self.n_envs)  # type: ignore[attr-defined]
        self.task_rewards: np.ndarray = self.rewards  # type: ignore[has-type]
        self.rewards: Any = _Rewards(self, self.task_rewards)
        self.steps = np.zeros(shape, np.int64)
        self.columns: dict[str, np.ndarray] = {}
        self.cursor = Cursor(self.n_envs)  # type: ignore[attr-defined]
        self.memory = mix.initial_memory(self.n_envs)  # type: ignore[attr-defined]
        self.timesteps = 0
        self.metrics: dict[str, float] = {}
        self._update_rows = min(max(update_every // self.n_envs, 1), self.buffer_size)  # type: ignore[attr-defined]
        self._fresh = 0  # rows since the last update
        self._pending: list[tuple[int, Transitions]] = []
        self._media = "frame" in mix.requires or "text" in mix.requires
        self._episodic = [name for name, stream in mix.streams.items() if not stream.reward.relabelable]
        self._venv: Any = None

    def attach(self, venv: VecEnv) -> None:
        """Tell the buffer where frames and texts of the first observations are; needed only if a reward reads them."""
        self._venv = _innermost(venv)
        infos = self._venv.reset_infos
        _require(self.mix, infos[0])
        self.cursor.begin(frames(infos), texts(infos))

    def environment_action(self, action: np.ndarray) -> np.ndarray:
        """Stored actions (..., A) in the environment's range and shape: SB3 stores Box actions scaled to [-1, 1]."""
        space = self.action_space  # type: ignore[attr-defined]
        if hasattr(space, "low") and hasattr(space, "high"):
            action = space.low + 0.5 * (action.reshape(*action.shape[:-1], *space.shape) + 1.0) * (
                space.high - space.low
            )
            return action.astype(space.dtype)
        return action.reshape(*action.shape[:-1], *space.shape)

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        pos, cursor = self.pos, self.cursor  # type: ignore[has-type]
        self.steps[pos] = cursor.step
        super().add(obs, next_obs, action, reward, done, infos)  # type: ignore[misc]
        if self._media or self._episodic:
            rows, columns = np.full(self.n_envs, pos), np.arange(self.n_envs)  # type: ignore[attr-defined]
            batch = from_replay(self, rows, columns).replace(extras={}, frame=None, text=None)
            if self._media:
                batch = batch.replace(
                    frame=frames(infos), text=texts(infos), obs_frame=cursor.frame, obs_text=cursor.text
                )
                cursor.frame, cursor.text = batch.frame, batch.text
                if np.any(done) and self._venv is not None:
                    resets, ended = self._venv.reset_infos, np.asarray(done, bool)
                    step = cursor.step
                    cursor.begin(frames(resets, ended), texts(resets, ended), ended)
                    cursor.step = step
            self._pending.append((pos, batch))
            if len(self._pending) >= self.PENDING:
                self.flush()
        cursor.step = np.where(np.asarray(done, bool), 0, self.steps[pos] + 1)
        self.timesteps += self.n_envs  # type: ignore[attr-defined]
        self._fresh += 1
        if self._fresh >= self._update_rows:
            self._learn()

    def flush(self) -> None:
        """Embed what is pending and score its episodic streams, in time order."""
        if not self._pending:
            return
        positions = np.array([pos for pos, _ in self._pending])
        from envs.types import stack

        batch = self.mix.embed(stack([batch for _, batch in self._pending]))
        self._pending = []
        new: dict[str, np.ndarray] = dict(batch.extras)
        for name in ("frame", "obs_frame", "text", "obs_text"):
            if name in self.mix.requires and getattr(batch, name) is not None:
                new[name] = getattr(batch, name)
        for name in self._episodic:
            stream = self.mix.streams[name]
            new[f"score/{name}"], memory = stream.score(batch, self.memory.get(name))
            if stream.has_memory:
                self.memory[name] = memory
        for key, value in new.items():
            if key not in self.columns:
                self.columns[key] = np.zeros((self.buffer_size, *value.shape[1:]), value.dtype)  # type: ignore[attr-defined]
            self.columns[key][positions] = value

    def relabel(self, batch: Transitions, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """The mix's reward of entries of this buffer, as it stands now."""
        self.flush()
        return self.mix.combine(self._raw(batch, rows, columns), self.timesteps)

    def _raw(self, batch: Transitions, rows: np.ndarray, columns: np.ndarray) -> dict[str, np.ndarray]:
        flat = batch.replace(extras=dict(batch.extras))
        raw = {}
        for name, stream in self.mix.streams.items():
            if name in self._episodic:
                raw[name] = self.columns[f"score/{name}"][rows, columns]
            else:
                raw[name] = stream.score(flat.flatten(), None)[0].reshape(batch.shape)
        return raw

    def _learn(self) -> None:
        """Update the rewards with the rows that came since the last time."""
        self.flush()
        rows = (self.pos - self._fresh + np.arange(self._fresh)) % self.buffer_size  # type: ignore[attr-defined]
        rows, columns = np.broadcast_arrays(rows[:, None], np.arange(self.n_envs))  # type: ignore[attr-defined]
        batch = from_replay(self, rows, columns)
        self.metrics = self.mix.update(batch, self._raw(batch, rows, columns), self.timesteps)
        self._fresh = 0

    def _get_virtual_samples(self, batch_indices: np.ndarray, env_indices: np.ndarray, env: Any = None) -> Any:
        """HER: the environment pays its part for the new goal, the other streams are scored with it."""
        samples = super()._get_virtual_samples(batch_indices, env_indices, env)  # type: ignore[misc]
        batch = from_replay(self, batch_indices, env_indices).replace(
            obs={key: value.cpu().numpy() for key, value in samples.observations.items()},
            next_obs={key: value.cpu().numpy() for key, value in samples.next_observations.items()},
            reward=samples.rewards.cpu().numpy().reshape(-1),
        )
        total = self.relabel(batch, batch_indices, env_indices)
        return samples._replace(rewards=torch.as_tensor(total, device=samples.rewards.device).reshape(-1, 1))

    def state_dict(self) -> dict[str, Any]:
        """What the buffer knows beyond SB3's arrays; the filled part of its columns only."""
        self.flush()
        filled = self.buffer_size if self.full else self.pos  # type: ignore[attr-defined]
        return {
            "steps": self.steps[:filled],
            "columns": {key: value[:filled] for key, value in self.columns.items()},
            "cursor": self.cursor.state_dict(),
            "memory": copy.deepcopy(self.memory),
            "timesteps": self.timesteps,
            "fresh": self._fresh,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        filled = len(state["steps"])
        self.steps[:filled] = state["steps"]
        self.columns = {}
        for key, value in state["columns"].items():
            self.columns[key] = np.zeros((self.buffer_size, *value.shape[1:]), value.dtype)  # type: ignore[attr-defined]
            self.columns[key][:filled] = value
        self.cursor.load_state_dict(state["cursor"])
        self.memory = {name: {k: np.array(v) for k, v in m.items()} for name, m in state["memory"].items()}
        self.timesteps, self._fresh = int(state["timesteps"]), int(state["fresh"])


class RelabelCallback(BaseCallback):
    """Attaches a relabelling buffer to the environment and writes its metrics to the log."""

    def __init__(self, buffer: Any = None) -> None:
        super().__init__()
        self.buffer = buffer

    def _on_training_start(self) -> None:
        self.buffer = self.model.replay_buffer if self.buffer is None else self.buffer  # type: ignore[attr-defined]
        if self.buffer.timesteps == 0:
            self.buffer.attach(self.training_env)
        self.buffer._venv = _innermost(self.training_env)

    def _on_step(self) -> bool:
        if self.buffer.metrics:
            for tag, value in self.buffer.metrics.items():
                self.logger.record(tag, value)
            self.buffer.metrics = {}
        return True


def _innermost(venv: Any) -> Any:
    """The VecEnv that holds the environments, inside all wrappers: only it knows the infos of automatic resets."""
    while isinstance(venv, VecEnvWrapper):
        venv = venv.venv
    return venv
