"""One run of PPO, or of an agent with a replay, on a Ray cluster: `cluster=auto workers=2 lag=1`."""
