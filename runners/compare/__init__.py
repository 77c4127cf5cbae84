"""The report card of a reward before any training."""
