"""Classic control as array programs."""
