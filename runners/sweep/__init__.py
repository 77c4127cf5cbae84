"""Many runs, every job once, also after a kill: `python -m runners.sweep`."""
