"""The table of agents: a name on the command line -> its class. Importing it is cheap.

ppo/           on-policy, with a value for every reward stream
dyna/          learns from transitions that a model imagines; world_model/  the same in a latent space
sqirl, iql     look-ahead on random play; learning from recordings (effective_horizon: how much look-ahead a task needs)
sb3/           Stable-Baselines3's algorithms
base           the loop, state and files that our own agents share
off_policy/    SAC and DQN without an environment; dynamics/, networks/, replay/  what several agents use
"""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any

TABLE: dict[str, str] = {
    "ppo": "agents.ppo.agent:PPO",
    "dyna": "agents.dyna.agent:Dyna",
    "world_model": "agents.world_model.agent:WorldModel",
    "sqirl": "agents.sqirl:SQIRL",
    "sb3_ppo": "agents.sb3.agent:SB3PPO",
    "a2c": "agents.sb3.agent:A2C",
    "dqn": "agents.sb3.agent:DQN",
    "sac": "agents.sb3.agent:SAC",
    "td3": "agents.sb3.agent:TD3",
    "recurrent_ppo": "agents.sb3.agent:RecurrentPPO",
    "tqc": "agents.sb3.agent:TQC",
    "crossq": "agents.sb3.agent:CrossQ",
    "qrdqn": "agents.sb3.agent:QRDQN",
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
