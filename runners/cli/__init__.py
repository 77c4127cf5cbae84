"""The command line: grammar, presets, and what every command shares."""
