"""Main: the command `plait`.

Owns the last word on errors and interrupts: one line on stderr and an exit code, never a traceback for what a user did.
Invariant: imports next to nothing itself; all else is imported while an interrupt ends the process quietly.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import TracebackType

from plait.cli.streams import prepare_streams, say
from plait.core.errors import PlaitError

SWITCH_INTERVAL_S = 0.001
"""A fifth of the usual. So long the thread that feeds the runtime waits for one that keeps the interpreter busy."""

INTERRUPTED = 130
NOBODY_READS = 141
OUR_FAULT = 70

_INTERRUPTED = "plait: interrupted"


def main(argv: Sequence[str] | None = None, *, owns_interrupts: bool | None = None) -> int:
    """Run a command line and return its exit code. Without `argv` it is that of the process, and so are its signals.
    `owns_interrupts`: whether interrupts were Python's own when the process began; None: as they are now.
    """
    if argv is not None:
        return _run_as_guest(argv)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # A process that was told to ignore interrupts (`nohup`, a background job) goes on ignoring them.
    if owns_interrupts is None:
        owns_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not owns_interrupts:
        return _run_as_guest(sys.argv[1:])
    # While modules are imported there is nothing to put in order, and an exception out of a signal could come up inside
    # any of them, in callbacks too that cannot pass it on.
    signal.signal(signal.SIGINT, _leave)
    # Whoever keeps pressing Ctrl-C interrupts what the first one began, outside of any `try` too.
    sys.excepthook, sys.unraisablehook = _report_uncaught, _report_unraisable
    try:
        return _run(sys.argv[1:])
    except KeyboardInterrupt:
        say(_INTERRUPTED)
        # What had to be put in order is. If a second interrupt prevented it (half an event loop, a runtime in use),
        # Python would complain about what is left, object by object.
        os._exit(INTERRUPTED)
    finally:
        # The work is over; what is left is the interpreter's own end, which would complain about an interrupt.
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run_as_guest(argv: Sequence[str]) -> int:
    """The process goes on afterwards, and whoever handles its signals does not change."""
    try:
        return _run(argv)
    except KeyboardInterrupt:
        say(_INTERRUPTED)
        return INTERRUPTED


def _run(argv: Sequence[str]) -> int:
    prepare_streams()
    try:
        from plait.cli.arguments import parse_arguments
        from plait.cli.commands import COMMANDS, GROUPS, LOAD

        # What tells the version reads packages' metadata with the parser of mail: a third of a start, for one question.
        invocation = parse_arguments(argv, COMMANDS, _version() if "--version" in argv else "", GROUPS)
        work = LOAD[invocation.command]()
        if signal.getsignal(signal.SIGINT) is _leave:
            # From here on there are files and threads to close. The usual handler, because asyncio looks for it.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return work(invocation.sources)
    except PlaitError as error:
        say(f"plait: {error}")
        return error.exit_code
    except BrokenPipeError:
        return NOBODY_READS
    except Exception as fault:  # the outermost frame: what comes here is a fault of Plait and is shown whole
        import traceback

        say(traceback.format_exc().rstrip())
        say(f"plait: internal error ({type(fault).__name__}); please report it with the lines above")
        return OUR_FAULT


def _version() -> str:
    from importlib.metadata import version

    return version("plait")


def _leave(number: int, frame: object) -> None:
    try:
        os.write(2, f"{_INTERRUPTED}\n".encode())
    finally:
        os._exit(INTERRUPTED)


def _report_uncaught(kind: type[BaseException], fault: BaseException, trace: TracebackType | None) -> None:
    """As in Python, an interrupted process ends by the signal itself, which a shell shows as 130, without a word."""
    if issubclass(kind, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.__excepthook__(kind, fault, trace)


def _report_unraisable(fault: sys.UnraisableHookArgs) -> None:
    """An interrupt that came up in a callback goes no further: the process would run on as if nothing had been."""
    if issubclass(fault.exc_type, KeyboardInterrupt):
        os._exit(INTERRUPTED)
    sys.__unraisablehook__(fault)
