"""The mix in Stable-Baselines3: around a VecEnv, at the end of a rollout, or whenever the replay buffer is sampled.

    RewardVecEnv      any algorithm; one `score` a step, the reward is frozen when it is stored
    RewardCallback    PPO, A2C, RecurrentPPO; one `score` a rollout, then returns and advantages are recomputed
    relabelling(B)    DQN, SAC, TD3, TQC, ...; a replay buffer B that stores the task's reward, scores what it samples

Never edit `locals["rewards"]` in a callback's `_on_step`: under VecNormalize the buffer stores something else.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from envs.steps import Chunk, from_sb3_step, innermost, modalities_in
from envs.transitions import refuse
from envs.types import MODALITIES
from rewards.adapters.driver import Driver, EpisodeTracker
from rewards.adapters.sb3_replay import RelabelCallback, relabelling
from rewards.adapters.side_critic import SideCritic
from rewards.mix.mix import Mix

__all__ = ["RelabelCallback", "RewardCallback", "RewardVecEnv", "relabelling"]


class RewardVecEnv(VecEnvWrapper):
    """The mix around an SB3 VecEnv. `infos[i]["reward/task"]` keeps the task's reward; Monitor belongs inside."""

    def __init__(self, venv: VecEnv, mix: Mix, update_every: int = 1024) -> None:
        super().__init__(venv)
        self.driver = Driver(mix, venv.num_envs, update_every)
        self._obs: Any = None
        self._actions: Any = None

    def reset(self) -> Any:
        obs = self.venv.reset()
        self.driver.begin(modalities_in(innermost(self.venv).reset_infos))
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
        self.tracker: EpisodeTracker | None = None  # made for the model's environments
        self.critics: dict[str, SideCritic] = {}
        self.seen_reward = False
        unread = {key for name in MODALITIES for key in (name, f"obs_{name}")} - mix.requires
        self._unread = dict.fromkeys(sorted(unread))
        self._chunk = Chunk(0)
        self.batch: Any = None  # Transitions (T, N) of the last rollout, valid until the next step

    def _init_callback(self) -> None:
        n = self.training_env.num_envs
        if self.tracker is None:
            self.tracker = self._track(n)
        for name, stream in self.mix.streams.items():
            if not stream.episodic and name not in self.critics:
                self.critics[name] = SideCritic(self.model.policy, stream.gamma, self.model.gae_lambda)  # type: ignore[attr-defined]
        self._inner = innermost(self.training_env)
        self._chunk = Chunk(self.model.rollout_buffer.buffer_size)  # type: ignore[attr-defined]

    def _track(self, n: int) -> EpisodeTracker:
        return EpisodeTracker(self.mix.streams, n, self.mix.frame_size)

    def _on_training_start(self) -> None:
        assert self.tracker is not None
        if not self.tracker.cursor.modalities:
            modalities = modalities_in(self._inner.reset_infos)
            self.tracker.require(modalities)
            self.tracker.cursor.begin(modalities)

    def _on_rollout_start(self) -> None:
        self._chunk.count = 0

    def _on_step(self) -> bool:
        new, before = self.locals, self.model._last_obs  # type: ignore[attr-defined]
        rewards = self.mix.on_nan(new["rewards"])
        if rewards is not new["rewards"]:
            new["rewards"][:] = rewards  # what SB3 stores, and adds its bootstrap value to
        assert self.tracker is not None
        step = (new["clipped_actions"], rewards, new["new_obs"], new["dones"], new["infos"], self._inner.reset_infos)
        batch = from_sb3_step(self.tracker.cursor, before, *step)
        kept = {"obs": before, "action": batch.action, "reward": batch.reward, "next_obs": batch.next_obs}
        given = {"action": batch.action, "reward": batch.reward, "observation": batch.next_obs}
        refuse(given, batch.step, kept)
        self._chunk.add(batch.replace(**self._unread))
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer  # type: ignore[attr-defined]
        (self.batch,) = self._chunk.take()
        batch = self.mix.embed(self.batch)
        assert self.tracker is not None
        raw, self.tracker.memory = self.mix.score(batch, self.tracker.memory)
        length, n = batch.shape
        start = self.num_timesteps - length * n
        timesteps = start + n * np.arange(length)[:, None]  # (T, 1), the schedule's clock at each row
        parts = self.mix.parts(raw, timesteps)
        episodic = [part for name, part in parts.items() if name not in self.critics]
        bootstrap = buffer.rewards - batch.reward  # gamma * V(s') that SB3 added where time ran out
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
        assert self.tracker is not None, "the callback has not been attached to a model yet"
        return {
            **self.tracker.state_dict(),
            "critics": {name: critic.state_dict() for name, critic in self.critics.items()},
            "seen_reward": self.seen_reward,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore; side critics need the callback to be attached to its model (`init_callback`) before."""
        self.tracker = self._track(len(state["cursor"]["step"]))
        self.tracker.load_state_dict(state)
        for name, critic in self.critics.items():
            critic.load_state_dict(state["critics"][name])
        self.seen_reward = bool(state["seen_reward"])
