"""Rewards from language: captions judged for progress, goals and subgoals in sentences, code that a model writes."""
