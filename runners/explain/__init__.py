"""Where the choices of a trained policy come from: `python -m runners.explain run=...`."""
