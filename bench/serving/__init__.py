"""Serving benchmarks: the workloads, who runs them, and what is made of the samples."""
