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

import functools
import time
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.running_mean_std import RunningMeanStd
from torch import Tensor

from agents.base import BaseAgent, Episodes, OnStep, TaskScorer, has_reset
from agents.networks.actor_critic import Actions, ActorCritic, Glyphs, Inputs, masked
from agents.ppo import credit
from agents.ppo.balance import Balance
from agents.ppo.blend import Blend
from agents.ppo.compiled import epochs
from agents.ppo.config import PPOConfig
from agents.ppo.imitate import Imitation
from agents.ppo.trees import TreePolicy, TreesUpdate
from agents.ppo.update import Batch, NumpyUpdate, TorchUpdate, advantages, alignment, metrics, sequences
from envs.flat import Flat
from envs.masks import allows, checked
from envs.state import Stateful
from envs.transitions import NotFinite, OneGroup, OnNan, Rollout, is_finite, map_obs, refuse
from envs.types import MASK, MODALITIES, Obs


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
        self.flat = Flat.over(self.policy.ordered())
        on_device = getattr(getattr(envs, "arrays", None), "is_torch", False)
        fast = config.path != "eager" and not on_device and self.device.type == "cpu" and self.policy.is_mlp
        self.autograd = TorchUpdate(self.policy, self.flat, config)
        kind = TreesUpdate if config.net == "trees" else NumpyUpdate if fast else None
        self.learner: Any = kind(self.policy, self.flat, config) if kind else self.autograd  # type: ignore[arg-type]
        self.few, self.every = config.rows_a_gradient(envs.num_envs, len(streams))
        self.balance = Balance(config, list(self.streams)) if config.balance != "none" else None
        blend = Blend(config, self.streams, seed, self.device)
        self.blend = blend if config.blend != "none" else None
        self.imitation = Imitation(config, self.scorer, self.flat, self._gamma, seed) if config.imitate else None
        on = {name: name for name in ("balance", "blend", "imitation") if getattr(self, name) is not None}
        self.saved = {**self.saved, **on}  # type: ignore[misc]
        settings = (envs, self.learner, config.n_steps, len(streams), self.scorer.requires, seed)
        collect: type[Collector] = getattr(envs, "collector", DeviceCollector if on_device else Collector)
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
            self.memory = self.scorer.initial_memory(self.collector.rollout.n)

    def collect(self, on_step: OnStep) -> bool:
        rollout = self.collector.rollout

        def stepped(t: int) -> bool:
            self.num_timesteps += rollout.n
            ended = rollout.terminated[t] | rollout.truncated[t]
            return on_step(rollout.reward[t], ended, map_obs(lambda x: x[t + 1], self.collector.observed))

        return self.collector.collect(stepped)

    def update(self) -> dict[str, Any]:
        clock = time.perf_counter()
        collector, rollout = self.collector, self.collector.rollout
        batch = self.scorer.embed(rollout.transitions(self.scorer.requires))
        raw, self.memory = self.scorer.score(batch, self.memory)
        scaled = self.scorer.scaled(raw)
        if missing := [name for name in self.scorer.streams if name not in scaled]:
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
        discounts: Any = (self._gamma, self.config.gae_lambda, self._episodic, collector.ratio)
        if not self._credit:
            advantage = advantages(rewards, *values, *ends, *discounts)
        else:
            softened = credit.soften(rewards, self._credit, *ends)
            advantage = advantages(softened, *values, *ends, *discounts)
            credit.weakest_link(advantage, rewards, self._credit, *values, *ends)
        self.seen |= rewards.any(axis=(0, 1))
        self._update(advantage, weights, batch.valid)
        if self.imitation is not None:
            self.record(self.imitation(self, batch, raw))
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
        collector, config = self.collector, self.config
        ratio = np.float32(1) if collector.ratio is None else collector.ratio[..., None]
        returns = advantage * ratio + collector.values[:-1]
        total = np.einsum("tnk,tnk,k->tn", advantage, weights, self.seen.astype(np.float32))
        columns = [collector.log_prob[..., None], total[..., None], returns]
        numbers = np.concatenate(columns, -1, dtype=np.float32, casting="same_kind")
        if not is_finite(numbers):
            collector.rollout.refuse_finals()
            what = "returns" if is_finite(collector.values) else "policy's values"
            raise NotFinite(
                f"the {what} became {numbers[~np.isfinite(numbers)][0]} after {self.num_timesteps:,} steps: training "
                f"diverged; lower agent.learning_rate={config.learning_rate}, or scale the reward; no weight has moved"
            )
        batch = collector.batch(numbers)
        rows = np.arange(batch.valid.shape[1]) if config.gru else np.flatnonzero(valid)
        few, pulls, mean = rows[: self.few], dict[str, Tensor](), weights.mean((0, 1))
        if len(self.streams) > 1 and self._n_updates // config.n_epochs % self.every == 0:
            few = np.random.default_rng(self.num_timesteps).permutation(rows)[: self.few]
            seen = {name: column for column, name in enumerate(self.streams) if self.seen[column]}
            pulls = self.autograd.gradients(batch, few, seen)
            self.record(alignment(pulls, dict(zip(self.streams, mean.tolist()))))
        if self.balance is not None:
            numbers[..., 1] = self.balance(pulls, advantage, weights * self.seen, valid)
            self.record(self.balance.metrics)
            batch = collector.batch(numbers)
        if config.anneal:
            self.learner.learning_rate = config.learning_rate * max(1 - self.num_timesteps / self._total_timesteps, 0.0)
        measured = epochs(self.learner, batch, rows, self.rows_a_batch, config, self.rng, self._n_updates)
        if self.blend is not None:
            self.blend(self.autograd, batch, few, pulls, mean * self.seen, collector.rollout)
            self.record(self.blend.metrics)
        self._n_updates += config.n_epochs
        if not np.isfinite(measured[-1]["value_loss"]) or not bool(torch.isfinite(self.flat.value.sum())):
            raise FloatingPointError(
                f"the loss of the policy became {measured[-1]['value_loss']} after {self.num_timesteps:,} steps; lower "
                f"agent.learning_rate={config.learning_rate}, or scale the reward"
            )
        self.record(metrics(measured, returns[valid], collector.values[:-1][valid], list(self.streams)))
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


class Collector(Stateful):
    """The environments' side of an on-policy agent; its state is where they stand between two rollouts.

    `vector`, float32 (T + 1, N, D), is what the policy read, `chosen` (T, N, choices) its actions, `starts` bool (T +
    1, N) where an episode begins; `values` (T + 1, N, K), `log_prob` (T, N) and `last_values` (T, N, K), of the last
    observation of an episode that was truncated; `ratio` (T, N), min(1, pi / mu) of actions that another policy chose;
    `seconds` say where time went. Environments elsewhere bring a `collector` class of their own.
    """

    ratio: np.ndarray | None = None
    kind_of_rollout: type[Rollout] = Rollout

    saved: ClassVar[dict[str, str]] = {
        "rollout": "rollout",
        **{key: f"episodes.{name}" for key, name in Episodes.saved.items()},
        **{"rng": "rng", "hidden": "learner.hidden", "began": "began"},
    }

    def __init__(
        self, envs: Any, learner: Any, length: int, streams: int, requires: frozenset[str], seed: int, sequence: int
    ) -> None:
        self.envs, self.learner, self.seed, self.sequence = envs, learner, seed, sequence
        self.inputs, self.actions = learner.net.inputs, learner.net.actions
        self.recurrent = learner.net.gru is not None
        self.stepper = envs if hasattr(envs, "recv") else OneGroup(envs)
        self.rollout = self.kind_of_rollout(length, envs, requires & set(MODALITIES))
        self.observed: Any = self.rollout.obs  # row t + 1 is there once step t is made
        n, flat = envs.num_envs, self.inputs.vector(self.rollout.obs, 2)
        self._shared = isinstance(self.rollout.obs, np.ndarray) and np.shares_memory(flat, self.rollout.obs)
        self.vector: Any = flat  # the observations themselves, where they are flat float32 numbers
        self.chosen = np.zeros((length, n, self.actions.choices), np.float32 if self.actions.gaussian else np.int64)
        self.values = np.zeros((length + 1, n, streams), np.float32)
        self.log_prob = np.zeros((length, n), np.float32)
        self.last_values = np.zeros((length, n, streams), np.float32)
        self.starts = np.zeros((length + 1, n), bool)
        self.episodes = Episodes(n)
        self.seconds = dict.fromkeys(("environment", "inference", "reward", "update"), 0.0)
        self.rng = np.random.default_rng([seed, 1])
        self.hidden: list[Any] = []  # (N, units) of a recurrent policy, before the first row of each sequence
        if self.recurrent:
            learner.start(n)
        self.began = self._known = False  # _known: that they have been reset
        self.on_nan = OnNan()
        self.uses_masks, self.masked = True, False  # masked: the environments give masks, and they are used

    def begin(self) -> bool:
        began = self.began and (self._known or has_reset(self.envs))
        self.began = self._known = True
        if began:
            return False
        self._begin(*self.envs.reset(seed=self.seed))
        self.episodes.running[:] = 0
        return True

    def _begin(self, obs: Any, infos: Any) -> None:
        self.masked = MASK in infos and self.uses_masks and bool(self.actions.sizes)
        if self.masked:
            checked(infos[MASK][0], self.actions.sizes, "of environment 0 at step 0 of its episode")
            self._read_masks()
        self.rollout.begin(obs, infos)
        self.starts[0] = True
        if self.recurrent:
            self.learner.start(self.rollout.n)

    def _read_masks(self) -> None:
        self.masked = True
        self.rollout.modality_names = tuple(sorted({*self.rollout.modality_names, MASK}))

    def _mask(self, t: int, group: slice) -> np.ndarray | None:
        """The actions allowed at row t, bool (B, outputs); None for all. A `MaskFault` where none is."""
        if not self.masked:
            return None
        rollout, groups = self.rollout, self.actions.sizes
        mask = rollout.modalities[MASK][t, group] | rollout.resetting[group, None]
        if not (fine := allows(mask, groups)).all():
            row = group.start + int(np.argmin(fine))
            step = 0 if t == 0 or rollout.restarted[t - 1, row] else int(rollout.steps()[t - 1, row]) + 1
            checked(rollout.modalities[MASK][t, row], groups, f"of environment {row} at step {step} of its episode")
        return mask

    def collect(self, on_step: Callable[[int], bool]) -> bool:
        """Fill the rollout, group by group; `on_step` gets the row that all have just stepped; its False stops."""
        rollout, stepper = self.rollout, self.stepper
        groups, length = stepper.groups, rollout.length
        noise = self.actions.draw(self.rng, length, rollout.n)
        if self.recurrent:
            self.hidden = [self.learner.hidden.clone() for _ in range(length // self.sequence)]
        self._read(0, slice(0, rollout.n), map_obs(lambda x: x[0], rollout.obs))
        now = time.perf_counter()
        environment = inference = 0.0
        for t in range(length + 1):
            for number, group in enumerate(groups):
                if t > 0:
                    step = stepper.recv(number)
                    rollout.write(t - 1, group, *step)
                    self._read(t, group, step[0])
                    if self.recurrent:
                        self._mark(t, group)
                    before, now = now, time.perf_counter()
                    environment += now - before
                if t < length:
                    self._act(t, group, noise[t, group])
                    before, now = now, time.perf_counter()
                    inference += now - before
                    stepper.send(rollout.action[t, group], number)
            if t > 0 and not on_step(t - 1):
                self._abandon(t)
                return False
        self.seconds["environment"] += environment
        self.seconds["inference"] += inference
        self._refuse()
        self.episodes.count(rollout.reward, rollout.valid, rollout.ended, rollout.success)
        return True

    def _refuse(self) -> None:
        """Stop before NaN or infinity reaches a weight."""
        rollout, length = self.rollout, self.rollout.length
        rollout.reward[:] = reward = self.on_nan(rollout.reward)
        given = {"reward": reward, "observation": self.vector, "action": rollout.action}
        kept = {"obs": map_obs(lambda x: x[:length], rollout.obs), "action": rollout.action, "reward": reward}
        refuse(given, rollout.steps, kept | {"next_obs": map_obs(lambda x: x[1:], rollout.obs)})

    def _read(self, t: int, group: slice, obs: Any) -> None:
        if not self._shared:
            self.vector[t, group] = self.inputs.vector(obs)

    def _act(self, t: int, group: slice, noise: np.ndarray) -> None:
        pixels = self.inputs.pixels(map_obs(lambda x: x[t, group], self.rollout.obs)) if self.inputs.images else {}
        vector = self.vector[t, group]
        if self.recurrent and t % self.sequence == 0:
            self.hidden[t // self.sequence][group] = self.learner.hidden[group]
        mask = self._mask(t, group)
        if self.learner.deferred:
            action = self.learner.act(vector, pixels, noise, mask)
        else:
            action, values, log_prob = self.learner.act(vector, pixels, noise, mask, group, self.starts[t, group])
            self.values[t, group], self.log_prob[t, group] = values, log_prob
        self.chosen[t, group] = action
        self.rollout.action[t, group] = self.actions.to_env(action)

    def _mark(self, t: int, group: slice) -> None:
        """Where episodes begin; and the value of a last observation, which needs the state of this moment."""
        rollout = self.rollout
        ended = rollout.terminated[t - 1, group] | rollout.truncated[t - 1, group]
        self.starts[t, group] = ended if rollout.same_step else ~rollout.valid[t - 1, group]
        if ended.any() and rollout.finals and rollout.finals[-1][0] == t - 1:
            _, columns, last = rollout.finals[-1]
            read = (self.inputs.vector(last), self.inputs.pixels(last), self.learner.hidden[columns])
            self.last_values[t - 1, columns] = self.learner.values(*read)

    def _abandon(self, t: int) -> None:
        """Stop in the middle: what was collected is dropped."""
        for number in range(len(self.stepper.groups) if t < self.rollout.length else 0):
            self.stepper.recv(number)  # already on its way
        self.rollout.finals.clear()
        self.rollout.valid[:] = self.rollout.same_step
        self.began = False

    def batch(self, numbers: np.ndarray) -> Batch:
        """The rollout as rows to learn from; `numbers` (T, N, 2 + K) as in `Batch`."""
        length, n = self.rollout.length, self.rollout.n
        vector, chosen = self.vector[:length], self.chosen
        pixels = self.inputs.pixels(map_obs(lambda x: x[:length], self.rollout.obs))

        def cut(x: Any) -> Any:
            return sequences(x, self.sequence) if self.recurrent else x.reshape(length * n, *x.shape[2:])

        batch = Batch(cut(vector), map_obs(cut, pixels), cut(chosen), cut(numbers), mask=map_obs(cut, self._masks()))
        if self.recurrent:
            batch.valid, batch.starts = cut(self.rollout.valid), cut(self.starts[:length])
            batch.hidden = self.learner.tensor(torch.cat(self.hidden))
        return batch

    def _masks(self) -> np.ndarray | None:
        """The actions that were allowed, bool (T, N, outputs); None for all."""
        if not self.masked:
            return None
        mask = self.rollout.modalities[MASK][: self.rollout.length]
        return mask | ~self.rollout.valid[..., None]  # a row that only resets

    def evaluate(self) -> None:
        """Values and log-probabilities that acting left out, and the values of the observations episodes ended on."""
        rollout, learner = self.rollout, self.learner
        length, n = rollout.length, rollout.n
        pixels = self.inputs.pixels(map_obs(lambda x: x[length], rollout.obs))
        if self.recurrent:
            hidden = learner.hidden.clone()
            hidden[learner.tensor(self.starts[length])] = 0
            self.values[length] = learner.values(self.vector[length], pixels, hidden)
            return
        if learner.deferred:
            rows = self.vector.reshape((length + 1) * n, -1)
            masks = map_obs(lambda x: x.reshape(length * n, -1), self._masks())
            values, log_prob = learner.evaluate(rows, {}, self.chosen.reshape(length * n, -1), masks)
            self.values[:], self.log_prob[:] = values.reshape(self.values.shape), log_prob.reshape(length, n)
        else:
            self.values[length] = learner.evaluate(self.vector[length], pixels, None)[0]
        if late := rollout.timed_out():
            times, columns, last = late
            read = (self.inputs.vector(last), self.inputs.pixels(last), None)
            self.last_values[times, columns] = learner.evaluate(*read)[0]

    def roll(self) -> None:
        self.rollout.roll()
        self.starts[0] = self.starts[-1]

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"starts": self.starts[0].copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if MASK in state["rollout"]["shown"] and self.uses_masks:
            self._read_masks()
        super().load_state_dict(state)
        self.starts[0] = state["starts"]


class DeviceCollector(Collector):
    """Rollouts that stay where a batched environment computes: actions, steps and updates never leave the device.

    Once a rollout, what rewards and advantages are computed from is copied to the host, where `Collector` keeps it. For
    `array="torch"` on a GPU; on the CPU the NumPy ones are faster. A ValueError refuses recurrence and another device.
    """

    saved: ClassVar[dict[str, str]] = Collector.saved | {"generator": "generator"}

    def __init__(
        self, envs: Any, learner: Any, length: int, streams: int, requires: frozenset[str], seed: int, sequence: int
    ) -> None:
        super().__init__(envs, learner, length, streams, requires, seed, sequence)
        device = envs.arrays.device
        if self.recurrent:
            raise ValueError('agent.gru is for environments on the host; make them with array="numpy"')
        if learner.device.type != device.type:
            raise ValueError(f"the environments compute on {device}, the policy on {learner.device}; give one device")
        n = self.rollout.n
        self.reads_obs = bool(requires & {"obs", "next_obs"})
        self.generator = torch.Generator(device).manual_seed(seed)
        self.vector = self.observed = torch.zeros(length + 1, n, self.inputs.size, device=device)
        kind = torch.float32 if self.actions.gaussian else torch.int64
        self._chosen = torch.zeros(length, n, self.actions.choices, dtype=kind, device=device)
        self._values = torch.zeros(length + 1, n, streams, device=device)
        self._log_prob, self._reward = (torch.zeros(length, n, device=device) for _ in range(2))
        self._flags = torch.zeros(2, length, n, dtype=torch.bool, device=device)  # terminated, truncated
        self._ends: list[tuple[int, Tensor, Tensor, Tensor | None]] = []  # time, mask, last observations, success

    def _begin(self, obs: Any, infos: Any) -> None:
        if MASK in infos and self.uses_masks:
            raise ValueError('action masks are read on the host; make the environments with array="numpy"')
        self.vector[0] = obs
        self.rollout.first_step[:] = 0

    def collect(self, on_step: Callable[[int], bool]) -> bool:
        length, clock = self.rollout.length, time.perf_counter()
        noise = self.actions.draw_on(self.generator, length, self.rollout.n)
        for t in range(length):
            action, self._values[t], self._log_prob[t] = self.learner.choose(self.vector[t], {}, noise[t], None)
            self._chosen[t] = action
            step = self.envs.step(self.actions.to_env_on(action))
            self.vector[t + 1], self._reward[t], self._flags[0, t], self._flags[1, t], infos = step
            if "final_obs" in infos:
                success = infos["final_info"].get("is_success")
                success = None if success is None else success.clone()
                self._ends.append((t, infos["_final_obs"].clone(), infos["final_obs"].clone(), success))
            if not on_step(t):
                self._ends.clear()
                self.began = False
                return False
        self._to_host()
        self.seconds["environment"] += time.perf_counter() - clock  # the device works on all parts at once
        self._refuse()
        rollout = self.rollout
        self.episodes.count(rollout.reward, rollout.valid, rollout.ended, rollout.success)
        return True

    def _to_host(self) -> None:
        rollout = self.rollout
        rollout.reward[:] = self._reward.cpu().numpy()
        rollout.terminated[:], rollout.truncated[:] = self._flags.cpu().numpy()
        actions = self.actions.to_env_on(self._chosen.flatten(0, 1)).cpu().numpy()
        rollout.action[:] = actions.reshape(rollout.action.shape)
        if self.reads_obs:
            rollout.obs[:] = self.vector.cpu().numpy()
        for t, mask, last, success in self._ends:
            columns = np.flatnonzero(mask.cpu().numpy())
            rollout.finals.append((t, columns, last[mask].cpu().numpy()))
            if success is not None:
                rollout.success[t, columns] = success[mask].cpu().numpy()

    def evaluate(self) -> None:
        self.values[:], self.log_prob[:] = self._values.cpu().numpy(), self._log_prob.cpu().numpy()
        self.values[-1] = self.learner.values(self.vector[-1], {})
        for t, mask, last, _ in self._ends:
            self.last_values[t, mask.cpu().numpy()] = self.learner.values(last[mask], {})
        self._ends.clear()

    def batch(self, numbers: np.ndarray) -> Batch:
        tensors = (self.vector[:-1], self._chosen, torch.as_tensor(numbers, device=self.vector.device))
        vector, chosen, flat = (x.flatten(0, 1) for x in tensors)
        return Batch(vector, {}, chosen, flat)

    def roll(self) -> None:
        self.rollout.obs[-1] = self.vector[-1].cpu().numpy()
        super().roll()
        self.vector[0] = self.vector[-1]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.vector[0] = torch.as_tensor(self.rollout.obs[0], device=self.vector.device)
