"""Machine: what this process may use of the machine it runs on.

Owns the reading of memory limits, control groups included: a container's limit is the limit, whatever the host has.
"""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP_LIMIT = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
_CGROUP_USED = ("sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory/memory.usage_in_bytes")


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be allocated now without swapping; `root` is where /proc and /sys lie."""
    available = _proc_available(root)
    limit, used = _first_number(root, _CGROUP_LIMIT), _first_number(root, _CGROUP_USED)
    if limit is None or used is None:
        return available
    return max(0, min(available, limit - used))


def num_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _proc_available(root: Path) -> int:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines) if rest}
    return sizes.get("MemAvailable", sizes.get("MemFree", 0))


def _first_number(root: Path, names: tuple[str, ...]) -> int | None:
    for name in names:
        try:
            text = (root / name).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None  # "max" means no limit
    return None
