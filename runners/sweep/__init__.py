"""Many runs that survive the night: `python -m runners.sweep`. See `__main__` for the command, `job` for the parts."""
