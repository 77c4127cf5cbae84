"""Stable-Baselines3's agents under our settings; `agent.py` first."""
