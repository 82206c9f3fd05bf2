"""Prefill beside decode: one decision procedure, of which the published policies are settings."""
