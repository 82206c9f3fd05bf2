"""Machine: what this process may use of the machine it runs on.

Owns the reading of memory and processor limits, control groups included: a container's limit is the limit, whatever the
host has, and so is that of every group around it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_CGROUP_ROOT = "sys/fs/cgroup"


@dataclass(frozen=True, slots=True)
class _GroupFiles:
    """How one version of control groups names its files; `reclaimable` is a line of memory.stat."""

    limit: str
    used: str
    reclaimable: str


_V2 = _GroupFiles("memory.max", "memory.current", "inactive_file")
_V1 = _GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be allocated now without swapping; `root` is where /proc and /sys lie."""
    left = [_left_of_addresses(root), *(_left_in_group(folder, files) for folder, files in _groups(root))]
    return max(0, min([_proc_available(root), *(size for size in left if size is not None)]))


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """What control groups allow all programs in them together; None: they set no limit below the machine's memory."""
    total = _numbers(root / "proc/meminfo").get("MemTotal")
    said = [_text(folder / files.limit).strip() for folder, files in _groups(root)]
    limits = [int(one) for one in said if one.isdigit()]  # not "max", or not there
    least = min(limits, default=None)
    # Version 1 says a number beyond all memory where there is no limit.
    return None if least is None or (total is not None and least >= total * 1024) else least


def resident_bytes(root: Path = Path("/")) -> int | None:
    """Memory that this process occupies now, as `ps` shows it: files that it has mapped and read are part of that.
    None: the system does not tell.
    """
    size_kib = _numbers(root / "proc/self/status").get("VmRSS")
    return None if size_kib is None else size_kib * 1024


def num_cores() -> int:
    """Cores that this process may run on."""
    return len(usable_processors())


def processor_model(root: Path = Path("/")) -> str:
    """The processor's name for itself; `unknown` where the system does not tell."""
    for line in _text(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return " ".join(value.split())
    return "unknown"


def usable_processors() -> list[int]:
    """Numbers of the logical processors that this process may run on, ascending."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]


def one_of_each_core(processors: Sequence[int], root: Path = Path("/")) -> list[int]:
    """Of logical processors those that share no core with an earlier one. Where the system does not tell: all."""
    folder = root / "sys/devices/system/cpu"
    first_of: dict[str, int] = {}
    for processor in processors:
        siblings = _text(folder / f"cpu{processor}/topology/thread_siblings_list").strip()
        first_of.setdefault(siblings or f"only {processor}", processor)
    return list(first_of.values())


def processor_quota(root: Path = Path("/")) -> float | None:
    """Processors' worth of time that control groups allow; None: they set no limit."""
    quotas = []
    for folder, files in _groups(root):
        if files is _V2:
            quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
        else:
            beside = root / _CGROUP_ROOT / "cpu" / folder.relative_to(root / _CGROUP_ROOT / "memory")
            quota, period = (_text(beside / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(period) > 0:  # not "max", -1 or not there
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def processor_seconds(root: Path = Path("/")) -> tuple[float, float] | None:
    """(spent by all programs, spent by this process) since they began, of all processors together; None: the system
    does not tell. Of two such readings the difference says how much others used in between.
    """
    fields = _text(root / "proc/stat").partition("\n")[0].split()
    own = _text(root / "proc/self/stat").rpartition(")")[2].split()
    if len(fields) < 9 or fields[0] != "cpu" or len(own) < 13:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    # user, nice, system, idle, waiting for devices, interrupts, soft interrupts, stolen; guests are in user already.
    busy = sum(int(fields[place]) for place in (1, 2, 3, 6, 7, 8))
    return busy / ticks, (int(own[11]) + int(own[12])) / ticks


def _proc_available(root: Path) -> int:
    sizes = _numbers(root / "proc/meminfo")
    for name in ("MemAvailable", "MemFree"):
        if name in sizes:
            return sizes[name] * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _left_of_addresses(root: Path) -> int | None:
    """What this process may still map (`ulimit -v`); None: as much as it likes."""
    mapped = _numbers(root / "proc/self/status").get("VmSize")
    for line in _text(root / "proc/self/limits").splitlines():
        name, _, limits = line.partition("Max address space")
        if not name and limits and mapped is not None and (soft := limits.split()[0]).isdigit():
            return int(soft) - mapped * 1024
    return None


def _groups(root: Path) -> Iterator[tuple[Path, _GroupFiles]]:
    """The control groups of this process, from its own outwards. A container often sees its own as the outermost."""
    lines = _text(root / "proc/self/cgroup").splitlines()
    for files, base, marker in ((_V2, root / _CGROUP_ROOT, "0::"), (_V1, root / _CGROUP_ROOT / "memory", ":memory:")):
        paths = [PurePosixPath(line.partition(marker)[2]) for line in lines if marker in line]
        inside = paths[0] if paths and ".." not in paths[0].parts else PurePosixPath("/")
        for group in (inside, *inside.parents):
            yield base / group.relative_to("/"), files


def _left_in_group(folder: Path, files: _GroupFiles) -> int | None:
    """What the group may still allocate; None: it sets no limit."""
    limit, used = _text(folder / files.limit).strip(), _text(folder / files.used).strip()
    if not (limit.isdigit() and used.isdigit()):
        return None  # not there, or "max"
    # Pages of files that nobody has read lately count as used, but the kernel drops them before it refuses anything.
    reclaimable = _numbers(folder / "memory.stat").get(files.reclaimable, 0)
    return int(limit) - max(0, int(used) - reclaimable)


def _numbers(path: Path) -> dict[str, int]:
    """The lines `name value` or `name: value kB` of a file."""
    fields = [line.replace(":", " ").split() for line in _text(path).splitlines()]
    return {one[0]: int(one[1]) for one in fields if len(one) > 1 and one[1].isdigit()}


def _text(path: Path) -> str:
    """What a file says; nothing if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
