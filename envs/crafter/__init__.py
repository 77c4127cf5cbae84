"""Crafter."""
