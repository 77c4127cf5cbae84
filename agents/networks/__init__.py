"""Networks that agents share: policies and values, heads, stacks of equal networks, spaces as vectors."""
