"""Worlds that tell methods of exploration and model learning apart."""
