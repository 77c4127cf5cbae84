"""Agents that learn from recordings alone; `iql.py` first, on which the others build."""
