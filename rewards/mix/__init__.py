"""A mix of reward streams: weights, scales, shaping, discounts and their metrics."""
