"""PPO with a value for every reward stream; `agent.py` first."""
