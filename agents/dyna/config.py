"""Settings of `agents.dyna.agent.Dyna`: every published variant is a preset (`presets.yaml`).

Sizes are for one CPU core. On a GPU take the sources', as model_hidden=[200,200,200,200] members=7 updates_per_step=20.
"""

from dataclasses import dataclass
from typing import Any

from agents.dynamics.rollout import PENALTIES, HorizonSchedule
from agents.off_policy.sac import LearnerConfig
from lodestar.settings import preset_setting, read_presets, setting

PRESETS = read_presets("agents/dyna/presets.yaml")


@dataclass
class DynaConfig(LearnerConfig):
    """Settings of `Dyna`, and those of its actor and critics; None means: as the preset says, else the default."""

    presets = PRESETS

    preset: str = setting("mbpo", "a published variant", choices=tuple(PRESETS))
    update: str = preset_setting(
        "buffer",
        "what actor and critics learn from: real rows alone (none), imagined rows, too (buffer), or through the model",
        "none | buffer | svg",
    )
    model: str = preset_setting("ensemble", "true is the simulator itself", "ensemble | sindy | factored | true")
    members: int = preset_setting(5, "models in the ensemble", "[1, 1000]")
    elites: int | None = setting(None, "the best of them imagine; None for five of seven")
    model_kind: str = preset_setting("gauss", "det predicts no noise", "gauss | det")
    model_hidden: list[int] = preset_setting([128, 128, 128], "units of the model's hidden layers", ">= 1")
    model_norm: str = preset_setting("none", "layer for LayerNorm", "none | layer")
    model_every: int = preset_setting(250, "environment steps between two fits of the model", ">= 1")
    model_steps: int = preset_setting(500, "gradient steps of a fit, at most", ">= 1", tune=(100, 2000, "log"))
    horizon: Any = preset_setting(1, 'steps of a rollout, or "linear:1:15:20000:150000" over environment time')
    rollouts_per_step: float = preset_setting(100, "rollouts imagined an environment step", "(0, 1e6]")
    retain: int = preset_setting(2, "fits of the model for which imagined transitions are kept", ">= 1")
    real_ratio: float = preset_setting(0.05, "real share of a batch", "[0, 1]", tune=(0.05, 1.0, "log"))
    updates_per_step: float = preset_setting(
        5.0, "updates of the agent for an environment step", "[0, 1e4]", tune=(0.5, 20.0, "log")
    )
    training_horizon: int = preset_setting(3, "svg: steps that gradients pass through", ">= 1")
    distribution_horizon: int = preset_setting(5, "svg: steps imagined to find states to begin from", ">= 1")
    uncertainty: str = preset_setting("none", "penalty on imagined rewards", choices=("none", *PENALTIES))
    penalty_weight: float = preset_setting(1.0, "of that; below 0 it rewards uncertainty", "[-1e6, 1e6]")
    filter: str = preset_setting("none", "morec picks outcomes that look real", "none | morec")
    filter_candidates: int = preset_setting(8, "outcomes it picks from", ">= 2")
    filter_threshold: Any = preset_setting("auto", "score that ends a rollout; auto: 5th percentile of real")
    planner: str = preset_setting("none", "upmpc picks the policy's; others search", "none | upmpc | cem | mppi")
    alpha_real: float = preset_setting(1.0, "upmpc: weight of uncertainty, sought when acting", ">= 0")
    alpha_imagined: float = preset_setting(2.0, "upmpc: the same, avoided at the first imagined step", ">= 0")
    plan_candidates: int = preset_setting(5, "plans compared", ">= 2")
    plan_horizon: int = preset_setting(5, "steps of a plan", ">= 1")
    adaptive: str = preset_setting("none", "macura: ends where members disagree", "none | macura")
    kappa: float = preset_setting(1.0, "macura: allowed disagreement, as a multiple of the usual", "> 0")
    reward_source: str = preset_setting(
        "auto", "imagined: the reward itself where possible, or a network", "auto | head"
    )
    relabel: bool = setting(True, "recompute rewards when rows are sampled; False: those of the time of collection")
    batch_size: int = preset_setting(256, "rows of an update", ">= 1", tune=(64, 128, 256, 512, "choice"))
    demos: str = setting("", "a recording, or the name of one that ships, to learn from beside what happens")
    demo_share: float = setting(0.5, "of the real rows of a batch; 0 pours demos into the replay", "[0, 1)")
    imitate: float = setting(0.0, "share that own rewarded episodes have, as bounds of values", "[0, 1)")
    buffer_size: int = setting(200_000, "transitions stored", ">= 2")
    learning_starts: int = preset_setting(500, "environment steps with random actions", ">= 2")
    actor_from: int = setting(0, "environment steps before the actor learns, and not the critics alone", ">= 0")
    normalize_obs: str = preset_setting("first", "first: by the random steps", "none | first")
    epsilon: float = preset_setting(0.1, "share of random actions, where they are discrete", "[0, 1]")
    rollout: int = setting(100, "environment steps between two points where a run can be saved", ">= 1")
    net_arch: list[int] = preset_setting([128, 128], "units of the hidden layers of actor and critics", ">= 1")
    learning_rate: float = preset_setting(1e-3, "of actor, critics", "(0, 1]", tune=(1e-4, 3e-3, "log"))
    gamma: float = preset_setting(0.99, "discount", "(0, 1]", tune=(0.9, 0.999))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.elites is None:
            self.elites = max(1, self.members * 5 // 7)
        self.refuse_if(
            not 1 <= self.elites <= self.members,
            "agent.elites={elites} is out of range; give 1 to {members}, agent.members",
        )
        HorizonSchedule(self.horizon)
        self._check_model()
        self._check_updates()

    def _check_model(self) -> None:
        has_members = self.model in ("ensemble", "sindy")
        has_deviations = self.model == "ensemble" and self.model_kind == "gauss"
        self.refuse_if(
            self.update == "svg" and self.model in ("factored", "true"),
            "agent: update=svg needs gradients of the model, and model={model} has none; use update=buffer",
        )
        for name in ("planner", "adaptive", "uncertainty"):
            value = getattr(self, name)
            if value not in ("upmpc", "macura", *PENALTIES):
                continue
            self.refuse_if(
                not has_members,
                f"agent: {name}={value} compares members of model=ensemble or sindy, not of {{model}}",
            )
            self.refuse_if(
                value != "aleatoric_max" and self.members == 1,
                f"agent: {name}={value} compares members, and members={{members}} has nothing to compare; "
                "give 2 or more",
            )
        self.refuse_if(
            self.uncertainty in ("aleatoric_max", "ens_var", "loo_kl") and not has_deviations,
            "agent: uncertainty={uncertainty} reads each member's deviations; give model=ensemble, model_kind=gauss",
        )
        is_certain = self.members == 1 and self.model_kind == "det"
        self.refuse_if(
            self.filter == "morec" and (not has_members or is_certain),
            "agent: filter=morec chooses among outcomes that differ; give several members, or model_kind=gauss",
        )

    def _check_updates(self) -> None:
        searches = self.planner in ("cem", "mppi")
        self.refuse_if(searches and self.update != "none", "agent: planner={planner} has no policy; give update=none")
        self.refuse_if(
            self.updates_per_step == 0 and not searches,
            "agent: updates_per_step=0 leaves the policy as it is; give a number above 0, or planner=cem",
        )
        changes_rollouts = (self.filter, self.uncertainty, self.adaptive) != ("none", "none", "none")
        self.refuse_if(
            changes_rollouts and not self.uses_model,
            "agent: update=none imagines nothing for filter, uncertainty or adaptive to change; use update=buffer",
        )
        self.refuse_if(
            self.actor_from and self.update == "svg",
            "agent.actor_from={actor_from} is for update=none or buffer, not for svg, which always moves both",
        )
        self.refuse_if(
            (self.demos or self.imitate) and not self.relabel,
            "agent.relabel=False keeps old rewards, which demos and imitate have not; leave one out",
        )
        other_shares = self.demo_share if self.demos else 0.0
        self.refuse_if(
            self.imitate and (self.update == "svg" or self.imitate + other_shares >= 1),
            "agent.imitate={imitate} needs update=none or buffer, and less than 1 in sum with demo_share={demo_share}",
        )

    @property
    def uses_model(self) -> bool:
        return self.update != "none" or self.planner != "none"
