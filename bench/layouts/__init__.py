"""Layouts: what one memory, cut in different ways, is worth to the same requests; parts of memory_layouts.py."""
