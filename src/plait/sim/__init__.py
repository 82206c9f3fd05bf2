"""Simulation: the real engine under a simulated clock, fed by traces. Needs nothing but the standard library."""
