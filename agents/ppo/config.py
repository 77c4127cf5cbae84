"""What can be set of PPO."""

import math
from dataclasses import dataclass
from typing import Any

from agents.ppo.extensions import ExtensionSettings, refuse_conflicts
from lodestar.settings import Schedule, Settings, declarations, setting

# Settings that may be schedules, and follow the steps of training.
SCHEDULED = ("learning_rate", "clip_range", "entropy_weight")


@dataclass
class CoreSettings(Settings):
    """What PPO has without any extension."""

    prefix = "agent."
    learning_rate: Any = setting(
        3e-4,
        "of Adam: a number, or a schedule; linear:1e-3:0 goes from 1e-3 to 0 over training, linear:1e-3:0:200000 in"
        " 200,000 steps; also cosine:, exp: and step:",
        "(0, 1]",
        tune=(1e-5, 1e-2, "log"),
    )
    gamma: float = setting(0.99, "discount of every stream without its own", "(0, 1]", tune=(0.9, 0.9997))
    net_arch: list[int] = setting([64, 64], "units of the hidden layers", ">= 1")
    activation: str = setting("tanh", "of the hidden layers", "tanh | relu")
    orthogonal: bool = setting(True, "whether weights begin orthogonal, and biases at 0; false: as torch's layers do")
    n_steps: int = setting(
        256,
        "steps of each environment between two updates (SB3 2048, for one environment)",
        ">= 1",
        tune=(64, 128, 256, 512, "choice"),
    )
    batch_size: int = setting(
        64,
        "transitions a minibatch, over which advantages are normalised; must divide n_steps * n_envs",
        ">= 2",
        tune=(32, 64, 128, 256, "choice"),
    )
    n_epochs: int = setting(10, "passes over a rollout", ">= 1", tune=(2, 20, "log"))
    gae_lambda: float = setting(0.95, "of the advantages", "[0, 1]", tune=(0.8, 1.0))
    clip_range: Any = setting(0.2, "of the policy's ratio; a number, or a schedule", "(0, 1]", tune=(0.1, 0.4))
    entropy_weight: Any = setting(
        0.0, "of the entropy bonus; a number, or a schedule: linear:0.03:0.01", "[0, 10]", tune=(1e-5, 0.1, "log")
    )
    target_kl: float = setting(
        0.0,
        "KL divergence from the policy that acted after which no further pass over a rollout is made; 0: any",
        ">= 0",
        tune=(0.005, 0.1, "log"),
    )
    value_weight: float = setting(0.5, "of the value loss", "[0, 1000]", tune=(0.1, 1.0))
    max_grad_norm: float = setting(0.5, "longer gradients are shortened to it", "> 0", tune=(0.3, 5.0, "log"))
    anneal: bool = setting(False, "whether the learning rate falls to 0 over training, as by linear:RATE:0")
    normalize_obs: bool = setting(False, "centre observations and divide by their running standard deviation")
    gru: int = setting(0, "units of a recurrent layer, for observations that hide the state; 0 for none", ">= 0")
    sequence: int = setting(32, "steps a recurrent policy is trained through at once; must divide n_steps", ">= 1")
    streams: str = setting(
        "separate", "a value for every reward stream; sum: one value of their weighted sum", "separate | sum"
    )
    zero_last: bool = setting(False, "whether it begins at action 0: a residual begins as its base (`env.base`)")
    log_std: float = setting(0.0, "where log-deviations of a Gaussian policy begin", "[-10, 2]")
    noise_correlation: float = setting(
        0.0,
        "of the Gaussian noise of one step with that of the next: 0.9 explores in one direction for ten steps",
        "[0, 1)",
    )
    actor_from: int = setting(0, "environment steps before the policy learns, and not the values alone", ">= 0")
    masks: bool = setting(True, "choose among the actions that the environment's mask allows, where it gives one")
    path: str = setting(
        "auto",
        "the update of small networks: numpy, compiled by numba (extra `fast`), or torch's autograd (eager); auto: "
        "compiled from 2 million learned rows on, 200,000 frames at ten epochs",
        "auto | numba | numpy | eager",
    )

    def check_schedules(self) -> None:
        """Raise a ValueError for a schedule that cannot be read, or leaves the range of its setting."""
        declared = declarations(type(self))
        for name in SCHEDULED:
            schedule = Schedule(getattr(self, name), self.prefix + name, 1)
            highest = max(schedule.start, schedule.end)
            if not declared[name].allows(highest):
                raise ValueError(
                    f"{self.prefix}{name}={schedule.spec} reaches {highest:g}; stay {declared[name].range}"
                )

    def rows_a_batch(self, n_envs: int) -> int:
        """Rows of a minibatch; for a recurrent policy, sequences. A ValueError where a rollout does not divide."""
        if self.gru:
            self._check_sequences()
        rollout_size = n_envs * self.n_steps
        if rollout_size % self.batch_size or rollout_size < 2:
            divisors = [size for size in range(2, rollout_size + 1) if rollout_size % size == 0]
            nearest = min(divisors or [2], key=lambda size: abs(math.log(size / self.batch_size)))
            raise ValueError(
                f"n_envs * agent.n_steps = {n_envs} * {self.n_steps} = {rollout_size} transitions do not divide into "
                f"minibatches of agent.batch_size={self.batch_size}; give {nearest}, "
                f"or another divisor of {rollout_size}"
            )
        if self.gru:
            return self.batch_size // self.sequence
        return self.batch_size

    def _check_sequences(self) -> None:
        for name, steps in (("n_steps", self.n_steps), ("batch_size", self.batch_size)):
            if steps % self.sequence:
                raise ValueError(
                    f"agent.{name}={steps} does not divide into sequences of agent.sequence={self.sequence}; "
                    f"give agent.sequence={math.gcd(self.n_steps, self.batch_size)}"
                )


@dataclass
class PPOConfig(ExtensionSettings, CoreSettings):
    """Settings of `agents.ppo.agent.PPO`; defaults are Stable-Baselines3's, but for the length of a rollout.

    Example:
        >>> PPOConfig(n_steps=32).gamma
        0.99
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_schedules()
        refuse_conflicts(self)
