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

from agents.predictor import Predictor
from envs.steps import Chunk, Cursor, from_vector_step, modalities_of
from envs.transitions import OnNan, Transitions, map_obs, refuse, reset_mode
from envs.types import Array, Memory, Obs, StreamScorer
from lodestar.settings import check_config
from lodestar.state import Stateful, get_state, set_state

if TYPE_CHECKING:
    from agents.networks.actor_critic import SpaceEncoding

WINDOW = 100  # episodes that mean returns look back on
GIVE_UP = 3  # recoveries in a row

# Rewards (N,) and ended (N,) of the last step, the observation to act on next -> whether to continue
OnStep = Callable[[Array, Array, Obs], bool]


class TaskScorer(Stateful):
    """The task's own reward, for an agent that was given no other: a `ReplayScorer` of one stream, `task`."""

    requires: frozenset[str] = frozenset({"reward"})
    relabelable = True
    is_task, keeps = True, False

    def __init__(self, gamma: float) -> None:
        self.streams: Mapping[str, Any] = {"task": SimpleNamespace(gamma=gamma, episodic=True)}

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

    def scaled(self, raw: dict[str, Array]) -> dict[str, Array]:
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
    driver: ClassVar[str] = "scorer"  # it takes the reward itself, as `scorer`
    n_envs: ClassVar[int] = 8
    masks: ClassVar[bool] = False  # whether it reads action masks
    recovers: ClassVar[bool] = False  # whether it returns to finite weights by itself
    scorer_type: ClassVar[type[Any]] = StreamScorer
    assigns_credit: ClassVar[bool] = False  # whether a stream's reward may count otherwise than in a sum
    saved: ClassVar[dict[str, str]] = {  # path in the saved state -> attribute
        "modules.policy": "policy",
        "counters.timesteps": "num_timesteps",
        "counters.updates": "_n_updates",
        "rng": "rng",
    }
    recoverable: ClassVar[dict[str, str]] = {}  # the same, of what recovery brings back
    in_file: ClassVar[dict[str, str]] = {"timesteps": "num_timesteps", "updates": "_n_updates"}  # beside the weights
    lasting: ClassVar[dict[str, str]] = {  # what outlives a change of the reward, beside the weights
        **in_file,
        "rng": "rng",
        "episodes": "episodes",
    }
    scorer: StreamScorer
    steps: "Steps"
    encoding: "SpaceEncoding"
    rng: np.random.Generator
    episodes: "Episodes"

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
        self.config = config = self.Config() if config is None else config
        check_config(config, self.Config)
        require_vector(envs)
        self.envs, self.seed, self.device = envs, seed, torch.device("cpu" if device == "auto" else device)
        self.observation_space, self.action_space = envs.single_observation_space, envs.single_action_space
        self.check(self.observation_space, self.action_space)
        self.scorer = TaskScorer(config.gamma) if scorer is None else scorer
        if not isinstance(self.scorer, self.scorer_type) or not self.scorer.streams:
            raise ValueError(
                f"scorer={scorer!r} has no streams, or lacks members of envs.types.{self.scorer_type.__name__}; "
                "give what rewards.make returns, or None for the task's own reward"
            )
        if not self.assigns_credit or getattr(config, "streams", "") == "sum":
            refuse_credit = getattr(self.scorer, "only_sums", None)  # a scorer of one's own has no credit to assign
            if refuse_credit is not None:
                refuse_credit(f"this {type(self).__name__}")
        self.notes: list[str] = []
        self.num_timesteps = self._total_timesteps = self._n_updates = 0
        self.logger = Logger(None, [])  # writes nowhere until `set_logger`
        self._learning = False
        self._finite: dict[str, Any] | None = None  # what `recoverable` names, when it was last found finite
        self._restored = self._restored_in_row = 0
        self._set_up()

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
        self._began, self._began_at = time.perf_counter(), self.num_timesteps
        self._total_timesteps = int(total_timesteps) + self.num_timesteps
        callback = BaseAlgorithm._init_callback(self, callback, progress_bar)  # type: ignore[arg-type]
        callback.on_training_start({"self": self, "total_timesteps": int(total_timesteps)}, {})

        def on_step(rewards: Array, ended: Array, obs: Obs) -> bool:
            callback.update_locals({"rewards": rewards, "dones": ended, "new_obs": obs})
            return bool(callback.on_step())

        iteration, self._learning = 0, True
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
        fresh = type(self)(self.envs, self.config, scorer=scorer, seed=self.seed, device=str(self.device))
        fresh._succeed(self)
        vars(self).update(vars(fresh) | {"logger": self.logger})

    def start_from(self, state: Mapping[str, Any], streams: Sequence[str]) -> None:
        """Begin with the weights of an agent that was trained on these streams, out of its `get_state`."""
        self.policy.load_state_dict(self.fitted(state["modules"]["policy"], {"streams": list(streams)}))
        set_state(self, {path: name for path, name in self.weights().items() if path != "modules.policy"}, state)

    @classmethod
    def weights(cls) -> dict[str, str]:
        own = set(cls.in_file.values()) - set(BaseAgent.in_file.values())
        return {path: name for path, name in cls.saved.items() if name in own or path == "modules.policy"}

    def _succeed(self, old: Self) -> None:
        self.policy.load_state_dict(self.fitted(old.policy.state_dict(), {"streams": list(old.scorer.streams)}))
        set_state(self, self.lasting, get_state(old, self.lasting))

    def begin_rollout(self) -> None:
        self.steps.begin()

    @abstractmethod
    def collect(self, on_step: OnStep) -> bool:
        """Step the environments, adding to `num_timesteps`; False if `on_step` stopped it."""

    def whole_episodes(self, act: Callable[[], Tensor], quota: int, on_step: OnStep) -> Transitions | None:
        """So many of each environment, (T, N), rows after its last not valid; None if `on_step` stopped it."""
        steps = self.steps
        if (steps.step_index > 0).any():  # every environment is reset, so that all episodes are whole
            steps.obs = None
            steps.seed = int(self.rng.integers(2**31))
            steps.begin()
        chunk, played = Chunk(10**7), np.zeros(steps.n, int)
        while (played < quota).any():
            batch = steps.step(act(), self.encoding)
            batch = batch.replace(valid=batch.valid & (played < quota))
            chunk.add(batch)
            played += batch.ended
            self.num_timesteps += steps.n
            if not on_step(batch.reward, batch.ended, steps.obs):
                return None
        return chunk.take()[0]

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

    def record(self, metrics: Mapping[str, float]) -> None:
        for tag, value in metrics.items():
            self.logger.record(tag, value)

    def dump_logs(self, iteration: int = 0) -> None:
        elapsed, record = max(time.perf_counter() - self._began, 1e-9), self.logger.record
        if iteration > 0:
            record("time/iterations", iteration, exclude="tensorboard")
        if self.ep_info_buffer:
            record("rollout/ep_rew_mean", float(np.mean([e["r"] for e in self.ep_info_buffer])))
            record("rollout/ep_len_mean", float(np.mean([e["l"] for e in self.ep_info_buffer])))
        if self.ep_success_buffer:
            record("rollout/success_rate", float(np.mean(self.ep_success_buffer)))
        record("train/n_updates", self._n_updates, exclude="tensorboard")
        record("time/fps", int((self.num_timesteps - self._began_at) / elapsed))
        record("time/time_elapsed", int(elapsed), exclude="tensorboard")
        record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(step=self.num_timesteps)

    def get_state(self) -> dict[str, Any]:
        """All that it takes to continue exactly here, between two rollouts; no pickle."""
        return get_state(self, self.saved)

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned into an agent of the same configuration, not environments and rewards."""
        set_state(self, self.saved, state)

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
        if self._finite is None or self._restored_in_row >= GIVE_UP:
            name = "learning_rate" if hasattr(self.config, "learning_rate") else "model_learning_rate"
            raise FloatingPointError(
                f"the weights or losses became NaN or infinite {self._restored_in_row} times in a row, the last time "
                f"after {self.num_timesteps:,} steps; lower agent.{name}={getattr(self.config, name)}, "
                "or scale the reward"
            )
        set_state(self, self.recoverable, copy.deepcopy(self._finite))
        return False

    def beside(self) -> dict[str, Any]:
        reward = self.scorer.state_dict() if hasattr(self.scorer, "state_dict") else {}
        state = {"streams": list(self.scorer.streams), "reward": reward, **get_state(self, self.in_file)}
        return state | ({"masked": True} if self.masked else {})

    @classmethod
    def load(cls, path: str, envs: Any = None, *, scorer: Any = None, seed: int = 0, device: str = "cpu") -> Self:
        """Read an agent back, for the same spaces, with counts and reward state; no scorer: the task's own reward."""
        require_vector(envs)
        options: dict[str, Any] = {"scorer": scorer, "seed": seed, "device": device}
        place = "these environments and this reward"
        agent, state = cls._from_file(path, lambda config: cls(envs, cls.Config(**config), **options), place)
        if not state:
            return agent
        set_state(agent, cls.in_file, state)
        if state.get("masked"):
            agent.masked = True
        if scorer is not None and {*scorer.streams} != {*state["streams"]}:
            raise ValueError(
                f"{path} was trained on {' + '.join(state['streams'])}, not on {' + '.join(scorer.streams)}; load it "
                "with that reward, or with none, and call set_reward"
            )
        if scorer is not None and state["reward"]:
            try:
                scorer.load_state_dict(state["reward"])
            except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
                raise ValueError(f"{path} does not fit this reward: {' '.join(str(error).split())}") from None
        return agent


def require_vector(envs: Any) -> None:
    """Raise a ValueError for what is no vector of environments."""
    if not hasattr(envs, "single_observation_space"):
        raise ValueError(f"envs={envs} is no vector; give gymnasium.make_vec(id, 8), or envs.make.make_vec(id, 8)")


def has_reset(envs: gym.vector.VectorEnv) -> bool:
    """Whether all environments were reset or restored, as stepping others would fail; False where they do not tell."""
    inner: Any = getattr(envs, "unwrapped", envs)  # wrappers of vectors pass on no attributes
    if isinstance(inner, gym.vector.AsyncVectorEnv):  # a process that is asked what it lacks ends
        return False
    try:
        known = inner.has_reset if hasattr(inner, "has_reset") else inner.get_attr("has_reset")
    except (AttributeError, NotImplementedError):
        return False
    return bool(np.all(known))


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
        self.sums, self.counts = {}, {}
        return means


class Episodes(Stateful):
    """Returns {"r", "l"}, lengths and successes of the last 100 episodes, from transitions of N environments."""

    saved = {"running": "running", "episodes": "returns", "successes": "successes"}

    def __init__(self, n: int) -> None:
        self.running = np.zeros((2, n))  # return and length of the running episodes
        self.returns: deque[dict[str, float]] = deque(maxlen=WINDOW)
        self.successes: deque[float] = deque(maxlen=WINDOW)

    def count(self, reward: np.ndarray, valid: np.ndarray, ended: np.ndarray, success: np.ndarray | None) -> None:
        """Add transitions (T, N) in time order; `success` is NaN where nothing was reported, or None for nowhere."""
        sums = np.cumsum([np.where(valid, reward, 0.0), valid], axis=1, dtype=np.float64)  # (2, T, N)
        if not ended.any():
            self.running += sums[:, -1]
            return
        columns, times = np.nonzero(ended.T)
        at_end = sums[:, times, columns]
        first = np.diff(columns, prepend=-1) > 0
        before = np.where(first, 0.0, np.roll(at_end, 1, axis=1))
        total = at_end - before + np.where(first, self.running[:, columns], 0.0)
        for index in np.argsort(times, kind="stable"):
            place = times[index], columns[index]
            if valid[place]:
                self.returns.append({"r": float(total[0, index]), "l": int(total[1, index])})
                if success is not None and not np.isnan(success[place]):
                    self.successes.append(float(success[place]))
        last = np.zeros_like(self.running)
        last[:, columns] = at_end  # ascending in time: the last one stays
        self.running = sums[:, -1] - last + np.where(ended.any(axis=0), 0.0, self.running)


class Steps(Stateful):
    """N environments a step at a time: actions as vectors in, transitions with true successors out.

    Its state is where the episodes stand; the environments save their own. They reset by themselves, and their arrays
    are on the host, else a ValueError. `obs` (N, ...) is what to act on next, copied; `step_index`, `began` (N,) the
    step within the episode, and whether it begins one; `episodes` returns, lengths and successes of the last 100.
    """

    saved = {"obs": "obs", "cursor": "cursor"} | {key: f"episodes.{name}" for key, name in Episodes.saved.items()}

    def __init__(self, envs: gym.vector.VectorEnv, seed: int, scorer: StreamScorer | None = None) -> None:
        self.mode = reset_mode(envs)
        if getattr(getattr(envs, "arrays", None), "is_torch", False):
            raise ValueError(f"{envs} keeps its arrays in torch, which this agent does not read; use agent=ppo")
        self.envs, self.seed, self.n = envs, seed, envs.num_envs
        self.on_nan = getattr(scorer, "on_nan", None) or OnNan()
        self.obs: Obs = None
        self._known = False  # whether the environments are known to have been reset
        self.cursor = Cursor(self.n)
        self.episodes = Episodes(self.n)

    @property
    def step_index(self) -> np.ndarray:
        return self.cursor.step

    @property
    def began(self) -> np.ndarray:
        return self.cursor.step == 0

    def begin(self) -> bool:
        began = self.obs is not None and (self._known or has_reset(self.envs))
        self._known = True
        if began:
            return False
        obs, infos = self.envs.reset(seed=self.seed)
        self.obs = map_obs(np.array, obs)
        self.cursor.begin(modalities_of(infos))
        self.episodes.running[:] = 0
        return True

    def step(self, actions: Tensor, encoding: "SpaceEncoding") -> Transitions:
        """One step with actions (N, A), as `encoding` encodes them; a `NotFinite` for NaN or infinity."""
        taken = encoding.decode(actions.detach().cpu().numpy())
        refuse({"action": taken}, self.cursor.step, {"obs": self.obs, "action": taken})
        obs, rewards, terminations, truncations, infos = self.envs.step(taken)
        before, self.obs = self.obs, map_obs(np.array, obs)
        step = (self.obs, np.array(terminations, bool), np.array(truncations, bool), infos)
        reward = self.on_nan(np.array(rewards, np.float32))
        batch = from_vector_step(self.cursor, self.mode, before, taken, reward, *step)
        kept = {name: getattr(batch, name) for name in ("obs", "action", "reward", "next_obs")}
        refuse({"reward": batch.reward, "observation": batch.next_obs}, batch.step, kept)
        ended = batch.ended
        success = self._success(ended, infos) if ended.any() else None
        self.episodes.count(batch.reward[None], batch.valid[None], ended[None], success)
        return batch

    def _success(self, ended: np.ndarray, infos: Any) -> np.ndarray | None:
        """Success of the episodes that ended, (1, N), NaN where nothing is reported; None for nowhere."""
        given = infos.get("final_info", {}) if self.mode == AutoresetMode.SAME_STEP else infos
        if "is_success" not in given:
            return None
        return np.where(given.get("_is_success", ended), np.asarray(given["is_success"], np.float64), np.nan)[None]
