"""Proximal policy optimisation with a value, a discount and an end for every reward stream; fast on one core.

    collect a rollout -> score it once -> one advantage a stream -> add them by weight -> minibatches -> rewards learn

A learned bonus and the task are different returns: curiosity should not end with an episode, the task must. So each
stream of the reward has a value head of its own, and the policy follows A = sum_k weight_k A_k.

Sources: Schulman et al. 2017, arXiv 1707.06347; advantages by Schulman et al. 2016, arXiv 1506.02438, equation 16;
streams as in Burda et al. 2018, arXiv 1810.12894, section 2.3.
Differences: Stable-Baselines3's defaults; advantages are normalised over the rollout, not the minibatch; a stream
that has only ever been zero does not move the policy, because normalising would turn its value's noise into a
direction. Small networks are updated in NumPy, everything else by torch (`agents.ppo.update`).
Fails when: the reward needs more exploration than noise and bonuses give; off-policy agents use fewer steps.
"""

from __future__ import annotations

import functools
import math
import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.running_mean_std import RunningMeanStd

from agents.base import BaseAgent, OnStep
from agents.networks.actor_critic import Actions, ActorCritic, Flat, Inputs
from agents.networks.glyphs import Glyphs
from agents.ppo.collector import Collector, DeviceCollector
from agents.ppo.config import PPOConfig
from agents.ppo.update import NumpyUpdate, TorchUpdate
from agents.task_reward import TaskScorer
from envs.types import NotFinite, Obs, is_finite

MEASURED = 8  # minibatches of the last epoch whose losses are logged


class PPO(BaseAgent):
    """Proximal policy optimisation with a value for every reward stream, over a Gymnasium vector environment.

    Raises:
        ValueError: for spaces it cannot take, and rollouts that do not divide into minibatches.
    """

    Config: ClassVar[type[PPOConfig]] = PPOConfig
    saved: ClassVar[dict[str, str]] = {
        "modules.policy": "policy",
        "optimizer": "flat",
        "counters.timesteps": "num_timesteps",
        "counters.updates": "_n_updates",
        "collector": "collector",
        "memory": "memory",
        "seen": "seen",
        "observations.mean": "obs_statistics.mean",
        "observations.var": "obs_statistics.var",
        "observations.count": "obs_statistics.count",
        "rng": "rng",
    }
    config: PPOConfig

    def _set_up(self) -> None:
        config, envs, seed = self.config, self.envs, self.seed
        self.rows_a_batch = self._divide(config, envs.num_envs)
        self.streams = dict(self.scorer.streams)
        if config.streams == "sum":
            self.streams = dict(TaskScorer(config.gamma).streams)
        streams = list(self.streams.values())
        self._gamma = np.array([stream.gamma for stream in streams], np.float32)
        self._episodic = np.array([stream.episodic for stream in streams], bool)
        inputs, actions = Inputs(self.observation_space), Actions(self.action_space)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            trunk = Glyphs(self.observation_space) if config.net == "glyphs" else None
            self.policy = ActorCritic(
                inputs, actions, list(config.net_arch), len(streams), config.gru, config.normalize_obs, trunk
            ).to(self.device)
        self.flat = Flat.over(self.policy.ordered())
        on_device = getattr(getattr(envs, "arrays", None), "is_torch", False)
        fast = config.path == "auto" and not on_device and self.device.type == "cpu" and self.policy.is_mlp
        self.learner: Any = (NumpyUpdate if fast else TorchUpdate)(self.policy, self.flat, config)
        settings = (envs, self.learner, config.n_steps, len(streams), self.scorer.requires, seed)
        self.collector: Collector
        if on_device:
            self.collector = DeviceCollector(*settings)
        else:
            self.collector = Collector(*settings, config.sequence if config.gru else config.n_steps)
        self.collector.on_nan = getattr(self.scorer, "on_nan", self.collector.on_nan)
        self.episodes = self.collector.episodes
        self.memory = self.scorer.initial_memory(envs.num_envs)
        self.seen = np.zeros(len(streams), bool)  # streams that have been other than zero
        self.obs_statistics = RunningMeanStd(shape=(inputs.size,))
        self.rng = np.random.default_rng([seed, 2])
        self.seconds = self.collector.seconds  # where time went: environment, inference, reward, update

    @classmethod
    def check(cls, observation_space: gym.Space, action_space: gym.Space) -> None:
        """Refuse spaces the agent cannot handle.

        Raises:
            ValueError: naming the space.
        """
        Inputs(observation_space)
        Actions(action_space)

    @staticmethod
    def _divide(config: PPOConfig, n: int) -> int:
        """Rows of a minibatch; for a recurrent policy, sequences."""
        size = n * config.n_steps
        if config.gru:
            for name, whole in (("n_steps", config.n_steps), ("batch_size", config.batch_size)):
                if whole % config.sequence:
                    raise ValueError(
                        f"agent.{name}={whole} does not divide into sequences of agent.sequence={config.sequence}; "
                        f"give agent.sequence={math.gcd(config.n_steps, config.batch_size)}"
                    )
        if size % config.batch_size or size < 2:
            near = [b for b in range(2, size + 1) if size % b == 0] or [2]
            best = min(near, key=lambda b: abs(math.log(b / config.batch_size)))
            raise ValueError(
                f"n_envs * agent.n_steps = {n} * {config.n_steps} = {size} transitions do not divide into minibatches "
                f"of agent.batch_size={config.batch_size}; give {best}, or another divisor of {size}"
            )
        return config.batch_size // config.sequence if config.gru else config.batch_size

    def begin_rollout(self) -> None:
        if self.collector.begin():
            self.memory = self.scorer.initial_memory(self.collector.rollout.n)

    def collect(self, on_step: OnStep) -> bool:
        rollout = self.collector.rollout

        def stepped(t: int) -> bool:
            self.num_timesteps += rollout.n
            return on_step(rollout.reward[t], rollout.terminated[t] | rollout.truncated[t])

        return self.collector.collect(stepped)

    def update(self) -> dict[str, Any]:
        """Score the rollout, estimate advantages, update the policy."""
        clock = time.perf_counter()
        collector, rollout = self.collector, self.collector.rollout
        batch = self.scorer.embed(rollout.transitions(self.scorer.requires))
        raw, self.memory = self.scorer.score(batch, self.memory)
        scaled = self.scorer.scaled(raw)
        missing = [name for name in self.scorer.streams if name not in scaled]
        if missing:
            raise ValueError(f"the reward has no score for its stream {missing[0]!r}, only for {sorted(scaled)}")
        rewards = np.stack([scaled[name] for name in self.scorer.streams], -1)
        timesteps = self.num_timesteps - batch.valid.size + rollout.n * np.arange(rollout.length)[:, None]
        weights = np.stack([np.broadcast_to(w, batch.shape) for w in self.scorer.weights(timesteps).values()], -1)
        if self.config.streams == "sum":
            rewards, weights = (rewards * weights).sum(-1, keepdims=True), np.ones_like(weights[..., :1])
        scored = time.perf_counter()
        collector.evaluate()
        advantage = advantages(
            rewards,
            collector.values,
            collector.last_values,
            batch.terminated,
            batch.truncated,
            batch.valid,
            self._gamma,
            self.config.gae_lambda,
            self._episodic,
        )
        self.seen |= rewards.any(axis=(0, 1))
        self._update(advantage, weights, batch.valid)
        self._scored = (batch, raw, timesteps)
        self.seconds["reward"] += scored - clock
        self.seconds["update"] += time.perf_counter() - scored
        return {"batch": batch, "raw": raw, "advantages": advantage}

    def end_rollout(self) -> None:
        clock = time.perf_counter()
        self.record(self.scorer.update(*self._scored))
        if self.config.normalize_obs:
            self._update_statistics(self._scored[0].valid)
        self.collector.roll()
        self.seconds["reward"] += time.perf_counter() - clock

    def _update(self, advantage: np.ndarray, weights: np.ndarray, valid: np.ndarray) -> None:
        """Minibatches over the rollout."""
        collector, config = self.collector, self.config
        returns = advantage + collector.values[:-1]
        total = np.einsum("tnk,tnk,k->tn", advantage, weights, self.seen.astype(np.float32))
        spread = float(total[valid].std())
        total = (total - total[valid].mean()) / (spread + 1e-8) if spread > 1e-8 else np.zeros_like(total)
        numbers = np.concatenate(
            [collector.log_prob[..., None], total[..., None], returns], -1, dtype=np.float32, casting="same_kind"
        )
        if not is_finite(numbers):
            collector.refuse_finals()
            what = "returns" if is_finite(collector.values) else "policy's values"
            raise NotFinite(
                f"the {what} became {numbers[~np.isfinite(numbers)][0]} after {self.num_timesteps:,} steps: training "
                f"diverged; lower agent.learning_rate={config.learning_rate}, or scale the reward; no weight has moved"
            )
        batch = self.learner.begin_update(collector.batch(numbers))
        if config.anneal:
            self.learner.learning_rate = config.learning_rate * max(1 - self.num_timesteps / self._total_timesteps, 0.0)
        rows = np.arange(batch.valid.shape[1]) if config.gru else np.flatnonzero(valid)
        narrow = not config.gru and not batch.pixels and math.prod(batch.vector.shape) < 2**18
        measured: list[dict[str, float]] = []
        often = max(len(rows) // self.rows_a_batch // MEASURED, 1)
        for epoch in range(config.n_epochs):
            order: Any = self.rng.permutation(rows)
            last = epoch == config.n_epochs - 1
            shuffled = batch
            if narrow:  # all at once is cheaper than a minibatch at a time, as long as it stays in the cache
                shuffled = batch.take(order)
            for begin in range(0, len(order), self.rows_a_batch):
                end = min(begin + self.rows_a_batch, len(order))
                measure = last and begin // self.rows_a_batch % often == 0
                result = self.learner.update(shuffled, slice(begin, end) if narrow else order[begin:end], measure)
                if measure:
                    measured.append(result)
        self.learner.end_update()
        self._n_updates += config.n_epochs
        if not np.isfinite(measured[-1]["value_loss"]) or not bool(torch.isfinite(self.flat.value.sum())):
            raise FloatingPointError(
                f"the loss of the policy became {measured[-1]['value_loss']} after {self.num_timesteps:,} steps; lower "
                f"agent.learning_rate={config.learning_rate}, or scale the reward"
            )
        self._record(measured, returns[valid], collector.values[:-1][valid])

    def _record(self, measured: list[dict[str, float]], returns: np.ndarray, values: np.ndarray) -> None:
        for key in measured[0]:
            self.logger.record(f"train/{key}", float(np.mean([m[key] for m in measured])))
        for column, name in enumerate(self.streams):
            variance = returns[:, column].var()
            explained = 1 - (returns[:, column] - values[:, column]).var() / variance if variance > 0 else np.nan
            suffix = f"_{name}" if len(self.streams) > 1 else ""
            self.logger.record(f"train/explained_variance{suffix}", float(explained))
        if self.policy.log_std is not None:
            self.logger.record("train/std", float(self.policy.log_std.detach().exp().mean()))
        self.logger.record("train/learning_rate", self.learner.learning_rate)

    def _update_statistics(self, valid: np.ndarray) -> None:
        """Let the statistics of the observations move: between two rollouts, so that a rollout has one meaning."""
        vector = self.collector.vector[:-1]
        rows = np.asarray(vector.cpu() if isinstance(vector, torch.Tensor) else vector, np.float64)[valid]
        self.obs_statistics.update(rows)
        with torch.no_grad():
            mean, scale = self.obs_statistics.mean, 1 / np.sqrt(self.obs_statistics.var + 1e-8)
            self.policy.obs_mean.copy_(torch.as_tensor(mean))
            self.policy.obs_scale.copy_(torch.as_tensor(scale))

    def _predict(self, obs: Obs, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, Any]:
        """The state is that of a recurrent policy, (B, units)."""
        inputs, actions = self.policy.inputs, self.policy.actions
        to = functools.partial(torch.as_tensor, device=self.device)
        vector, pixels = to(inputs.vector(obs)), {key: to(image) for key, image in inputs.pixels(obs).items()}
        features = self.policy.features(vector, pixels)
        if self.policy.gru is not None:
            hidden = torch.zeros(len(features), self.policy.gru.hidden_size) if state is None else state
            out, after = self.policy.unroll(features[None], to(hidden), to(starts)[None])
            features, state = out[0], after.cpu().numpy()
        outputs, _ = self.policy.heads(features)
        if deterministic:
            action = actions.mode(outputs)
        else:
            action = actions.sample(outputs, self.policy.log_std, to(actions.draw(self.rng, len(outputs))))
        return actions.to_env(action.cpu().numpy()), state


def advantages(
    rewards: np.ndarray,
    values: np.ndarray,
    last_values: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    valid: np.ndarray,
    gamma: np.ndarray,
    gae_lambda: float,
    episodic: np.ndarray,
) -> np.ndarray:
    """Generalised advantage estimates of every stream, which are an axis, with a discount and an end of their own.

        delta_t = r_t + gamma * V(s_{t+1}) - V(s_t)         A_t = delta_t + gamma * lambda * A_{t+1}

    An episodic stream ends with its episode: after a termination V is 0, where time ran out V is that of the true last
    observation. A stream that is not episodic continues into the next episode, as a novelty bonus should: dying must
    not look expensive to curiosity.

    Args:
        rewards: (T, N, K).
        values: (T + 1, N, K), of the observations acted on; row T is the observation after the rollout.
        last_values: (T, N, K), value of an episode's true last observation where it was truncated; anything elsewhere.
        terminated: bool (T, N).
        truncated: bool (T, N).
        valid: bool (T, N); a row that is no transition has advantage 0 and is passed over. If it is truncated, an
            episode was lost there: the row before is bootstrapped with the value of its next observation.
        gamma: (K,), in (0, 1].
        gae_lambda: in [0, 1].
        episodic: bool (K,).

    Returns:
        (T, N, K), float32; returns are advantages + values[:-1].
    """
    length, n, streams = rewards.shape
    following = values[1:]
    if not valid.all():
        following = following.copy()
        lost = truncated & ~valid
        for t in reversed(range(length - 1)):  # what follows a row that only resets is what follows its successor
            following[t] = np.where((valid | lost)[t + 1][:, None], following[t], following[t + 1])
    ended = (terminated | truncated) & valid
    stops = ended[..., None] & episodic
    at_end = np.where(truncated[..., None] & ~terminated[..., None], last_values, np.float32(0))
    delta = rewards + gamma * np.where(stops, at_end, following) - values[:-1]
    decay = np.where(stops, 0.0, gamma * gae_lambda).astype(np.float32)
    if not valid.all():
        delta[~valid], decay[~valid] = 0.0, 1.0
        decay[:-1][lost[1:]] = 0.0
    delta = delta.astype(np.float32, copy=False).reshape(length, n * streams)
    decay = decay.reshape(length, n * streams)
    out = delta.copy()
    scratch = np.empty(n * streams, np.float32)
    for t in range(length - 2, -1, -1):
        np.multiply(decay[t], out[t + 1], out=scratch)
        np.add(out[t], scratch, out=out[t])
    out = out.reshape(length, n, streams)
    return out if valid.all() else np.where(valid[..., None], out, np.float32(0))
