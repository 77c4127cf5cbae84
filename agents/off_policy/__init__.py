"""SAC and DQN as learners without an environment: `agents.dyna` and `agents.iql` drive them."""
