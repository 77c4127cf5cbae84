"""Rewards that look at frames."""
