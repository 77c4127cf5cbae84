"""Settings found by search: `python -m runners.tune`."""
