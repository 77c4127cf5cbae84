"""Label recordings with a judge, and audit judges."""
