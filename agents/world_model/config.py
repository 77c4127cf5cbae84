"""Settings of `agents.world_model.agent`: every published variant is a dict of switches.

    preset      cell      what shapes the latent                        behaviour   source
    r2dreamer   rssm      Barlow between latent and embedding           imag_ac     R2-Dreamer (2025); the default
    dreamer     rssm      reconstruction                                imag_ac     Hafner et al. 2023, 2301.04104
    repo        rssm      reward and end alone, KL under a budget       imag_ac     Zhu et al. 2023, 2309.00082
    infopower   rssm      InfoNCE and empowerment, KL under a budget    imag_ac     Bharadhwaj et al. 2022, 2204.08585
    drama       ssm       reconstruction; frequency-balanced replay     imag_ac     Wang et al. 2025, 2410.08893
    tdmpc2      simnorm   its own future latents, reward, value         mppi        Hansen et al. 2024, 2310.16828
    mrq         simnorm   its own future latents, reward, end           td3         Fujimoto et al. 2025, 2501.16142

A field that is None takes its preset's value. Sizes and amounts are made for one CPU core: some 30 environment steps a
second. On a GPU take those of the sources: latent=512, hidden=512, embed=512, groups=32, classes=32, batch_length=64,
imagine_starts=0, horizon=15; for mrq and tdmpc2 batch_size=256, train_ratio=256, burst=250, plan_samples=512,
plan_policy=24, plan_elites=64, plan_iterations=6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar

_DREAM: dict[str, Any] = {
    "cell": "rssm",
    "behaviour": "imag_ac",
    "kl": "fixed",
    "recon": 0.0,
    "barlow": 0.0,
    "infonce": 0.0,
    "consistency": 0.0,
    "reward_weight": 1.0,
    "continue_weight": 1.0,
    "value_weight": 0.0,
    "empowerment": 0.0,
    "empowerment_reward": 0.0,
    "sampling": "uniform",
    "n_step": 1,
    "unroll": 0,
    "horizon": 10,
    "gamma": 0.99,
    "batch_size": 16,
    "batch_length": 16,
    "train_ratio": 128.0,
    "model_learning_rate": 1e-3,
    "actor_learning_rate": 3e-4,
    "critic_learning_rate": 3e-4,
    "entropy_weight": 3e-4,
    "critics": 1,
    "exploration": 0.0,
    "max_grad_norm": 100.0,
}
_UNROLLED: dict[str, Any] = {
    **_DREAM,
    "cell": "simnorm",
    "kl": "none",
    "unroll": 5,
    "batch_size": 64,
    "batch_length": 1,
    "train_ratio": 64.0,
    "model_learning_rate": 3e-4,
    "actor_learning_rate": 3e-4,
    "critic_learning_rate": 3e-4,
    "entropy_weight": 0.0,
    "max_grad_norm": 20.0,
}
PRESETS: dict[str, dict[str, Any]] = {
    "r2dreamer": {**_DREAM, "barlow": 0.05},
    "dreamer": {**_DREAM, "recon": 1.0},
    "repo": {**_DREAM, "kl": "repo"},
    "infopower": {**_DREAM, "kl": "repo", "infonce": 1.0, "empowerment": 0.1, "empowerment_reward": 0.01},
    "drama": {**_DREAM, "cell": "ssm", "recon": 1.0, "sampling": "dfs"},
    "tdmpc2": {
        **_UNROLLED,
        "behaviour": "mppi",
        "consistency": 20.0,
        "reward_weight": 0.1,
        "value_weight": 0.1,
        "unroll": 3,
        "horizon": 3,
        "entropy_weight": 1e-4,
        "critics": 5,
        "model_learning_rate": 1e-3,
        "actor_learning_rate": 1e-3,
        "critic_learning_rate": 1e-3,
    },
    "mrq": {
        **_UNROLLED,
        "behaviour": "td3",
        "consistency": 1.0,
        "reward_weight": 0.1,
        "continue_weight": 0.1,
        "sampling": "lap",
        "n_step": 3,
        "critics": 2,
        "exploration": 0.2,
    },
}
_CHOICES = {
    "preset": tuple(PRESETS),
    "cell": ("rssm", "simnorm", "ssm"),
    "kl": ("fixed", "repo", "none"),
    "behaviour": ("imag_ac", "mppi", "td3"),
    "sampling": ("uniform", "dfs", "lap"),
    "net": ("mlp", "glyphs"),
}
_WEIGHT = (0.0, 1e6, "0 (off) or a positive weight")
_RATE = (1e-12, 1.0, "a number in (0, 1]")
_RANGES: dict[str, tuple[float, float, str]] = {
    **dict.fromkeys(
        ("recon", "barlow", "infonce", "consistency", "reward_weight", "continue_weight", "value_weight"), _WEIGHT
    ),
    **dict.fromkeys(("empowerment", "empowerment_reward", "kl_dyn", "kl_rep", "free_nats", "replay_value"), _WEIGHT),
    **dict.fromkeys(("model_learning_rate", "actor_learning_rate", "critic_learning_rate", "dual_lr", "tau"), _RATE),
    **dict.fromkeys(
        ("latent", "classes", "groups", "hidden", "embed", "batch_size", "batch_length", "buffer_size"),
        (1, 1e9, "a positive whole number"),
    ),
    **dict.fromkeys(("n_step", "horizon", "critics", "rollout", "burst"), (1, 1e6, "a positive whole number")),
    **dict.fromkeys(("learning_starts", "refit", "unroll", "imagine_starts"), (0, 1e9, "0 or a whole number")),
    "kl_budget": (1e-6, 1e6, "a positive number of nats"),
    "kl_balance": (0, 1, "a number in [0, 1]"),
    "entropy_weight": (0, 10, "a number in [0, 10]"),
    "exploration": (0, 2, "a number in [0, 2]"),
    "gamma": (1e-12, 1, "a discount in (0, 1]"),
    "lambda_": (0, 1, "a number in [0, 1]"),
    "train_ratio": (1e-6, 1e7, "a positive number of replayed steps per environment step"),
    "max_grad_norm": (1e-12, 1e9, "a positive number"),
    "plan_samples": (2, 1e5, "at least 2 plans"),
    "plan_elites": (1, 1e5, "a positive number of plans"),
    "plan_policy": (0, 1e5, "0 or a number of plans"),
    "plan_iterations": (1, 1e3, "a positive number of rounds"),
}


@dataclass
class WorldModelConfig:
    """Settings; None means as the preset says."""

    search: ClassVar[dict[str, tuple]] = {  # what `runners.tune` tries
        "model_learning_rate": (1e-4, 3e-3, "log"),
        "actor_learning_rate": (3e-5, 1e-3, "log"),
        "critic_learning_rate": (3e-5, 1e-3, "log"),
        "entropy_weight": (1e-5, 1e-2, "log"),
        "train_ratio": (32.0, 512.0, "log"),
        "gamma": (0.9, 0.999),
        "horizon": (3, 15),
    }
    presets: ClassVar[tuple[str, ...]] = tuple(PRESETS)
    preset: str = "r2dreamer"  # r2dreamer, dreamer, repo, infopower, drama, tdmpc2 or mrq
    cell: str | None = None  # rssm (recurrent), ssm (linear recurrence) or simnorm (no memory)
    behaviour: str | None = None  # imag_ac (actor-critic in imagination), mppi (planning), td3 (no imagination)
    kl: str | None = None  # fixed (dyn, rep, free nats), repo (a budget, held by a dual variable) or none
    recon: float | None = None  # weight of reconstructing the observation
    barlow: float | None = None  # of decorrelated agreement between latent and embedding
    infonce: float | None = None  # of telling each row's embedding from the batch's others
    consistency: float | None = None  # of predicted against encoded future latents
    reward_weight: float | None = None  # of the reward head's loss
    continue_weight: float | None = None  # of the loss of the head that says whether the episode goes on
    value_weight: float | None = None  # of the value loss in what shapes the latent (mppi)
    empowerment: float | None = None  # of the inverse-dynamics loss
    empowerment_reward: float | None = None  # what a nat of empowerment pays in imagination
    sampling: str | None = None  # uniform, dfs (rarely trained rows first) or lap (large errors first; td3)
    n_step: int | None = None  # rewards before the value takes over, where there is no imagination
    unroll: int | None = None  # steps a latent without memory is predicted ahead in training
    horizon: int | None = None  # steps imagined, or planned
    gamma: float | None = None  # discount in (0, 1]
    lambda_: float = 0.95  # of the lambda-return, in [0, 1]
    batch_size: int | None = None  # sequences a minibatch
    batch_length: int | None = None  # steps each is trained on, not counting `unroll`
    train_ratio: float | None = None  # replayed steps per environment step; updates = ratio / (size * length)
    model_learning_rate: float | None = None
    actor_learning_rate: float | None = None
    critic_learning_rate: float | None = None
    entropy_weight: float | None = None
    critics: int | None = None  # value networks, where there is no imagination
    exploration: float | None = None  # deviation of the action noise (td3); half of it, chance of a random Discrete one
    max_grad_norm: float | None = None
    kl_dyn: float = 1.0
    kl_rep: float = 0.1
    free_nats: float = 1.0
    kl_budget: float = 3.0  # nats a step
    kl_balance: float = 5 / 6  # share of the KL that trains the prediction and not the observation's reading
    dual_lr: float = 1e-2
    latent: int = 64  # recurrent units, or length of a latent without memory
    groups: int = 8  # categoricals
    classes: int = 8  # of each
    hidden: int = 96  # units of hidden layers
    embed: int = 96  # length of an encoded observation
    net: str = "mlp"  # what reads flat observations: mlp; glyphs, for those that declare parts, as NetHack's do
    tau: float = 0.02  # how fast the slow value follows, where it follows smoothly
    replay_value: float = 0.3  # weight of the value loss on replayed steps (imag_ac)
    imagine_starts: int = 64  # states a minibatch imagines from; 0 for all
    burst: int = 100  # updates between two copies of the target networks (td3)
    plan_samples: int = 32  # plans drawn a round (mppi)
    plan_policy: int = 12  # more that follow the policy
    plan_elites: int = 8  # best of them
    plan_iterations: int = 3
    buffer_size: int = 100_000  # transitions
    learning_starts: int = 1_000  # transitions by random actions first
    rollout: int = 100  # steps of each environment between two points where a run can be saved
    refit: int = 200  # steps of the reward head alone after the reward has changed
    relabel: bool = True  # False: what was paid at collection, a control

    def __post_init__(self) -> None:
        self._choose("preset")
        for name, value in PRESETS[self.preset].items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        for name in _CHOICES:
            self._choose(name)
        for name, (low, high, words) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"agent.{name}={value} is out of range; give {words}")
            if isinstance(low, int) and "number in" not in words and value != math.floor(value):
                raise ValueError(f"agent.{name}={value} is no whole number; give {words}")
        for wrong, sentence in self._contradictions():
            if wrong:
                raise ValueError(sentence)

    def _choose(self, name: str) -> None:
        value = getattr(self, name)
        if value not in _CHOICES[name]:
            raise ValueError(f"agent.{name}={value!r} is unknown; give one of {', '.join(_CHOICES[name])}")

    def _contradictions(self) -> list[tuple[bool, str]]:
        plain = self.cell == "simnorm"
        return [
            (
                self.behaviour != "imag_ac" and not plain,
                f"agent.behaviour={self.behaviour!r} needs a latent without memory, not agent.cell={self.cell!r}; "
                'give agent.cell="simnorm", or agent.behaviour="imag_ac"',
            ),
            (
                plain and self.kl != "none",
                f'agent.cell="simnorm" is not random and has no KL, but agent.kl={self.kl!r}; give agent.kl="none"',
            ),
            (
                not bool(self.consistency) == bool(self.unroll) == plain,
                f"agent.consistency={self.consistency} and agent.unroll={self.unroll} go together, and with "
                f'agent.cell="simnorm" (it is {self.cell!r}); give both with it, and 0 for both without',
            ),
            (
                self.behaviour != "imag_ac" and not self.unroll,
                f"agent.behaviour={self.behaviour!r} reads a latent that predicts itself, but agent.unroll=0; "
                "give agent.unroll=3 and agent.consistency=1",
            ),
            (
                self.sampling == "lap" and self.behaviour != "td3",
                f'agent.sampling="lap" follows the errors of agent.behaviour="td3", not {self.behaviour!r}; '
                'give agent.sampling="uniform"',
            ),
            (
                self.sampling == "dfs" and self.behaviour != "imag_ac",
                f'agent.sampling="dfs" balances imagination, and agent.behaviour={self.behaviour!r} has none; '
                'give agent.sampling="uniform"',
            ),
            (
                bool(self.empowerment_reward) and not self.empowerment,
                f"agent.empowerment_reward={self.empowerment_reward} needs what agent.empowerment trains; "
                "give agent.empowerment=0.1",
            ),
            (
                bool(self.empowerment) and plain,
                f"agent.empowerment={self.empowerment} compares what was seen before and after an action, and "
                'agent.cell="simnorm" is trained on first moments alone; give 0, or agent.cell="rssm"',
            ),
            (
                bool(self.empowerment_reward) and self.behaviour != "imag_ac",
                f"agent.empowerment_reward={self.empowerment_reward} is paid in imagination, and "
                f"agent.behaviour={self.behaviour!r} learns from none; give 0",
            ),
            (
                not plain and self.batch_length < 2,  # type: ignore[operator]
                f"agent.batch_length={self.batch_length} leaves nothing to remember; give at least 2",
            ),
            (
                plain and self.batch_length != 1,
                f"agent.batch_length={self.batch_length}, but each sequence is unrolled from its first step for "
                f"agent.unroll={self.unroll} steps; give agent.batch_length=1",
            ),
            (
                self.plan_elites > self.plan_samples + self.plan_policy,
                f"agent.plan_elites={self.plan_elites} of {self.plan_samples + self.plan_policy} plans; give fewer",
            ),
        ]


FIELDS = tuple(field.name for field in fields(WorldModelConfig))
