"""One run: its configuration, folder, checkpoints, log and ways to end."""
