"""NetHack: the NetHack Learning Environment and our tasks in it."""
