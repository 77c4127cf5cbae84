"""Settings of `agents.dyna.agent.Dyna`: every published variant is a preset, and a preset is nothing but a dict of switches.

| preset | switches, beside the defaults | source |
| --- | --- | --- |
| mbpo | none: the defaults | Janner et al. 2019, arXiv 1906.08253 |
| sac | update=none: no model at all; DQN where actions are discrete | Haarnoja et al. 2018, arXiv 1812.05905 |
| single | one Gaussian network: cheap, and enough for classic control | |
| dhmbpo | update=svg; critics with LayerNorm; bounded targets | Kubo et al. 2025, arXiv 2512.15439 |
| lipschitz | one deterministic network; robust critics | Zheng et al. 2023, "Is Model Ensemble Necessary?" |
| hl_gauss | the value is a histogram | Farebrother et al. 2024, arXiv 2403.03950 |
| coplanner | planner=upmpc: curious where it acts, careful where it imagines | Wang et al. 2024, arXiv 2310.07220 |
| macura | rollouts go on as long as the members agree | Frauenknecht et al. 2024, arXiv 2405.19014 |
| morec | long rollouts of outcomes that a discriminator takes for real | Luo et al. 2024, arXiv 2310.05422 |
| mopo | pays less where the model is unsure | Yu et al. 2020, arXiv 2005.13239 |
| sindy | model=sindy: sparse polynomials | Zolman et al. 2024, arXiv 2403.09110 |
| factored | model=factored: discrete entries one by one | Young et al. 2023, arXiv 2211.02222 |
| pets | planner=cem: no policy, only a model | Chua et al. 2018, arXiv 1805.12114 |

Difference from the sources: sizes and amounts are for one core of a CPU. On a GPU take theirs: model_hidden=[200,200,
200,200], members=7, dreams_per_step=400, updates_per_step=20; for dhmbpo model_hidden=[256,256], members=8, critics=5,
target=mean, training_horizon=5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from agents.off_policy.critics import LearnerConfig

DEFAULTS: dict[str, Any] = {
    "update": "buffer",
    "model": "ensemble",
    "members": 5,
    "model_kind": "gauss",
    "model_hidden": [128, 128, 128],
    "model_norm": "none",
    "model_every": 250,
    "model_steps": 500,
    "horizon": 1,
    "dreams_per_step": 100,
    "retain": 2,
    "real_ratio": 0.05,
    "updates_per_step": 5.0,
    "training_horizon": 3,
    "distribution_horizon": 5,
    "uncertainty": "none",
    "penalty_weight": 1.0,
    "filter": "none",
    "filter_candidates": 8,
    "filter_threshold": "auto",
    "planner": "none",
    "alpha_real": 1.0,
    "alpha_imagined": 2.0,
    "plan_candidates": 5,
    "plan_horizon": 5,
    "adaptive": "none",
    "kappa": 1.0,
    "reward_in_dreams": "auto",
    "batch_size": 256,
    "learning_starts": 500,
    "normalize_obs": "first",
    "epsilon": 0.1,
    "net_arch": [128, 128],
    "learning_rate": 1e-3,
    "gamma": 0.99,
    "critics": 2,
    "target": "min",
    "norm": "none",
    "dropout": 0.0,
    "lipschitz": "none",
    "head": "mse",
    "entropy": "auto",
    "bounded_targets": False,
}
PRESETS: dict[str, dict[str, Any]] = {
    "mbpo": {},
    "sac": {"update": "none"},
    "single": {"members": 1},
    "dhmbpo": {
        "update": "svg",
        "updates_per_step": 1.0,
        "training_horizon": 3,
        "distribution_horizon": 20,
        "dreams_per_step": 10,
        "retain": 1,
        "model_hidden": [128, 128],
        "model_steps": 250,
        "model_norm": "layer",
        "norm": "layer",
        "entropy": "auto_0.1",
        "bounded_targets": True,
    },
    "lipschitz": {"members": 1, "model_kind": "det", "lipschitz": "robust"},
    "hl_gauss": {"head": "hl_gauss"},
    "coplanner": {"planner": "upmpc", "real_ratio": 0.5, "dreams_per_step": 20},
    "macura": {"adaptive": "macura", "horizon": 10, "dreams_per_step": 20},
    "morec": {"filter": "morec", "horizon": 20, "dreams_per_step": 10},
    "mopo": {"uncertainty": "aleatoric_max", "horizon": 5, "dreams_per_step": 20},
    "sindy": {"model": "sindy", "members": 20, "horizon": 5, "dreams_per_step": 20},
    "factored": {"model": "factored", "members": 1, "horizon": 10, "dreams_per_step": 10, "normalize_obs": "none"},
    "pets": {"update": "none", "planner": "cem", "updates_per_step": 0.0, "plan_horizon": 15, "plan_candidates": 200},
}
CHOICES: dict[str, tuple[str, ...]] = {
    "preset": tuple(PRESETS),
    "update": ("none", "buffer", "svg"),
    "model": ("ensemble", "sindy", "factored", "true"),
    "model_kind": ("gauss", "det"),
    "model_norm": ("none", "layer"),
    "uncertainty": ("none", "aleatoric_max", "pairwise_max", "ens_std", "ens_var", "loo_kl"),
    "filter": ("none", "morec"),
    "planner": ("none", "upmpc", "cem", "mppi"),
    "adaptive": ("none", "macura"),
    "reward_in_dreams": ("auto", "head"),
    "normalize_obs": ("none", "first"),
    "compile": ("auto", "off"),
}
_RANGES: dict[str, tuple[float, float, str]] = {
    "members": (1, 1e3, "a positive number of members"),
    "model_hidden": (1, 1e6, "positive layer widths"),
    "model_every": (1, 1e9, "a positive number of environment steps"),
    "model_steps": (1, 1e9, "a positive number of gradient steps"),
    "dreams_per_step": (1e-6, 1e6, "a positive number of rollouts"),
    "retain": (1, 1e4, "how many refits imagined transitions are kept, 1 or more"),
    "real_ratio": (0, 1, "a share in [0, 1]"),
    "updates_per_step": (0, 1e4, "0 or more updates"),
    "training_horizon": (1, 1e3, "a positive number of steps"),
    "distribution_horizon": (1, 1e4, "a positive number of steps"),
    "penalty_weight": (-1e6, 1e6, "a number; a negative one is optimism"),
    "filter_candidates": (2, 1e3, "at least 2 outcomes to choose from"),
    "alpha_real": (0, 1e6, "0 or more"),
    "alpha_imagined": (0, 1e6, "0 or more"),
    "plan_candidates": (2, 1e6, "at least 2 plans"),
    "plan_horizon": (1, 1e4, "a positive number of steps"),
    "kappa": (1e-9, 1e6, "a positive number"),
    "batch_size": (1, 1e7, "a positive number of transitions"),
    "buffer_size": (2, 1e9, "at least 2 transitions"),
    "learning_starts": (2, 1e9, "at least 2 environment steps"),
    "epsilon": (0, 1, "a probability in [0, 1]"),
    "rollout": (1, 1e9, "a positive number of environment steps"),
}


@dataclass
class DynaConfig:
    """None means: as the preset says, else as `DEFAULTS` does (in brackets)."""

    search: ClassVar[dict[str, tuple]] = {  # what `runners.tune` tries
        "learning_rate": (1e-4, 3e-3, "log"),
        "gamma": (0.9, 0.999),
        "updates_per_step": (0.5, 20.0, "log"),
        "real_ratio": (0.05, 1.0, "log"),
        "model_steps": (100, 2000, "log"),
        "batch_size": (64, 128, 256, 512, "choice"),
    }
    presets: ClassVar[tuple[str, ...]] = tuple(PRESETS)
    preset: str = (
        "mbpo"  # mbpo, sac, single, dhmbpo, lipschitz, hl_gauss, coplanner, macura, morec, mopo, sindy, factored, pets
    )
    update: str | None = (
        None  # none (model-free), buffer (learn from imagined rows) or svg (through the model) (buffer)
    )
    model: str | None = None  # ensemble, sindy, factored or true, the simulator itself (ensemble)
    members: int | None = None  # how many models have an opinion (5)
    elites: int | None = None  # the best of them imagine; None for five of seven
    model_kind: str | None = None  # gauss, or det: without noise (gauss)
    model_hidden: list[int] | None = None  # units of the model's hidden layers ([128, 128, 128])
    model_norm: str | None = None  # none, or layer for LayerNorm (none)
    model_every: int | None = None  # environment steps between two fits (250)
    model_steps: int | None = None  # gradient steps of a fit, at most (500)
    horizon: Any = None  # steps of a rollout, or "linear:1:15:20000:150000" over environment steps (1)
    dreams_per_step: float | None = None  # rollouts imagined for an environment step (100)
    retain: int | None = None  # fits that imagined transitions outlive (2)
    real_ratio: float | None = None  # share of a batch that really happened, with update=buffer (0.05)
    updates_per_step: float | None = None  # updates of the agent for an environment step (5)
    training_horizon: int | None = None  # svg: steps that gradients go through (3)
    distribution_horizon: int | None = None  # svg: steps imagined to find states to begin from (5)
    uncertainty: str | None = None  # what is taken off imagined pay; see agents.dyna.penalties (none)
    penalty_weight: float | None = None  # how strongly; negative pays for being unsure (1)
    filter: str | None = None  # morec: a discriminator picks the likeliest of several outcomes (none)
    filter_candidates: int | None = None  # outcomes it picks from (8)
    filter_threshold: Any = None  # below which a rollout ends, or auto: 5th percentile of real ones (auto)
    planner: str | None = None  # upmpc picks among the policy's actions; cem and mppi search (none)
    alpha_real: float | None = None  # upmpc: how much disagreement attracts where the agent acts (1)
    alpha_imagined: float | None = None  # upmpc: how much it repels at the first imagined step (2)
    plan_candidates: int | None = None  # plans compared (5)
    plan_horizon: int | None = None  # steps of a plan (5)
    adaptive: str | None = None  # macura: rollouts end where the members disagree (none)
    kappa: float | None = None  # macura: how much disagreement is allowed, in its usual amount (1)
    reward_in_dreams: str | None = None  # auto: the reward itself where it can be asked; head: always a network (auto)
    relabel: bool = True  # pay replayed and imagined rows what the reward says now; False: what it said then
    batch_size: int | None = None  # transitions of an update (256)
    buffer_size: int = 200_000  # transitions remembered
    learning_starts: int | None = None  # environment steps with random actions (500)
    normalize_obs: str | None = None  # first: whitened once, by the random steps; none (first)
    epsilon: float | None = None  # share of random actions, where actions are discrete (0.1)
    rollout: int = 100  # environment steps between two moments at which a run can be saved
    compile: str = "auto"  # auto: updates are captured as CUDA graphs on a GPU; off
    net_arch: list[int] | None = None  # hidden units of actor and critics ([128, 128])
    learning_rate: float | None = None  # of actor and critics (1e-3)
    gamma: float | None = None  # discount (0.99)
    tau: float = 0.005  # share of the new critics in their targets
    critics: int | None = None  # how many (2)
    target: str | None = None  # min or mean over the critics (min)
    norm: str | None = None  # of the critics: none, layer or batch (none)
    dropout: float | None = None  # of the critics (0)
    lipschitz: str | None = None  # none, spectral or robust critics (none)
    lipschitz_weight: float = 0.1  # of the robust penalty
    lipschitz_bound: float = 3.0  # spectral: the largest gain of a layer, on whitened observations
    lipschitz_radius: float = 0.1  # how far it looks, in standard deviations of observations
    head: str | None = None  # how a critic says a value: mse, hl_gauss or two_hot (mse)
    entropy: Any = None  # weight of the entropy: auto learns it, auto_0.1 from 0.1 on, a number fixes it (auto)
    target_entropy: float | None = None  # of the policy; None for -A
    activation: str = "relu"  # of actor and critics
    bounded_targets: bool | None = None  # keep targets within what recent rewards can add up to (False)
    max_grad_norm: float = 10.0  # longer gradients are shortened to it

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ValueError(f"agent.preset={self.preset!r} is unknown; give one of {', '.join(PRESETS)}")
        for name, value in {**DEFAULTS, **PRESETS[self.preset]}.items():
            if getattr(self, name) is None:
                setattr(self, name, list(value) if isinstance(value, list) else value)
        if self.elites is None:
            self.elites = max(1, self.members * 5 // 7)  # type: ignore[operator]
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"agent.{name}={getattr(self, name)!r} is unknown; give one of {', '.join(choices)}")
        for name, (low, high, words) in _RANGES.items():
            value = getattr(self, name)
            for number in value if isinstance(value, list) else [value]:
                if not low <= number <= high:
                    raise ValueError(f"agent.{name}={value} is out of range; give {words}")
        if not 1 <= self.elites <= self.members:  # type: ignore[operator]
            raise ValueError(f"agent.elites={self.elites} is out of range; give 1 to agent.members={self.members}")
        Horizon(self.horizon)
        self.part(LearnerConfig)  # checks its own
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        asks = self.member_predictions
        clashes = {
            "update=svg needs a model that gradients flow through, and model=factored has none; use update=buffer": (
                self.update == "svg" and self.model == "factored"
            ),
            "update=svg needs a model that gradients flow through, and model=true has none; use update=buffer": (
                self.update == "svg" and self.model == "true"
            ),
            f"{asks} compares the members of model=ensemble or sindy, not of model={self.model}": (
                bool(asks) and self.model not in ("ensemble", "sindy")
            ),
            f"{asks} compares members, and members={self.members} has nothing to compare; give 2 or more": (
                bool(asks) and asks != "uncertainty=aleatoric_max" and self.members == 1
            ),
            f"uncertainty={self.uncertainty} reads how unsure each member is; give model=ensemble, model_kind=gauss": (
                self.uncertainty in ("aleatoric_max", "ens_var", "loo_kl")
                and (self.model, self.model_kind) != ("ensemble", "gauss")
            ),
            "filter=morec chooses among outcomes that differ; give several members, or model_kind=gauss": (
                self.filter == "morec"
                and (self.model not in ("ensemble", "sindy") or (self.members == 1 and self.model_kind == "det"))
            ),
            "planner=cem or mppi acts without a policy, so no updates are needed; give update=none": (
                self.planner in ("cem", "mppi") and self.update != "none"
            ),
            "updates_per_step=0 leaves the policy as it is; give a number above 0, or planner=cem": (
                self.updates_per_step == 0 and self.planner not in ("cem", "mppi")
            ),
            "update=none imagines nothing that filter, uncertainty or adaptive could change; use update=buffer": (
                self.update == "none"
                and (self.filter, self.uncertainty, self.adaptive) != ("none", "none", "none")
                and self.planner == "none"
            ),
        }
        for sentence, true in clashes.items():
            if true:
                raise ValueError(f"agent: {sentence}")

    @property
    def member_predictions(self) -> str:
        """The switch that compares members, if one does."""
        if self.planner == "upmpc":
            return "planner=upmpc"
        if self.adaptive == "macura":
            return "adaptive=macura"
        return "" if self.uncertainty == "none" else f"uncertainty={self.uncertainty}"

    @property
    def uses_model(self) -> bool:
        """Whether anything is imagined."""
        return self.update != "none" or self.planner != "none"

    def part(self, kind: type[Any], **changes: Any) -> Any:
        """Another dataclass, from the fields it shares with this one and `changes`."""
        shared = {f.name: getattr(self, f.name) for f in fields(kind) if hasattr(self, f.name)}
        return kind(**{**shared, **changes})


class Horizon:
    """Steps of a rollout, as they grow over training: a number, or `linear:FROM:TO:BEGIN:END`.

    horizon(t) = FROM + (TO - FROM) * clip((t - BEGIN) / (END - BEGIN), 0, 1), rounded down.

    Raises:
        ValueError: for anything else, and for horizons below 1.
    """

    def __init__(self, spec: Any) -> None:
        try:
            if isinstance(spec, str) and spec.startswith("linear:"):
                numbers = [float(x) for x in spec.split(":")[1:]]
            else:
                numbers = [float(spec)] * 2 + [0.0, 1.0]
            self.start, self.stop, self.begin, self.end = numbers
        except (TypeError, ValueError):
            raise ValueError(
                f"agent.horizon={spec!r} is no horizon; give a number of steps, or linear:FROM:TO:BEGIN:END in "
                "environment steps, such as linear:1:15:20000:150000"
            ) from None
        if not (min(self.start, self.stop) >= 1 and max(numbers) < math.inf and self.begin < self.end):
            raise ValueError(f"agent.horizon={spec!r} is out of range; give steps of 1 or more, and BEGIN before END")

    def __call__(self, timesteps: int) -> int:
        share = min(max((timesteps - self.begin) / (self.end - self.begin), 0.0), 1.0)
        return int(self.start + (self.stop - self.start) * share)

    @property
    def longest(self) -> int:
        return int(max(self.start, self.stop))
