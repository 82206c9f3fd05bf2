"""A model is a program: configs, operations, programs, their costs, and where their caches lie. No tensors."""
