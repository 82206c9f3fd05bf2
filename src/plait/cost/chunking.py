"""Chunking: what it costs to cut a prompt into steps, as closed forms.

Owns the arithmetic of chunked prefill: iterations and how often the keys of earlier chunks are read again
(Bullet, ASPLOS 2026, section 2.1 (b)).
Invariant: one chunk reads its keys once, so a prompt that is not cut costs one unit.
"""

from __future__ import annotations

from math import ceil

from plait.core.errors import UsageError


def iterations(prompt_tokens: int, chunk_tokens: int, decode_tokens: int = 0) -> int:
    """Steps of at most `chunk_tokens` of which `decode_tokens` are taken by sequences that decode."""
    room = chunk_tokens - decode_tokens
    if room < 1:
        raise UsageError(
            f"chunks of {chunk_tokens} tokens have no room beside {decode_tokens} decode tokens; make them larger"
        )
    return ceil(prompt_tokens / room)


def key_reads(num_chunks: int) -> int:
    """How often keys are read over all chunks of a prompt, in units of one chunk's keys: N (N + 1) / 2."""
    return num_chunks * (num_chunks + 1) // 2
