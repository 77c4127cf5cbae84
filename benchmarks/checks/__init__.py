"""Claims that are measured without training runs: exactly, on synthetic data, or on recordings."""
