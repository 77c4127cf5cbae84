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

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agents.base import BaseAgent, Means, OnStep, Steps
from agents.dyna.config import DynaConfig
from agents.dyna.imagination import Imagination
from agents.networks.actor_critic import SpaceEncoding
from agents.networks.policy_layers import PolicyLayers
from agents.off_policy import compiled, handover
from agents.off_policy.dqn import DeepQ
from agents.off_policy.reference import START, ReferenceActor
from agents.off_policy.sac import SoftActorCritic
from agents.replay.demonstrations import MixedReplay, demonstrations
from agents.replay.replay import FrozenReward, Replay, Rows, interleave
from envs.transitions import map_obs
from envs.types import Obs, Options, ReplayScorer, StateDict
from lodestar.state import Weights, all_finite, get_state, set_state

# With path=auto so many updates are made by torch: a minute with two layers of 256.
TORCH_UPDATES = 10_000
# Counters and metrics, path in the saved state -> attribute; they outlive a change of the reward.
LOG_STATE = {
    "counters.timesteps": "num_timesteps",
    "counters.updates": "_n_updates",
    "counters.fitted_at": "_fitted_at",
    "counters.pending": "_pending",
    "counters.restored": "_restored",
    "counters.restored_in_row": "_restored_in_row",
    "log": "means",
}


class Dyna(BaseAgent):
    """A model-based agent for observations without images; see the file."""

    Config = DynaConfig
    recovers = True
    n_envs = 1
    scorer_type = ReplayScorer
    scorer: ReplayScorer
    config: DynaConfig
    saved = {
        "modules.policy": "policy",
        "imagination": "imagination",
        "replay": "replay",
        "steps": "steps",
        "rng": "rng",
        **LOG_STATE,
    }
    in_file = BaseAgent.in_file | {"fitted_at": "_fitted_at"}
    lasting = BaseAgent.lasting | in_file | LOG_STATE
    recoverable = {"learner": "learner"}

    def _set_up(self) -> None:
        config = self.config
        self.encoding = SpaceEncoding(self.observation_space, self.action_space)
        self._refuse_discrete_actions()
        self.replay_scorer = self.scorer if config.relabel else FrozenReward(self.scorer)
        # Environments that run elsewhere bring a class of their own.
        make_steps = getattr(self.envs, "steps", Steps)
        self.steps = make_steps(self.envs, self.seed, self.scorer)
        self.episodes = self.steps.episodes
        self.replay = self._make_replay()
        self._make_learner()
        self.reference: ReferenceActor | None = None
        if config.reference:
            self.reference = ReferenceActor(self.learner, config.reference_every, self._read_teacher())
            self.also_saved["reference"] = "reference"
        parts: dict[str, Any] = {"learner": self.learner}
        self.imagination: Imagination | None = None
        if config.uses_model:
            self.imagination = Imagination(self)
            self.notes = self.imagination.notes
            if config.planner != "none":
                parts["model"] = self.imagination.model
        self.policy = Weights(parts)
        self.rng = np.random.default_rng([self.seed, 3])
        # Rows that the replay had been given at the last fit.
        self._fitted_at: int | None = None
        # Updates that are due, whose fraction is carried on.
        self._pending = 0.0
        self.means = Means()

    def _refuse_discrete_actions(self) -> None:
        for name in ("update", "planner"):
            value = getattr(self.config, name)
            if self.encoding.discrete and value in ("svg", "cem", "mppi"):
                raise ValueError(f"agent.{name}={value} needs Box actions, not {self.action_space}; use update=buffer")

    def _make_replay(self) -> Replay:
        config = self.config
        kind: Any = Replay
        options: Options = {"gamma": config.gamma, **self.place}
        if config.demos or config.imitate:
            kind = MixedReplay
            options["demo_share"] = config.demo_share
            options["best_share"] = config.imitate
            options["demos"] = demonstrations(self) if config.demos else None
        return kind(config.buffer_size, self.envs.num_envs, self.encoding, self.replay_scorer, **options)

    def _make_learner(self) -> None:
        kind: Any = DeepQ if self.encoding.discrete else SoftActorCritic
        sizes = (self.encoding.obs_size, self.encoding.action_size)
        self.learner = kind(*sizes, self.config, **self.place)
        if self.encoding.discrete:
            self.learner.epsilon.fill_(self.config.epsilon)

    def _read_teacher(self) -> SoftActorCritic | None:
        """The learner whose policy is the reference, out of its file; None for the policy that training begins with."""
        config = self.config
        if self.encoding.discrete or config.update == "svg":
            raise ValueError(
                f"agent.reference={config.reference} is for SAC from transitions: Box actions (here: "
                f"{self.action_space}) and agent.update=none or buffer (here: {config.update}); agent=ppo takes a "
                "reference for all actions"
            )
        if config.reference == START:
            return None
        rows = self.envs.num_envs + 1
        return Dyna.read_reference(self, demos="", imitate=0.0, buffer_size=rows).learner

    @classmethod
    def check(cls, observation_space: gym.Space, action_space: gym.Space) -> None:
        if SpaceEncoding(observation_space, action_space).images:
            raise ValueError(f"agent=dyna predicts numbers, and {observation_space} has images; use agent=world_model")

    def collect(self, on_step: OnStep) -> bool:
        end = self.num_timesteps + self.config.rollout
        if not self.steps.in_rollouts:
            end = min(end, self._total_timesteps)
        while self.num_timesteps < end:
            batch = self.steps.advance(self)
            # Weights of rewards follow schedules.
            if isinstance(self.replay_scorer, FrozenReward):
                self.replay_scorer.timesteps = self.num_timesteps
            if self.imagination is not None:
                self.imagination.reward_source.timesteps = self.num_timesteps
            self.replay.add(batch)
            self.num_timesteps += self.steps.n
            if self.replay.added >= self.config.learning_starts:
                self._learn_from_replay()
            if not on_step(batch.reward, batch.ended, self.steps.obs):
                return False
        return True

    def act(self) -> Tensor:
        """Actions (N, A): random before the first fit, and where the policy gives NaN or infinity."""
        encoding = self.encoding
        shape = (self.steps.n, encoding.action_size)
        noise = self.rng.uniform(-1, 1, shape).astype(np.float32)
        random = torch.from_numpy(noise)
        if encoding.discrete:
            choice = random.argmax(-1)
            random = torch.nn.functional.one_hot(choice, encoding.action_size).float()
        if self._fitted_at is None:
            return random
        vector = encoding.vector(self.steps.obs)
        obs = torch.from_numpy(vector).to(self.device)
        actions = self._choose_actions(obs, False, self.steps.step_index).cpu()
        if not bool(actions.isfinite().all()):
            self.keep_or_restore(False)
            return random
        return actions

    def acting_state(self) -> StateDict:
        """What a copy of this agent needs to act as this one does now; tensors on the host."""
        learner = get_state(self.learner, {name: name for name in self.learner.acting})
        return {"learner": map_obs(lambda x: x.cpu(), learner), "fitted_at": self._fitted_at}

    def load_acting_state(self, state: StateDict) -> None:
        set_state(self.learner, {name: name for name in self.learner.acting}, state["learner"])
        self._fitted_at = state["fitted_at"]

    def _choose_actions(self, obs: Tensor, deterministic: bool, step: np.ndarray | None = None) -> Tensor:
        """Actions (B, A) of the policy or of the planner; `step` (B,) while learning, where plans are continued."""
        planner = self.config.planner
        # UPMPC explores with plans while it learns; afterwards its policy acts.
        if planner == "none" or (planner == "upmpc" and step is None):
            return self.learner.act(obs, deterministic)
        assert self.imagination is not None
        return self.imagination.plan(obs, step)

    def _learn_from_replay(self) -> None:
        config = self.config
        # A replay that was emptied for another reward counts its rows from 0.
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
        if self.reference is not None:
            self.reference.begin()
        if isinstance(self.replay, MixedReplay):
            self.replay.rescore(self.learner.next_value, self.learner.entropy_reward)
        self._fitted_at = self.replay.added
        self.keep_or_restore(all_finite(self.learner.state_dict()))
        if self.imagination is not None:
            self.means.add(self.imagination.fit(self.replay, self.num_timesteps))

    def _update(self, count: int) -> None:
        if self.config.update == "svg":
            metrics = self._update_through_model(count)
        else:
            metrics = self._update_from_transitions(count)
        self._n_updates += count
        # The errors of single rows, which priorities read, are no metric.
        metrics.pop("td", None)
        self.means.add(metrics)

    def _update_through_model(self, count: int) -> dict[str, Any]:
        """`count` updates along imagined rollouts; the metrics of the last."""
        size = self.config.batch_size
        metrics: dict[str, Any] = {}
        assert self.imagination is not None
        all_obs, all_steps = self.imagination.states(count * size)
        for obs, step in zip(all_obs.split(size), all_steps.split(size)):
            metrics = self.imagination.update(obs, step)
        return metrics

    def _update_from_transitions(self, count: int) -> dict[str, Any]:
        """`count` updates from imagined and real transitions."""
        size = self.config.batch_size
        parts = []
        n_real = size
        # The buffer is empty where every rollout diverged.
        if self.imagination is not None and self.imagination.buffer:
            n_real = round(size * self.config.real_ratio)
            if n_real < size:
                n_imagined = count * (size - n_real)
                imagined = self.imagination.buffer.sample(n_imagined, self.config.gamma)
                parts.append(imagined)
        if n_real:
            real = self.replay.sample(count * n_real)
            if self.config.imitate:
                real = self.replay.lower_bounds(real, lambda *rows: self.learner.q(*rows).mean(0))
            parts.insert(0, real)
        rows = interleave(parts, count)
        warms_up = self.num_timesteps <= self.config.actor_from
        path = self.config.path
        compiles = path == "numba" or (path == "auto" and self._n_updates >= TORCH_UPDATES)
        if compiles and not warms_up:
            metrics = compiled.updates(self.learner, rows, count)
            if metrics is not None:
                return metrics
        metrics = {}
        for i in range(count):
            with_actor = not warms_up and (self._n_updates + i + 1) % self.config.actor_every == 0
            minibatch = slice(i * size, (i + 1) * size)
            metrics |= self.learner.update(Rows(*(column[minibatch] for column in rows)), with_actor)
        return metrics

    def dump_logs(self, iteration: int = 0) -> None:
        self.record_replay(self.means)
        self.logger.record("train/restored", self._restored)
        if self.steps.on_nan.what == "zero":
            self.logger.record("reward/nan", self.steps.on_nan.zeroed)
        super().dump_logs(iteration)

    def _predict(self, obs: Obs, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, None]:
        vector = self.tensor(self.encoding.vector(obs))
        actions = self._choose_actions(vector, deterministic).cpu().numpy()
        return self.encoding.decode(actions), None

    def end_rollout(self) -> None:
        if self.reference is not None:
            self.reference.end_rollout()

    def policy_layers(self) -> PolicyLayers:
        return handover.policy_layers(self.learner, self.encoding)

    def begin_with(self, source: PolicyLayers) -> list[str]:
        taken = handover.begin_with(self.learner, source)
        # It acts from the first step on, and is due to learn as soon as `learning_starts` rows are stored.
        self._fitted_at = -self.config.model_every
        return taken

    def start_from(self, state: Mapping[str, Any], streams: Sequence[str]) -> None:
        learner = self.learner
        if not isinstance(learner, SoftActorCritic):
            super().start_from(state, streams)
            return
        own_log_alpha = learner.log_alpha.clone()
        super().start_from(state, streams)
        saved_log_alpha = learner.log_alpha.clone()
        # A fixed or a first entropy weight of this run's settings counts, not that of the run it begins with.
        learner.log_alpha.copy_(own_log_alpha)
        learner.begin_with_alpha(saved_log_alpha)

    def set_state(self, state: StateDict) -> None:
        super().set_state(state)
        if self._fitted_at is not None:
            self.keep_finite()

    def _succeed(self, old: "Dyna") -> None:
        super()._succeed(old)
        self.replay.take(old.replay)
        if self.reference is not None and old.reference is not None:
            self.reference.load_state_dict(old.reference.state_dict())
        if self.imagination is not None and old.imagination is not None:
            self.imagination.succeed(old.imagination)
        if self._fitted_at is not None:
            # The next step fits the model, and with it the imagined rewards.
            self._fitted_at = self.replay.added - self.config.model_every
            self.keep_finite()
