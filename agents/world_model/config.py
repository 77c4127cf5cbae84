"""Settings of `agents.world_model.agent`: every published variant is a preset (`presets.yaml`).

Sizes and amounts are for one CPU core. On a GPU take those of the sources, as latent=512, hidden=512, embed=512,
groups=32, classes=32, batch_length=64, imagine_starts=0, horizon=15.
"""

from dataclasses import dataclass

from lodestar.settings import Settings, preset_setting, read_presets, setting

PRESETS = read_presets("agents/world_model/presets.yaml")


@dataclass
class WorldModelConfig(Settings):
    """None means: as the preset says, else the default."""

    presets = PRESETS
    prefix = "agent."

    preset: str = setting("r2dreamer", "a published variant", choices=tuple(PRESETS))
    cell: str = preset_setting(
        "rssm", "a GRU, none, gated sums, or a selective state space", "rssm | simnorm | ssm | mamba"
    )
    behaviour: str = preset_setting("imag_ac", "learned in imagination, planning, or neither", "imag_ac | mppi | td3")
    kl: str = preset_setting("fixed", "with free nats, or under a budget", "fixed | repo | none")
    recon: float = preset_setting(0.0, "weight of reconstructing the observation", ">= 0")
    barlow: float = preset_setting(0.0, "weight of decorrelated agreement between latent and embedding", ">= 0")
    infonce: float = preset_setting(0.0, "weight of telling each row's embedding from the others'", ">= 0")
    consistency: float = preset_setting(0.0, "weight of predicted against encoded future latents", ">= 0")
    reward_weight: float = preset_setting(1.0, "of the reward head's loss", ">= 0")
    continue_weight: float = preset_setting(1.0, "of the loss of predicting the episode's end", ">= 0")
    value_weight: float = preset_setting(0.0, "of the value loss in what shapes the latent (mppi)", ">= 0")
    empowerment: float = preset_setting(0.0, "weight of the inverse-dynamics loss", ">= 0")
    empowerment_reward: float = preset_setting(0.0, "imagined reward for a nat of empowerment", ">= 0")
    alpha_real: float = setting(0.0, "weight of the model's uncertainty, sought when acting (imag_ac)", ">= 0")
    alpha_imagined: float = setting(0.0, "the same, avoided at imagined steps", ">= 0")
    members: int = setting(5, "heads whose disagreement is the uncertainty", "[2, 1000]")
    plan_candidates: int = setting(5, "actions of the policy that are compared to seek uncertainty", ">= 2")
    plan_horizon: int = setting(5, "steps they are followed for", ">= 1")
    sampling: str = preset_setting(
        "uniform", "dfs: seldom drawn rows first; lap: large errors first", "uniform | dfs | lap"
    )
    n_step: int = preset_setting(1, "rewards before the value, where there is no imagination", ">= 1")
    unroll: int = preset_setting(0, "steps a latent without memory is predicted ahead in training", ">= 0")
    horizon: int = preset_setting(10, "steps imagined, or planned", ">= 1", tune=(3, 15))
    gamma: float = preset_setting(0.99, "discount", "(0, 1]", tune=(0.9, 0.999))
    lambda_: float = setting(0.95, "of the lambda-return", "[0, 1]")
    batch_size: int = preset_setting(16, "sequences a minibatch", ">= 1")
    batch_length: int = preset_setting(16, "steps each is trained on, not counting unroll", ">= 1")
    # An update replays batch_size * batch_length steps.
    train_ratio: float = preset_setting(
        128.0, "replayed steps per environment step", "(0, 1e7]", tune=(32.0, 512.0, "log")
    )
    model_learning_rate: float = preset_setting(0.001, "of Adam", "(0, 1]", tune=(1e-4, 3e-3, "log"))
    actor_learning_rate: float = preset_setting(0.0003, "of Adam", "(0, 1]", tune=(3e-5, 1e-3, "log"))
    critic_learning_rate: float = preset_setting(0.0003, "of Adam", "(0, 1]", tune=(3e-5, 1e-3, "log"))
    entropy_weight: float = preset_setting(0.0003, "of the policy's", "[0, 10]", tune=(1e-5, 1e-2, "log"))
    critics: int = preset_setting(1, "value networks, where there is no imagination", ">= 1")
    exploration: float = preset_setting(
        0.0, "deviation of action noise (td3), or twice the chance of a random action", "[0, 2]"
    )
    max_grad_norm: float = preset_setting(100.0, "norm to which gradients are clipped", "> 0")
    kl_dyn: float = setting(1.0, "weight of the KL that trains the prediction", ">= 0")
    kl_rep: float = setting(0.1, "weight of the KL that trains the posterior", ">= 0")
    free_nats: float = setting(1.0, "KL below which neither is trained, in nats", ">= 0")
    kl_budget: float = setting(3.0, "nats a step (repo)", "> 0")
    kl_balance: float = setting(5 / 6, "share of the KL that trains the prediction (repo)", "[0, 1]")
    dual_lr: float = setting(1e-2, "learning rate of the budget's multiplier (repo)", "(0, 1]")
    latent: int = setting(64, "recurrent units, or length of a latent without memory", ">= 1")
    groups: int = setting(8, "categoricals", ">= 1")
    classes: int = setting(8, "of each categorical", ">= 2")
    hidden: int = setting(96, "units of hidden layers", ">= 1")
    embed: int = setting(96, "length of an encoded observation", ">= 1")
    net: str = setting("mlp", "reads flat observations; glyphs: in parts, as NetHack's", "mlp | glyphs")
    tau: float = setting(0.02, "share of the value in its slow copy after each step", "(0, 1]")
    replay_value: float = setting(0.3, "weight of the value loss on replayed steps (imag_ac)", ">= 0")
    imagine_starts: int = setting(64, "states of a minibatch that imagination begins from; 0 for all", ">= 0")
    burst: int = setting(100, "updates between two copies of the target networks (td3)", ">= 1")
    plan_samples: int = setting(32, "plans drawn in each iteration (mppi)", ">= 2")
    plan_policy: int = setting(12, "more plans that follow the policy", ">= 0")
    plan_elites: int = setting(8, "the best plans, which the next iteration follows", ">= 1")
    plan_iterations: int = setting(3, "of the planner", ">= 1")
    demos: str = setting("", "a recording, or the name of one that ships, to learn from beside what happens")
    demo_share: float = setting(0.5, "of the sequences of a batch; 0 pours demos into the replay", "[0, 1)")
    buffer_size: int = setting(100_000, "transitions stored", ">= 1")
    learning_starts: int = setting(1_000, "transitions by random actions first", ">= 0")
    rollout: int = setting(100, "steps of each environment between two points where a run can be saved", ">= 1")
    refit: int = setting(200, "steps of the reward head alone after the reward has changed", ">= 0")
    relabel: bool = setting(True, "recompute rewards when sampled; False: those of the time of collection, a control")

    @property
    def measures_uncertainty(self) -> bool:
        return self.alpha_real > 0 or self.alpha_imagined > 0

    def __post_init__(self) -> None:
        super().__post_init__()
        # Without a memory a latent learns by being unrolled from the first step of a sequence.
        has_memory = self.cell != "simnorm"
        imagines = self.behaviour == "imag_ac"
        self.refuse_if(
            not imagines and has_memory,
            "agent.behaviour={behaviour} needs a latent without memory, not agent.cell={cell}; give agent.cell=simnorm",
        )
        has_kl = self.kl != "none"
        self.refuse_if(has_kl and not has_memory, "agent.cell=simnorm has no KL; give agent.kl=none, not {kl}")
        self.refuse_if(
            (self.consistency > 0) == has_memory or (self.unroll > 0) == has_memory,
            "agent.consistency={consistency} and agent.unroll={unroll} go together with agent.cell=simnorm (it is "
            "{cell}); give both with it, and 0 for both without",
        )
        self.refuse_if(
            not imagines and not self.unroll,
            "agent.behaviour={behaviour} needs a latent that predicts itself; give agent.unroll=3, not {unroll}",
        )
        self.refuse_if(
            self.sampling == "lap" and self.behaviour != "td3",
            "agent.sampling=lap follows the errors of agent.behaviour=td3, not {behaviour}; give sampling=uniform",
        )
        self.refuse_if(
            self.sampling == "dfs" and not imagines,
            "agent.sampling=dfs balances imagination, and agent.behaviour={behaviour} has none; give uniform",
        )
        self.refuse_if(
            self.empowerment_reward and not self.empowerment,
            "agent.empowerment_reward={empowerment_reward} needs what agent.empowerment trains; give empowerment=0.1",
        )
        self.refuse_if(
            self.empowerment and not has_memory,
            "agent.empowerment={empowerment} compares latents before and after an action, and agent.cell=simnorm is "
            "trained on first steps alone; give 0, or agent.cell=rssm",
        )
        self.refuse_if(
            self.measures_uncertainty and not (imagines and has_memory),
            "agent.alpha_real={alpha_real} and agent.alpha_imagined={alpha_imagined} are for imagined rollouts of a "
            "latent with a memory, not agent.behaviour={behaviour} with agent.cell={cell}; give 0 for both, or "
            "agent.preset=r2dreamer",
        )
        self.refuse_if(
            has_memory and self.batch_length < 2,
            "agent.batch_length={batch_length} leaves nothing to remember; give at least 2",
        )
        self.refuse_if(
            not has_memory and self.batch_length != 1,
            "agent.batch_length={batch_length} of sequences that are unrolled from their first step; give 1",
        )
        self.refuse_if(
            self.demos and not self.relabel,
            "agent.relabel=False keeps old rewards, which agent.demos={demos} has not; leave one out",
        )
        plans = self.plan_samples + self.plan_policy
        self.refuse_if(self.plan_elites > plans, f"agent.plan_elites={{plan_elites}} of {plans} plans; give fewer")
