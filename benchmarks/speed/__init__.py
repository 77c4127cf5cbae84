"""Speed, measured side by side in one interleaved run."""
