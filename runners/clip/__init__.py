"""A small CLIP for a user's own environment."""
