"""Colocation: offline work in what online traffic leaves idle."""
