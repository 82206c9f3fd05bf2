"""Reproduce: published figures as experiments, each with its band, its evidence and what it was calibrated on."""
