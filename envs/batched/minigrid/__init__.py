"""MiniGrid as array programs."""
