"""The loop that turns requests into steps and steps into answers."""
