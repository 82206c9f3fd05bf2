"""Cases: one file for each group of published figures."""
