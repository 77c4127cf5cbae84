"""Other libraries beside ours, each in a virtual environment of its own."""
