"""The table of agents: a name on the command line -> its class. Importing it is cheap.

ppo/           on-policy, with a value for every reward stream
dyna/          learns from transitions that a model imagines; world_model/  the same in a latent space
sqirl          look-ahead on random play (effective_horizon: how much look-ahead a task needs)
iql, recoil, cpl   learning from recordings alone: rewards, demonstrations, comparisons; dyna.offline: by a model
cloning, rcsl, dt, mbrcsl   the same without values: actions, given returns; with a memory; of what a model imagines
qd             a population of policies that end in different places
sb3/           Stable-Baselines3's algorithms
base           the loop, state and files that our own agents share
an agent of your own needs no line here: `agent=my_file:Class` names its file and class; see `lodestar.tables`
off_policy/    SAC and DQN without an environment; dynamics/, networks/, replay/  what several agents use
"""

from typing import Any

from lodestar.tables import Table

TABLE: dict[str, str] = {
    "ppo": "agents.ppo.agent:PPO",
    "dyna": "agents.dyna.agent:Dyna",
    "world_model": "agents.world_model.agent:WorldModel",
    "sqirl": "agents.sqirl:SQIRL",
    "qd": "agents.qd:QD",
    "iql": "agents.offline.agent:OfflineIQL",
    "cloning": "agents.offline.agent:OfflineCloning",
    "rcsl": "agents.offline.agent:OfflineRCSL",
    "dt": "agents.offline.agent:OfflineDT",
    "mbrcsl": "agents.offline.agent:OfflineMBRCSL",
    "offline_dyna": "agents.dyna.offline:OfflineDyna",
    "sb3_ppo": "agents.sb3.agent:SB3PPO",
    "a2c": "agents.sb3.agent:A2C",
    "dqn": "agents.sb3.agent:DQN",
    "sac": "agents.sb3.agent:SAC",
    "td3": "agents.sb3.agent:TD3",
    "recurrent_ppo": "agents.sb3.agent:RecurrentPPO",
    "maskable_ppo": "agents.sb3.agent:MaskablePPO",
    "tqc": "agents.sb3.agent:TQC",
    "crossq": "agents.sb3.agent:CrossQ",
    "qrdqn": "agents.sb3.agent:QRDQN",
}

# Agents that a plain install lacks: name -> the extra that brings them.
EXTRAS = dict.fromkeys(("recurrent_ppo", "maskable_ppo", "tqc", "crossq", "qrdqn"), "contrib")

table: Table[Any] = Table(
    "agent", TABLE, extras=EXTRAS, needs=("Config", "driver", "n_envs", "check", "build", "samples")
)
names = table.names
get = table.get
register = table.register
