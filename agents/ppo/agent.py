"""Proximal policy optimisation with a value, a discount and an end for every reward stream; fast on one core.

    collect a rollout -> score it once -> one advantage a stream -> add them by weight -> minibatches -> rewards learn

A learned bonus and the task are different returns: curiosity should not end with an episode, the task must. So each
stream of the reward has a value head of its own, and the policy follows A = sum_k weight_k A_k.

Sources: Schulman et al. 2017, arXiv 1707.06347; advantages by Schulman et al. 2016, arXiv 1506.02438, equation 16;
streams as in Burda et al. 2018, arXiv 1810.12894, section 2.3.
Differences: Stable-Baselines3's defaults, and its update to the last digits; a stream that has only ever been zero does
not move the policy. Small networks are updated in NumPy, everything else by torch (`agents.ppo.update`).
Fails when: the reward needs more exploration than noise and bonuses give; off-policy agents use fewer steps.
"""

import contextlib
import copy
import functools
import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.running_mean_std import RunningMeanStd
from torch import Tensor

from agents.base import BaseAgent, OnStep, TaskScorer
from agents.networks.actor_critic import Actions, ActorCritic, Glyphs, Inputs, masked
from agents.ppo import credit
from agents.ppo.balance import Balance
from agents.ppo.blend import Blend
from agents.ppo.collector import Collector, DeviceCollector
from agents.ppo.compiled import epochs
from agents.ppo.config import PPOConfig
from agents.ppo.imitate import Imitation
from agents.ppo.numpy_update import NumpyUpdate
from agents.ppo.overlap import Overlap
from agents.ppo.trees import TreePolicy, TreesUpdate
from agents.ppo.update import TorchUpdate, advantages, alignment, metrics
from envs.transitions import NotFinite, is_finite, map_obs
from envs.types import Obs
from lodestar.numerics.flat import Flat


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

    Config: ClassVar[type[PPOConfig]] = PPOConfig
    masks: ClassVar[bool] = True
    saved: ClassVar[dict[str, str]] = BaseAgent.saved | {
        **{"optimizer": "flat", "collector": "collector", "memory": "memory", "seen": "seen"},
        **{f"observations.{name}": f"obs_statistics.{name}" for name in ("mean", "var", "count")},
    }
    in_file: ClassVar[dict[str, str]] = BaseAgent.in_file | {
        name: f"obs_statistics.{name}" for name in ("mean", "var", "count")
    }
    lasting: ClassVar[dict[str, str]] = (
        BaseAgent.lasting | in_file | {"noise": "collector.rng", "masked": "collector.masked"}
    )
    assigns_credit: ClassVar[bool] = True
    config: PPOConfig

    def _set_up(self) -> None:
        config, envs, seed = self.config, self.envs, self.seed
        self.rows_a_batch = config.rows_a_batch(envs.num_envs)
        self.streams = dict((TaskScorer(config.gamma) if config.streams == "sum" else self.scorer).streams)
        streams = list(self.streams.values())
        self._gamma = np.array([stream.gamma for stream in streams], np.float32)
        self._episodic = np.array([stream.episodic for stream in streams], bool)
        kinds = [getattr(stream, "credit", "sum") for stream in streams]
        self._credit = kinds if {*kinds} != {"sum"} else []
        inputs, actions = Inputs(self.observation_space), Actions(self.action_space)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if config.net == "trees":
                self.policy: ActorCritic = TreePolicy(inputs, actions, len(streams), config.tree_depth)
            else:
                trunk = Glyphs(self.observation_space) if config.net == "glyphs" else None
                sizes = (list(config.net_arch), len(streams), config.gru, config.normalize_obs)
                self.policy = ActorCritic(inputs, actions, *sizes, trunk, config.zero_last, config.log_std)
            self.policy.to(self.device)
        self.learnt = copy.deepcopy(self.policy) if config.overlap else self.policy  # the one that updates move
        self.flat = Flat.over(self.learnt.ordered())
        on_device = getattr(getattr(envs, "arrays", None), "is_torch", False)
        fast = config.path != "eager" and not on_device and self.device.type == "cpu" and self.policy.is_mlp
        self.autograd = TorchUpdate(self.learnt, self.flat, config)
        kind = TreesUpdate if config.net == "trees" else NumpyUpdate if fast else None
        self.learner: Any = kind(self.learnt, self.flat, config) if kind else self.autograd  # type: ignore[arg-type]
        self.few, self.every = config.rows_a_gradient(envs.num_envs, len(streams))
        self.balance = Balance(config, list(self.streams)) if config.balance != "none" else None
        blend = Blend(config, self.streams, seed, self.device)
        self.blend = blend if config.blend != "none" else None
        self.imitation = Imitation(config, self.scorer, self.flat, self._gamma, seed) if config.imitate else None
        actor = self.learner
        if config.overlap:
            actor = (kind or TorchUpdate)(self.policy, Flat.over(self.policy.ordered()), config)  # type: ignore[arg-type]
        settings = (envs, actor, config.n_steps, len(streams), self.scorer.requires, seed)
        collect: type[Collector] = getattr(envs, "collector", DeviceCollector if on_device else Collector)
        self.collector = collect(*settings, config.sequence if config.gru else config.n_steps)
        self.collector.uses_masks = config.masks
        self.collector.on_nan = getattr(self.scorer, "on_nan", self.collector.on_nan)
        self.episodes = self.collector.episodes
        self.seconds = self.collector.seconds  # where time went: environment, inference, reward, update
        self.overlap = Overlap(self) if config.overlap else None
        on = {name: name for name in ("balance", "blend", "imitation", "overlap") if getattr(self, name) is not None}
        self.saved = {**self.saved, **on}  # type: ignore[misc]
        self.memory = self.scorer.initial_memory(envs.num_envs)
        self.seen = np.zeros(len(streams), bool)  # streams that have been other than zero
        self.obs_statistics = RunningMeanStd(shape=(inputs.size,))
        self.rng = np.random.default_rng([seed, 2])
        self.metrics: dict[str, float] = {}  # tags of the last update

    @classmethod
    def check(cls, observation_space: gym.Space, action_space: gym.Space) -> None:
        Inputs(observation_space)
        Actions(action_space)

    def fitted(self, weights: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        """Values of streams that this reward has, too, by their names; the others stay as they are."""
        before, now = state.get("streams"), list(self.scorer.streams)
        if before is None or before == now:
            return weights
        known = before if self.config.streams == "separate" else []
        places = [known.index(name) if name in known else None for name in self.streams]
        return {**weights, **self.policy.values_from(weights, places)}

    def begin_rollout(self) -> None:
        if self.collector.begin():
            if self.overlap is not None:
                self.overlap.finish()
            self.memory = self.scorer.initial_memory(self.collector.rollout.n)

    def collect(self, on_step: OnStep) -> bool:
        rollout = self.collector.rollout

        def stepped(t: int) -> bool:
            self.num_timesteps += rollout.n
            ended = rollout.terminated[t] | rollout.truncated[t]
            return on_step(rollout.reward[t], ended, map_obs(lambda x: x[t + 1], self.collector.observed))

        with contextlib.nullcontext() if self.overlap is None else self.overlap.learning():
            whole = self.collector.collect(stepped)
            if whole:
                self.collector.evaluate()
        return whole

    def update(self) -> dict[str, Any]:
        found = self.learn_from(self.collector, self.num_timesteps) if self.overlap is None else self.overlap.update()
        self.record(self.metrics)
        return found

    def learn_from(self, collector: Collector, timesteps: int) -> dict[str, Any]:
        """Score and learn from a rollout that ended after so many `timesteps`."""
        clock, rollout = time.perf_counter(), collector.rollout
        self.metrics.clear()
        batch = self.scorer.embed(rollout.transitions(self.scorer.requires))
        raw, self.memory = self.scorer.score(batch, self.memory)
        scaled = self.scorer.scaled(raw)
        if missing := [name for name in self.scorer.streams if name not in scaled]:
            raise ValueError(f"the reward has no score for its stream {missing[0]!r}, only for {sorted(scaled)}")
        rewards = np.stack([scaled[name] for name in self.scorer.streams], -1)
        every = timesteps - batch.valid.size + rollout.n * np.arange(rollout.length)[:, None]
        weights = np.stack([np.broadcast_to(w, batch.shape) for w in self.scorer.weights(every).values()], -1)
        if self.config.streams == "sum":
            rewards, weights = (rewards * weights).sum(-1, keepdims=True), np.ones_like(weights[..., :1])
        scored = time.perf_counter()
        ends = (batch.terminated, batch.truncated, batch.valid)
        values = (collector.values, collector.last_values)
        discounts: Any = (self._gamma, self.config.gae_lambda, self._episodic)
        if not self._credit:
            advantage = advantages(rewards, *values, *ends, *discounts)
        else:
            softened = credit.soften(rewards, self._credit, *ends)
            advantage = advantages(softened, *values, *ends, *discounts)
            credit.weakest_link(advantage, rewards, self._credit, *values, *ends)
        self.seen |= rewards.any(axis=(0, 1))
        self._update(collector, timesteps, advantage, weights, batch.valid)
        if self.imitation is not None:
            self.metrics |= self.imitation(self, collector, timesteps, batch, raw)
        self._scored = (batch, raw, every)
        self.seconds["reward"] += scored - clock
        self.seconds["update"] += time.perf_counter() - scored
        return {"batch": batch, "raw": raw, "advantages": advantage}

    def end_rollout(self) -> None:
        if self.overlap is not None:
            self.overlap.roll()
            return
        self.record(self.teach(self.collector))
        self.collector.roll()

    def teach(self, collector: Collector) -> dict[str, float]:
        """Let the rewards, and the statistics of observations, learn from what `learn_from` scored; tags."""
        clock = time.perf_counter()
        found = self.scorer.update(*self._scored)
        if self.config.normalize_obs:
            self._update_statistics(collector, self._scored[0].valid)
        self.seconds["reward"] += time.perf_counter() - clock
        return found

    def _update(
        self, collector: Collector, timesteps: int, advantage: np.ndarray, weights: np.ndarray, valid: np.ndarray
    ) -> None:
        config = self.config
        returns = advantage + collector.values[:-1]
        total = np.einsum("tnk,tnk,k->tn", advantage, weights, self.seen.astype(np.float32))
        columns = [collector.log_prob[..., None], total[..., None], returns]
        numbers = np.concatenate(columns, -1, dtype=np.float32, casting="same_kind")
        if not is_finite(numbers):
            collector.rollout.refuse_finals()
            what = "returns" if is_finite(collector.values) else "policy's values"
            raise NotFinite(
                f"the {what} became {numbers[~np.isfinite(numbers)][0]} after {timesteps:,} steps: training "
                f"diverged; lower agent.learning_rate={config.learning_rate}, or scale the reward; no weight has moved"
            )
        batch = collector.batch(numbers)
        rows = np.arange(batch.valid.shape[1]) if config.gru else np.flatnonzero(valid)
        few, pulls, mean = rows[: self.few], dict[str, Tensor](), weights.mean((0, 1))
        if len(self.streams) > 1 and self._n_updates // config.n_epochs % self.every == 0:
            few = np.random.default_rng(timesteps).permutation(rows)[: self.few]
            seen = {name: column for column, name in enumerate(self.streams) if self.seen[column]}
            pulls = self.autograd.gradients(batch, few, seen)
            self.metrics.update(alignment(pulls, dict(zip(self.streams, mean.tolist()))))
        if self.balance is not None:
            numbers[..., 1] = self.balance(pulls, advantage, weights * self.seen, valid)
            self.metrics.update(self.balance.metrics)
            batch = collector.batch(numbers)
        if collector.importance is not None and (collector.importance != 1).any():
            # Of what is above the mean: else it would weigh the mean, which minibatches then no longer take off.
            numbers[..., 1] = (numbers[..., 1] - numbers[..., 1].mean(where=valid)) * collector.importance
            batch = collector.batch(numbers)
        if config.anneal:
            self.learner.learning_rate = config.learning_rate * max(1 - timesteps / self._total_timesteps, 0.0)
        measured = epochs(self.learner, batch, rows, self.rows_a_batch, config, self.rng, self._n_updates)
        if self.blend is not None:
            self.blend(self.autograd, batch, few, pulls, mean * self.seen, collector.rollout)
            self.metrics.update(self.blend.metrics)
        self._n_updates += config.n_epochs
        if not np.isfinite(measured[-1]["value_loss"]) or not bool(torch.isfinite(self.flat.value.sum())):
            raise FloatingPointError(
                f"the loss of the policy became {measured[-1]['value_loss']} after {timesteps:,} steps; lower "
                f"agent.learning_rate={config.learning_rate}, or scale the reward"
            )
        self.metrics.update(metrics(measured, returns[valid], collector.values[:-1][valid], list(self.streams)))
        if self.learnt.log_std is not None:
            self.metrics["train/std"] = float(self.learnt.log_std.detach().exp().mean())
        self.metrics["train/learning_rate"] = self.learner.learning_rate

    def _update_statistics(self, collector: Collector, valid: np.ndarray) -> None:
        """Let the statistics of the observations move: between two rollouts, so that a rollout has one meaning."""
        vector = collector.vector[:-1]
        rows = np.asarray(vector.cpu() if isinstance(vector, torch.Tensor) else vector, np.float64)[valid]
        self.obs_statistics.update(rows)
        self.learnt.obs_mean.copy_(torch.as_tensor(self.obs_statistics.mean))
        self.learnt.obs_scale.copy_(torch.as_tensor(1 / np.sqrt(self.obs_statistics.var + 1e-8)))

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
            return actions.to_env(actions.mode(outputs).cpu().numpy()), state
        action = actions.sample(outputs, self.policy.log_std, to(actions.draw(self.rng, len(outputs))))
        return actions.to_env(action.cpu().numpy()), state
