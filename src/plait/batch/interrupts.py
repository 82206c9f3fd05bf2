"""Interrupts: what Ctrl-C and a polite kill do while a batch runs.

Owns the signal handlers for the time of a run. Invariant: the first signal stops the run in good order, the second ends
the process at once, and afterwards the handlers are those of before.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping_on_signals(stop: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call `stop` in the running loop at the first signal. Outside the main thread signals are somebody else's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    # What was ignored when we were started (nohup, a script's background) stays ignored.
    handlers = {number: signal.getsignal(number) for number in STOPPING}
    before = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}

    def first(number: signal.Signals) -> None:
        for each in before:
            loop.remove_signal_handler(each)
            # The second signal does what it does to a program that knows nothing of signals. The ledger does not mind.
            signal.signal(each, signal.SIG_DFL)
        stop(number)

    for number in before:
        loop.add_signal_handler(number, first, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
