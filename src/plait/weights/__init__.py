"""Weights: model files to memory-mapped tensors, their formats and names, and where models come from."""
