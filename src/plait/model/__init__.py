"""A model is a program: config readers, operations, programs, what they cost, and where their caches lie. No
tensors.
"""
