"""The table of rewards: a name on the command line -> the class behind it.

A new reward is one file and one line in table.txt. A reward of your own needs no line: `reward=novelty:Far` names its
file and class; `lodestar.tables` has the other ways. Importing this package is cheap: a reward's file is read only when
it is used.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lodestar.tables import Table, suggest_names

if TYPE_CHECKING:
    from rewards.base import Reward, RewardConfig
    from rewards.mix.mix import Mix

table: Table[Reward] = Table(
    "reward",
    Path(__file__).with_name("table.txt"),
    needs=("Config", "score", "update", "requires"),
    arguments={"lerobot": ("progress_model", "lerobot")},
)
# Name -> "module:Class".
TABLE = table.ours
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
