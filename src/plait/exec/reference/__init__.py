"""The reference executor: NumPy, float32, one op after another. It defines what is correct."""
