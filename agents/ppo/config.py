"""Settings of `agents.ppo.agent.PPO`; defaults are Stable-Baselines3's, but for the length of a rollout."""

from __future__ import annotations

from dataclasses import dataclass

from envs.settings import Settings, setting


@dataclass
class PPOConfig(Settings):
    """See the file."""

    prefix = "agent."
    learning_rate: float = setting(3e-4, "of Adam", above=0, high=1, tune=(1e-5, 1e-2, "log"))
    gamma: float = setting(
        0.99, "discount of every stream that has none of its own", above=0, high=1, tune=(0.9, 0.9997)
    )
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
    net: str = setting(
        "mlp",
        "what reads flat observations; glyphs: for those with declared parts (NetHack)",
        choices=("mlp", "glyphs"),
    )
    path: str = setting(
        "auto", "update in NumPy where the network allows it, or by torch's autograd", choices=("auto", "eager")
    )
