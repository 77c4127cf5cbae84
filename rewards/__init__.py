"""The table of rewards: a name on the command line -> the class behind it.

A new reward is one file and one line here. A reward of your own needs no line: `reward=novelty:Far` names its file and
class; `lodestar.tables` has the other ways. Importing this package is cheap: a reward's file is read only when it is
used.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from lodestar.tables import Table, suggest_names

if TYPE_CHECKING:
    from rewards.base import Reward, RewardConfig
    from rewards.mix.mix import Mix

TABLE: dict[str, str] = {
    "task": "rewards.task:Task",
    "gate": "rewards.gate:Gate",
    "two_level": "rewards.two_level:TwoLevel",
    "count": "rewards.exploration.count:Count",
    "rnd": "rewards.exploration.rnd:RND",
    "rdd": "rewards.exploration.rdd:RDD",
    "forward": "rewards.exploration.forward:Forward",
    "hindsight": "rewards.exploration.hindsight:Hindsight",
    "byol": "rewards.exploration.byol:BYOL",
    "byol_hindsight": "rewards.exploration.byol_hindsight:BYOLHindsight",
    "icm": "rewards.exploration.icm:ICM",
    "disagreement": "rewards.exploration.disagreement:Disagreement",
    "noveld": "rewards.exploration.noveld:NovelD",
    "ride": "rewards.exploration.ride:RIDE",
    "e3b": "rewards.exploration.e3b:E3B",
    "pseudocount": "rewards.exploration.pseudocount:PseudoCount",
    "ngu": "rewards.exploration.ngu:NGU",
    "re3": "rewards.exploration.re3:RE3",
    "submodular": "rewards.exploration.submodular:Submodular",
    "deir": "rewards.exploration.deir:DEIR",
    "effect": "rewards.effect:Effect",
    "contrastive_ucb": "rewards.exploration.contrastive_ucb:ContrastiveUCB",
    "clip": "rewards.vision.clip:Clip",
    "progress": "rewards.vision.progress:Progress",
    "progress_model": "rewards.vision.progress_model:ProgressModel",
    "self_reference": "rewards.vision.self_reference:SelfReference",
    "contrast": "rewards.vision.contrast:Contrast",
    "synthesis": "rewards.vision.synthesis:Synthesis",
    "discriminator": "rewards.demonstrations.discriminator:DemosDiscriminator",
    "hilp": "rewards.demonstrations.hilp:Hilp",
    "success": "rewards.demonstrations.success:Success",
    "bradley_terry": "rewards.preference.bradley_terry:BradleyTerry",
    "self_play": "rewards.preference.self_play:SelfPlay",
    "users": "rewards.preference.users:Users",
    "debate": "rewards.preference.debate:Debate",
    "oni": "rewards.language.oni:ONI",
    "motif": "rewards.language.motif:Motif",
    "subgoals": "rewards.language.subgoals:Subgoals",
    "lare": "rewards.language.lare:LaRe",
    "guidance": "rewards.language.guidance:Guidance",
    "code": "rewards.design.code:Code",
    "table": "rewards.design.table:StateTable",
    "stages": "rewards.design.stages:StageReward",
    "signal": "rewards.design.signal:Signal",
}
SHORT_NAMES = {"lerobot": ("progress_model", "lerobot")}
# Rewards that a plain install lacks: name -> the extra that brings them.
EXTRAS = {"guidance": "sentences"}
NEEDS = ("Config", "score", "update", "requires")
table: Table[Reward] = Table("reward", TABLE, NEEDS, arguments=SHORT_NAMES, extras=EXTRAS)
names = table.names
get = table.get
register = table.register


def join_task(name: str) -> list[str]:
    """The rewards of a run that names one alone: a bonus joins the task's own reward, a goal replaces it."""
    return ["task", name] if get(name).role == "bonus" else [name]


def make(
    rewards: dict[Any, RewardConfig | dict[str, Any] | None] | list[Any],
    observation_space: Any,
    action_space: Any,
    *,
    gamma: float = 0.99,
    seed: int = 0,
    device: str = "cpu",
) -> Mix:
    """Build the named rewards and mix them.

    `rewards` are names, "module:Class" or classes, or these -> options: a Config, a dict of what differs from its
    defaults, or None. The spaces are those of one environment. `gamma` is the learner's discount, which potential
    shaping must share; `seed` is apart from the environments' and the agent's.

    Example:
        >>> from gymnasium.spaces import Box, Discrete
        >>> mix = make(["task", "rnd"], Box(-1, 1, (4,)), Discrete(2))
        >>> mix.describe()
        'task + rnd (/ return, non-episodic)'
    """
    from rewards.mix.mix import Mix, Stream

    if isinstance(rewards, str):
        raise ValueError(f"rewards={rewards!r} is a text; give a list: ['task', {rewards!r}] adds it to the task's own")
    # Names without options are a dict whose configs are the defaults.
    if isinstance(rewards, list | tuple):
        rewards = dict.fromkeys(rewards)
    if not rewards:
        raise ValueError("a mix of no rewards teaches nothing; name at least one, as in ['task']")
    streams = []
    for index, (name, config) in enumerate(rewards.items()):
        name, option = table.split_argument(name)
        name = table.name_of(name)
        reward_class = get(name)
        if option and (config is None or isinstance(config, dict)):
            config = {**option, **(config or {})}
        config = config_of(name, config)
        # Seeds that lie far apart leave room for those that a reward derives from its own.
        reward = reward_class(config, observation_space, action_space, seed=seed + 1000 * index, device=device)
        streams.append(Stream(name, reward, gamma=gamma))
    return Mix(streams)


def config_of(name: str, given: Any = None) -> RewardConfig:
    """The Config of a reward, made of a dict of options unless it is one; a ValueError for an unknown option."""
    config_class = get(name).Config
    if given is None:
        return config_class()
    if not isinstance(given, dict):
        return given
    fields = [field.name for field in dataclasses.fields(config_class)]
    for key in given:
        if key not in fields:
            raise ValueError(f"{key!r} is no option of the reward {name!r}; {suggest_names(key, fields, 'it has')}")
    return config_class(**given)
