"""SAC and DQN as learners without an environment: `agents.dyna` and `agents.offline.iql` drive them."""
