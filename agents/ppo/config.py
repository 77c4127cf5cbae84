"""What can be set of PPO."""

import math
from dataclasses import dataclass
from typing import Any

from lodestar.settings import Schedule, Settings, setting


@dataclass
class PPOConfig(Settings):
    """Settings of `agents.ppo.agent.PPO`; defaults are Stable-Baselines3's, but for the length of a rollout.

    Example:
        >>> PPOConfig(n_steps=32).gamma
        0.99
    """

    prefix = "agent."
    learning_rate: float = setting(3e-4, "of Adam", above=0, high=1, tune=(1e-5, 1e-2, "log"))
    gamma: float = setting(0.99, "discount of every stream without its own", above=0, high=1, tune=(0.9, 0.9997))
    net_arch: list[int] = setting([64, 64], "units of the hidden layers", low=1)
    n_steps: int = setting(
        256,
        "steps of each environment between two updates (SB3 2048, for one environment)",
        low=1,
        tune=(64, 128, 256, 512, "choice"),
    )
    batch_size: int = setting(
        64,
        "transitions a minibatch, over which advantages are normalised; must divide n_steps * n_envs",
        low=2,
        tune=(32, 64, 128, 256, "choice"),
    )
    n_epochs: int = setting(10, "passes over a rollout", low=1, tune=(2, 20, "log"))
    gae_lambda: float = setting(0.95, "of the advantages", low=0, high=1, tune=(0.8, 1.0))
    clip_range: float = setting(0.2, "of the policy's ratio", above=0, high=1, tune=(0.1, 0.4))
    entropy_weight: float = setting(0.0, "of the entropy bonus", low=0, high=10, tune=(1e-5, 0.1, "log"))
    value_weight: float = setting(0.5, "of the value loss", low=0, high=1000, tune=(0.1, 1.0))
    max_grad_norm: float = setting(0.5, "longer gradients are shortened to it", above=0, tune=(0.3, 5.0, "log"))
    anneal: bool = setting(False, "whether the learning rate falls to 0 over training")
    normalize_obs: bool = setting(False, "centre observations and divide by their running standard deviation")
    gru: int = setting(0, "units of a recurrent layer, for observations that hide the state; 0 for none", low=0)
    sequence: int = setting(32, "steps a recurrent policy is trained through at once; must divide n_steps", low=1)
    streams: str = setting(
        "separate", "a value for every reward stream; sum: one value of their weighted sum", choices=("separate", "sum")
    )
    balance: str = setting(
        "none",
        "streams by their weights; or by their policy gradients: a direction in which none loses (min_norm), or without"
        " what each has against the others (project)",
        choices=("none", "min_norm", "project"),
    )
    balance_only: list[str] = setting([], "streams that are balanced, the others are added by weight; none for all")
    blend: str = setting(
        "none",
        "how weights that are `learned` find what serves the task: aligned (by the next rollout's gradient), implicit"
        " (by where the policy would end), search (by trying: ten rollouts a step)",
        choices=("none", "aligned", "implicit", "search"),
    )
    blend_rate: float = setting(0.2, "of learned weights: a rollout's step of softplus^-1, at most", above=0, high=10)
    zero_last: bool = setting(False, "whether it begins at action 0: a residual begins as its base (`env.base`)")
    imitate: Any = setting(0.0, "learning rate of imitating own good episodes (SIL) over PPO's; a number or a schedule")
    imitate_updates: int = setting(4, "of it after each rollout", low=1)
    imitate_max_age: int = setting(0, "rollouts that episodes are kept; 0 for any number", low=0)
    imitate_baseline: str = setting(
        "value", "what a return has to beat: its state's value, or the median episode's", choices=("value", "median")
    )
    imitate_cap: float = setting(
        5.0,
        "-log of the probability of each number of an action, z^2 / 2 of a Gaussian; rarer ones are not imitated",
        above=0,
    )
    log_std: float = setting(0.0, "where log-deviations of a Gaussian policy begin", low=-10, high=2)
    net: str = setting(
        "mlp",
        "what reads flat observations; glyphs: those with declared parts (NetHack); trees: boosted trees instead of a "
        "network, one more a minibatch, so take large ones, as batch_size=512",
        choices=("mlp", "glyphs", "trees"),
    )
    tree_depth: int = setting(4, "questions a tree asks", low=1, high=10)
    tree_bins: int = setting(32, "thresholds an input may be compared with, and 1 [256]", low=2, high=1024)
    tree_rate: float = setting(0.1, "share of the gradient that a tree adds to the policy's outputs", above=0, high=10)
    tree_value_rate: float = setting(0.02, "the same of the values", above=0, high=1)
    masks: bool = setting(True, "choose among the actions that the environment's mask allows, where it gives one")
    overlap: bool = setting(
        False, "collect the next rollout while the last one is learnt from, on a second core: one rollout of policy lag"
    )
    path: str = setting(
        "auto",
        "the update of small networks: numpy, compiled by numba (extra `fast`), or torch's autograd (eager); auto: "
        "compiled from 2 million learned rows on, 200,000 frames at ten epochs",
        choices=("auto", "numba", "numpy", "eager"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_if(
            self.balance_only and self.balance == "none",
            "agent.balance_only={balance_only} balances nothing; give agent.balance=min_norm or project",
        )
        self.refuse_if(
            self.balance != "none" and self.blend != "none",
            "agent.balance={balance} and agent.blend={blend} both decide what a stream counts; give one of them",
        )
        self.refuse_if(
            self.gru and self.blend == "implicit",
            "agent.blend=implicit needs second derivatives, which agent.gru={gru} lacks; take aligned or search",
        )
        flags = {"gru": self.gru, "normalize_obs": self.normalize_obs, "blend": self.blend != "none"}
        for name, value in {**flags, "imitate": self.imitate}.items():
            self.refuse_if(
                value and self.net == "trees",
                f"agent.{name}={{{name}}} is for networks, and agent.net={{net}} has no use for it; leave one out",
            )
        self.refuse_if(
            self.overlap and (self.net == "trees" or self.blend != "none"),
            "agent.overlap learns from a rollout that an earlier policy collected, which agent.net=trees (here: {net}) "
            "and agent.blend (here: {blend}) do not; give agent.overlap=false",
        )
        Schedule(self.imitate, "agent.imitate")
        self.refuse_if(
            self.imitate and (self.gru or self.streams == "sum"),
            "agent.imitate learns from single steps, with a value of each goal; take gru=0 and streams=separate",
        )

    def rows_a_batch(self, n_envs: int) -> int:
        """Rows of a minibatch; for a recurrent policy, sequences. A ValueError where a rollout does not divide."""
        size = n_envs * self.n_steps
        if self.gru:
            for name, whole in (("n_steps", self.n_steps), ("batch_size", self.batch_size)):
                if whole % self.sequence:
                    raise ValueError(
                        f"agent.{name}={whole} does not divide into sequences of agent.sequence={self.sequence}; "
                        f"give agent.sequence={math.gcd(self.n_steps, self.batch_size)}"
                    )
        if size % self.batch_size or size < 2:
            near = [b for b in range(2, size + 1) if size % b == 0] or [2]
            best = min(near, key=lambda b: abs(math.log(b / self.batch_size)))
            raise ValueError(
                f"n_envs * agent.n_steps = {n_envs} * {self.n_steps} = {size} transitions do not divide into "
                f"minibatches of agent.batch_size={self.batch_size}; give {best}, or another divisor of {size}"
            )
        return self.batch_size // self.sequence if self.gru else self.batch_size

    def rows_a_gradient(self, n_envs: int, streams: int) -> tuple[int, int]:
        """Rows (sequences) for the gradients of K streams, and every how many rollouts: at most 2.5 % of the cost."""
        decide = self.balance != "none" or self.blend in ("aligned", "implicit")
        rows, minibatches = 1024 if decide else 256, self.n_epochs * n_envs * self.n_steps / self.batch_size
        cost = 8 + (1 + 2 * streams) / 3 * rows / self.batch_size
        every = 1 if decide else math.ceil(cost / (0.025 * minibatches))
        return max(rows // self.sequence, 1) if self.gru else rows, every
