"""Settings found by search: `python -m runners.tune`. space: what is tried; search: how; verdict: what came of it."""
