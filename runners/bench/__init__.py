"""Benchmarks and studies behind every number of the README; `python -m runners.bench NAME` runs one."""
