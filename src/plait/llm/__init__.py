"""The Python API: `LLM`, `AsyncLLM` and what they take and give, by vLLM's names. Everything public is in `plait`."""
