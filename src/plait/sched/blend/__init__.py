"""Blend: the order of offline requests, from a prefix tree that knows what each part of it needs (BlendServe)."""
