"""MuJoCo: Gymnasium's robots."""
