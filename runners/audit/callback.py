"""An audit of any training with Stable-Baselines3, as a callback.

    PPO("MlpPolicy", env).learn(100_000, callback=Audit("audits/mine", task="success"))

It changes nothing about the training. Where the reward is scored step by step, in the environment or in a wrapper,
it follows every step. A relabelling buffer is asked for the rewards of what came last. Where a `RewardCallback` scores
whole rollouts, it reads the logger, so it stands behind the RewardCallback in the list. When training ends it prints
the verdict and writes the page.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import KVWriter

from agents.base import BaseAgent
from envs.transitions import index_obs
from rewards.adapters.sb3 import RewardCallback
from runners.audit.page import finish
from runners.audit.recorder import AuditedStep, Recorder
from runners.audit.streams import OneStep, Source, StreamReader

# Rows of the log in a training run.
DEFAULT_ROWS = 100


class Audit(BaseCallback):
    """Records what an agent of Stable-Baselines3 learns from beside the task's own reward, and judges it at the end.

    Args:
        folder: where it writes; what an earlier audit left there is replaced.
        task: the task's own reward: a key of the info, or a function (obs, action, next_obs, info). By default
            `info["reward/task"]`, which `lodestar.wrap` and `lodestar.RecordTask` write.
        streams: parts of the reward, by name: such keys and functions. By default those of `lodestar.wrap`, else the
            info's numbers whose names begin with `reward_`. What they leave of the reward is the stream `rest`.
        every: environment steps between two rows of the log; a hundredth of the run by default. Behind a
            `RewardCallback` each row of the logger is one.

    Raises:
        ValueError: at the first step, if the task's reward is not there.

    Example:
        >>> import gymnasium
        >>> from stable_baselines3 import PPO
        >>> from tempfile import mkdtemp
        >>> audit = Audit(mkdtemp(), task=lambda obs, action, next_obs, info: -abs(next_obs[0]))
        >>> agent = PPO("MlpPolicy", gymnasium.make("CartPole-v1"), n_steps=64).learn(64, callback=audit)
        verdict: not known: 10 rows with both returns are needed, there are ...
        ...
    """

    def __init__(
        self,
        folder: str | Path = "audit",
        task: Source = "",
        streams: Mapping[str, Source] | None = None,
        every: int = 0,
    ) -> None:
        super().__init__()
        if every < 0:
            raise ValueError(f"every={every} environment steps must be at least 1, or 0 for a hundredth of the run")
        self.folder = Path(folder)
        self.reader = StreamReader(task, streams)
        self.every = every
        self.recorder: Recorder | None = None
        # The reward is scored after the steps, and the logger knows it.
        self.scored_later = False

    def _on_training_start(self) -> None:
        model: Any = self.model
        if isinstance(model, BaseAgent):
            raise ValueError("an agent of Lodestar logs this itself; judge its run by `lodestar audit FOLDER`")
        relabels = hasattr(getattr(model, "replay_buffer", None), "mix")
        follows_logger = _has_reward_callback(self.locals.get("callback"))
        self.scored_later = follows_logger or relabels
        every = self.every or max(int(model._total_timesteps) // DEFAULT_ROWS, 1)
        # `learn` called again goes on in the same files.
        if self.recorder is None:
            measure = self._measure_buffer if relabels else None
            n_envs = self.training_env.num_envs
            self.recorder = Recorder(self.folder, n_envs, 0 if follows_logger else every, measure=measure)
            self._log_writers = [_TaskReturn(self.recorder), *self.recorder.writers]
        if follows_logger and self._log_writers[0] not in self.logger.output_formats:
            self.logger.output_formats = [*self._log_writers, *self.logger.output_formats]
        self.reader.follow(self.training_env)

    def _on_step(self) -> bool:
        assert self.recorder is not None
        new = self.locals
        # Stable-Baselines3 writes into this array later, and what VecNormalize divides is asked for as it was.
        normalizer: Any = self.model.get_vec_normalize_env()
        reward = np.array(new["rewards"] if normalizer is None else normalizer.get_original_reward(), np.float64)
        ended = np.asarray(new["dones"], bool)
        updated = bool(getattr(self.model, "_n_updates", 0))
        valid = np.ones(len(ended), bool)
        if self.scored_later:
            self.recorder.add(AuditedStep(reward, None, ended, {}, valid, updated))
            return True
        self.recorder.add(self.reader.audit(self._steps(), reward, ended, valid, updated))
        return True

    def _measure_buffer(self) -> dict[str, float]:
        """The relabelling buffer's rewards of the transitions that its rewards have yet to learn from."""
        model: Any = self.model
        buffer = model.replay_buffer
        return buffer.measure() or dict(buffer.metrics)

    def _steps(self) -> list[OneStep]:
        """The step of each environment, with the true last observation of an episode."""
        new = self.locals
        obs = self.model._last_obs  # type: ignore[attr-defined]
        actions = new.get("clipped_actions", new["actions"])
        steps = []
        for row, info in enumerate(new["infos"]):
            next_obs = index_obs(new["new_obs"], row)
            if new["dones"][row]:
                next_obs = info.get("terminal_observation", next_obs)
            steps.append(OneStep(index_obs(obs, row), actions[row], next_obs, info))
        return steps

    def _on_training_end(self) -> None:
        assert self.recorder is not None
        self.recorder.write_row()
        finish(self.folder)


class _TaskReturn(KVWriter):
    """Adds the task's return to a row of the log that has none, as environments without a Monitor leave it."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        for tag, value in self.recorder.window_returns().items():
            key_values.setdefault(tag, value)

    def close(self) -> None:
        """Nothing is held open."""


def _has_reward_callback(callback: Any) -> bool:
    if isinstance(callback, CallbackList):
        return any(map(_has_reward_callback, callback.callbacks))
    return isinstance(callback, RewardCallback)
