"""Parts of the measurement of kernels and runtime: `bench/kernels.py` puts them together."""
