"""Benchmarks and studies behind every number of the README; `python -m benchmarks NAME` runs one."""
