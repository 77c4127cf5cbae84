"""Environments that separate methods of exploration and model learning."""
