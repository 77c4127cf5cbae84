"""Proximal policy optimisation with a value, a discount and an end for every reward stream; fast on one core.

    collect a rollout -> score it once -> one advantage a stream -> add them by weight -> minibatches -> rewards learn

A learned bonus and the task are different returns: curiosity should not end with an episode, the task must. So each
stream of the reward has a value head of its own, and the policy follows A = sum_k weight_k A_k.

Sources: Schulman et al. 2017, arXiv 1707.06347; advantages by Schulman et al. 2016, arXiv 1506.02438, equation 16;
streams as in Burda et al. 2018, arXiv 1810.12894, section 2.3.
Differences: Stable-Baselines3's defaults, and its update to the last digits; a stream that has only ever been zero does
not move the policy. Small networks are updated in NumPy, everything else by torch (`agents.ppo.update`). What else can
be switched on plugs into `agents.ppo.seams`.
Fails when: the reward needs more exploration than noise and bonuses give; off-policy agents use fewer steps.
"""

import time
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.running_mean_std import RunningMeanStd
from torch import Tensor

from agents.base import BaseAgent, OnStep, TaskScorer
from agents.networks.actor_critic import Actions, Inputs, mask_outputs
from agents.networks.policy_layers import PolicyLayers
from agents.ppo import handover
from agents.ppo.collector import Collector
from agents.ppo.config import PPOConfig
from agents.ppo.device import collector_class
from agents.ppo.extensions import extension_classes
from agents.ppo.learners import make_learner, make_policy
from agents.ppo.seams import (
    Combiner,
    Estimator,
    Extra,
    GAEInputs,
    Penalty,
    RolloutSchedule,
    ScoredRollout,
    Targets,
    advantages,
)
from agents.ppo.update import StreamGradients, TorchUpdate
from envs.transitions import NotFinite, index_obs, is_finite, map_obs
from envs.types import Obs
from lodestar.state import Stateful


class PPO(BaseAgent):
    """Proximal policy optimisation with a value for every reward stream, over a Gymnasium vector environment.

    Example:
        >>> import envs.make
        >>> vector = envs.make.make_vec("CartPole-v1", 4, backend="batched")
        >>> agent = PPO(vector, PPOConfig(n_steps=16, batch_size=32)).learn(128)
        >>> actions, _ = agent.predict(vector.reset(seed=0)[0], deterministic=True)
        >>> actions.shape
        (4,)
    """

    Config = PPOConfig
    masks = True
    only_sums = False
    saved = BaseAgent.saved | {
        "optimizer": "flat",
        "collector": "collector",
        "memory": "memory",
        "seen": "seen",
        "observations.mean": "obs_statistics.mean",
        "observations.var": "obs_statistics.var",
        "observations.count": "obs_statistics.count",
    }
    in_file = BaseAgent.in_file | {
        "mean": "obs_statistics.mean",
        "var": "obs_statistics.var",
        "count": "obs_statistics.count",
    }
    lasting = BaseAgent.lasting | in_file | {"noise": "collector.rng", "masked": "collector.masked"}
    config: PPOConfig

    def _set_up(self) -> None:
        self.rows_a_batch = self.config.rows_a_batch(self.envs.num_envs)
        # Tags of the last update.
        self.metrics: dict[str, float] = {}
        # What the settings ask for besides, by name.
        self.extensions = SimpleNamespace()
        self._set_up_streams()
        self._set_up_networks()
        self._set_up_collector()
        self._set_up_learning()
        self.rng = np.random.default_rng([self.seed, 2])

    def _set_up_streams(self) -> None:
        scorer = self.scorer
        if self.config.streams == "sum":
            scorer = TaskScorer(self.config.gamma)
        self.streams = dict(scorer.streams)
        if self.config.streams == "separate":
            for name, kind in extension_classes("penalty", self.config, self.streams):
                self.streams[name] = kind.stream(self.config)
        streams = self.streams.values()
        self.gamma = np.array([stream.gamma for stream in streams], np.float32)
        self.episodic = np.array([stream.episodic for stream in streams], bool)
        # Streams that have been other than zero.
        self.seen = np.zeros(len(streams), bool)
        self.memory = self.scorer.initial_memory(self.envs.num_envs)

    def _set_up_networks(self) -> None:
        schedules = self._make_extensions("schedule") or [RolloutSchedule()]
        self.schedule: RolloutSchedule = schedules[0]
        self.policy = make_policy(self).to(self.device)
        # The network whose weights an update moves; where another one acts, it has a learner of its own.
        self.learnt = self.schedule.network_to_train(self.policy)
        self.learner = make_learner(self.learnt, self.config, self.envs)
        self.flat = self.learner.flat
        self.actor = self.learner
        if self.learnt is not self.policy:
            self.actor = make_learner(self.policy, self.config, self.envs)
        # For what needs gradients that the learner does not take.
        self.autograd = TorchUpdate(self.learnt, self.flat, self.config)
        self.obs_statistics = RunningMeanStd(shape=(self.policy.inputs.size,))

    def _set_up_collector(self) -> None:
        self.collector: Collector = collector_class(self.envs)(self)
        self.episodes = self.collector.episodes
        # Where time went: environment, inference, reward, update.
        self.seconds = self.collector.seconds
        self.schedule.set_up(self)

    def _set_up_learning(self) -> None:
        estimators = self._make_extensions("estimator") or [advantages]
        self.estimator: Estimator = estimators[0]
        combiners = self._make_extensions("combiner") or [Combiner()]
        self.combiner: Combiner = combiners[0]
        self.extras: list[Extra] = self._make_extensions("extra")
        self.penalties: list[Penalty] = self._make_extensions("penalty")
        decide = self.combiner.needs_gradients
        for extra in self.extras:
            decide |= extra.needs_gradients
        # A single stream's gradient is the policy's.
        self.gradients: StreamGradients | None = None
        if len(self.streams) > 1:
            self.gradients = StreamGradients(self, decide)

    def _make_extensions(self, seam: str) -> list[Any]:
        """The extensions of a seam that the settings ask for."""
        made = []
        for name, kind in extension_classes(seam, self.config, self.streams):
            extension = kind(self)
            setattr(self.extensions, name, extension)
            if isinstance(extension, Stateful):
                self.also_saved[name] = f"extensions.{name}"
            made.append(extension)
        return made

    @classmethod
    def check(cls, observation_space: gym.Space, action_space: gym.Space) -> None:
        Inputs(observation_space)
        Actions(action_space)

    def adapt_weights(self, weights: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        """Values of streams that this reward has, too, by their names; the others stay as they are."""
        old_streams = state.get("streams")
        # Boosted trees have no head of their own for the values.
        n_values = len(weights.get("vf_head.bias", self.streams))
        values_fit = n_values == len(self.streams)
        if old_streams is None or (values_fit and old_streams == list(self.scorer.streams)):
            return weights
        if self.config.streams == "sum":
            old_streams = []
        places = [old_streams.index(name) if name in old_streams else None for name in self.streams]
        return {**weights, **self.policy.values_from(weights, places)}

    def begin_with(self, source: PolicyLayers) -> list[str]:
        return handover.begin_with(self, source)

    def begin_rollout(self) -> None:
        if self.collector.begin():
            self.schedule.finish(self)
            self.memory = self.scorer.initial_memory(self.collector.rollout.n)

    def collect(self, on_step: OnStep) -> bool:
        rollout = self.collector.rollout
        observed = self.collector.observed

        def after_row(t: int) -> bool:
            self.num_timesteps += rollout.n
            ended = rollout.terminated[t] | rollout.truncated[t]
            next_obs = index_obs(observed, t + 1)
            return on_step(rollout.reward[t], ended, next_obs)

        return self.schedule.collect(self, after_row)

    def update(self) -> dict[str, Any]:
        callback_locals = self.schedule.learn(self)
        self.record(self.metrics)
        return callback_locals

    def end_rollout(self) -> None:
        self.schedule.end_rollout(self)

    def learn_from(self, collector: Collector, timesteps: int) -> dict[str, Any]:
        """Score and learn from a rollout that ended after so many `timesteps`."""
        self.metrics.clear()
        started = time.perf_counter()
        scored = self._score(collector, timesteps)
        scored_at = time.perf_counter()
        self._estimate_advantages(scored)
        self._update_policy(scored)
        for extra in self.extras:
            self.metrics |= extra.after_update(self, scored)
        self._scored = scored
        self.seconds["reward"] += scored_at - started
        self.seconds["update"] += time.perf_counter() - scored_at
        return {"batch": scored.transitions, "raw": scored.raw, "advantages": scored.advantages}

    def teach(self, collector: Collector) -> dict[str, float]:
        """Let the rewards, and the statistics of observations, learn from what `learn_from` scored; tags."""
        started = time.perf_counter()
        scored = self._scored
        metrics = self.scorer.update(scored.transitions, scored.raw, scored.row_timesteps)
        if self.config.normalize_obs:
            self._update_statistics(collector, scored.transitions.valid)
        self.seconds["reward"] += time.perf_counter() - started
        return metrics

    def _score(self, collector: Collector, timesteps: int) -> ScoredRollout:
        """Rewards and weights of the streams, (T, N, K)."""
        rollout = collector.rollout
        transitions = self.scorer.embed(rollout.transitions(self.scorer.requires))
        raw, self.memory = self.scorer.score(transitions, self.memory)
        scaled = self.scorer.scale_rewards(raw)
        missing = [name for name in self.scorer.streams if name not in scaled]
        if missing:
            raise ValueError(f"the reward has no score for its stream {missing[0]!r}, only for {sorted(scaled)}")
        stream_rewards = [scaled[name] for name in self.scorer.streams]
        first_timestep = timesteps - transitions.valid.size
        row_timesteps = first_timestep + rollout.n * np.arange(rollout.length)[:, None]
        scheduled_value = self.scorer.weights(row_timesteps).values()
        stream_weights = [np.broadcast_to(weight, transitions.shape) for weight in scheduled_value]
        for penalty in self.penalties:
            stream_rewards.append(penalty.reward(self, collector, transitions.valid))
            stream_weights.append(np.full(transitions.shape, penalty.weight))
        rewards = np.stack(stream_rewards, -1)
        weights = np.stack(stream_weights, -1)
        if self.config.streams == "sum":
            rewards = (rewards * weights).sum(-1, keepdims=True)
            weights = np.ones_like(weights[..., :1])
        self.seen |= rewards.any(axis=(0, 1))
        return ScoredRollout(collector, timesteps, transitions, raw, row_timesteps, rewards, weights, self.seen)

    def _estimate_advantages(self, scored: ScoredRollout) -> None:
        transitions = scored.transitions
        inputs = GAEInputs(
            scored.rewards,
            scored.collector.values,
            scored.collector.last_values,
            transitions.terminated,
            transitions.truncated,
            transitions.valid,
            self.gamma,
            self.config.gae_lambda,
            self.episodic,
        )
        scored.advantages = self.estimator(inputs)

    def _update_policy(self, scored: ScoredRollout) -> None:
        """Minibatches over the rollout; metrics of the last of them."""
        config = self.config
        collector = scored.collector
        valid = scored.transitions.valid
        scored.rows = np.flatnonzero(valid)
        if config.gru:
            scored.rows = np.arange(valid.size // config.sequence)
        returns = scored.advantages + collector.values[:-1]
        self._measure_gradients(scored, returns)
        targets = Targets.stack(collector.log_prob, self._combine_advantages(scored), returns)
        self._require_finite_targets(targets, scored)

        for learner in (self.learner, self.autograd):
            learner.follow(scored.timesteps, self._total_timesteps)
        scored.batch = collector.batch(targets)
        orders = [self.rng.permutation(scored.rows) for _ in range(config.n_epochs)]
        learned_rows = self._n_updates * len(scored.rows)
        measured = self.learner.run_epochs(scored.batch, orders, self.rows_a_batch, learned_rows)
        self._n_updates += config.n_epochs
        self._require_finite_weights(measured[-1]["value_loss"], scored)
        self._record_update(measured, returns[valid], collector.values[:-1][valid])

    def _measure_gradients(self, scored: ScoredRollout, returns: np.ndarray) -> None:
        """The streams' policy gradients before the update, every so many rollouts."""
        rollouts = self._n_updates // self.config.n_epochs
        if self.gradients is None or rollouts % self.gradients.every:
            return
        log_prob = scored.collector.log_prob
        # What the policy follows is decided later, and no stream's gradient depends on it.
        targets = Targets.stack(log_prob, np.zeros_like(log_prob), returns)
        self.metrics |= self.gradients.measure(scored, scored.collector.batch(targets))

    def _combine_advantages(self, scored: ScoredRollout) -> np.ndarray:
        """The one advantage (T, N) that the policy follows."""
        advantage = self.combiner.combine(scored).astype(np.float32, copy=False)
        self.metrics |= self.combiner.metrics
        if scored.timesteps <= self.config.actor_from:
            # Without advantages only the values learn.
            return np.zeros_like(advantage)
        importance = scored.collector.importance
        if importance is None or (importance == 1).all():
            return advantage
        # Weight the centred advantage: a weighted mean would survive the minibatch's own centring.
        centred = advantage - advantage.mean(where=scored.transitions.valid)
        return centred * importance

    def _require_finite_targets(self, targets: Targets, scored: ScoredRollout) -> None:
        if is_finite(targets.rows):
            return
        scored.collector.rollout.refuse_finals()
        what = "returns" if is_finite(scored.collector.values) else "policy's values"
        worst = targets.rows[~np.isfinite(targets.rows)][0]
        raise NotFinite(
            f"the {what} became {worst} after {scored.timesteps:,} steps: training diverged; lower "
            f"agent.learning_rate={self.learner.learning_rate}, or scale the reward; no weight has moved"
        )

    def _require_finite_weights(self, value_loss: float, scored: ScoredRollout) -> None:
        is_finite_weight = bool(torch.isfinite(self.flat.value.sum()))
        if is_finite_weight and np.isfinite(value_loss):
            return
        raise FloatingPointError(
            f"the loss of the policy became {value_loss} after {scored.timesteps:,} steps; lower "
            f"agent.learning_rate={self.learner.learning_rate}, or scale the reward"
        )

    def _record_update(self, measured: list[dict[str, float]], returns: np.ndarray, values: np.ndarray) -> None:
        """Mean losses, and the share of each stream's variance (of rows (M, K)) that its value explains."""
        for key in measured[0]:
            minibatch_means = [metrics[key] for metrics in measured]
            self.metrics[f"train/{key}"] = float(np.mean(minibatch_means))
        for column, name in enumerate(self.streams):
            tag = "train/explained_variance"
            if len(self.streams) > 1:
                tag = f"{tag}_{name}"
            variance = returns[:, column].var()
            explained = np.nan
            if variance > 0:
                residual = returns[:, column] - values[:, column]
                explained = 1 - residual.var() / variance
            self.metrics[tag] = float(explained)
        if self.learnt.log_std is not None:
            std = self.learnt.log_std.detach().exp()
            self.metrics["train/std"] = float(std.mean())
        self.metrics["train/learning_rate"] = self.learner.learning_rate

    def _update_statistics(self, collector: Collector, valid: np.ndarray) -> None:
        """Let the statistics of the observations move: between two rollouts, so that a rollout has one meaning."""
        vector = collector.vector[:-1]
        if isinstance(vector, Tensor):
            vector = vector.cpu()
        self.obs_statistics.update(np.asarray(vector, np.float64)[valid])
        self.show_statistics()

    def show_statistics(self) -> None:
        """Give the statistics of the observations to the network."""
        self.learnt.obs_mean.copy_(torch.as_tensor(self.obs_statistics.mean))
        scale = 1 / np.sqrt(self.obs_statistics.var + 1e-8)
        self.learnt.obs_scale.copy_(torch.as_tensor(scale))

    @classmethod
    def samples(cls, config: Any, action_space: gym.Space) -> bool:
        return not isinstance(action_space, gym.spaces.Box)

    @property
    def masked(self) -> bool:
        return self.collector.masked

    @masked.setter
    def masked(self, masked: bool) -> None:
        self.collector.masked = masked

    def _predict(
        self,
        obs: Obs,
        state: Any,
        starts: np.ndarray,
        deterministic: bool,
        mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Any]:
        """The state is that of a recurrent policy, (B, units)."""
        policy = self.policy
        actions = policy.actions
        pixels = map_obs(self.tensor, policy.inputs.pixels(obs))
        features = policy.features(self.tensor(policy.inputs.vector(obs)), pixels)
        if policy.gru is not None:
            hidden = torch.zeros(len(features), policy.gru.hidden_size) if state is None else state
            begins = self.tensor(starts)[None]
            unrolled, last = policy.unroll(features[None], self.tensor(hidden), begins)
            features = unrolled[0]
            state = last.cpu().numpy()
        outputs = mask_outputs(policy.heads(features)[0], mask)
        if deterministic:
            return actions.to_env(actions.mode(outputs).cpu().numpy()), state
        noise = self.tensor(actions.draw(self.rng, len(outputs)))
        action = actions.sample(outputs, policy.log_std, noise)
        return actions.to_env(action.cpu().numpy()), state
