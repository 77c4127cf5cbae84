"""One run of PPO on a Ray cluster: `cluster=auto workers=2 lag=1`."""
