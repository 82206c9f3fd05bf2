"""Inspect: what a model needs, from its configuration alone: no weights, no engine, no network."""
