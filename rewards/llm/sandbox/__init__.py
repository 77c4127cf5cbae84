"""Untrusted code: a check of its source, and a process without privileges to run it in."""
