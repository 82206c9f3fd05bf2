"""Plait: an LLM serving engine for online and offline work on shared memory and shared devices."""
