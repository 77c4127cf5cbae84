"""Proximal policy optimisation with a value, a discount and an end for every reward stream; fast on one core.

    collect a rollout -> score it once -> one advantage a stream -> add them by weight -> minibatches -> rewards learn

A learned bonus and the task are different returns: curiosity should not end with an episode, the task must. So each
stream of the reward has a value head of its own, and the policy follows A = sum_k weight_k A_k.

Sources: Schulman et al. 2017, arXiv 1707.06347; advantages by Schulman et al. 2016, arXiv 1506.02438, equation 16;
streams as in Burda et al. 2018, arXiv 1810.12894, section 2.3.
Differences: Stable-Baselines3's defaults, and its update to the last digits; a stream that has only ever been zero does
not move the policy, because normalising would turn its value's noise into a direction. Small networks are updated in
NumPy, everything else by torch (`agents.ppo.update`).
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

from agents.base import BaseAgent, OnStep, TaskScorer
from agents.networks.actor_critic import Actions, ActorCritic, Flat, Glyphs, Inputs, masked
from agents.ppo import credit
from agents.ppo.collector import Collector, DeviceCollector
from agents.ppo.update import NumpyUpdate, PPOConfig, TorchUpdate, advantages
from envs.transitions import NotFinite, is_finite
from envs.types import Obs

MEASURED = 8  # minibatches of the last epoch whose losses are logged


class PPO(BaseAgent):
    """Proximal policy optimisation with a value for every reward stream, over a Gymnasium vector environment.

    Raises:
        ValueError: for spaces it cannot take, and rollouts that do not divide into minibatches.

    Example:
        >>> import envs.make
        >>> vector = envs.make.make_vec("CartPole-v1", 4, backend="batched")
        >>> agent = PPO(vector, PPOConfig(n_steps=16, batch_size=32)).learn(128)
        >>> actions, _ = agent.predict(vector.reset(seed=0)[0], deterministic=True)
        >>> actions.shape
        (4,)
    """

    Config: ClassVar[type[PPOConfig]] = PPOConfig
    masks: ClassVar[bool] = True
    saved: ClassVar[dict[str, str]] = BaseAgent.saved | {
        "optimizer": "flat",
        "collector": "collector",
        "memory": "memory",
        "seen": "seen",
        "observations.mean": "obs_statistics.mean",
        "observations.var": "obs_statistics.var",
        "observations.count": "obs_statistics.count",
    }
    in_file: ClassVar[dict[str, str]] = BaseAgent.in_file | {
        "mean": "obs_statistics.mean",
        "var": "obs_statistics.var",
        "count": "obs_statistics.count",
    }
    lasting: ClassVar[dict[str, str]] = (
        BaseAgent.lasting | in_file | {"noise": "collector.rng", "masked": "collector.masked"}
    )
    assigns_credit: ClassVar[bool] = True
    config: PPOConfig

    def _set_up(self) -> None:
        config, envs, seed = self.config, self.envs, self.seed
        self.rows_a_batch = self._divide(config, envs.num_envs)
        self.streams = dict((TaskScorer(config.gamma) if config.streams == "sum" else self.scorer).streams)
        streams = list(self.streams.values())
        self._gamma = np.array([stream.gamma for stream in streams], np.float32)
        self._episodic = np.array([stream.episodic for stream in streams], bool)
        kinds = [getattr(stream, "credit", "sum") for stream in streams]
        self._credit = kinds if {*kinds} != {"sum"} else []
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
        collect: type[Collector] = DeviceCollector if on_device else Collector
        self.collector = collect(*settings, config.sequence if config.gru else config.n_steps)
        self.collector.uses_masks = config.masks
        self.collector.on_nan = getattr(self.scorer, "on_nan", self.collector.on_nan)
        self.episodes = self.collector.episodes
        self.memory = self.scorer.initial_memory(envs.num_envs)
        self.seen = np.zeros(len(streams), bool)  # streams that have been other than zero
        self.obs_statistics = RunningMeanStd(shape=(inputs.size,))
        self.rng = np.random.default_rng([seed, 2])
        self.seconds = self.collector.seconds  # where time went: environment, inference, reward, update

    @classmethod
    def check(cls, observation_space: gym.Space, action_space: gym.Space) -> None:
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

    def fitted(self, weights: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        """Values of streams that this reward has, too, by their names; the others stay as they are."""
        before, now = state.get("streams"), list(self.scorer.streams)
        if before is None or before == now:
            return weights
        heads = {key: x.clone() for key, x in self.policy.state_dict().items() if key.startswith("vf_head.")}
        for key, rows in heads.items():
            for row, name in enumerate(self.streams if self.config.streams == "separate" else ()):
                if name in before:
                    rows[row] = weights[key][before.index(name)]
        return {**weights, **heads}

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
        ends = (batch.terminated, batch.truncated, batch.valid)
        values = (collector.values, collector.last_values)
        discounts = (self._gamma, self.config.gae_lambda, self._episodic)
        if not self._credit:
            advantage = advantages(rewards, *values, *ends, *discounts)
        else:
            softened = credit.soften(rewards, self._credit, *ends)
            advantage = advantages(softened, *values, *ends, *discounts)
            credit.weakest_link(advantage, rewards, self._credit, *values, *ends)
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
            # All rows at once are cheaper than a minibatch at a time, as long as they stay in the cache.
            shuffled = batch.shuffled(order) if narrow else batch
            for begin in range(0, len(order), self.rows_a_batch):
                end = min(begin + self.rows_a_batch, len(order))
                measure = epoch == config.n_epochs - 1 and begin // self.rows_a_batch % often == 0
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
        """Losses, and the share of each stream's variance (of rows (M, K)) that its value explains."""
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
        self.policy.obs_mean.copy_(torch.as_tensor(self.obs_statistics.mean))
        self.policy.obs_scale.copy_(torch.as_tensor(1 / np.sqrt(self.obs_statistics.var + 1e-8)))

    @property
    def masked(self) -> bool:
        """Whether it was trained with action masks, which `predict` then needs."""
        return self.collector.masked

    @masked.setter
    def masked(self, masked: bool) -> None:
        self.collector.masked = masked

    def _predict(
        self, obs: Obs, state: Any, starts: np.ndarray, deterministic: bool, mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, Any]:
        """The state is that of a recurrent policy, (B, units)."""
        inputs, actions = self.policy.inputs, self.policy.actions
        to = functools.partial(torch.as_tensor, device=self.device)
        vector, pixels = to(inputs.vector(obs)), {key: to(image) for key, image in inputs.pixels(obs).items()}
        features = self.policy.features(vector, pixels)
        if self.policy.gru is not None:
            hidden = torch.zeros(len(features), self.policy.gru.hidden_size) if state is None else state
            out, after = self.policy.unroll(features[None], to(hidden), to(starts)[None])
            features, state = out[0], after.cpu().numpy()
        outputs = masked(self.policy.heads(features)[0], mask)
        if deterministic:
            action = actions.mode(outputs)
        else:
            action = actions.sample(outputs, self.policy.log_std, to(actions.draw(self.rng, len(outputs))))
        return actions.to_env(action.cpu().numpy()), state
