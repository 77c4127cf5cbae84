"""Dyna: act, learn a model of the world from what happened, and learn to act from what the model imagines.

Imagined transitions are paid by whatever reward there is, as it stands at the moment they are learnt from. One loop,
and every published variant of it is a switch (`agents.dyna.config` has the table):

    act -> step -> replay        every `model_every` steps: fit the model, imagine from remembered states
                |-> updates of actor and critics:   update=buffer  from imagined and real transitions    (MBPO)
                                                    update=svg     through the model, a few steps deep   (DHMBPO)
                                                    update=none    from real transitions alone           (SAC, DQN)

Sources: Sutton 1991, "Dyna, an Integrated Architecture for Learning, Planning, and Reacting"; Janner et al. 2019, "When
to Trust Your Model: Model-Based Policy Optimization", arXiv 1906.08253, algorithm 2; Haarnoja et al. 2018, "Soft
Actor-Critic Algorithms and Applications", arXiv 1812.05905; the variants' where they are configured.

Differences from the sources:
  - no reward is stored, neither of real nor of imagined transitions: each is paid when it is sampled, so a reward that
    has learnt since is never stale (`relabel=False` is the control);
  - fits have a budget of gradient steps; sizes are for one core;
  - observations are whitened once, by the random steps at the beginning;
  - losses that are no numbers bring the last sound weights back.

When it fails: on tasks as small as Pendulum five updates a step without a model (`update=none`) learn as fast and cost
less; where an episode's end hangs on little, imagined futures miss it; images are for `agent=world_model`.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agents.base import OwnAgent, is_single
from agents.dyna.config import DynaConfig
from agents.dyna.imagination import Imagination
from agents.dynamics.rollout import RewardSource
from agents.env_stepper import Steps
from agents.networks.cuda_graphs import captured
from agents.networks.space_encoding import SpaceEncoding
from agents.off_policy.dqn import DeepQ
from agents.off_policy.sac import SoftActorCritic
from agents.replay.frozen_reward import FrozenReward
from agents.replay.replay import Replay, Rows
from agents.task_reward import TaskScorer, checked
from agents.weights import Weights, all_finite
from envs.types import Obs, ReplayScorer, map_obs

GIVE_UP = 3  # restored snapshots in a row


class Dyna(OwnAgent):
    """A model-based agent for observations of numbers; see the file.

    Args:
        envs: a `gymnasium.vector.VectorEnv` that resets by itself.
        config: a `DynaConfig`.
        scorer: what pays: a `rewards.mix.mix.Mix`, or None for the task's own reward.
        seed: of everything random.
        device: as torch writes it.

    Attributes:
        notes: what a user should know of how rewards are paid in imagination.

    Raises:
        ValueError: for spaces it cannot take, and switches that contradict them.
    """

    Config: ClassVar[type[DynaConfig]] = DynaConfig
    driver: ClassVar[str] = "scorer"
    recovers: ClassVar[bool] = True
    n_envs: ClassVar[int] = 1

    def __init__(
        self, envs: Any, config: DynaConfig | None = None, *, scorer: Any = None, seed: int = 0, device: str = "cpu"
    ) -> None:
        super().__init__()
        self.config = settings = DynaConfig() if config is None else config
        self.envs, self.seed, self.device = envs, seed, torch.device("cpu" if device == "auto" else device)
        self.observation_space, self.action_space = envs.single_observation_space, envs.single_action_space
        self.check(self.observation_space, self.action_space)
        self.encoding = encoding = SpaceEncoding(self.observation_space, self.action_space)
        self._refuse_discrete()
        self.scorer = TaskScorer(settings.gamma) if scorer is None else checked(scorer, ReplayScorer)
        self.replay_scorer = self.scorer if settings.relabel else FrozenReward(self.scorer)
        self.steps = Steps(envs, seed, self.scorer)
        self.ep_info_buffer, self.ep_success_buffer = self.steps.episodes, self.steps.successes
        self.replay = Replay(
            settings.buffer_size,
            envs.num_envs,
            encoding,
            self.replay_scorer,
            gamma=settings.gamma,
            device=str(self.device),
            seed=seed,
        )
        kind: Any = DeepQ if encoding.discrete else SoftActorCritic
        self.learner = kind(encoding.obs_size, encoding.action_size, settings, seed=seed, device=str(self.device))
        generators = [self.learner.generator]
        self._learn = captured(self.learner.update, device=self.device, mode=settings.compile, generators=generators)
        if encoding.discrete:
            self.learner.epsilon.fill_(settings.epsilon)
        self.imagination = (
            Imagination(settings, encoding, self.scorer, self.learner, _spec(envs), seed=seed, device=str(self.device))
            if settings.uses_model
            else None
        )
        self.notes = [] if self.imagination is None else self.imagination.notes
        parts: dict[str, Any] = {"learner": self.learner}
        if settings.planner != "none":
            assert self.imagination is not None
            parts["model"] = self.imagination.model
        self.policy = Weights(parts)
        self.rng = np.random.default_rng([seed, 3])
        self._fitted_at: int | None = None  # environment steps at the last fit
        self._owed = 0.0  # updates
        self._sums: dict[str, Any] = {}  # of metrics since the last row of the log
        self._counts: dict[str, int] = {}
        self._good: Any = None  # the learner as it was at the last fit
        self._restored = self._restored_in_row = 0

    @classmethod
    def build(cls, config: DynaConfig, envs: Any, *, seed: int, device: str = "cpu", scorer: Any = None) -> Dyna:
        """The agent of a run."""
        return cls(envs, config, scorer=scorer, seed=seed, device=device)

    @classmethod
    def check(cls, observation_space: gym.Space, action_space: gym.Space) -> None:
        """Refuse spaces the agent cannot handle.

        Raises:
            ValueError: naming the space, and the agent that can.
        """
        encoding = SpaceEncoding(observation_space, action_space)
        if encoding.images:
            raise ValueError(
                f"agent=dyna predicts numbers, and {observation_space} holds images; use agent=world_model or agent=ppo"
            )

    def _refuse_discrete(self) -> None:
        if not self.encoding.discrete:
            return
        for switch, asked in (
            ("update=svg", self.config.update == "svg"),
            (f"planner={self.config.planner}", self.config.planner in ("cem", "mppi")),
        ):
            if asked:
                raise ValueError(f"agent.{switch} needs actions in a Box, not {self.action_space}; use update=buffer")

    # ---------------------------------------------------------------------------------------------------- learning

    def learn(
        self,
        total_timesteps: int,
        callback: Any = None,
        log_interval: int | None = 10,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
        tb_log_name: str = "Dyna",
    ) -> Dyna:
        """Act and learn for `total_timesteps` environment steps, summed over environments.

        Raises:
            FloatingPointError: if the environment or a reward gives a number that is none, or learning does thrice in
                a row.
        """
        callback = self._begin(int(total_timesteps), callback, reset_num_timesteps, progress_bar)
        iteration, going = 0, True
        while going and self.num_timesteps < self._total_timesteps:
            self.steps.begin()
            callback.on_rollout_start()
            end = min(self.num_timesteps + self.config.rollout, self._total_timesteps)
            while going and self.num_timesteps < end:
                going = self._step(callback)
            callback.on_rollout_end()
            iteration += 1
            if log_interval is not None and iteration % log_interval == 0:
                self.dump_logs(iteration)
        callback.on_training_end()
        return self

    def _step(self, callback: Any) -> bool:
        """One step of every environment, and what is learnt from it; whether to go on."""
        batch = self.steps.step(self._act(), self.encoding)
        for pays in (self.replay_scorer, self.imagination and self.imagination.reward_source):
            if isinstance(pays, FrozenReward | RewardSource):  # weights follow schedules
                pays.timesteps = self.num_timesteps
        self.replay.add(batch)
        self.num_timesteps += self.steps.n
        if self.num_timesteps >= self.config.learning_starts:
            self._learn_from_it()
        callback.update_locals({"rewards": batch.reward, "dones": batch.ended})
        return bool(callback.on_step())

    def _act(self) -> Tensor:
        """Actions (N, A): random ones at first, then those of the policy or of the planner."""
        n, size, encoding = self.steps.n, self.encoding.action_size, self.encoding
        random = torch.from_numpy(self.rng.uniform(-1, 1, (n, size)).astype(np.float32))
        if encoding.discrete:
            random = torch.nn.functional.one_hot(random.argmax(-1), size).float()
        if self._fitted_at is None:
            return random
        obs = torch.from_numpy(encoding.vector(self.steps.obs)).to(self.device)
        chosen = self._chosen(obs, False, self.steps.step_index).cpu()
        if not bool(chosen.isfinite().all()):
            self._restore()
            return random
        return chosen

    def _chosen(self, obs: Tensor, deterministic: bool, step: np.ndarray | None = None) -> Tensor:
        """Actions (B, A) of the policy or of the planner; `step` (B,) while learning, where plans go on."""
        if self.config.planner != "none" and (step is not None or self.config.planner != "upmpc"):
            assert self.imagination is not None
            return self.imagination.plan(obs, step)
        return self.learner.act(obs, deterministic)

    def _learn_from_it(self) -> None:
        config = self.config
        if self._fitted_at is None or self.num_timesteps - self._fitted_at >= config.model_every:
            self._fit()
        self._owed += config.updates_per_step * self.steps.n
        count = int(self._owed)
        self._owed -= count
        if count:
            self._update(count)

    def _fit(self) -> None:
        """What happens every `model_every` steps: see that the learner is sound, fit the model, imagine."""
        if self._fitted_at is None and self.config.normalize_obs == "first":
            obs = self.replay.arrays()[0]
            std, mean = torch.std_mean(obs, 0, correction=0)
            self.learner.whiten(mean, std)
        self._fitted_at = self.num_timesteps
        self._keep_or_restore()
        if self.imagination is not None:
            self._note(self.imagination.fit(self.replay, self.num_timesteps))

    def _update(self, count: int) -> None:
        """`count` updates of actor and critics; what they learn from is drawn at once."""
        size, imagination = self.config.batch_size, self.imagination
        if self.config.update == "svg":
            assert imagination is not None
            obs, step = imagination.states(count * size)
            for rows in zip(obs.split(size), step.split(size)):
                metrics = imagination.update(*rows)
        else:
            real = size
            buffer = None
            if self.config.update == "buffer":
                assert imagination is not None
                if len(imagination.buffer):  # none are left where every rollout diverged
                    real = round(size * self.config.real_ratio)
                buffer = imagination.buffer.sample(count * (size - real), self.config.gamma) if real < size else None
            drawn = self.replay.sample(count * real) if real else None
            for i in range(count):
                metrics = self._learn(_joined(_slice(drawn, i, real), _slice(buffer, i, size - real)))
        self._n_updates += count
        metrics.pop("td", None)  # one for each row, for priorities
        self._note(metrics)

    # ------------------------------------------------------------------------------------------------------- logs

    def _note(self, metrics: dict[str, Any]) -> None:
        """Add up what will be logged; nothing is read from the device."""
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1

    def dump_logs(self, iteration: int = 0) -> None:
        """Write a row of the log: means since the last one."""
        for name, value in self._sums.items():
            self.logger.record(f"train/{name}", float(value) / self._counts[name])
        for tag, value in self.replay.metrics.items():
            self.logger.record(tag, value)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/restored", self._restored)
        if self.steps.on_nan.what == "zero":
            self.logger.record("reward/nan", self.steps.on_nan.zeroed)
        self.logger.record("train/updates_per_step", self._n_updates / max(self.num_timesteps, 1))
        self._sums, self._counts = {}, {}
        super().dump_logs(iteration)

    # -------------------------------------------------------------------------------------------------- soundness

    def _keep_or_restore(self) -> None:
        """Copy weights that are sound; of others go back to the last copy."""
        if all_finite(self.learner.state_dict()):
            self._good, self._restored_in_row = copy.deepcopy(self.learner.state_dict()), 0
        else:
            self._restore()

    def _restore(self) -> None:
        self._restored += 1
        self._restored_in_row += 1
        if self._good is None or self._restored_in_row >= GIVE_UP:
            raise FloatingPointError(
                f"the losses of actor and critics became no numbers {self._restored_in_row} times in a row, the last "
                f"time after {self.num_timesteps:,} steps; lower agent.learning_rate={self.config.learning_rate}, or "
                "scale the reward"
            )
        self.learner.load_state_dict(copy.deepcopy(self._good))

    # ------------------------------------------------------------------------------------------- acting and files

    def predict(
        self, observation: Obs, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, None]:
        """Actions for one observation or a batch (B, ...); `state` and `episode_start` are for recurrent policies."""
        single = is_single(observation, self.observation_space)
        rows = map_obs(lambda x: np.asarray(x)[None], observation) if single else observation
        obs = torch.as_tensor(self.encoding.vector(rows), device=self.device)
        actions = self.encoding.decode(self._chosen(obs, deterministic).cpu().numpy())
        return (actions[0] if single else actions), None

    def get_state(self) -> dict[str, Any]:
        """All that it takes to go on exactly here, between two rollouts; no pickle."""
        return {
            "modules": {"policy": self.policy.state_dict()},
            "imagination": None if self.imagination is None else self.imagination.state_dict(),
            "replay": self.replay.state_dict(),
            "steps": self.steps.state_dict(),
            "counters": {
                "timesteps": self.num_timesteps,
                "updates": self._n_updates,
                "fitted_at": self._fitted_at,
                "owed": self._owed,
                "restored": self._restored,
            },
            "log": {"sums": {k: float(v) for k, v in self._sums.items()}, "counts": dict(self._counts)},
            "rng": self.rng.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned into an agent built with the same configuration."""
        self.policy.load_state_dict(state["modules"]["policy"])
        if self.imagination is not None:
            self.imagination.load_state_dict(state["imagination"])
        self.replay.load_state_dict(state["replay"])
        self.steps.load_state_dict(state["steps"])
        counters = state["counters"]
        self.num_timesteps, self._n_updates = counters["timesteps"], counters["updates"]
        self._fitted_at, self._owed = counters["fitted_at"], counters["owed"]
        self._restored = counters["restored"]
        self._sums, self._counts = dict(state["log"]["sums"]), dict(state["log"]["counts"])
        self._good = None if self._fitted_at is None else copy.deepcopy(self.learner.state_dict())
        self.rng.bit_generator.state = state["rng"]


def _spec(envs: Any) -> Any:
    """How the environments are registered, or None: Gymnasium's own vectors leave it to those in them."""
    return getattr(envs, "spec", None) or getattr(next(iter(getattr(envs, "envs", [])), None), "spec", None)


def _slice(rows: Rows | None, i: int, size: int) -> Rows | None:
    return None if rows is None else Rows(*(x[i * size : (i + 1) * size] for x in rows))


def _joined(real: Rows | None, buffer: Rows | None) -> Rows:
    if real is None or buffer is None:
        rows = real if buffer is None else buffer
        assert rows is not None
        return rows
    return Rows(*(torch.cat(pair) for pair in zip(real, buffer)))
