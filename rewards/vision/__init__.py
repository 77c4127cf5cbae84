"""Rewards from frames."""
