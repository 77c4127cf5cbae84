"""A simulator's state as plain data, restored exactly, followed into many futures, or used to begin episodes."""
