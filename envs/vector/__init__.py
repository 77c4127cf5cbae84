"""Gymnasium environments side by side, in this process or in watched workers."""
