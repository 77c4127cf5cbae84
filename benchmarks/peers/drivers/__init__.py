"""One script a library, run by `benchmarks.peers.peers` in that library's own environment; see `drive.py`."""
