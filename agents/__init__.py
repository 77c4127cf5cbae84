"""The table of agents: a name on the command line -> the class behind it. Importing it is cheap.

ppo.py                     on-policy, a value for every stream: ppo_config.py (settings), collector.py and device.py
(rollouts), advantages.py, learner.py and fused.py (the update, in torch and by hand), nets.py, glyphs.py
dyna.py                    learns from what a model imagines: dyna_config.py (the variants), imagination.py (its side
of the model), svg.py (gradients through the model), dreams.py (what was imagined)
world_model.py             the same in a latent: world_config.py (the variants), latent/
sqirl.py                   a few steps of look-ahead on random play; effective_horizon.py, how many a task needs
iql.py                     from recordings; sb3.py, Stable-Baselines3's
soft.py deep_q.py          SAC and DQN as learners without an environment: critics.py, fused_soft.py (by hand),
stacked.py (networks side by side), heads.py (how a value is said)
dynamics/                  models of the world
replay.py                  what happened, paid anew: sampling.py, images.py; stale.py, the control that is not
rollout.py                 the one place where anything is imagined; pay.py (what it is paid), penalties.py,
discriminator.py, planners.py (CEM, MPPI, UP-MPC)
codec.py steps.py          spaces as vectors; environments, a step at a time
task.py verbs.py state.py weights.py captured.py
the reward of an agent that was given none; Stable-Baselines3's verbs; exact resume;
files; whole updates as CUDA graphs
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
