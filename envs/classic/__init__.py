"""Classic control and our tasks in it."""
