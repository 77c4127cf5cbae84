"""Proximal policy optimisation with a value, a discount and an end for every reward stream; fast on one core.

    collect a rollout -> score it once -> one advantage a stream -> add them by weight -> minibatches -> rewards learn

A learned bonus and the task are different returns: curiosity should not end with an episode, the task must. So each
stream of the reward has a value head of its own, and the policy follows A = sum_k weight_k A_k.

Source: Schulman et al. 2017, arXiv 1707.06347; streams as in Burda et al. 2018, arXiv 1810.12894, section 2.3.
Differences: Stable-Baselines3's defaults; advantages are normalised over the rollout, not the minibatch; a stream
that has only ever paid zero does not move the policy, because normalising would turn its value's noise into a
direction. Small networks are computed by hand (`agents.ppo.numpy_update`), everything else by torch (`agents.ppo.learner`).
Fails when: the reward needs more exploration than noise and bonuses give; off-policy agents use fewer steps.
"""

from __future__ import annotations

import copy
import functools
import math
import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.running_mean_std import RunningMeanStd

from agents.base import OwnAgent, is_single
from agents.networks.actor_critic import Actions, ActorCritic, Flat, Inputs
from agents.networks.glyphs import Glyphs
from agents.ppo.advantages import advantages
from agents.ppo.collector import Collector
from agents.ppo.config import PPOConfig
from agents.ppo.device import DeviceCollector
from agents.ppo.learner import Eager, Losses
from agents.ppo.numpy_update import Fused
from agents.task_reward import TaskScorer, checked
from envs.finite import NotFinite, is_finite
from envs.types import Obs, map_obs

MEASURED = 8  # minibatches of the last epoch whose losses are logged


class PPO(OwnAgent):
    """Proximal policy optimisation with a value for every reward stream, over a Gymnasium vector environment.

    Args:
        envs: a `gymnasium.vector.VectorEnv` that resets by itself; `envs.make.make_vec` makes fast ones.
        config: a `PPOConfig`.
        scorer: what pays: a `rewards.mix.mix.Mix`, or None for the task's own reward.
        seed: of the weights, the actions and the order of minibatches.
        device: as torch writes it.

    Raises:
        ValueError: for spaces it cannot take, and rollouts that do not divide into minibatches.
    """

    Config: ClassVar[type[PPOConfig]] = PPOConfig
    driver: ClassVar[str] = "scorer"
    n_envs: ClassVar[int] = 8

    def __init__(
        self, envs: Any, config: PPOConfig | None = None, *, scorer: Any = None, seed: int = 0, device: str = "cpu"
    ) -> None:
        super().__init__()
        self.config = config = PPOConfig() if config is None else config
        self.envs, self.seed, self.device = envs, seed, torch.device("cpu" if device == "auto" else device)
        self.scorer = TaskScorer(config.gamma) if scorer is None else checked(scorer)
        self.observation_space, self.action_space = envs.single_observation_space, envs.single_action_space
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
        self.losses = Losses(
            config.learning_rate, config.clip_range, config.entropy_weight, config.value_weight, config.max_grad_norm
        )
        on_device = getattr(getattr(envs, "arrays", None), "is_torch", False)
        fast = config.path == "auto" and not on_device and self.device.type == "cpu" and self.policy.is_mlp
        self.learner: Any = (Fused if fast else Eager)(self.policy, self.flat, self.losses)
        settings = (envs, self.learner, config.n_steps, len(streams), self.scorer.requires, seed)
        self.collector: Collector
        if on_device:
            self.collector = DeviceCollector(*settings)
        else:
            self.collector = Collector(*settings, config.sequence if config.gru else config.n_steps)
        self.collector.on_nan = getattr(self.scorer, "on_nan", self.collector.on_nan)
        self.ep_info_buffer, self.ep_success_buffer = self.collector.episodes, self.collector.successes
        self.memory = self.scorer.initial_memory(envs.num_envs)
        self.seen = np.zeros(len(streams), bool)  # streams that have paid something other than zero
        self.obs_statistics = RunningMeanStd(shape=(inputs.size,))
        self.rng = np.random.default_rng([seed, 2])
        self.seconds = self.collector.seconds  # where time went: environment, inference, reward, update

    @classmethod
    def build(cls, config: PPOConfig, envs: Any, *, seed: int, device: str = "cpu", scorer: Any = None) -> PPO:
        """The agent of a run."""
        return cls(envs, config, scorer=scorer, seed=seed, device=device)

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

    def learn(
        self,
        total_timesteps: int,
        callback: Any = None,
        log_interval: int | None = 1,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
        tb_log_name: str = "PPO",
    ) -> PPO:
        """Act and learn for `total_timesteps` environment steps, summed over environments, in whole rollouts.

        Raises:
            FloatingPointError: if the environment or a reward gives a number that is none; no weight has moved then.
        """
        callback = self._begin(int(total_timesteps), callback, reset_num_timesteps, progress_bar)

        rollout = self.collector.rollout

        def on_step(t: int) -> bool:
            self.num_timesteps += rollout.n
            callback.update_locals(
                {"rewards": rollout.reward[t], "dones": rollout.terminated[t] | rollout.truncated[t]}
            )
            return callback.on_step()

        iteration = 0
        while self.num_timesteps < self._total_timesteps:
            if self.collector.begin():
                self.memory = self.scorer.initial_memory(rollout.n)
            callback.on_rollout_start()
            if not self.collector.collect(on_step):
                break
            self._learn_from_rollout(callback)
            iteration += 1
            if log_interval is not None and iteration % log_interval == 0:
                self.dump_logs(iteration)
        callback.on_training_end()
        return self

    def _learn_from_rollout(self, callback: Any) -> None:
        """Score, estimate advantages, update the policy, let the rewards learn."""
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
        updated = time.perf_counter()
        callback.update_locals({"batch": batch, "raw": raw, "advantages": advantage})
        callback.on_rollout_end()
        metrics = self.scorer.update(batch, raw, timesteps)
        for tag, value in metrics.items():
            self.logger.record(tag, value)
        if self.config.normalize_obs:
            self._watch(batch.valid)
        collector.roll()
        self.seconds["update"] += updated - scored
        self.seconds["reward"] += scored - clock + time.perf_counter() - updated

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
            self.losses.learning_rate = config.learning_rate * max(1 - self.num_timesteps / self._total_timesteps, 0.0)
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
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/learning_rate", self.losses.learning_rate)

    def _watch(self, valid: np.ndarray) -> None:
        """Let the statistics of the observations move: between two rollouts, so that a rollout has one meaning."""
        vector = self.collector.vector[:-1]
        rows = np.asarray(vector.cpu() if isinstance(vector, torch.Tensor) else vector, np.float64)[valid]
        self.obs_statistics.update(rows)
        with torch.no_grad():
            mean, scale = self.obs_statistics.mean, 1 / np.sqrt(self.obs_statistics.var + 1e-8)
            self.policy.obs_mean.copy_(torch.as_tensor(mean))
            self.policy.obs_scale.copy_(torch.as_tensor(scale))

    def predict(
        self, observation: Obs, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]:
        """Actions for one observation or a batch (B, ...), and the state of a recurrent policy, (B, units).

        `episode_start`, bool (B,), empties that state.
        """
        inputs, actions = self.policy.inputs, self.policy.actions
        to = functools.partial(torch.as_tensor, device=self.device)
        single = is_single(observation, self.observation_space)
        rows = map_obs(lambda x: np.asarray(x)[None], observation) if single else observation
        with torch.no_grad():
            vector, pixels = to(inputs.vector(rows)), {key: to(image) for key, image in inputs.pixels(rows).items()}
            features = self.policy.features(vector, pixels)
            if self.policy.gru is not None:
                n = len(features)
                hidden = torch.zeros(n, self.policy.gru.hidden_size) if state is None else state
                starts = np.zeros(n, bool) if episode_start is None else np.asarray(episode_start, bool)
                out, after = self.policy.unroll(features[None], to(hidden), to(starts)[None])
                features, state = out[0], after.cpu().numpy()
            outputs, _ = self.policy.heads(features)
            if deterministic:
                action = actions.mode(outputs)
            else:
                action = actions.sample(outputs, self.policy.log_std, to(actions.draw(self.rng, len(outputs))))
        taken = actions.to_env(action.cpu().numpy())
        return (taken[0] if single else taken), state

    def get_state(self) -> dict[str, Any]:
        """All that it takes to go on exactly here, between two rollouts; no pickle."""
        return {
            "modules": {"policy": self.policy.state_dict()},
            "optimizer": self.flat.state_dict(),
            "counters": {"timesteps": self.num_timesteps, "updates": self._n_updates},
            "collector": self.collector.state_dict(),
            "memory": copy.deepcopy(self.memory),
            "seen": self.seen,
            "observations": {name: getattr(self.obs_statistics, name) for name in ("mean", "var", "count")},
            "rng": self.rng.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned into an agent built with the same configuration."""
        self.policy.load_state_dict(state["modules"]["policy"])
        self.flat.load_state_dict(state["optimizer"])
        self.num_timesteps, self._n_updates = state["counters"]["timesteps"], state["counters"]["updates"]
        self.collector.load_state_dict(state["collector"])
        self.memory = {name: {k: np.array(v) for k, v in m.items()} for name, m in state["memory"].items()}
        self.seen = np.array(state["seen"])
        for name, value in state["observations"].items():
            setattr(self.obs_statistics, name, value)
        self.rng.bit_generator.state = state["rng"]
