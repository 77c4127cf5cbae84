"""Rewards from what is said about a state: judges say which captions tell of progress, a model finds the reward."""
