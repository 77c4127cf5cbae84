"""One honest page from the folders of runs: `python -m runners.report runs/sweeps/x`."""
