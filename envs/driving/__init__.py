"""Driving: highway-env, CarRacing, CARLA-style environments, and the signals they share."""
