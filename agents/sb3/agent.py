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
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from agents.sb3.config import (
    A2CConfig,
    AgentConfig,
    CrossQConfig,
    DQNConfig,
    PPOConfig,
    QRDQNConfig,
    RecurrentPPOConfig,
    SACConfig,
    TD3Config,
    TQCConfig,
)


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
    workers: Mapping[str, Any] | None = None,
    wrap: Callable[[gym.Env], gym.Env] | None = None,
    **kwargs: Any,
) -> VecEnv:
    """`n` copies of an environment as an SB3 VecEnv, the i-th seeded with `seed + i`; `kwargs` go to `envs.make.make`.

    `wrap` goes around each. With `workers`, options of `envs.vector.workers.Workers`, they live in processes of their own,
    which is worth it where a step takes a millisecond or more.
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
    venv: VecEnv
    if workers is None:
        venv = DummyVecEnv(makers)
    else:
        from agents.sb3.workers import WorkerVecEnv

        venv = WorkerVecEnv(makers, **workers)
    venv.seed(seed)
    return venv
