"""Stable-Baselines3's agents, and sb3-contrib's, behind one interface: settings, spaces, the way a reward reaches them.

    model = SB3PPO.build(SB3PPOConfig(), make_venv("CartPole-v1", 8, seed=0), seed=0, device="cpu")

Sources: the papers named at each class; defaults are SB3's except where the help of a setting says so.
"""

import copy
import functools
import math
import pkgutil
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import ActionNoise, NormalActionNoise, VectorizedActionNoise
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from agents.sb3.normalized import extractor_for, normalizing
from envs.observations import from_zero
from envs.transitions import map_obs, put
from envs.types import MODALITIES, StateDict
from envs.vector.in_process import Maker, all_or_none
from envs.vector.workers import Workers
from lodestar.memory import refuse_beyond
from lodestar.settings import Settings, check_config, setting
from lodestar.state import restore, state_of

# Spaces that SB3 can read and choose from.
ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
# What an algorithm may have beside modules and variables; absent ones are skipped.
_ATTRIBUTES = {
    "counters": (
        "num_timesteps",
        "_total_timesteps",
        "_n_updates",
        "_episode_num",
        "_n_calls",
        "exploration_rate",
        "_current_progress_remaining",
    ),
    "arrays": ("_last_obs", "_last_episode_starts", "_last_original_obs", "_mask"),
}
# gSDE's matrices, from features to noise: one, and one for each environment.
_NOISE = ("exploration_mat", "exploration_matrices")
_WINDOWS = ("ep_info_buffer", "ep_success_buffer")
_BUFFER_ARRAYS = ("observations", "next_observations", "actions", "dones", "timeouts", "ep_start", "ep_length")


@dataclass
class SB3Config(Settings):
    """What every agent has."""

    prefix = "agent."
    policy: str = setting("auto", "SB3's policy; auto picks Mlp, Cnn or MultiInput from the observation space")
    learning_rate: float = setting(3e-4, "of Adam", "(0, 1]", tune=(1e-5, 1e-2, "log"))
    gamma: float = setting(0.99, "discount", "(0, 1]", tune=(0.9, 0.9997))
    net_arch: list[int] = setting([], "units of the hidden layers; empty for SB3's default", ">= 1")
    normalize_obs: bool = setting(False, "centre observations and divide by their running standard deviation")

    # Settings that are no arguments of the algorithm.
    unused: ClassVar[tuple[str, ...]] = ("policy", "net_arch", "normalize_obs")

    def arguments(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in self.unused and value is not None}


@dataclass
class OnPolicyConfig(SB3Config):
    """What the agents without a replay buffer share."""

    n_steps: int = setting(256, "steps of each environment between two updates", ">= 1")
    gae_lambda: float = setting(0.95, "of the advantages", "[0, 1]", tune=(0.8, 1.0))
    ent_coef: float = setting(0.0, "weight of the entropy bonus", "[0, 10]", tune=(1e-5, 0.1, "log"))
    vf_coef: float = setting(0.5, "weight of the value loss", "[0, 1000]", tune=(0.1, 1.0))
    max_grad_norm: float = setting(0.5, "longer gradients are shortened to it", "> 0", tune=(0.3, 5.0, "log"))


@dataclass
class SB3PPOConfig(OnPolicyConfig):
    """On-policy; SB3's n_steps is 2048, for one environment instead of 8."""

    n_steps: int = setting(256, tune=(64, 128, 256, 512, "choice"))
    batch_size: int = setting(64, "transitions a minibatch", ">= 1", tune=(32, 64, 128, 256, "choice"))
    n_epochs: int = setting(10, "passes over a rollout", ">= 1", tune=(2, 20, "log"))
    clip_range: float = setting(0.2, "of the policy's ratio", "(0, 1]", tune=(0.1, 0.4))


@dataclass
class RecurrentPPOConfig(SB3PPOConfig):
    """As PPO, with an LSTM; sequences are cut at the rollout's end."""

    n_steps: int = 128
    batch_size: int = 128


@dataclass
class A2CConfig(OnPolicyConfig):
    """On-policy, one update a rollout."""

    learning_rate: float = 7e-4
    n_steps: int = setting(5, tune=(4, 8, 16, 32, 64, "choice"))
    gae_lambda: float = 1.0


@dataclass
class OffPolicyConfig(SB3Config):
    """What the agents with a replay buffer share."""

    buffer_size: int = setting(100_000, "transitions (SB3 1,000,000)", ">= 1")
    learning_starts: int = setting(1_000, "steps of random actions first (SB3 100)", ">= 0", tune=(100, 10_000, "log"))
    batch_size: int = setting(256, "transitions a minibatch", ">= 1", tune=(32, 64, 128, 256, 512, "choice"))
    tau: float = setting(0.005, "soft update of the targets", "(0, 1]", tune=(1e-3, 0.1, "log"))
    train_freq: int = setting(1, "steps of each environment between updates", ">= 1", tune=(1, 4, 8, 16, "choice"))
    gradient_steps: int = setting(-1, "updates a round; -1: one for each transition (SB3 1)", ">= -1")


@dataclass
class DQNConfig(OffPolicyConfig):
    """Discrete actions; targets are copied, not mixed."""

    learning_rate: float = 5e-4
    batch_size: int = 64
    tau: float = setting(1.0, tune=())
    train_freq: int = 4
    gradient_steps: int = setting(1, tune=(1, 2, 4, -1, "choice"))
    target_update_interval: int = setting(
        1_000, "steps between copies of the target", ">= 1", tune=(100, 10_000, "log")
    )
    exploration_fraction: float = setting(0.2, "share of training until epsilon ends", "[0, 1]", tune=(0.05, 0.5))
    exploration_initial_eps: float = setting(1.0, "epsilon at first", "[0, 1]")
    exploration_final_eps: float = setting(0.05, "epsilon in the end", "[0, 1]", tune=(0.01, 0.2))
    max_grad_norm: float | None = setting(10.0, "longer gradients are shortened to it", "> 0")


@dataclass
class QRDQNConfig(DQNConfig):
    """As DQN, with quantiles of the return."""

    max_grad_norm: float | None = None


@dataclass
class SACConfig(OffPolicyConfig):
    """Continuous actions, entropy tuned."""

    unused = (*OffPolicyConfig.unused, "log_std_init")
    use_sde: bool = setting(False, "explore with gSDE, noise of the state that lasts a round (Raffin et al. 2021)")
    log_std_init: float = setting(-3.0, "log of gSDE's deviation at first", "[-10, 2]")
    ent_coef: Any = setting("auto", "weight of the entropy: auto tunes it, or a fixed number", "[0, 10]")


@dataclass
class TD3Config(OffPolicyConfig):
    """Continuous actions, deterministic policy with Gaussian exploration."""

    unused = (*OffPolicyConfig.unused, "action_noise")
    action_noise: float = setting(0.1, "deviation, in the policy's range [-1, 1]", ">= 0", tune=(0.02, 0.5, "log"))


@dataclass
class CrossQConfig(SACConfig):
    """As SAC, with batch normalisation instead of target networks: tau is not used."""

    unused = (*SACConfig.unused, "tau")
    learning_rate: float = 1e-3
    tau: float = setting(0.005, tune=())


class SB3Agent:
    """One algorithm: which class, which Config, which action spaces, which driver."""

    Config: ClassVar[type[SB3Config]] = SB3Config
    # When a learned reward scores: each rollout, or ("relabel") what is sampled from the replay.
    driver = "rollout"
    # Action spaces that the algorithm can choose from.
    actions: ClassVar[tuple[type[spaces.Space], ...]] = ARRAYS
    # Environments side by side, unless the user says otherwise.
    n_envs = 8
    # As module:class.
    algorithm: ClassVar[str]
    # Whether it reads action masks, and whether it refuses environments without.
    masks = False
    needs_masks = False
    lstm = False

    @classmethod
    def samples(cls, config: SB3Config, action_space: gym.Space) -> bool:
        """Whether the policy is a distribution over discrete actions, see `agents.predictor.Predictor.samples`."""
        return isinstance(config, OnPolicyConfig) and not isinstance(action_space, spaces.Box)

    @classmethod
    def check(cls, observation_space: gym.Space, action_space: gym.Space) -> None:
        """Raise a ValueError for a space that the algorithm cannot handle, naming the agents that can."""
        name = cls.__name__
        if not isinstance(action_space, cls.actions):
            able = "ppo, a2c, dqn or qrdqn"
            if isinstance(action_space, spaces.Box):
                able = "sac, td3, tqc, crossq or ppo"
            if isinstance(action_space, (spaces.MultiDiscrete, spaces.MultiBinary)):
                able = "ppo or a2c"
            raise ValueError(f"{name} cannot choose actions from {action_space}; use agent={able}")
        parts = [observation_space]
        if isinstance(observation_space, spaces.Dict):
            parts = list(observation_space.spaces.values())
        for space in (*parts, action_space):
            if from_zero(space) is not space:
                raise ValueError(
                    f"{name} counts from 0, but {space} does not; make the environment with envs.make.make, or wrap it "
                    "(envs.observations.ActionsFromZero, PlainObservation)"
                )
            if not isinstance(space, ARRAYS):
                raise ValueError(
                    f"{name} cannot read observations from {space}; wrap the environment so that it gives numbers "
                    "(gymnasium.wrappers.FlattenObservation, FilterObservation)"
                )

    @classmethod
    def build(
        cls, config: SB3Config, venv: VecEnv, *, seed: int, device: str = "auto", buffer: Any = None, verbose: int = 0
    ) -> Any:
        """The SB3 model; `buffer` is (replay buffer class, its arguments), for a reward computed at sampling."""
        check_config(config, cls.Config)
        cls.check(venv.observation_space, venv.action_space)
        arguments = config.arguments()
        policy_options: dict[str, Any] = {}
        if config.net_arch:
            policy_options["net_arch"] = list(config.net_arch)
        if isinstance(config, SACConfig) and config.use_sde:
            policy_options["log_std_init"] = config.log_std_init
        algorithm = pkgutil.resolve_name(cls.algorithm)
        if config.normalize_obs:
            policy_options["features_extractor_class"] = extractor_for(venv.observation_space)
            algorithm = normalizing(algorithm)
        if policy_options:
            arguments["policy_kwargs"] = policy_options
        if buffer is not None:
            arguments["replay_buffer_class"], arguments["replay_buffer_kwargs"] = buffer
        if isinstance(config, OnPolicyConfig):
            _fit_minibatch(config, venv.num_envs, arguments)
        if isinstance(config, OffPolicyConfig):
            _warn_of_few_updates(config, venv.num_envs)
            _refuse_large_replay(config, venv)
        if isinstance(config, TD3Config):
            arguments["action_noise"] = _action_noise(config, venv)
        policy = policy_name(config.policy, venv.observation_space, cls.lstm)
        model = algorithm(policy, venv, seed=seed, device=device, verbose=verbose, **arguments)
        # Without a logger `learn` makes one that prints nothing, and its folder among the temporary ones.
        if not verbose:
            model.set_logger(Logger(None, []))
        return model


def _fit_minibatch(config: OnPolicyConfig, n_envs: int, arguments: dict[str, Any]) -> None:
    """Make minibatches divide the rollout; a ValueError for a rollout of one transition."""
    rollout = config.n_steps * n_envs
    if rollout < 2:
        raise ValueError(f"agent.n_steps={config.n_steps} with one environment is no rollout; take 2 or more")
    # A minibatch that does not divide the rollout would leave a truncated one at its end.
    if "batch_size" in arguments:
        arguments["batch_size"] = math.gcd(rollout, arguments["batch_size"])


def _warn_of_few_updates(config: OffPolicyConfig, n_envs: int) -> None:
    """Warn where more environments mean fewer updates for each transition."""
    steps = config.gradient_steps
    if steps <= 0 or n_envs == 1:
        return
    rows = config.train_freq * n_envs
    warnings.warn(
        f"agent.gradient_steps={steps} is one update for {rows / steps:g} transitions with {n_envs} "
        f"environments, {config.train_freq / steps:g} with one; agent.gradient_steps={steps * n_envs} "
        "keeps that, -1 is one for each",
        stacklevel=3,
    )


def _refuse_large_replay(config: OffPolicyConfig, venv: VecEnv) -> None:
    # Beside two observations and an action a row has three floats.
    row = 2 * flat_bytes(venv.observation_space) + flat_bytes(venv.action_space) + 12
    refuse_beyond(config.buffer_size * row, f"agent.buffer_size={config.buffer_size:,}, {row:,} bytes each,")


def _action_noise(config: TD3Config, venv: VecEnv) -> ActionNoise:
    size: Any = venv.action_space.shape
    noise = NormalActionNoise(np.zeros(size), np.full(size, config.action_noise))  # type: ignore[arg-type]
    if venv.num_envs > 1:
        return VectorizedActionNoise(noise, venv.num_envs)
    return noise


def flat_bytes(space: spaces.Space) -> int:
    """Bytes of one value of a space in SB3's buffers."""
    if isinstance(space, spaces.Dict):
        return sum(map(flat_bytes, space.spaces.values()))
    return math.prod(space.shape or ()) * np.dtype(space.dtype).itemsize


def policy_name(policy: str, observation_space: gym.Space, lstm: bool = False) -> str:
    """SB3's policy for an observation space, when `policy` is `auto`."""
    if policy != "auto":
        return policy
    kind = "Mlp"
    if isinstance(observation_space, spaces.Dict):
        kind = "MultiInput"
    if is_image_space(observation_space):
        sides = observation_space.shape or ()
        # SB3's convolutions need 36 pixels.
        if min(sides) >= 3 and max(sides) >= 36:
            kind = "Cnn"
    suffix = "LstmPolicy" if lstm else "Policy"
    return kind + suffix


class SB3PPO(SB3Agent):
    """Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347)."""

    Config = SB3PPOConfig
    algorithm = "stable_baselines3:PPO"


class A2C(SB3Agent):
    """Advantage actor-critic, synchronous (Mnih et al. 2016, arXiv 1602.01783)."""

    Config = A2CConfig
    algorithm = "stable_baselines3:A2C"


class RecurrentPPO(SB3Agent):
    """PPO with an LSTM, for observations that hide the state (sb3-contrib)."""

    Config = RecurrentPPOConfig
    algorithm = "sb3_contrib:RecurrentPPO"
    lstm = True


class MaskablePPO(SB3PPO):
    """PPO among the actions that a mask allows (sb3-contrib; Huang & Ontanon 2020, arXiv 2006.14171)."""

    actions = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    algorithm = "agents.sb3.masked:MaskedPPO"
    masks = needs_masks = True


class OffPolicyAgent(SB3Agent):
    """An agent with a replay buffer: the reward is computed when transitions are sampled."""

    driver = "relabel"
    n_envs = 1


class DQN(OffPolicyAgent):
    """Deep Q-learning (Mnih et al. 2015); discrete actions."""

    Config = DQNConfig
    actions = (spaces.Discrete,)
    algorithm = "agents.sb3.masked:MaskedDQN"
    masks = True


class QRDQN(DQN):
    """Quantile-regression DQN (Dabney et al. 2018, arXiv 1710.10044); discrete actions."""

    Config = QRDQNConfig
    algorithm = "sb3_contrib:QRDQN"
    masks = False


class SAC(OffPolicyAgent):
    """Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905); continuous actions."""

    Config = SACConfig
    actions = (spaces.Box,)
    algorithm = "stable_baselines3:SAC"


class TD3(OffPolicyAgent):
    """Twin delayed DDPG (Fujimoto et al. 2018, arXiv 1802.09477); continuous actions."""

    Config = TD3Config
    actions = (spaces.Box,)
    algorithm = "stable_baselines3:TD3"


class TQC(SAC):
    """Truncated quantile critics (Kuznetsov et al. 2020, arXiv 2005.04269); continuous actions."""

    algorithm = "sb3_contrib:TQC"


class CrossQ(SAC):
    """Batch normalisation in the critics, no targets (Bhatt et al. 2024, arXiv 1902.05605); continuous actions."""

    Config = CrossQConfig
    algorithm = "sb3_contrib:CrossQ"


def make_venv(
    env_id: str,
    n: int,
    seed: int,
    *,
    workers: Mapping[str, Any] | None = None,
    wrap: Callable[[gym.Env], gym.Env] | None = None,
    **kwargs: Any,
) -> VecEnv:
    """`n` copies of an environment as an SB3 VecEnv, the i-th seeded with `seed + i`; `kwargs` go to `envs.make.make`.

    With `workers`, options of `envs.vector.workers.Workers`, they live in processes of their own.
    """
    from envs.make import make_wrapped

    makers: list[Maker] = [functools.partial(make_wrapped, wrap, env_id, seed=seed + i, **kwargs) for i in range(n)]
    if workers is not None:
        venv: VecEnv = WorkerVecEnv(makers, **workers)
    else:
        with all_or_none(makers) as makers:
            venv = InProcessVecEnv(makers)
    venv.seed(seed)
    return venv


class InProcessVecEnv(DummyVecEnv):
    """SB3's DummyVecEnv with actions of the dtype that environments sample: SB3 chooses MultiBinary ones in float32."""

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = np.asarray(actions, self.action_space.dtype)

    def snapshot(self) -> list[StateDict]:
        return self.env_method("snapshot")

    def restore(self, states: Sequence[StateDict]) -> None:
        for index, state in enumerate(states):
            self.env_method("restore", state, indices=index)


class WorkerVecEnv(VecEnv):
    """`envs.vector.workers.Workers` as an SB3 VecEnv: shared arrays, and a worker that is lost is replaced.

    An episode lost with its worker is truncated, with `info["lost"] = True` and no return. Of infos arrive return and
    length, success, and `envs.types.MODALITIES`.
    """

    def __init__(self, makers: Sequence[Maker], **options: Any) -> None:
        self.workers = Workers(makers, **options)
        self._began = time.perf_counter()
        try:
            workers = self.workers
            super().__init__(workers.num_envs, workers.single_observation_space, workers.single_action_space)
        except BaseException:
            self.close()
            raise
        self.metadata = self.workers.metadata

    @property
    def say(self) -> Callable[[str], object]:
        return self.workers.say

    @say.setter
    def say(self, say: Callable[[str], object]) -> None:
        self.workers.say = say

    @property
    def restarts(self) -> int:
        return self.workers.restarts

    def reset(self) -> Any:
        # One call resets all workers, with one seed each and options in common.
        if any(options != self._options[0] for options in self._options):
            raise ValueError("environments in workers are reset with the same options; give set_options one dict")
        options = self._options[0] or None
        obs, modalities = self.workers.reset(seed=self._seeds, options=options)
        self.reset_infos = self._split_rows(modalities)
        self._reset_seeds()
        self._reset_options()
        return map_obs(np.copy, obs)

    def step_async(self, actions: np.ndarray) -> None:
        # All workers begin before the first one is waited for.
        for group, rows in enumerate(self.workers.groups):
            self.workers.send(actions[rows], group)

    def step_wait(self) -> Any:
        obs, rewards, terminations, truncations, infos = self.workers.recv_all()
        ended = terminations | truncations
        rows = self._split_rows(infos)
        for info, truncated in zip(rows, (truncations & ~terminations).tolist()):
            info["TimeLimit.truncated"] = truncated
        for row in np.flatnonzero(ended).tolist():
            shown = rows[row]
            self.reset_infos[row] = {name: value for name, value in shown.items() if name in MODALITIES}
            shown |= self._final_info(infos, row)
        return map_obs(np.copy, obs), rewards.copy(), ended, rows

    def _split_rows(self, infos: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The modalities of each environment, as infos of their own."""
        rows: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for name in MODALITIES:
            if name in infos:
                for row, value in zip(rows, np.copy(infos[name])):
                    row[name] = value
        return rows

    def _final_info(self, infos: Mapping[str, Any], row: int) -> dict[str, Any]:
        """What an episode's end adds to, or exchanges in, the info of its row."""
        final = infos["final_info"]
        last = {name: copy.copy(final[name][row]) for name in MODALITIES if name in final}
        final_obs = infos["final_obs"]
        last["terminal_observation"] = map_obs(lambda x: np.copy(x[row]), final_obs)
        # An episode that was lost with its worker has no return.
        if "lost" in infos and infos["lost"][row]:
            return {**last, "lost": True}
        episode = final["episode"]
        elapsed = round(time.perf_counter() - self._began, 6)
        total = float(episode["r"][row])
        last["episode"] = {"r": total, "l": int(episode["l"][row]), "t": elapsed}
        if "is_success" in final and final["_is_success"][row]:
            last["is_success"] = bool(final["is_success"][row])
        return last

    def close(self) -> None:
        self.workers.close()

    def snapshot(self) -> StateDict:
        return self.workers.snapshot()

    def restore(self, state: Mapping[str, Any]) -> Any:
        return map_obs(np.copy, self.workers.restore(state))

    def _ask_each(self, method: str, indices: Any, *arguments: Any) -> list[Any]:
        rows = list(self._get_indices(indices))
        answers = self.workers.ask(method, dict.fromkeys(rows, arguments))
        return [answers[row] for row in rows]

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return self.env_method("get_wrapper_attr", attr_name, indices=indices)

    def has_attr(self, attr_name: str) -> bool:
        return all(self.env_method("has_wrapper_attr", attr_name))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        self._ask_each("assign", indices, attr_name, value)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        return self._ask_each("call", indices, method_name, method_args, method_kwargs)

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: Any = None) -> list[bool]:
        return self._ask_each("has_wrapper", indices, wrapper_class)

    def get_images(self) -> Sequence[np.ndarray | None]:
        return self.env_method("render")


def get_state(model: Any) -> dict[str, Any]:
    """All that it takes to continue an SB3 model exactly, without pickle; the replay and current episode, too."""
    modules, variables = model._get_torch_save_params()
    state: StateDict = {}
    for group, names in {"modules": modules, "variables": variables, **_ATTRIBUTES}.items():
        values = {name: _attribute(model, name) for name in names}
        state[group] = {name: state_of(value) for name, value in values.items() if value is not None}
    state["windows"] = {name: list(getattr(model, name) or []) for name in _WINDOWS}
    state["action_rng"] = model.action_space.np_random.bit_generator.state
    lstm = _attribute(model, "_last_lstm_states")
    if lstm is not None:
        state["lstm"] = {"pi": list(lstm.pi), "vf": list(lstm.vf)}
    if _attribute(model, "use_sde"):
        noise = model.actor.action_dist
        state["noise"] = {name: getattr(noise, name) for name in _NOISE}
    buffer = _attribute(model, "replay_buffer")
    if buffer is not None:
        state["replay"] = _buffer_state(buffer)
    return state


def _attribute(model: Any, path: str) -> Any:
    """The attribute at a dotted path; None where an algorithm lacks it."""
    value = model
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def set_state(model: Any, state: StateDict) -> None:
    """Restore what `get_state` returned into a model built with the same configuration."""
    for group in ("modules", "variables", *_ATTRIBUTES):
        for name, value in state[group].items():
            restore(model, name, value)
    for name, value in state["windows"].items():
        setattr(model, name, deque(value, maxlen=model._stats_window_size))
    model.action_space.np_random.bit_generator.state = state["action_rng"]
    if "lstm" in state:
        kind = type(model._last_lstm_states)
        tensors = {}
        for key, arrays in state["lstm"].items():
            tensors[key] = tuple(torch.as_tensor(x, device=model.device) for x in arrays)
        model._last_lstm_states = kind(**tensors)
    if "noise" in state:
        for name, value in state["noise"].items():
            setattr(model.actor.action_dist, name, torch.as_tensor(value, device=model.device))
    if "replay" in state:
        load_buffer(model.replay_buffer, state["replay"])


def _buffer_arrays(buffer: Any) -> dict[str, Any]:
    """What is stored; the task's rewards also where reading `buffer.rewards` would score a learned reward."""
    arrays = {name: getattr(buffer, name) for name in _BUFFER_ARRAYS if hasattr(buffer, name)}
    return arrays | {"rewards": getattr(buffer, "task_rewards", buffer.rewards)}


def _buffer_state(buffer: Any) -> dict[str, Any]:
    size = buffer.size()
    stored = _buffer_arrays(buffer)
    arrays = {name: map_obs(lambda x: x[:size], value) for name, value in stored.items()}
    state: StateDict = {"pos": buffer.pos, "full": buffer.full, "arrays": arrays}
    if hasattr(buffer, "_current_ep_start"):
        state["current_episode"] = buffer._current_ep_start
    if hasattr(buffer, "state_dict"):
        state["reward"] = buffer.state_dict()
    return state


def load_buffer(buffer: Any, state: StateDict) -> None:
    """Restore what `get_state` returned of a replay buffer, under "replay"."""
    buffer.pos = int(state["pos"])
    buffer.full = bool(state["full"])
    arrays = _buffer_arrays(buffer)
    for name, value in state["arrays"].items():
        put(arrays[name], slice(buffer.size()), value)
    if "current_episode" in state:
        buffer._current_ep_start = np.array(state["current_episode"])
    if "reward" in state:
        buffer.load_state_dict(state["reward"])
