"""Which tasks of a family to train on, so that a few policies serve them all: `python -m runners.transfer`."""
