"""One mix of rewards in any Gymnasium program and in Stable-Baselines3."""
