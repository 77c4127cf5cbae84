"""One script a library, run by `runners.bench.peers` in that library's own environment; see `drive.py`."""
