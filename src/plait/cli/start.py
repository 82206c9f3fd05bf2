"""Start: the first module of the command `plait`, which loads all others.

Owns interrupts that come before `main` is there to handle them: they end the process at once, without a traceback.
Invariant: imports nothing but `signal`, and leaves signals as it found them.
"""

from __future__ import annotations

import signal


def start() -> int:
    was_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if was_usual:
        # The process ends by the signal itself, as one does that Python has not begun to run; a shell shows 130.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from plait.cli.main import main

    if was_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return main()
