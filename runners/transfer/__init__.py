"""Train on a few tasks of a family so that their policies serve all of it: `python -m runners.transfer`."""
