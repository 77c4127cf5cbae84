"""The mix in Stable-Baselines3: around a VecEnv, at the end of a rollout, or whenever the replay buffer is sampled.

    RewardVecEnv      any algorithm; one `score` a step, the reward is frozen when it is stored
    RewardCallback    PPO, A2C, RecurrentPPO; one `score` a rollout, then returns and advantages are recomputed
    relabelling(B)    DQN, SAC, TD3, TQC, ...; a replay buffer B that stores the task's reward, scores what it samples

Never edit `locals["rewards"]` in a callback's `_on_step`: under VecNormalize the buffer stores something else.

`relabelling(B)` extends SB3's buffers (plain, dict, n-step, HER) without copying their samplers: whatever they read
from `self.rewards[rows, columns]` is scored, by the reward as it is now, on the way out.

`SideCritic` values a stream that does not end with the episode, beside an agent whose only critic does: a novelty bonus
whose return crosses resets (Burda et al. 2018, arXiv 1810.12894, section 2.3), as dying must not look expensive to
curiosity. Its advantages are added to the agent's.
Differences: it reads the policy's features without training them; advantages are added in the units of the rewards (PPO
normalises the sum). Fails when: the policy's features lack what the bonus depends on.
"""

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from torch import Tensor, nn

from envs.steps import Chunk, from_replay, from_sb3_step, innermost_vec_env, lost_in, modalities_in
from envs.transitions import Transitions, map_obs, refuse, stack
from envs.types import MASK, MODALITIES, MODALITY_FIELDS, Obs, StateDict
from lodestar.state import Stateful
from rewards.adapters.driver import Driver, EpisodeTracker
from rewards.adapters.observe import observe_venv
from rewards.base import Metrics
from rewards.mix.mix import Mix, refuse_missing

CRITIC_EPOCHS = 4  # of a side critic, in each rollout
CRITIC_BATCH_ROWS = 256


class RewardVecEnv(Stateful, VecEnvWrapper):
    """The mix around an SB3 VecEnv. `infos[i]["reward/task"]` keeps the task's reward; Monitor belongs inside.

    Example:
        >>> import envs.make, rewards
        >>> from stable_baselines3.common.vec_env import DummyVecEnv
        >>> venv = DummyVecEnv([lambda: envs.make.make("CartPole-v1")])
        >>> venv = RewardVecEnv(venv, rewards.make(["task"], venv.observation_space, venv.action_space))
        >>> obs = venv.reset()
        >>> venv.step(np.array([0]))[1].tolist()
        [1.0]
    """

    saved = {name: f"driver.{name}" for name in Driver.saved} | {"obs": "_obs"}

    def __init__(self, venv: VecEnv, mix: Mix, update_every: int = 1024) -> None:
        observe_venv(venv, mix)
        super().__init__(venv)
        self.driver = Driver(mix, venv.num_envs, update_every)
        self._obs: Any = None
        self._actions: Any = None

    def reset(self) -> Any:
        obs = self.venv.reset()
        self.driver.begin(modalities_in(innermost_vec_env(self.venv).reset_infos))
        self._obs = copy.deepcopy(obs)
        return obs

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions
        self.venv.step_async(actions)

    def step_wait(self) -> Any:
        obs, rewards, dones, infos = self.venv.step_wait()
        reset_infos = innermost_vec_env(self.venv).reset_infos
        batch = from_sb3_step(self.driver.cursor, self._obs, self._actions, rewards, obs, dones, infos, reset_infos)
        total = self.driver(batch)
        for row, info in enumerate(infos):
            info["reward/task"] = float(rewards[row])
        self._obs = copy.deepcopy(obs)
        return obs, total, dones, infos


class RewardCallback(BaseCallback):
    """Scores each rollout of an on-policy algorithm in one batch, then recomputes returns and advantages.

    Streams with `episodic=False` get a critic of their own. Until the run has seen its first reward that is not zero,
    advantages are zero: normalising them would turn the noise of an untrained critic into a direction.

    Example:
        >>> import envs.make, rewards
        >>> from stable_baselines3 import PPO
        >>> env = envs.make.make("CartPole-v1", seed=0)
        >>> mix = rewards.make(["task", "rnd"], env.observation_space, env.action_space)
        >>> agent = PPO("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1).learn(16, callback=RewardCallback(mix))
    """

    def __init__(self, mix: Mix) -> None:
        super().__init__()
        mix.only_sums("a model of Stable-Baselines3")
        self.mix = mix
        self.tracker: Any = None  # an EpisodeTracker, made for the model's environments
        self.critics: dict[str, SideCritic] = {}
        self.seen_reward = False
        # What no reward reads is dropped from the transitions that a rollout keeps.
        self._unread = dict.fromkeys(set(MODALITY_FIELDS) - mix.requires)
        self.batch: Any = None  # Transitions (T, N) of the last rollout, valid until the next step

    def _init_callback(self) -> None:
        if self.tracker is None:
            self.tracker = EpisodeTracker(self.mix.streams, self.training_env.num_envs, self.mix.frame_size)
        model: Any = self.model
        for name, stream in self.mix.streams.items():
            if stream.reward.config.episodic is False and name not in self.critics:
                self.critics[name] = SideCritic(model.policy, stream.gamma, model.gae_lambda)
        self._inner = innermost_vec_env(self.training_env)
        self._chunk = Chunk(model.rollout_buffer.buffer_size)

    def _on_training_start(self) -> None:
        if not self.tracker.cursor.modalities:
            modalities = modalities_in(self._inner.reset_infos)
            refuse_missing(self.mix.streams, modalities, self.mix.frame_size)
            self.tracker.cursor.begin(modalities)

    def _on_rollout_start(self) -> None:
        self._chunk.count = 0

    def _on_step(self) -> bool:
        new = self.locals
        obs = self.model._last_obs  # type: ignore[attr-defined]
        rewards = self.mix.on_nan(new["rewards"])
        # In place, as SB3 stores this array, and adds its bootstrap value to it.
        new["rewards"][:] = rewards
        # MaskablePPO has no actions to clip.
        actions = new.get("clipped_actions", new["actions"])
        step = (actions, rewards, new["new_obs"], new["dones"], new["infos"], self._inner.reset_infos)
        batch = from_sb3_step(self.tracker.cursor, obs, *step)
        _refuse_step(batch.step, obs, batch.action, batch.reward, batch.next_obs)
        self._chunk.add(batch.replace(**self._unread))
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer  # type: ignore[attr-defined]
        (self.batch,) = self._chunk.take()
        batch = self.mix.embed(self.batch)
        raw, self.tracker.memory = self.mix.score(batch, self.tracker.memory)
        length, n = batch.shape
        # The schedules' clock at each row, (T, 1).
        start = self.num_timesteps - length * n
        timesteps = start + n * np.arange(length)[:, None]
        parts = self.mix.weighted_rewards(raw, timesteps)
        episodic = [part for name, part in parts.items() if name not in self.critics]
        # SB3 has added gamma * V(s') to the task's reward where time ran out.
        bootstrap = buffer.rewards - batch.reward
        buffer.rewards[:] = np.sum(episodic, axis=0) + bootstrap
        # SB3 cannot leave out rows that were lost: with this reward they have no advantage and no error.
        lost = ~batch.valid
        buffer.rewards[lost] = buffer.values[lost]
        buffer.compute_returns_and_advantage(last_values=self._last_values(), dones=self.locals["dones"])
        metrics = {}
        for name, critic in self.critics.items():
            advantages, loss = critic.advantages(batch, self.locals["new_obs"], parts[name])
            buffer.advantages += advantages
            metrics[f"{name}/critic_loss"] = loss
        self.seen_reward |= any(bool(part.any()) for part in parts.values())
        if not self.seen_reward:
            buffer.advantages[:] = 0
        metrics.update(self.mix.update(batch, raw, timesteps))
        for tag, value in metrics.items():
            self.logger.record(tag, value)

    def _last_values(self) -> Tensor:
        """Values of the observations after the rollout; MaskablePPO shows its callbacks those of the step before."""
        if "clipped_actions" in self.locals:
            return self.locals["values"]
        policy: Any = self.model.policy
        obs, _ = policy.obs_to_tensor(self.locals["new_obs"])
        with torch.no_grad():
            return policy.predict_values(obs)

    def state_dict(self) -> StateDict:
        assert self.tracker is not None, "the callback has not been attached to a model yet"
        critics = {name: critic.state_dict() for name, critic in self.critics.items()}
        return {**self.tracker.state_dict(), "critics": critics, "seen_reward": self.seen_reward}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore; side critics need the callback to be attached to its model (`init_callback`) before."""
        n = len(state["cursor"]["step"])
        self.tracker = EpisodeTracker(self.mix.streams, n, self.mix.frame_size)
        self.tracker.load_state_dict(state)
        for name, critic in self.critics.items():
            critic.load_state_dict(state["critics"][name])
        self.seen_reward = bool(state["seen_reward"])


def _refuse_step(steps: np.ndarray, obs: Any, action: Any, reward: Any, next_obs: Any) -> None:
    """Raise `NotFinite` if an action, a reward or the observation after a step is NaN or infinite."""
    checked = {"action": action, "reward": reward, "observation": next_obs}
    transition = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs}
    refuse(checked, steps, transition)


def non_episodic_advantages(
    rewards: np.ndarray, values: np.ndarray, gamma: float, gae_lambda: float, valid: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Generalised advantage estimation that ignores where episodes end: advantages and returns, both (T, N).

    Takes rewards (T, N) and values (T + 1, N); past a lost episode, `valid` (T, N) False, no advantage flows.
    """
    errors = rewards + gamma * values[1:] - values[:-1]
    advantages = np.empty_like(errors)
    running = np.zeros(errors.shape[1])
    for t in reversed(range(len(errors))):
        running = errors[t] + gamma * gae_lambda * running
        running = np.where(valid[t], running, 0.0)
        advantages[t] = running
    return advantages, advantages + values[:-1]


class SideCritic(Stateful):
    """Two layers of 64 on the policy's features, trained on non-episodic returns after each rollout."""

    saved = ("net", "optimizer", "rng")

    def __init__(self, policy: Any, gamma: float, gae_lambda: float) -> None:
        self.policy = policy
        self.gamma = gamma
        self.gae_lambda = gae_lambda
        self.rng = np.random.default_rng(0)
        # The agent's own stream of random numbers stays as it was.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            net = nn.Sequential(
                nn.Linear(policy.features_dim, 64),
                nn.Tanh(),
                nn.Linear(64, 64),
                nn.Tanh(),
                nn.Linear(64, 1),
            )
        self.net = net.to(policy.device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)

    def _features(self, obs: Obs) -> Tensor:
        # The critic reads these features without training them.
        with torch.no_grad():
            tensor = map_obs(lambda x: torch.as_tensor(x, device=self.policy.device), obs)
            # Policies that do not share their features have a second extractor, for values.
            extractor = getattr(self.policy, "vf_features_extractor", None) or self.policy.features_extractor
            return self.policy.extract_features(tensor, extractor)

    def advantages(self, batch: Transitions, new_obs: Obs, rewards: np.ndarray) -> tuple[np.ndarray, float]:
        """Advantages (T, N) of `rewards` (T, N), then one round of learning; also the critic's loss."""
        length, n = batch.shape
        features = self._features(batch.flatten().obs)
        last = self._features(new_obs)
        with torch.no_grad():
            values = self.net(torch.cat([features, last]))
        values = values.cpu().numpy().reshape(length + 1, n)
        advantages, returns = non_episodic_advantages(rewards, values, self.gamma, self.gae_lambda, batch.valid)
        targets = torch.as_tensor(returns.reshape(-1, 1), dtype=torch.float32, device=features.device)
        return advantages.astype(np.float32), self._learn(features, targets)

    def _learn(self, features: Tensor, targets: Tensor) -> float:
        """Minibatches of features (M, D) and returns (M, 1), several times; the mean loss."""
        n = len(features)
        minibatches = max(n // CRITIC_BATCH_ROWS, 1)
        losses = []
        for _ in range(CRITIC_EPOCHS):
            for rows in np.array_split(self.rng.permutation(n), minibatches):
                loss = nn.functional.mse_loss(self.net(features[rows]), targets[rows])
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
                self.optimizer.step()
                losses.append(loss.detach())
        return float(torch.stack(losses).mean())


def relabelling(buffer_class: type[ReplayBuffer]) -> type[ReplayBuffer]:
    """A replay buffer like `buffer_class` (plain, dict, n-step or HER) that takes `mix=` and relabels at sampling.

    Example:
        >>> import envs.make, rewards
        >>> env = envs.make.make("Pendulum-v1")
        >>> mix = rewards.make(["task"], env.observation_space, env.action_space)
        >>> buffer = relabelling(ReplayBuffer)(100, env.observation_space, env.action_space, mix=mix)
        >>> type(buffer).__name__  # for SAC: replay_buffer_class=relabelling(...), replay_buffer_kwargs={"mix": mix}
        'RelabellingReplayBuffer'
    """
    return type(f"Relabelling{buffer_class.__name__}", (_Relabelling, buffer_class), {})


def _to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.cpu().numpy()


@dataclass(eq=False)
class _Rewards:
    """Stands in for a buffer's `rewards`: writing stores the task's reward, reading scores what is read."""

    buffer: Any
    task: np.ndarray

    def __setitem__(self, index: Any, value: Any) -> None:
        self.task[index] = value

    def __getitem__(self, index: Any) -> np.ndarray:
        self.buffer.sampled = index
        rows, columns = index
        # What is pending has no columns yet.
        self.buffer.flush()
        return self.buffer.relabel(from_replay(self.buffer, *np.broadcast_arrays(rows, columns)))

    @property
    def nbytes(self) -> int:
        return self.task.nbytes


# The class that `relabelling` is given takes this place.
if TYPE_CHECKING:
    _Base = ReplayBuffer
else:
    _Base = object


class _Relabelling(_Base):
    """What `relabelling` adds: columns, embedded in batches, that `Mix.keep` lists; rewards are computed when read."""

    MAX_PENDING_STEPS = 256  # after which frames are embedded even without a sample

    def __init__(self, *args: Any, mix: Mix, update_every: int = 1024, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if getattr(self, "optimize_memory_usage", False):
            raise ValueError("optimize_memory_usage=True drops the true successors; a relabelling buffer needs False")
        mix.only_sums("a replay buffer")
        self.mix = mix
        shape = (self.buffer_size, self.n_envs)
        self.task_rewards: np.ndarray = self.rewards
        self.rewards: Any = _Rewards(self, self.task_rewards)
        self.steps = np.zeros(shape, np.int64)
        self.columns: dict[str, np.ndarray] = {}
        self.sampled: Any = None  # rows and columns of the last sample
        self.tracker = EpisodeTracker(mix.streams, self.n_envs, mix.frame_size)
        self.timesteps = 0
        self.metrics: Metrics = {}
        self._update_rows = min(max(update_every // self.n_envs, 1), self.buffer_size)
        self._fresh = 0  # rows since the last update
        self._pending: list[Transitions] = []  # the newest rows, whose columns are yet to be made
        self._reads_modalities = any(name in mix.requires for name in MODALITIES)
        self._venv: Any = None

    def attach(self, venv: VecEnv) -> None:
        """Read the modalities that come with the first observations; needed only if a reward reads them."""
        self._venv = innermost_vec_env(venv)
        self.tracker.begin(modalities_in(self._venv.reset_infos))

    def environment_action(self, action: np.ndarray) -> np.ndarray:
        """Stored actions (..., A) in the environment's range and shape: SB3 stores Box actions scaled to [-1, 1]."""
        space: Any = self.action_space
        action = action.reshape(*action.shape[:-1], *space.shape)
        if isinstance(space, spaces.Box):
            width = space.high - space.low
            action = (space.low + 0.5 * (action + 1.0) * width).astype(space.dtype)
        return action

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        pos = self.pos  # SB3 moves it on
        cursor = self.tracker.cursor
        is_first_row = pos == 0 and not self.full
        reward = self.mix.on_nan(np.asarray(reward))
        _refuse_step(cursor.step, obs, action, reward, next_obs)
        lost = lost_in(infos)
        self.steps[pos] = cursor.step
        if MASK in infos[0]:
            masks = np.array([info[MASK] for info in infos], bool)
            if MASK not in self.columns:
                self.columns[MASK] = np.ones((self.buffer_size, *masks.shape), bool)
            self.columns[MASK][pos] = masks
        super().add(obs, next_obs, action, reward, done, infos)
        if self.mix.keeps:
            self._pending.append(self._read_step(pos, lost, done, infos))
            if len(self._pending) >= self.MAX_PENDING_STEPS or lost.any():
                self.flush()
        if lost.any() and not is_first_row:
            self._repeat_lost(pos, lost)
        # The step within the episode of what comes next.
        ended = np.asarray(done, bool)
        cursor.step = np.where(ended, 0, self.steps[pos] + 1)
        self.timesteps += self.n_envs
        self._fresh += 1
        if self._fresh >= self._update_rows:
            self._learn()

    def _read_step(self, pos: int, lost: np.ndarray, done: Any, infos: Any) -> Transitions:
        """The transitions (N,) that were added last, with their modalities where a reward reads any."""
        rows = np.full(self.n_envs, pos)
        columns = np.arange(self.n_envs)
        absent = dict.fromkeys(MODALITIES)
        batch = from_replay(self, rows, columns).replace(valid=~lost, extras={}, **absent)
        if not self._reads_modalities:
            return batch
        cursor = self.tracker.cursor
        modalities = modalities_in(infos)
        batch = batch.replace(**modalities, **cursor.of_obs())
        cursor.modalities = dict(modalities)
        # Where an episode ended, the next step begins with what came with its reset.
        if np.any(done) and self._venv is not None:
            ended = np.asarray(done, bool)
            cursor.show(modalities_in(self._venv.reset_infos, ended), ended)
        return batch

    def _repeat_lost(self, pos: int, lost: np.ndarray) -> None:
        """A row in which episodes were lost with their worker holds the transitions before once more, as their ends."""
        before = (pos - 1) % self.buffer_size
        continues = lost & (self.dones[before] == 0)
        self.dones[before, continues] = 1
        self.timeouts[before, continues] = 1
        arrays = [self.actions, self.task_rewards, self.dones, self.timeouts, self.steps, *self.columns.values()]
        observations: Any
        for observations in (self.observations, self.next_observations):
            arrays += observations.values() if isinstance(observations, dict) else [observations]
        for array in arrays:
            array[pos, lost] = array[before, lost]

    def flush(self) -> None:
        """Let the mix keep what it needs of the pending transitions, in time order."""
        if not self._pending:
            return
        positions = self._pending_rows()
        columns, self.tracker.memory = self.mix.keep(stack(self._pending), self.tracker.memory)
        self._pending = []
        for key, value in columns.items():
            if key not in self.columns:
                self.columns[key] = self._empty_column(value)
            self.columns[key][positions] = value

    def _pending_rows(self) -> list[int]:
        """Where the pending transitions lie in the buffer."""
        return [row % self.buffer_size for row in range(self.pos - len(self._pending), self.pos)]

    def _empty_column(self, like: np.ndarray) -> np.ndarray:
        """Zeros for the whole buffer, of the row shape and type of a column's first values."""
        return np.zeros((self.buffer_size, *like.shape[1:]), like.dtype)

    def relabel(self, batch: Transitions) -> np.ndarray:
        """The mix's reward of entries of this buffer, already flushed, as it stands now."""
        return self.mix.combine(self.mix.relabel(batch), self.timesteps)

    def _learn(self) -> None:
        self.flush()
        rows = np.arange(self.pos - self._fresh, self.pos)
        batch = self._rows(rows)
        raw = self.mix.relabel(batch)
        self.metrics = self.mix.update(batch, raw, self.timesteps)
        self._fresh = 0

    def _rows(self, rows: np.ndarray) -> Transitions:
        """Rows of all environments, as a rollout (T, N); those beyond an end of the buffer continue at the other."""
        rows = rows[:, None] % self.buffer_size
        return from_replay(self, *np.broadcast_arrays(rows, np.arange(self.n_envs)))

    def measure(self) -> Metrics:
        """Metrics of the rows that the rewards have yet to learn from, without what is pending; nothing moves."""
        rows = np.arange(self.pos - self._fresh, self.pos - len(self._pending))
        if len(rows) == 0:
            return {}
        return self.mix.measure(self._rows(rows), self.timesteps)

    def _get_virtual_samples(self, batch_indices: np.ndarray, env_indices: np.ndarray, env: Any = None) -> Any:
        """HER: the environment computes its part for the new goal, the other streams are scored with it."""
        self.flush()
        samples = super()._get_virtual_samples(batch_indices, env_indices, env)  # type: ignore[misc]
        batch = from_replay(self, batch_indices, env_indices)
        batch = batch.replace(
            obs=map_obs(_to_numpy, samples.observations),
            next_obs=map_obs(_to_numpy, samples.next_observations),
            reward=_to_numpy(samples.rewards).reshape(-1),
        )
        total = torch.as_tensor(self.relabel(batch), device=samples.rewards.device)
        return samples._replace(rewards=total.reshape(-1, 1))

    def state_dict(self) -> StateDict:
        """Beyond SB3's arrays. What is pending stays so: embedded with other neighbours it would differ in its last
        bit.
        """
        pending: dict[str, Any] = {"rows": self._pending_rows(), "batch": None}
        if self._pending:
            pending["batch"] = vars(stack(self._pending))
        filled = self.buffer_size if self.full else self.pos
        columns = {key: value[:filled] for key, value in self.columns.items()}
        return {
            "steps": self.steps[:filled],
            "columns": columns,
            **self.tracker.state_dict(),
            "timesteps": self.timesteps,
            "fresh": self._fresh,
            "pending": pending,
        }

    def load_state_dict(self, state: StateDict) -> None:
        filled = len(state["steps"])
        self.steps[:filled] = state["steps"]
        self.columns = {}
        for key, value in state["columns"].items():
            self.columns[key] = self._empty_column(value)
            self.columns[key][:filled] = value
        self.tracker.load_state_dict(state)
        self.timesteps = int(state["timesteps"])
        self._fresh = int(state["fresh"])
        self._pending = []
        # Checkpoints of early versions have nothing pending.
        pending = state.get("pending")
        if pending and pending["rows"]:
            batch = Transitions(**pending["batch"])
            self._pending = [batch[index] for index in range(batch.shape[0])]


class RelabelCallback(BaseCallback):
    """Attaches a relabelling buffer to the environment and writes its metrics to the log."""

    def __init__(self, buffer: Any = None) -> None:
        super().__init__()
        self.buffer = buffer

    def before_log(self) -> None:
        """Metrics for a row of the log since whose last the rewards have not learned: short runs have them, too."""
        if self.buffer is not None and "reward/total" not in self.logger.name_to_value:
            self._record(self.buffer.measure())

    def _record(self, metrics: Metrics) -> None:
        for tag, value in metrics.items():
            self.logger.record(tag, value)

    def _on_training_start(self) -> None:
        model: Any = self.model
        if self.buffer is None:
            self.buffer = model.replay_buffer
        # Not every algorithm, and not every buffer, of SB3 has returns over several steps.
        gamma = model.gamma
        n_steps = getattr(model, "n_steps", 1)
        buffer_n_steps = getattr(self.buffer, "n_steps", 1)
        buffer_gamma = getattr(self.buffer, "gamma", gamma)
        if n_steps > 1 and (buffer_n_steps, buffer_gamma) != (n_steps, gamma):
            raise ValueError(
                f"n_steps={n_steps} of {type(model).__name__} does not reach its {type(self.buffer).__name__}; give "
                "replay_buffer_class=relabelling(NStepReplayBuffer) and replay_buffer_kwargs="
                f'{{"mix": mix, "n_steps": {n_steps}, "gamma": {gamma}}}'
            )
        if self.buffer.timesteps == 0:
            self.buffer.attach(self.training_env)
        self.buffer._venv = innermost_vec_env(self.training_env)

    def _on_step(self) -> bool:
        self._record(self.buffer.metrics)
        self.buffer.metrics = {}
        return True
