"""The mix in Stable-Baselines3: around a VecEnv, at the end of a rollout, or whenever the replay buffer is sampled.

    RewardVecEnv      any algorithm; one `score` a step, the reward is frozen when it is stored
    RewardCallback    PPO, A2C, RecurrentPPO; one `score` a rollout, then returns and advantages are computed anew
    relabelling(B)    DQN, SAC, TD3, TQC, ...; a replay buffer B that stores the task's reward, scores what it samples

Never edit `locals["rewards"]` in a callback's `_on_step`: under VecNormalize the buffer stores something else.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from envs.finite import is_finite, refuse
from envs.transitions import Cursor, from_rollout_buffer, from_sb3_step, innermost, lost_in, modalities_in
from envs.types import MODALITIES, map_obs, put
from rewards.adapters.gym import Driver, require_modalities
from rewards.adapters.sb3_replay import RelabelCallback, relabelling
from rewards.mix.mix import Mix
from rewards.mix.side_critic import SideCritic

__all__ = ["RelabelCallback", "RewardCallback", "RewardVecEnv", "relabelling"]


class RewardVecEnv(VecEnvWrapper):
    """Pays the mix around an SB3 VecEnv. `infos[i]["reward/task"]` keeps the task's reward; Monitor belongs inside."""

    def __init__(self, venv: VecEnv, mix: Mix, update_every: int = 1024) -> None:
        super().__init__(venv)
        self.driver = Driver(mix, venv.num_envs, update_every)
        self._obs: Any = None
        self._actions: Any = None

    def reset(self) -> Any:
        obs = self.venv.reset()
        infos = innermost(self.venv).reset_infos
        require_modalities(self.driver.mix, infos[0])
        self.driver.begin(modalities_in(infos))
        self._obs = copy.deepcopy(obs)
        return obs

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions
        self.venv.step_async(actions)

    def step_wait(self) -> Any:
        obs, rewards, dones, infos = self.venv.step_wait()
        reset_infos = innermost(self.venv).reset_infos
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
        self._modality_names = [name for name in MODALITIES if name in mix.requires]
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
        self._inner = innermost(self.training_env)

    def _on_training_start(self) -> None:
        assert self.cursor is not None
        if not self.cursor.modalities:
            infos = self._inner.reset_infos
            require_modalities(self.mix, infos[0])
            self.cursor.begin(modalities_in(infos))

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
                    "valid": np.empty((length, len(dones)), bool),
                }
        seen = self._seen
        seen["action"][t] = new["clipped_actions"]
        seen["reward"][t] = new["rewards"]  # before SB3 adds its bootstrap value in place
        self._refuse(t, infos)
        seen["done"][t] = dones
        seen["truncated"][t], seen["valid"][t] = False, True
        if dones.any():
            seen["valid"][t] = ~lost_in(infos)
            for n in np.flatnonzero(dones):
                seen["truncated"][t, n] = infos[n].get("TimeLimit.truncated", False)
                if infos[n].get("terminal_observation") is not None:
                    self._final_obs[t, int(n)] = infos[n]["terminal_observation"]
        if self._modality_names:
            self._record_modalities(t, dones, infos)
        self.cursor.step = np.where(dones, 0, self.cursor.step + 1)
        self._t = t + 1
        return True

    def _refuse(self, t: int, infos: Any) -> None:
        """Stop before a number that is none reaches a weight; with `on_nan=zero`, pay 0 for it."""
        new, row = self.locals, self._seen["reward"][t]
        paid = self.mix.on_nan(row)
        if paid is not row:
            row[:] = paid
            new["rewards"][:] = paid  # what SB3 stores, and adds to
        assert self.cursor is not None
        before = self.model._last_obs  # type: ignore[attr-defined]
        kept = {"obs": before, "action": new["clipped_actions"], "reward": row, "next_obs": new["new_obs"]}
        given = {"action": new["clipped_actions"], "reward": row, "observation": new["new_obs"]}
        refuse(given, self.cursor.step, kept)
        for n in np.flatnonzero(new["dones"]):
            last = infos[n].get("terminal_observation")
            if last is not None and not is_finite(last):
                wide = map_obs(np.copy, new["new_obs"])
                put(wide, n, last)
                refuse({"observation": wide}, self.cursor.step, kept | {"next_obs": wide})

    def _record_modalities(self, t: int, dones: np.ndarray, infos: Any) -> None:
        """Keep what a step showed: of its successor, and of the observation it started from."""
        cursor, seen = self.cursor, self._seen
        assert cursor is not None
        modalities = {name: value for name, value in modalities_in(infos).items() if name in self._modality_names}
        for name, now in modalities.items():
            wanted = {name: now}
            if f"obs_{name}" in self.mix.requires:
                wanted[f"obs_{name}"] = cursor.modalities[name]
            for key, value in wanted.items():
                if key not in seen or seen[key].shape[1:] != value.shape:
                    seen[key] = np.empty((len(seen["done"]), *value.shape), value.dtype)
                seen[key][t] = value
        cursor.modalities.update(modalities)
        if dones.any():
            cursor.show(modalities_in(self._inner.reset_infos, dones), dones)

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
            seen["valid"],
            self._first_step,
        )
        batch = batch.replace(**{key: seen[key] for name in MODALITIES for key in (name, f"obs_{name}") if key in seen})
        batch = self.mix.embed(batch)
        raw, self.memory = self.mix.score(batch, self.memory)
        length, n = batch.shape
        start = self.num_timesteps - length * n
        timesteps = start + n * np.arange(length)[:, None]  # (T, 1), the schedule's clock at each row
        parts = self.mix.parts(raw, timesteps)
        episodic = [part for name, part in parts.items() if name not in self.critics]
        bootstrap = buffer.rewards - seen["reward"]  # gamma * V(s') that SB3 added where time ran out
        buffer.rewards[:] = np.sum(episodic, axis=0) + bootstrap if episodic else bootstrap
        lost = ~batch.valid  # rows that SB3 cannot leave out: with this reward they have no advantage and no error
        buffer.rewards[lost] = buffer.values[lost]
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
