"""One page, tables and a figure from the folders of runs: `python -m runners.report runs/sweeps/x`."""
