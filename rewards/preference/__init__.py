"""Rewards learned from comparisons: judges say which of two segments is better, a model finds the reward behind it."""
