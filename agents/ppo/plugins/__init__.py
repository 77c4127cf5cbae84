"""What can be added to PPO: each file is one extension, which `agents.ppo.extensions` names."""
