"""Judges of texts, one file each; `prompts` and `rulebooks` are what they know of the families."""
