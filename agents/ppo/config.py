"""Settings of `agents.ppo.agent`: their defaults, their ranges, and what tuning tries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

_RANGES: dict[str, tuple[float, float, str]] = {
    "learning_rate": (1e-12, 1, "a number in (0, 1]"),
    "gamma": (1e-12, 1, "a discount in (0, 1]"),
    "gae_lambda": (0, 1, "a number in [0, 1]"),
    "clip_range": (1e-12, 1, "a number in (0, 1]"),
    "entropy_weight": (0, 10, "a number in [0, 10]"),
    "value_weight": (0, 1e3, "a number in [0, 1000]"),
    "max_grad_norm": (1e-12, 1e9, "a positive number"),
    "n_steps": (1, 1e7, "a positive number of steps"),
    "n_epochs": (1, 1e4, "a positive number of epochs"),
    "batch_size": (1, 1e9, "a positive number of transitions"),
    "gru": (0, 1e5, "a number of units, or 0 for none"),
    "sequence": (1, 1e5, "a positive number of steps"),
    "net_arch": (1, 1e6, "positive layer widths"),
}
_CHOICES = {"path": ("auto", "eager"), "streams": ("separate", "sum"), "net": ("mlp", "glyphs")}


@dataclass
class PPOConfig:
    """Defaults are Stable-Baselines3's, but for the length of a rollout."""

    search: ClassVar[dict[str, tuple]] = {  # what `runners.tune` tries
        "learning_rate": (1e-5, 1e-2, "log"),
        "gamma": (0.9, 0.9997),
        "n_steps": (64, 128, 256, 512, "choice"),
        "batch_size": (32, 64, 128, 256, "choice"),
        "n_epochs": (2, 20, "log"),
        "gae_lambda": (0.8, 1.0),
        "clip_range": (0.1, 0.4),
        "entropy_weight": (1e-5, 0.1, "log"),
        "value_weight": (0.1, 1.0),
        "max_grad_norm": (0.3, 5.0, "log"),
    }
    learning_rate: float = 3e-4  # of Adam, in (0, 1]
    gamma: float = 0.99  # discount in (0, 1], of every stream that has none of its own
    net_arch: list[int] = field(default_factory=lambda: [64, 64])  # units of the hidden layers
    n_steps: int = 256  # steps of each environment between two updates (SB3 2048, for one environment)
    batch_size: int = 64  # transitions a minibatch; must divide n_steps * n_envs
    n_epochs: int = 10  # passes over a rollout
    gae_lambda: float = 0.95  # in [0, 1]
    clip_range: float = 0.2  # of the policy's ratio
    entropy_weight: float = 0.0  # of the entropy bonus
    value_weight: float = 0.5  # of the value loss
    max_grad_norm: float = 0.5  # longer gradients are shortened to it
    anneal: bool = False  # whether the learning rate falls to 0 over training
    normalize_obs: bool = False  # centre observations and divide by their running standard deviation
    gru: int = 0  # units of a recurrent layer, for observations that hide the state; 0 for none
    sequence: int = 32  # steps a recurrent policy is trained through at once; must divide n_steps
    streams: str = "separate"  # a value for every reward stream; sum: one value of their weighted sum
    net: str = "mlp"  # what reads flat observations: mlp; glyphs, for those that declare parts, as NetHack's do
    path: str = "auto"  # auto (by hand in NumPy where the network allows it) or eager (torch's autograd)

    def __post_init__(self) -> None:
        for name, (low, high, words) in _RANGES.items():
            value = getattr(self, name)
            for number in value if isinstance(value, list) else [value]:
                if not low <= number <= high:
                    raise ValueError(f"agent.{name}={value} is out of range; give {words}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"agent.{name}={getattr(self, name)!r} is unknown; give {' or '.join(choices)}")
