"""Start: the first module of the command `plait`, which loads all others.

Owns interrupts that come before `main` is there to handle them: they end the process at once, without a traceback.
Invariant: imports nothing but `signal`, and leaves signals that were not Python's own as it found them.
"""

from __future__ import annotations

import signal


def start() -> int:
    was_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if was_usual:
        # The process ends by the signal itself, as one does that Python has not begun to run; a shell shows 130.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from plait.cli.main import main

    # It takes over from the signal's own end, so that there is no moment between in which an interrupt is an exception.
    return main(owns_interrupts=was_usual)
