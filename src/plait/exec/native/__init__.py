"""The native executor: programs lowered to tapes, carried out by plait._native on CPU cores."""
