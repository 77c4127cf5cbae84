"""Code that nobody has read: a check of its source, and a process that gave everything up to run it in."""
