"""The table of agents: a name on the command line -> its class, a line each in table.txt. Importing it is cheap.

ppo/           on-policy, with a value for every reward stream
dyna/          learns from transitions that a model imagines; world_model/  the same in a latent space
sqirl          look-ahead on random play (effective_horizon: how much look-ahead a task needs)
iql, recoil, cpl   learning from recordings alone: rewards, demonstrations, comparisons; dyna.offline: by a model
ad             learning new tasks in its context, from recorded learning runs on others
cloning, rcsl, dt, mbrcsl   the same without values: actions, given returns; with a memory; of what a model imagines
qd             a population of policies that end in different places
sb3/           Stable-Baselines3's algorithms
base           the loop, state and files that our own agents share
an agent of your own needs no line here: `agent=my_file:Class` names its file and class; see `lodestar.tables`
off_policy/    SAC and DQN without an environment; dynamics/, networks/, replay/  what several agents use
"""

from pathlib import Path
from typing import Any

from lodestar.tables import Table

table: Table[Any] = Table(
    "agent",
    Path(__file__).with_name("table.txt"),
    needs=("Config", "driver", "n_envs", "check", "build", "samples"),
)
# Name -> "module:Class".
TABLE = table.ours
names = table.names
get = table.get
register = table.register
