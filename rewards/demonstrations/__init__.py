"""Rewards learned from recordings of what should be done, or of where it should lead."""
