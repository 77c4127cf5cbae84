"""Driving: highway-env, CarRacing, and the signals they share."""
