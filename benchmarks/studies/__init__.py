"""Learning studies."""
