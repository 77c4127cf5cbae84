"""What happened, kept as rows: transitions, images once, and the ways to sample them."""
