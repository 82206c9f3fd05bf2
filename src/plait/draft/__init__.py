"""Draft: guesses of what a sequence will say, how often they come true, and how many are worth verifying."""
