"""Prices: how long a step will take on a share of a device, and what limits it."""
