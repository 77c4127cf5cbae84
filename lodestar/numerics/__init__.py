"""Parameters in one flat vector, trees, and updates compiled by numba."""
