"""Dyna: act, learn a model of the environment from replay, and learn to act from what the model imagines.

Every published variant of the one loop is a preset (`agents.dyna.config`):

    act -> step -> replay        every `model_every` steps: fit the model, imagine from replayed states
                |-> updates of actor and critics:   update=buffer  from imagined and real transitions    (MBPO)
                                                    update=svg     through the model, a few steps deep   (DHMBPO)
                                                    update=none    from real transitions alone           (SAC, DQN)

Sources: Sutton 1991, "Dyna, an Integrated Architecture for Learning, Planning, and Reacting"; Janner et al. 2019, arXiv
1906.08253, algorithm 2; those of the variants stand beside them. Differences: no reward is stored, neither of real
nor of imagined transitions: each is relabelled when it is sampled (`relabel=False` is the control); fits have a budget
of gradient steps; observations are whitened once, by the random steps at the beginning; weights that are NaN or
infinite are replaced by the last finite ones.

When it fails: on tasks as small as Pendulum five updates a step without a model (`update=none`) learn as fast and cost
less; where an episode's end depends on little, imagined rollouts miss it; images are for `agent=world_model`.
"""

import functools
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agents.base import BaseAgent, Means, OnStep, Steps
from agents.dyna.config import DynaConfig
from agents.dyna.imagination import Imagination
from agents.dynamics.rollout import RewardSource
from agents.networks.actor_critic import SpaceEncoding
from agents.off_policy import compiled
from agents.off_policy.dqn import DeepQ
from agents.off_policy.sac import SoftActorCritic
from agents.replay.demonstrations import MixedReplay, demonstrations
from agents.replay.replay import FrozenReward, Replay, Rows
from envs.types import Obs, ReplayScorer
from lodestar.state import Weights, all_finite


class Dyna(BaseAgent):
    """A model-based agent for observations without images; see the file."""

    Config: ClassVar[type[DynaConfig]] = DynaConfig
    recovers: ClassVar[bool] = True
    n_envs: ClassVar[int] = 1
    scorer_type: ClassVar[type[Any]] = ReplayScorer
    scorer: ReplayScorer
    config: DynaConfig
    saved: ClassVar[dict[str, str]] = {
        **{"modules.policy": "policy", "imagination": "imagination", "replay": "replay", "steps": "steps"},
        **{"counters.timesteps": "num_timesteps", "counters.updates": "_n_updates", "log": "means", "rng": "rng"},
        **{f"counters.{name}": f"_{name}" for name in ("fitted_at", "pending", "restored", "restored_in_row")},
    }
    in_file: ClassVar[dict[str, str]] = BaseAgent.in_file | {"fitted_at": "_fitted_at"}
    lasting: ClassVar[dict[str, str]] = (
        BaseAgent.lasting
        | in_file
        | {key: name for key, name in saved.items() if key.startswith("counters.") or key == "log"}
    )
    recoverable: ClassVar[dict[str, str]] = {"learner": "learner"}

    def _set_up(self) -> None:
        settings, envs, seed = self.config, self.envs, self.seed
        self.encoding = encoding = SpaceEncoding(self.observation_space, self.action_space)
        for name, value in (("update", settings.update), ("planner", settings.planner)):
            if encoding.discrete and value in ("svg", "cem", "mppi"):
                raise ValueError(f"agent.{name}={value} needs Box actions, not {self.action_space}; use update=buffer")
        self.replay_scorer = self.scorer if settings.relabel else FrozenReward(self.scorer)
        self.steps = Steps(envs, seed, self.scorer)
        self.episodes = self.steps.episodes
        place: dict[str, Any] = {"seed": seed, "device": str(self.device)}
        rows = (settings.buffer_size, envs.num_envs)
        make: Any = Replay
        if settings.demos or settings.imitate:
            demos = demonstrations(settings.demos, encoding, self.scorer) if settings.demos else None
            shares = {"demo_share": settings.demo_share, "best_share": settings.imitate}
            make = functools.partial(MixedReplay, demos=demos, **shares)
        self.replay = make(*rows, encoding, self.replay_scorer, gamma=settings.gamma, **place)
        kind: Any = DeepQ if encoding.discrete else SoftActorCritic
        self.learner = kind(encoding.obs_size, encoding.action_size, settings, **place)
        self._learn = self._learn_critics = self.learner.update
        if isinstance(self.learner, SoftActorCritic):
            self._learn_critics = functools.partial(self.learner.update, actor=False)
        else:
            self.learner.epsilon.fill_(settings.epsilon)
        self.imagination: Imagination | None = None
        parts: dict[str, Any] = {"learner": self.learner}
        if settings.uses_model:
            spec = getattr(envs, "spec", None) or getattr(next(iter(getattr(envs, "envs", [])), None), "spec", None)
            self.imagination = Imagination(settings, encoding, self.scorer, self.learner, spec, **place)
            self.notes = self.imagination.notes
            if settings.planner != "none":
                parts["model"] = self.imagination.model
        self.policy = Weights(parts)
        self.rng = np.random.default_rng([seed, 3])
        self._fitted_at: int | None = None  # rows that the replay had been given at the last fit
        self._pending = 0.0  # updates
        self.means = Means()

    @classmethod
    def check(cls, observation_space: gym.Space, action_space: gym.Space) -> None:
        if SpaceEncoding(observation_space, action_space).images:
            raise ValueError(f"agent=dyna predicts numbers, and {observation_space} has images; use agent=world_model")

    def collect(self, on_step: OnStep) -> bool:
        end = min(self.num_timesteps + self.config.rollout, self._total_timesteps)
        while self.num_timesteps < end:
            batch = self.steps.step(self._act(), self.encoding)
            for source in (self.replay_scorer, self.imagination and self.imagination.reward_source):
                if isinstance(source, FrozenReward | RewardSource):  # weights follow schedules
                    source.timesteps = self.num_timesteps
            self.replay.add(batch)
            self.num_timesteps += self.steps.n
            if self.replay.added >= self.config.learning_starts:
                self._learn_from_it()
            if not on_step(batch.reward, batch.ended, self.steps.obs):
                return False
        return True

    def _act(self) -> Tensor:
        n, size, encoding = self.steps.n, self.encoding.action_size, self.encoding
        random = torch.from_numpy(self.rng.uniform(-1, 1, (n, size)).astype(np.float32))
        if encoding.discrete:
            random = torch.nn.functional.one_hot(random.argmax(-1), size).float()
        if self._fitted_at is None:
            return random
        obs = torch.from_numpy(encoding.vector(self.steps.obs)).to(self.device)
        chosen = self._chosen(obs, False, self.steps.step_index).cpu()
        if not bool(chosen.isfinite().all()):
            self.keep_or_restore(False)
            return random
        return chosen

    def _chosen(self, obs: Tensor, deterministic: bool, step: np.ndarray | None = None) -> Tensor:
        """Actions (B, A) of the policy or of the planner; `step` (B,) while learning, where plans are continued."""
        if self.config.planner != "none" and (step is not None or self.config.planner != "upmpc"):
            assert self.imagination is not None
            return self.imagination.plan(obs, step)
        return self.learner.act(obs, deterministic)

    def _learn_from_it(self) -> None:
        config = self.config
        if self._fitted_at is None or not 0 <= self.replay.added - self._fitted_at < config.model_every:
            self._fit()
        self._pending += config.updates_per_step * self.steps.n
        count = int(self._pending)
        self._pending -= count
        if count:
            self._update(count)

    def _fit(self) -> None:
        if self._fitted_at is None and self.config.normalize_obs == "first":
            obs = self.replay.arrays()[0]
            std, mean = torch.std_mean(obs, 0, correction=0)
            self.learner.whiten(mean, std)
        if isinstance(self.replay, MixedReplay):
            self.replay.rescore(self.learner.next_value, self.learner.entropy_reward)
        self._fitted_at = self.replay.added
        self.keep_or_restore(all_finite(self.learner.state_dict()))
        if self.imagination is not None:
            self.means.add(self.imagination.fit(self.replay, self.num_timesteps))

    def _update(self, count: int) -> None:
        size, imagination, metrics = self.config.batch_size, self.imagination, dict[str, Any]()
        if self.config.update == "svg":
            assert imagination is not None
            obs, step = imagination.states(count * size)
            for rows in zip(obs.split(size), step.split(size)):
                metrics = imagination.update(*rows)
        else:
            real, imagined = size, None
            if imagination is not None and imagination.buffer is not None and len(imagination.buffer):
                real = round(size * self.config.real_ratio)  # an empty buffer: every rollout diverged
                imagined = imagination.buffer.sample(count * (size - real), self.config.gamma) if real < size else None
            drawn = self.replay.sample(count * real) if real else None
            if drawn is not None and self.config.imitate and isinstance(self.replay, MixedReplay):
                drawn = self.replay.lower_bounds(drawn, lambda *rows: self.learner.q(*rows).mean(0))
            found = compiled.updates(self.learner, (drawn, imagined), count, self._n_updates)
            metrics = found or metrics
            for i in range(0 if found else count):
                last = (self._n_updates + i + 1) % self.config.actor_every == 0
                learn = self._learn if last else self._learn_critics
                metrics |= learn(_joined(_slice(drawn, i, real), _slice(imagined, i, size - real)))
        self._n_updates += count
        metrics.pop("td", None)  # one for each row, for priorities
        self.means.add(metrics)

    def dump_logs(self, iteration: int = 0) -> None:
        self.record({f"train/{name}": value for name, value in self.means.read().items()})
        self.record(self.replay.measure())
        self.logger.record("train/restored", self._restored)
        if self.steps.on_nan.what == "zero":
            self.logger.record("reward/nan", self.steps.on_nan.zeroed)
        self.logger.record("train/updates_per_step", self._n_updates / max(self.num_timesteps, 1))
        super().dump_logs(iteration)

    def _predict(self, obs: Obs, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, None]:
        vector = torch.as_tensor(self.encoding.vector(obs), device=self.device)
        return self.encoding.decode(self._chosen(vector, deterministic).cpu().numpy()), None

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if self._fitted_at is not None:
            self.keep_finite()

    def _succeed(self, old: "Dyna") -> None:
        super()._succeed(old)
        self.replay.take(old.replay)
        if self.imagination is not None and old.imagination is not None:
            self.imagination.succeed(old.imagination)
        if self._fitted_at is not None:
            self._fitted_at = self.replay.added - self.config.model_every  # imagined rewards are fitted at once
            self.keep_finite()


def _slice(rows: Rows | None, i: int, size: int) -> Rows | None:
    return None if rows is None else Rows(*(x[i * size : (i + 1) * size] for x in rows))


def _joined(real: Rows | None, imagined: Rows | None) -> Rows:
    parts = [rows for rows in (real, imagined) if rows is not None]
    return parts[0] if len(parts) == 1 else Rows(*(torch.cat(pair) for pair in zip(*parts)))
