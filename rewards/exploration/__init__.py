"""Bonuses for what is new."""
