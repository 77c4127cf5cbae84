"""Dyna: learning from what a learned model of the world imagines; `agent.py` first."""
