"""Wake-ups: how soon a thread that waits most of the time gets a core when it is woken.

Owns a wish to the system, which may refuse it. Invariant: nothing here fails, and whatever the system says, no thread
gets more of a core than it would have.

Linux (6.12 and later) lets whoever has a core keep it for a slice, 1.4 to 3 ms, though somebody with a better claim was
woken meanwhile; a worker's slice begins anew whenever another thread was on its core for a moment. A thread whose own
slice is shorter need not wait for the end of that. So the engine's thread, which has to see within a tenth of a
millisecond that a step has ended, or that a turn has, asks for the shortest there is.
"""

from __future__ import annotations

import ctypes
import platform
import sys

SLICE_NS = 100_000
"""The shortest that Linux takes."""
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""Numbers of sched_setattr and sched_getattr."""
_OTHER, _BATCH = 0, 3
"""Policies that have slices."""
_RESET_ON_FORK = 1
"""Threads that this one makes have the usual slice."""


class _Attributes(ctypes.Structure):
    """`struct sched_attr` of Linux, as far as it is needed; `runtime` is the slice in nanoseconds."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def wake_promptly() -> bool:
    """Give the calling thread the shortest slice. False: this system has none to give."""
    calls = _CALLS.get(platform.machine())
    if sys.platform != "linux" or calls is None:
        return False
    set_call, get_call = calls
    found = _Attributes()
    system = ctypes.CDLL(None, use_errno=True)
    size = ctypes.sizeof(found)
    if system.syscall(get_call, 0, ctypes.byref(found), size, 0) or found.policy not in (_OTHER, _BATCH):
        return False
    found.size, found.flags, found.runtime = size, found.flags | _RESET_ON_FORK, SLICE_NS
    return not system.syscall(set_call, 0, ctypes.byref(found), 0) and slice_ns() == SLICE_NS


def slice_ns() -> int | None:
    """Of the calling thread; None: the system does not tell, or has no such thing."""
    calls = _CALLS.get(platform.machine())
    if sys.platform != "linux" or calls is None:
        return None
    found = _Attributes()
    if ctypes.CDLL(None, use_errno=True).syscall(calls[1], 0, ctypes.byref(found), ctypes.sizeof(found), 0):
        return None
    return int(found.runtime) or None
