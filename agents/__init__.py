"""The table of agents: a name on the command line -> the class behind it. Importing it is cheap."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any

TABLE: dict[str, str] = {
    "ppo": "agents.ppo:PPO",
    "dyna": "agents.dyna:Dyna",
    "world_model": "agents.world_model:WorldModel",
    "sqirl": "agents.sqirl:SQIRL",
    "sb3_ppo": "agents.sb3:PPO",
    "a2c": "agents.sb3:A2C",
    "dqn": "agents.sb3:DQN",
    "sac": "agents.sb3:SAC",
    "td3": "agents.sb3:TD3",
    "recurrent_ppo": "agents.sb3:RecurrentPPO",
    "tqc": "agents.sb3:TQC",
    "crossq": "agents.sb3:CrossQ",
    "qrdqn": "agents.sb3:QRDQN",
}


def names() -> list[str]:
    """Every agent that can be asked for."""
    return list(TABLE)


def get(name: str) -> Any:
    """The class of the agent called `name`.

    Raises:
        ValueError: if nothing has that name; the sentence offers the nearest one.
    """
    if name not in TABLE:
        near = difflib.get_close_matches(str(name), TABLE, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(TABLE)}"
        raise ValueError(f"there is no agent {name!r}; {hint}")
    module, _, attribute = TABLE[name].partition(":")
    return getattr(import_module(module), attribute)
