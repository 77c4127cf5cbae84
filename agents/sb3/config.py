"""Settings of the agents in `agents.sb3.agent`, and what tuning tries; defaults are SB3's, but where a comment says so."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar


@dataclass
class AgentConfig:
    """What every agent has.

    Attributes:
        policy: SB3's policy name; `auto` picks Mlp, Cnn or MultiInput from the observation space.
        learning_rate: of Adam, in (0, 1].
        gamma: discount in (0, 1].
        net_arch: units of the hidden layers; empty for SB3's default.
    """

    # What `runners.tune` tries; a class adds to its bases' and may replace an entry.
    search: ClassVar[dict[str, tuple]] = {"learning_rate": (1e-5, 1e-2, "log"), "gamma": (0.9, 0.9997)}
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

    search: ClassVar[dict[str, tuple]] = {
        "n_steps": (64, 128, 256, 512, "choice"),
        "batch_size": (32, 64, 128, 256, "choice"),
        "n_epochs": (2, 20, "log"),
        "gae_lambda": (0.8, 1.0),
        "clip_range": (0.1, 0.4),
        "ent_coef": (1e-5, 0.1, "log"),
        "vf_coef": (0.1, 1.0),
        "max_grad_norm": (0.3, 5.0, "log"),
    }
    n_steps: int = 256  # steps of each environment between two updates; SB3 2048, for one environment instead of 8
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

    search: ClassVar[dict[str, tuple]] = {
        "n_steps": (4, 8, 16, 32, 64, "choice"),
        "gae_lambda": (0.8, 1.0),
        "ent_coef": (1e-5, 0.1, "log"),
        "vf_coef": (0.1, 1.0),
        "max_grad_norm": (0.3, 5.0, "log"),
    }
    learning_rate: float = 7e-4
    n_steps: int = 5
    gae_lambda: float = 1.0
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


@dataclass
class OffPolicyConfig(AgentConfig):
    """What the agents with a replay buffer share."""

    search: ClassVar[dict[str, tuple]] = {
        "batch_size": (32, 64, 128, 256, 512, "choice"),
        "learning_starts": (100, 10_000, "log"),
        "tau": (1e-3, 0.1, "log"),
        "train_freq": (1, 4, 8, 16, "choice"),
    }
    buffer_size: int = 100_000  # transitions; SB3 1,000,000
    learning_starts: int = 1_000  # steps of random actions first; SB3 100
    batch_size: int = 256
    tau: float = 0.005  # soft update of the targets
    train_freq: int = 1  # steps of each environment between two rounds of updates
    gradient_steps: int = -1  # updates a round; -1: one for each transition. SB3 1


@dataclass
class DQNConfig(OffPolicyConfig):
    """Discrete actions."""

    search: ClassVar[dict[str, tuple]] = {
        "tau": (),  # targets are copied, not mixed
        "target_update_interval": (100, 10_000, "log"),
        "exploration_fraction": (0.05, 0.5),
        "exploration_final_eps": (0.01, 0.2),
        "gradient_steps": (1, 2, 4, -1, "choice"),
    }
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

    search: ClassVar[dict[str, tuple]] = {"action_noise": (0.02, 0.5, "log")}
    action_noise: float = 0.1  # standard deviation, in the policy's range [-1, 1]

    def arguments(self) -> dict[str, Any]:
        return {key: value for key, value in super().arguments().items() if key != "action_noise"}


@dataclass
class TQCConfig(SACConfig):
    """As SAC, with truncated quantile critics."""


@dataclass
class CrossQConfig(SACConfig):
    """As SAC, with batch normalisation instead of target networks."""

    search: ClassVar[dict[str, tuple]] = {"tau": ()}  # there is none
    learning_rate: float = 1e-3

    def arguments(self) -> dict[str, Any]:
        return {key: value for key, value in super().arguments().items() if key != "tau"}
