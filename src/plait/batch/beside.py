"""Beside: work that waits for disks, in a thread beside the event loop.

Owns what becomes of it when whoever waits is cancelled. Invariant: when `beside` returns or raises, the work has ended,
so that what it uses may be closed, and what it opened is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def beside(work: Callable[..., T], *given: object) -> T:
    """What `work` gives. Cancelled, it waits for the end of the work all the same."""
    doing = asyncio.ensure_future(asyncio.to_thread(work, *given))
    try:
        return await asyncio.shield(doing)
    finally:
        await asyncio.wait([doing])
        if not doing.cancelled():
            # Whoever was cancelled is not told how the work ended, and asyncio need not log that nobody asked.
            doing.exception()
