"""Stable-Baselines3's agents, and sb3-contrib's, behind one door: a Config, the spaces, the way a reward comes in.

    model = PPO.build(PPOConfig(), make_venv("CartPole-v1", 8, seed=0), seed=0, device="cpu")

`driver` says how a learned reward reaches the agent: "rollout" (scored once a rollout, by a callback) or "relabel"
(scored when the replay buffer is sampled; hand the buffer class in as `buffer`). Agents know nothing of rewards
beyond that word.

Sources: the papers named at each class. Differences: none in the algorithms; defaults are SB3's except where a
comment says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv


@dataclass
class AgentConfig:
    """What every agent has.

    Attributes:
        policy: SB3's policy name; `auto` picks Mlp, Cnn or MultiInput from the observation space.
        learning_rate: of Adam, in (0, 1].
        gamma: discount in (0, 1].
        net_arch: units of the hidden layers; empty for SB3's default.
    """

    policy: str = "auto"
    learning_rate: float = 3e-4
    gamma: float = 0.99
    net_arch: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for f in fields(self):
            self._check(f.name, getattr(self, f.name))

    def _check(self, name: str, value: Any) -> None:
        low, high, words = _RANGES.get(name, (-math.inf, math.inf, ""))
        numbers = value if isinstance(value, list) else [value]
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                continue
            if not (low <= number <= high) or (name in _OPEN and number == 0):
                raise ValueError(f"agent.{name}={value} is out of range; give {words}")

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for the algorithm's constructor."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("policy", "net_arch")}
        return {key: value for key, value in own.items() if value is not None}


_RANGES: dict[str, tuple[float, float, str]] = {
    "learning_rate": (0, 1, "a number in (0, 1]"),
    "gamma": (0, 1, "a discount in (0, 1]"),
    "gae_lambda": (0, 1, "a number in [0, 1]"),
    "tau": (0, 1, "a number in (0, 1]"),
    "clip_range": (0, 1, "a number in (0, 1]"),
    "ent_coef": (0, 10, "a number in [0, 10], or auto where the agent can tune it"),
    "n_steps": (1, 1e7, "a positive number of steps"),
    "n_epochs": (1, 1e4, "a positive number of epochs"),
    "batch_size": (1, 1e7, "a positive number of transitions"),
    "buffer_size": (1, 1e9, "a positive number of transitions"),
    "learning_starts": (0, 1e9, "a number of steps, 0 or more"),
    "train_freq": (1, 1e7, "a positive number of steps"),
    "gradient_steps": (-1, 1e7, "a number of updates, or -1 for as many as steps were taken"),
    "target_update_interval": (1, 1e9, "a positive number of steps"),
    "exploration_fraction": (0, 1, "a share of training in [0, 1]"),
    "exploration_initial_eps": (0, 1, "a probability in [0, 1]"),
    "exploration_final_eps": (0, 1, "a probability in [0, 1]"),
    "max_grad_norm": (0, 1e9, "a positive number"),
    "vf_coef": (0, 1e3, "a number in [0, 1000]"),
    "net_arch": (1, 1e6, "positive layer widths"),
}
_OPEN = {"learning_rate", "gamma", "tau", "clip_range", "max_grad_norm"}  # 0 is outside


@dataclass
class PPOConfig(AgentConfig):
    """On-policy; names and defaults are SB3's."""

    n_steps: int = (
        256  # steps of each environment between two updates; SB3 2048 for one environment, here 8 run side by side
    )
    batch_size: int = 64  # transitions a minibatch
    n_epochs: int = 10  # passes over a rollout
    gae_lambda: float = 0.95  # in [0, 1]
    clip_range: float = 0.2  # of the policy's ratio
    ent_coef: float = 0.0  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5


@dataclass
class RecurrentPPOConfig(PPOConfig):
    """As PPO, with an LSTM; sequences are cut at the rollout's end."""

    n_steps: int = 128
    batch_size: int = 128


@dataclass
class A2CConfig(AgentConfig):
    """On-policy, one update a rollout."""

    learning_rate: float = 7e-4
    n_steps: int = 5
    gae_lambda: float = 1.0
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


@dataclass
class OffPolicyConfig(AgentConfig):
    """What the agents with a replay buffer share."""

    buffer_size: int = 100_000  # transitions; SB3 1,000,000
    learning_starts: int = 1_000  # steps of random actions first; SB3 100
    batch_size: int = 256
    tau: float = 0.005  # soft update of the targets
    train_freq: int = 1  # steps of each environment between two rounds of updates
    gradient_steps: int = -1  # updates a round; -1: one for each transition. SB3 1


@dataclass
class DQNConfig(OffPolicyConfig):
    """Discrete actions."""

    learning_rate: float = 5e-4
    batch_size: int = 64
    tau: float = 1.0
    train_freq: int = 4
    gradient_steps: int = 1
    target_update_interval: int = 1_000  # steps
    exploration_fraction: float = 0.2  # of training, until epsilon is at its end
    exploration_initial_eps: float = 1.0
    exploration_final_eps: float = 0.05
    max_grad_norm: float = 10.0


@dataclass
class QRDQNConfig(DQNConfig):
    """As DQN, with quantiles of the return."""

    max_grad_norm: float | None = None  # type: ignore[assignment]


@dataclass
class SACConfig(OffPolicyConfig):
    """Continuous actions, entropy tuned."""

    ent_coef: Any = "auto"  # or a fixed number


@dataclass
class TD3Config(OffPolicyConfig):
    """Continuous actions, deterministic policy with Gaussian exploration."""

    action_noise: float = 0.1  # standard deviation, in the policy's range [-1, 1]

    def arguments(self) -> dict[str, Any]:
        return {key: value for key, value in super().arguments().items() if key != "action_noise"}


@dataclass
class TQCConfig(SACConfig):
    """As SAC, with truncated quantile critics."""


@dataclass
class CrossQConfig(SACConfig):
    """As SAC, with batch normalisation instead of target networks."""

    learning_rate: float = 1e-3

    def arguments(self) -> dict[str, Any]:
        return {key: value for key, value in super().arguments().items() if key != "tau"}


class SB3Agent:
    """One algorithm: which class, which Config, which action spaces, which driver."""

    Config: ClassVar[type[AgentConfig]] = AgentConfig
    driver: ClassVar[str] = "rollout"
    actions: ClassVar[tuple[type[spaces.Space], ...]] = (
        spaces.Box,
        spaces.Discrete,
        spaces.MultiDiscrete,
        spaces.MultiBinary,
    )
    n_envs: ClassVar[int] = 8  # environments side by side, unless the user says otherwise
    algorithm: ClassVar[Callable[[], Any]]
    lstm: ClassVar[bool] = False

    @classmethod
    def check(cls, observation_space: gym.Space, action_space: gym.Space) -> None:
        """Refuse spaces the algorithm cannot handle.

        Raises:
            ValueError: naming the space and the agents that can.
        """
        name = cls.__name__
        if not isinstance(action_space, cls.actions):
            able = "sac, td3, tqc, crossq or ppo" if isinstance(action_space, spaces.Box) else "ppo, a2c, dqn or qrdqn"
            if isinstance(action_space, (spaces.MultiDiscrete, spaces.MultiBinary)):
                able = "ppo or a2c"
            raise ValueError(f"{name} cannot choose actions from {action_space}; use agent={able}")
        parts = observation_space.spaces.values() if isinstance(observation_space, spaces.Dict) else [observation_space]
        for space in parts:
            if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
                raise ValueError(
                    f"{name} cannot read observations from {space}; wrap the environment so that it gives numbers "
                    "(gymnasium.wrappers.FlattenObservation, FilterObservation)"
                )

    @classmethod
    def build(
        cls, config: AgentConfig, venv: VecEnv, *, seed: int, device: str = "auto", buffer: Any = None, verbose: int = 0
    ) -> Any:
        """The SB3 model.

        Args:
            config: an instance of this agent's Config.
            venv: the environments.
            seed: of the policy's weights and actions.
            device: as torch writes it, or `auto`.
            buffer: (replay buffer class, its keyword arguments), for a learned reward computed at sampling.
            verbose: SB3's.
        """
        cls.check(venv.observation_space, venv.action_space)
        arguments = config.arguments()
        if isinstance(config, TD3Config):
            arguments["action_noise"] = _gaussian_noise(venv, config.action_noise)
        if config.net_arch:
            arguments["policy_kwargs"] = {"net_arch": list(config.net_arch)}
        if buffer is not None:
            arguments["replay_buffer_class"], arguments["replay_buffer_kwargs"] = buffer
        if cls.driver == "rollout":
            rollout = config.n_steps * venv.num_envs  # type: ignore[attr-defined]
            if rollout < 2:
                raise ValueError(f"agent.n_steps={config.n_steps} with one environment is no rollout; take 2 or more")  # type: ignore[attr-defined]
            if "batch_size" in arguments and rollout % arguments["batch_size"]:
                arguments["batch_size"] = math.gcd(rollout, arguments["batch_size"])  # no truncated minibatch
        return cls.algorithm()(
            policy_name(config.policy, venv.observation_space, cls.lstm),
            venv,
            seed=seed,
            device=device,
            verbose=verbose,
            **arguments,
        )


def policy_name(policy: str, observation_space: gym.Space, lstm: bool = False) -> str:
    """SB3's policy for an observation space, when `policy` is `auto`."""
    if policy != "auto":
        return policy
    from stable_baselines3.common.preprocessing import is_image_space

    if isinstance(observation_space, spaces.Dict):
        kind = "MultiInput"
    else:
        image = is_image_space(observation_space) and min(observation_space.shape or ()) >= 3
        kind = "Cnn" if image and max(observation_space.shape or ()) >= 36 else "Mlp"
    return kind + ("LstmPolicy" if lstm else "Policy")


def _gaussian_noise(venv: VecEnv, sigma: float) -> Any:
    import numpy as np
    from stable_baselines3.common.noise import NormalActionNoise, VectorizedActionNoise

    assert venv.action_space.shape is not None
    size = venv.action_space.shape
    noise = NormalActionNoise(np.zeros(size), np.full(size, sigma))  # type: ignore[arg-type]
    return VectorizedActionNoise(noise, venv.num_envs) if venv.num_envs > 1 else noise


def _load(module: str, name: str) -> Callable[[], Any]:
    def load() -> Any:
        from importlib import import_module

        return getattr(import_module(module), name)

    return staticmethod(load)  # type: ignore[return-value]


class PPO(SB3Agent):
    """Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347)."""

    Config = PPOConfig
    algorithm = _load("stable_baselines3", "PPO")


class A2C(SB3Agent):
    """Advantage actor-critic, synchronous (Mnih et al. 2016, arXiv 1602.01783)."""

    Config = A2CConfig
    algorithm = _load("stable_baselines3", "A2C")


class RecurrentPPO(SB3Agent):
    """PPO with an LSTM, for observations that hide the state (sb3-contrib)."""

    Config = RecurrentPPOConfig
    algorithm = _load("sb3_contrib", "RecurrentPPO")
    lstm = True


class OffPolicyAgent(SB3Agent):
    """An agent with a replay buffer: the reward is computed when transitions are sampled."""

    driver = "relabel"
    n_envs = 1


class DQN(OffPolicyAgent):
    """Deep Q-learning (Mnih et al. 2015); discrete actions."""

    Config = DQNConfig
    actions = (spaces.Discrete,)
    algorithm = _load("stable_baselines3", "DQN")


class QRDQN(OffPolicyAgent):
    """Quantile-regression DQN (Dabney et al. 2018, arXiv 1710.10044); discrete actions."""

    Config = QRDQNConfig
    actions = (spaces.Discrete,)
    algorithm = _load("sb3_contrib", "QRDQN")


class SAC(OffPolicyAgent):
    """Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905); continuous actions."""

    Config = SACConfig
    actions = (spaces.Box,)
    algorithm = _load("stable_baselines3", "SAC")


class TD3(OffPolicyAgent):
    """Twin delayed DDPG (Fujimoto et al. 2018, arXiv 1802.09477); continuous actions."""

    Config = TD3Config
    actions = (spaces.Box,)
    algorithm = _load("stable_baselines3", "TD3")


class TQC(OffPolicyAgent):
    """Truncated quantile critics (Kuznetsov et al. 2020, arXiv 2005.04269); continuous actions."""

    Config = TQCConfig
    actions = (spaces.Box,)
    algorithm = _load("sb3_contrib", "TQC")


class CrossQ(OffPolicyAgent):
    """Batch normalisation in the critics, no targets (Bhatt et al. 2024, arXiv 1902.05605); continuous actions."""

    Config = CrossQConfig
    actions = (spaces.Box,)
    algorithm = _load("sb3_contrib", "CrossQ")


def make_venv(
    env_id: str,
    n: int,
    seed: int,
    *,
    processes: bool = False,
    wrap: Callable[[gym.Env], gym.Env] | None = None,
    **kwargs: Any,
) -> VecEnv:
    """`n` copies of an environment as an SB3 VecEnv, the i-th seeded with `seed + i`; `kwargs` go to `envs.make.make`.

    `wrap` goes around each; `processes` gives each a worker: worth it where a step takes a millisecond or more.
    """
    if n < 1:
        raise ValueError(f"n_envs={n} is no number of environments; give 1 or more")

    def maker(index: int) -> Callable[[], gym.Env]:
        def make_one() -> gym.Env:
            from envs.make import make

            env = make(env_id, seed=seed + index, **kwargs)
            return env if wrap is None else wrap(env)

        return make_one

    makers = [maker(index) for index in range(n)]
    venv = SubprocVecEnv(makers, start_method="forkserver") if processes else DummyVecEnv(makers)
    venv.seed(seed)
    return venv
