"""Straight roads of highway-env as array programs."""
