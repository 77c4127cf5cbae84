"""The one loop of our own agents, with Stable-Baselines3's interface: callbacks, logger, `predict`, `save` and `load`.

    collect a rollout -> update -> the callbacks see it -> end_rollout (rewards learn, counters roll over) -> log

A subclass gives `collect` and `update`. Callbacks, evaluations and loggers made for Stable-Baselines3 work as they are.
"""

import copy
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import Logger
from torch import Tensor

from agents.networks.policy_layers import PolicyLayers
from agents.predictor import Predictor
from envs.steps import Chunk, Cursor, from_vector_step, modalities_of
from envs.transitions import OnNan, Transitions, map_obs, refuse, reset_mode
from envs.types import Array, Memory, Obs, Options, StateDict, StreamScorer
from lodestar.settings import check_config
from lodestar.state import Stateful, get_state, set_state

if TYPE_CHECKING:
    from agents.networks.actor_critic import SpaceEncoding

# Episodes that mean returns look back on.
RETURN_WINDOW_EPISODES = 100
# So many failures in a row end a run: recovery is tried once less.
MAX_FAILURES_IN_A_ROW = 3

# Steps for which `EpisodicAgent` has room.
MAX_STEPS_OF_EPISODES = 10**7

# Rewards (N,) and ended (N,) of the last step, the observation to act on next -> whether to continue.
OnStep = Callable[[Array, Array, Obs], bool]


class TaskScorer(Stateful):
    """The task's own reward, for an agent that was given no other: a `ReplayScorer` of one stream, `task`."""

    requires: frozenset[str] = frozenset({"reward"})
    relabelable = True
    is_task = True
    keeps = False

    def __init__(self, gamma: float) -> None:
        stream = SimpleNamespace(gamma=gamma, episodic=True)
        self.streams: Mapping[str, Any] = {"task": stream}

    def initial_memory(self, n: int) -> Memory:
        return {}

    def embed(self, batch: Transitions) -> Transitions:
        return batch

    def score(self, batch: Transitions, memory: Memory = None) -> tuple[dict[str, Array], Memory]:
        return {"task": np.where(batch.valid, batch.reward, np.float32(0))}, memory

    def keep(self, batch: Transitions, memory: Memory) -> tuple[dict[str, Array], Memory]:
        return {}, memory

    def relabel(self, batch: Transitions) -> dict[str, Array]:
        return self.score(batch)[0]

    def combine(self, raw: dict[str, Array], timesteps: Any) -> Array:
        return raw["task"]

    def scale_rewards(self, raw: dict[str, Array]) -> dict[str, Array]:
        return raw

    def weights(self, timesteps: Any) -> dict[str, float]:
        return {"task": 1.0}

    def total(self, batch: Transitions, memory: Memory, timesteps: int) -> tuple[Array, Memory]:
        return self.score(batch)[0]["task"], memory

    def update(self, batch: Transitions, raw: dict[str, Array], timesteps: Any = 0) -> dict[str, float]:
        return {}


class BaseAgent(Predictor):
    """An agent that learns from a vector environment and a scorer.

    Args:
        envs: a `gymnasium.vector.VectorEnv` that resets by itself; `envs.make.make_vec` makes fast ones.
        scorer: gives the rewards: a `rewards.mix.mix.Mix`, or None for the task's own reward.

    `num_timesteps` counts steps, summed over environments; `notes` are sentences to read before training. A ValueError
    refuses spaces it cannot take, and a scorer without the members it needs.
    """

    Config: ClassVar[type[Any]]
    # The agent asks for the reward itself, as `scorer`; or it learns from a `recording` that was rated.
    driver = "scorer"
    n_envs = 8
    # Whether it reads action masks.
    masks = False
    # Whether it returns to finite weights by itself, and the setting to lower where it cannot.
    recovers = False
    rate_setting = "learning_rate"
    scorer_type: ClassVar[type[Any]] = StreamScorer
    # Whether a stream's reward counts in a sum, and in no other way.
    only_sums = True
    # What a checkpoint holds: path in the saved state -> attribute.
    saved: ClassVar[dict[str, str]] = {
        "modules.policy": "policy",
        "counters.timesteps": "num_timesteps",
        "counters.updates": "_n_updates",
        "rng": "rng",
    }
    # The same, of what recovery brings back.
    recoverable: ClassVar[dict[str, str]] = {}
    # The same, of what a file holds beside the weights.
    in_file: ClassVar[dict[str, str]] = {"timesteps": "num_timesteps", "updates": "_n_updates"}
    # The same, of what outlives a change of the reward, beside the weights.
    lasting: ClassVar[dict[str, str]] = {**in_file, "rng": "rng", "episodes": "episodes"}
    scorer: StreamScorer
    steps: "Steps"
    encoding: "SpaceEncoding"
    rng: np.random.Generator
    episodes: "Episodes"
    replay: Any

    def reseed(self, seed: int) -> None:
        """Draw the actions that `predict` samples from this seed: the same evaluation gives the same numbers."""
        self.rng = np.random.default_rng(seed)

    def __init__(
        self,
        envs: gym.vector.VectorEnv,
        config: Any = None,
        *,
        scorer: StreamScorer | None = None,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        if config is None:
            config = self.Config()
        check_config(config, self.Config)
        require_vector(envs)
        self.config = config
        self.envs = envs
        self.seed = seed
        self.device = torch.device("cpu" if device == "auto" else device)
        # What its parts draw from, and compute on.
        self.place: Options = {"seed": seed, "device": str(self.device)}
        self.observation_space = envs.single_observation_space
        self.action_space = envs.single_action_space
        self.check(self.observation_space, self.action_space)
        if scorer is None:
            scorer = TaskScorer(config.gamma)
        self.scorer = scorer
        self._check_scorer()
        self.notes: list[str] = []
        self.num_timesteps = 0
        self._total_timesteps = 0
        self._n_updates = 0
        # It writes nowhere until `set_logger`.
        self.logger = Logger(None, [])
        self._learning = False
        # As `saved`, of what the settings add.
        self.also_saved: dict[str, str] = {}
        # What `recoverable` names, when it was last found finite.
        self._finite: dict[str, Any] | None = None
        self._restored = 0
        self._restored_in_row = 0
        self._set_up()

    def _check_scorer(self) -> None:
        """Raise a ValueError for a scorer without members that are needed, or that needs credit this agent lacks."""
        if not isinstance(self.scorer, self.scorer_type) or not self.scorer.streams:
            raise ValueError(
                f"scorer={self.scorer!r} has no streams, or lacks members of "
                f"envs.types.{self.scorer_type.__name__}; give what rewards.make returns, or None "
                "for the task's own reward"
            )
        if self.only_sums or getattr(self.config, "streams", "") == "sum":
            # A user's own scorer has no credit to assign, and so no such method.
            refuse_credit = getattr(self.scorer, "only_sums", None)
            if refuse_credit is not None:
                refuse_credit(f"this {type(self).__name__}")

    @abstractmethod
    def _set_up(self) -> None:
        """Make networks and buffers; the arguments of `__init__` are attributes by now."""

    @classmethod
    def build(cls, config: Any, envs: gym.vector.VectorEnv, **options: Any) -> Self:
        return cls(envs, config, **options)

    @classmethod
    @abstractmethod
    def check(cls, observation_space: gym.Space, action_space: gym.Space) -> None:
        """Refuse spaces the agent cannot handle, by a ValueError that names those that can."""

    def learn(
        self,
        total_timesteps: int,
        callback: Any = None,
        log_interval: int | None = 1,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
        tb_log_name: str = "",
    ) -> Self:
        """Act and learn for `total_timesteps` steps in whole rollouts; a FloatingPointError at NaN or infinity."""
        if reset_num_timesteps:
            self.num_timesteps = 0
        self._began = time.perf_counter()
        self._began_at = self.num_timesteps
        self._total_timesteps = int(total_timesteps) + self.num_timesteps
        callback = BaseAlgorithm._init_callback(self, callback, progress_bar)  # type: ignore[arg-type]
        callback.on_training_start({"self": self, "total_timesteps": int(total_timesteps)}, {})

        def on_step(rewards: Array, ended: Array, obs: Obs) -> bool:
            callback.update_locals({"rewards": rewards, "dones": ended, "new_obs": obs})
            return bool(callback.on_step())

        iteration = 0
        self._learning = True
        try:
            while self.num_timesteps < self._total_timesteps:
                self.begin_rollout()
                callback.on_rollout_start()
                if not self.collect(on_step):
                    break
                callback.update_locals(self.update())
                callback.on_rollout_end()
                self.end_rollout()
                iteration += 1
                if log_interval is not None and iteration % log_interval == 0:
                    self.dump_logs(iteration)
        finally:
            self._learning = False
        callback.on_training_end()
        return self

    def set_reward(self, scorer: StreamScorer | None) -> None:
        """Learn from another reward from now on, None for the task's own; policy, counts and replay stay.

            agent.set_reward(rewards.make(["task", "rnd"], envs.single_observation_space, envs.single_action_space))

        A new stream begins with a value of its own (PPO). A replay is relabelled, or emptied if it lacks what the
        reward reads. Running episodes are given up. A ValueError for a refused scorer leaves the agent as it was.
        """
        if self._learning:
            raise RuntimeError("set_reward within learn would mix two rewards in one rollout; call it after learn")
        fresh = type(self)(self.envs, self.config, scorer=scorer, **self.place)
        fresh._succeed(self)
        vars(self).update(vars(fresh) | {"logger": self.logger})

    def start_from(self, state: Mapping[str, Any], streams: Sequence[str]) -> None:
        """Begin with the weights of an agent that was trained on these streams, out of its `get_state`."""
        trained_on = {"streams": list(streams)}
        weights = self.adapt_weights(state["modules"]["policy"], trained_on)
        self.policy.load_state_dict(weights)
        others = self.weights()
        del others["modules.policy"]
        set_state(self, others, state)

    def begin_with(self, source: PolicyLayers) -> list[str]:
        """Begin with the policy of an agent of another kind; the names of what was taken. A ValueError if it cannot."""
        raise ValueError(f"a {type(self).__name__} begins with no other agent's policy; ppo and dyna do")

    @classmethod
    def weights(cls) -> dict[str, str]:
        """What an agent begins with that continues another's training: the policy, and what its file adds to it."""
        own = set(cls.in_file.values()) - set(BaseAgent.in_file.values())
        return {path: name for path, name in cls.saved.items() if name in own or path == "modules.policy"}

    def _succeed(self, old: Self) -> None:
        """Take over what outlives a change of the reward."""
        streams = list(old.scorer.streams)
        weights = self.adapt_weights(old.policy.state_dict(), {"streams": streams})
        self.policy.load_state_dict(weights)
        set_state(self, self.lasting, get_state(old, self.lasting))

    def begin_rollout(self) -> None:
        self.steps.begin()

    @abstractmethod
    def collect(self, on_step: OnStep) -> bool:
        """Step the environments, adding to `num_timesteps`; False if `on_step` stopped it."""

    def update(self) -> dict[str, Any]:
        return {}

    def end_rollout(self) -> None:
        """Let the rewards learn, and prepare the next rollout."""

    def set_logger(self, logger: Logger) -> None:
        """Use a logger, as `stable_baselines3.common.logger.configure` returns it."""
        self.logger = logger

    @property
    def ep_info_buffer(self) -> deque[dict[str, float]]:
        """Return "r" and length "l" of the last episodes."""
        return self.episodes.returns

    @property
    def ep_success_buffer(self) -> deque[float]:
        """Success, 0 or 1, of the last episodes that reported it."""
        return self.episodes.successes

    def get_env(self) -> Any:
        return self.envs

    def get_vec_normalize_env(self) -> None:
        """None: these agents normalise by themselves."""

    def record_replay(self, means: "Means") -> None:
        """What was learned from a replay: means of metrics, the replay's own, and how many updates a step."""
        self.record({f"train/{name}": value for name, value in means.read().items()})
        self.record(self.replay.measure())
        self.logger.record("train/updates_per_step", self._n_updates / max(self.num_timesteps, 1))

    def record(self, metrics: Mapping[str, float]) -> None:
        for tag, value in metrics.items():
            self.logger.record(tag, value)

    def dump_logs(self, iteration: int = 0) -> None:
        elapsed = max(time.perf_counter() - self._began, 1e-9)
        record = self.logger.record
        if iteration > 0:
            record("time/iterations", iteration, exclude="tensorboard")
        if self.ep_info_buffer:
            returns = [episode["r"] for episode in self.ep_info_buffer]
            lengths = [episode["l"] for episode in self.ep_info_buffer]
            record("rollout/ep_rew_mean", float(np.mean(returns)))
            record("rollout/ep_len_mean", float(np.mean(lengths)))
        if self.ep_success_buffer:
            record("rollout/success_rate", float(np.mean(self.ep_success_buffer)))
        record("train/n_updates", self._n_updates, exclude="tensorboard")
        record("time/fps", int((self.num_timesteps - self._began_at) / elapsed))
        record("time/time_elapsed", int(elapsed), exclude="tensorboard")
        record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(step=self.num_timesteps)

    def get_state(self) -> dict[str, Any]:
        """All that it takes to continue exactly here, between two rollouts; no pickle."""
        return get_state(self, self.saved | self.also_saved)

    def set_state(self, state: StateDict) -> None:
        """Restore what `get_state` returned into an agent of the same configuration, not environments and rewards."""
        set_state(self, self.saved | self.also_saved, state)

    def keep_finite(self) -> None:
        self._finite = copy.deepcopy(get_state(self, self.recoverable))

    def keep_or_restore(self, finite: bool) -> bool:
        """Remember finite weights, else return to those remembered, twice in a row at most; gives back `finite`."""
        if finite:
            self.keep_finite()
            self._restored_in_row = 0
            return True
        self._restored += 1
        self._restored_in_row += 1
        if self._finite is None or self._restored_in_row >= MAX_FAILURES_IN_A_ROW:
            name = self.rate_setting
            raise FloatingPointError(
                f"the weights or losses became NaN or infinite {self._restored_in_row} times in a row, the last time "
                f"after {self.num_timesteps:,} steps; lower agent.{name}={getattr(self.config, name)}, "
                "or scale the reward"
            )
        set_state(self, self.recoverable, copy.deepcopy(self._finite))
        return False

    def extra_state(self) -> dict[str, Any]:
        # A user's own scorer may have no state.
        reward = self.scorer.state_dict() if hasattr(self.scorer, "state_dict") else {}
        state = {"streams": list(self.scorer.streams), "reward": reward}
        state |= get_state(self, self.in_file)
        if self.masked:
            state["masked"] = True
        return state

    @classmethod
    def load(cls, path: str, envs: Any = None, *, scorer: Any = None, seed: int = 0, device: str = "cpu") -> Self:
        """Read an agent back, for the same spaces, with counts and reward state; no scorer: the task's own reward."""
        require_vector(envs)

        def build(config: dict[str, Any]) -> Any:
            return cls(envs, cls.Config(**config), scorer=scorer, seed=seed, device=device)

        agent, state = cls._from_file(path, build, "these environments and this reward")
        if not state:
            return agent
        set_state(agent, cls.in_file, state)
        if state.get("masked"):
            agent.masked = True
        if scorer is None:
            return agent
        if set(scorer.streams) != set(state["streams"]):
            raise ValueError(
                f"{path} was trained on {' + '.join(state['streams'])}, not on {' + '.join(scorer.streams)}; load it "
                "with that reward, or with none, and call set_reward"
            )
        if state["reward"]:
            try:
                scorer.load_state_dict(state["reward"])
            except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
                raise ValueError(f"{path} does not fit this reward: {' '.join(str(error).split())}") from None
        return agent

    @classmethod
    def read_reference(cls, agent: "BaseAgent", **plain: Any) -> Self:
        """The agent in the file that `agent.reference` names, without `plain` settings, which acting does not need."""
        path = agent.config.reference

        def build(settings: dict[str, Any]) -> Any:
            config = cls.Config(**settings | {"reference": "", "kl": 0.0} | plain)
            return cls(agent.envs, config, **agent.place)

        try:
            return cls._from_file(path, build, "this environment")[0]
        except OSError as error:
            raise ValueError(
                f"agent.reference={path} cannot be read ({error.strerror or error}); give a file that "
                "`python -m runners.export` wrote, or agent.reference=start with init_from=RUN"
            ) from None


class EpisodicAgent(BaseAgent):
    """An agent that learns from whole episodes, of each environment the same number."""

    def play_episodes(self, act: Callable[[], Tensor], quota: int, on_step: OnStep) -> bool:
        """So many of each environment, by the actions of `act`; False if `on_step` stopped it."""
        steps = self.steps
        if (steps.step_index > 0).any():
            # Every environment is reset, so that no episode lacks its beginning.
            steps.obs = None
            steps.seed = int(self.rng.integers(2**31))
            steps.begin()
        chunk = Chunk(MAX_STEPS_OF_EPISODES)
        episodes = np.zeros(steps.n, int)
        while (episodes < quota).any():
            batch = steps.step(act(), self.encoding)
            batch = batch.replace(valid=batch.valid & (episodes < quota))
            chunk.add(batch)
            episodes += batch.ended
            self.num_timesteps += steps.n
            if not on_step(batch.reward, batch.ended, steps.obs):
                return False
        # (T, N), rows after an environment's last episode are not valid.
        (self._played,) = chunk.take()
        return True

    def update(self) -> dict[str, Any]:
        """Score the episodes, learn from them, and let the rewards learn."""
        scorer = self.scorer
        batch = scorer.embed(self._played)
        raw, _ = scorer.score(batch, scorer.initial_memory(batch.shape[1]))
        weights = scorer.weights(self.num_timesteps)
        scaled = scorer.scale_rewards(raw)
        reward = sum(part * weights[name] for name, part in scaled.items())
        metrics = self.learn_from(batch, reward)
        self.record(metrics | scorer.update(batch, raw, self.num_timesteps))
        return {"batch": batch, "raw": raw}

    @abstractmethod
    def learn_from(self, batch: Transitions, reward: Array) -> dict[str, float]:
        """Learn from episodes (T, N) and the reward of each step; returns metrics by tag."""


def require_vector(envs: Any) -> None:
    """Raise a ValueError for what is no vector of environments."""
    if not hasattr(envs, "single_observation_space"):
        raise ValueError(f"envs={envs} is no vector; give gymnasium.make_vec(id, 8), or envs.make.make_vec(id, 8)")


def has_reset(envs: gym.vector.VectorEnv) -> bool:
    """Whether all environments were reset or restored, as stepping others would fail; False where they do not tell."""
    # Wrappers of vectors pass on no attributes.
    inner: Any = getattr(envs, "unwrapped", envs)
    # A process of gymnasium's that is asked for an attribute it lacks ends.
    if isinstance(inner, gym.vector.AsyncVectorEnv):
        return False
    try:
        reset = inner.has_reset if hasattr(inner, "has_reset") else inner.get_attr("has_reset")
    except (AttributeError, NotImplementedError):
        return False
    return bool(np.all(reset))


class Means(Stateful):
    """Metrics, summed where they are computed, on their device, and read as means when they are logged."""

    saved = ("sums", "counts")

    def __init__(self) -> None:
        self.sums: dict[str, Any] = {}
        self.counts: dict[str, int] = {}

    @torch.no_grad()
    def add(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1

    def read(self) -> dict[str, float]:
        """Means since the last call."""
        means = {name: float(total) / self.counts[name] for name, total in self.sums.items()}
        self.sums = {}
        self.counts = {}
        return means


class Episodes(Stateful):
    """Returns {"r", "l"}, lengths and successes of the last 100 episodes, from transitions of N environments."""

    saved = {"running": "running", "episodes": "returns", "successes": "successes"}

    def __init__(self, n: int) -> None:
        # Return and length of the running episodes.
        self.running = np.zeros((2, n))
        self.returns: deque[dict[str, float]] = deque(maxlen=RETURN_WINDOW_EPISODES)
        self.successes: deque[float] = deque(maxlen=RETURN_WINDOW_EPISODES)

    def count(self, reward: np.ndarray, valid: np.ndarray, ended: np.ndarray, success: np.ndarray | None) -> None:
        """Add transitions (T, N) in time order; `success` is NaN where nothing was reported, or None for nowhere."""
        # Returns and lengths since the first row, (2, T, N).
        counted_reward = np.where(valid, reward, 0.0)
        sums = np.cumsum([counted_reward, valid], axis=1, dtype=np.float64)
        for t, column in zip(*np.nonzero(ended)):
            at_end = sums[:, t, column]
            total, length = (self.running[:, column] + at_end).tolist()
            # What was summed up to here is no part of the episode that begins.
            self.running[:, column] = -at_end
            if valid[t, column]:
                self.returns.append({"r": total, "l": int(length)})
                if success is not None and not np.isnan(success[t, column]):
                    self.successes.append(float(success[t, column]))
        self.running += sums[:, -1]


class Steps(Stateful):
    """N environments a step at a time: actions as vectors in, transitions with true successors out.

    Its state is where the episodes stand; the environments save their own. They reset by themselves, and their arrays
    are on the host, else a ValueError. `obs` (N, ...) is what to act on next, copied; `step_index`, `began` (N,) the
    step within the episode, and whether it begins one; `episodes` returns, lengths and successes of the last 100.
    """

    saved: ClassVar[dict[str, str]] = {
        "obs": "obs",
        "cursor": "cursor",
        **{key: f"episodes.{name}" for key, name in Episodes.saved.items()},
    }
    # Whether steps come in whole rollouts, which training has to use up.
    in_rollouts = False

    def __init__(self, envs: gym.vector.VectorEnv, seed: int, scorer: StreamScorer | None = None) -> None:
        self.mode = reset_mode(envs)
        if getattr(getattr(envs, "arrays", None), "is_torch", False):
            raise ValueError(f"{envs} keeps its arrays in torch, which this agent does not read; use agent=ppo")
        self.envs = envs
        self.seed = seed
        self.n = envs.num_envs
        self.on_nan = getattr(scorer, "on_nan", None) or OnNan()
        self.obs: Obs = None
        # Whether the environments are known to have been reset.
        self._reset = False
        self.cursor = Cursor(self.n)
        self.episodes = Episodes(self.n)

    @property
    def step_index(self) -> np.ndarray:
        return self.cursor.step

    @property
    def began(self) -> np.ndarray:
        return self.cursor.step == 0

    def begin(self) -> bool:
        """Reset the environments, unless they are in the middle of episodes; returns whether it did."""
        running = self.obs is not None and (self._reset or has_reset(self.envs))
        self._reset = True
        if running:
            return False
        obs, infos = self.envs.reset(seed=self.seed)
        self.obs = map_obs(np.array, obs)
        self.cursor.begin(modalities_of(infos))
        self.episodes.running[:] = 0
        return True

    def advance(self, agent: Any) -> Transitions:
        """One step of all environments with the actions that the agent chooses."""
        return self.step(agent.act(), agent.encoding)

    def step(self, actions: Tensor, encoding: "SpaceEncoding") -> Transitions:
        """One step with actions (N, A), as `encoding` encodes them; a `NotFinite` for NaN or infinity."""
        obs = self.obs
        action = encoding.decode(actions.detach().cpu().numpy())
        refuse({"action": action}, self.cursor.step, {"obs": obs, "action": action})
        next_obs, rewards, terminations, truncations, infos = self.envs.step(action)
        self.obs = map_obs(np.array, next_obs)
        reward = self.on_nan(np.array(rewards, np.float32))
        terminated = np.array(terminations, bool)
        truncated = np.array(truncations, bool)
        batch = from_vector_step(self.cursor, self.mode, obs, action, reward, self.obs, terminated, truncated, infos)
        shown = {name: getattr(batch, name) for name in ("obs", "action", "reward", "next_obs")}
        refuse({"reward": batch.reward, "observation": batch.next_obs}, batch.step, shown)
        ended = batch.ended
        success = self._read_success(ended, infos) if ended.any() else None
        self.episodes.count(batch.reward[None], batch.valid[None], ended[None], success)
        return batch

    def _read_success(self, ended: np.ndarray, infos: Any) -> np.ndarray | None:
        """Success of the episodes that ended, (1, N), NaN where nothing is reported; None for nowhere."""
        if self.mode == AutoresetMode.SAME_STEP:
            infos = infos.get("final_info", {})
        if "is_success" not in infos:
            return None
        reported = infos.get("_is_success", ended)
        success = np.asarray(infos["is_success"], np.float64)
        return np.where(reported, success, np.nan)[None]
