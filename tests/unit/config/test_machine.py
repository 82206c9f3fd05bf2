"""What may be used of a machine, read from made-up /proc and /sys trees: the tightest limit around it counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plait.config.machine import (
    available_memory_bytes,
    memory_limit_bytes,
    num_cores,
    one_of_each_core,
    processor_model,
    processor_quota,
    processor_seconds,
    resident_bytes,
    usable_processors,
)

GIB = 2**30
MEMINFO = f"""\
MemTotal:       {64 * 2**20} kB
MemFree:        {2 * 2**20} kB
MemAvailable:   {40 * 2**20} kB
Buffers:            1234 kB
HugePages_Total:       0
"""


def machine(root: Path, files: dict[str, str], meminfo: str | None = MEMINFO) -> Path:
    """A root with these files; control groups are written relative to sys/fs/cgroup."""
    if meminfo is not None:
        files = {"/proc/meminfo": meminfo, **files}
    for name, text in files.items():
        path = root / name.lstrip("/") if name.startswith("/") else root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_groups_it_is_what_the_kernel_says_is_available(tmp_path: Path) -> None:
    assert available_memory_bytes(machine(tmp_path, {})) == 40 * GIB


def test_old_kernels_say_what_is_free(tmp_path: Path) -> None:
    old = "\n".join(line for line in MEMINFO.splitlines() if not line.startswith("MemAvailable"))
    assert available_memory_bytes(machine(tmp_path, {}, old)) == 2 * GIB


@pytest.mark.parametrize("meminfo", [None, "", "nonsense\nMemAvailable: much kB\n"])
def test_a_system_that_says_nothing_gives_half_of_its_memory(meminfo: str | None, tmp_path: Path) -> None:
    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    assert available_memory_bytes(machine(tmp_path, {}, meminfo)) == half


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"memory.max": "max\n"}, None),
        ({"memory.max": f"{8 * GIB}\n"}, 8 * GIB),
        ({"memory.max": f"{8 * GIB}\n", "/proc/self/cgroup": "0::/a\n", "a/memory.max": f"{2 * GIB}\n"}, 2 * GIB),
        ({"memory/memory.limit_in_bytes": f"{2**63 - 4096}\n"}, None),
        ({"memory/memory.limit_in_bytes": f"{3 * GIB}\n"}, 3 * GIB),
    ],
)
def test_what_groups_allow_is_told_where_it_is_below_the_machines_memory(
    files: dict[str, str], limit: int | None, tmp_path: Path
) -> None:
    assert memory_limit_bytes(machine(tmp_path, files)) == limit


def test_a_containers_limit_is_the_limit(tmp_path: Path) -> None:
    files = {"memory.max": f"{8 * GIB}\n", "memory.current": f"{3 * GIB}\n"}
    assert available_memory_bytes(machine(tmp_path, files)) == 5 * GIB


@pytest.mark.parametrize(("soft", "left"), [("unlimited", 40), (f"{6 * GIB}", 5), (f"{90 * GIB}", 40)])
def test_a_limit_of_addresses_leaves_what_is_not_mapped_yet(soft: str, left: int, tmp_path: Path) -> None:
    limits = f"Limit  Soft  Hard  Units\nMax stack size  1  1  bytes\nMax address space  {soft}  unlimited  bytes\n"
    files = {"/proc/self/limits": limits, "/proc/self/status": f"Name:\tplait\nVmSize:\t{2**20} kB\n"}
    assert available_memory_bytes(machine(tmp_path, files)) == left * GIB


def test_files_in_the_page_cache_do_not_count_as_used(tmp_path: Path) -> None:
    stat = f"anon {GIB}\nfile {6 * GIB}\ninactive_file {4 * GIB}\nactive_file {2 * GIB}\n"
    files = {"memory.max": f"{8 * GIB}", "memory.current": f"{7 * GIB}", "memory.stat": stat}
    assert available_memory_bytes(machine(tmp_path, files)) == 5 * GIB


def test_old_control_groups_are_read_too(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": f"{8 * GIB}",
        "memory/memory.usage_in_bytes": f"{7 * GIB}",
        "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {2 * GIB}\n",
    }
    assert available_memory_bytes(machine(tmp_path, files)) == 3 * GIB


@pytest.mark.parametrize("limit", ["max", "9223372036854771712", ""])
def test_no_limit_is_no_limit(limit: str, tmp_path: Path) -> None:
    files = {
        "memory.max": limit,
        "memory.current": "5",
        "memory/memory.limit_in_bytes": limit,
        "memory/memory.usage_in_bytes": "5",
    }
    assert available_memory_bytes(machine(tmp_path, files)) == 40 * GIB


def test_the_host_may_have_less_than_the_limit_allows(tmp_path: Path) -> None:
    files = {"memory.max": f"{100 * GIB}", "memory.current": "0"}
    assert available_memory_bytes(machine(tmp_path, files)) == 40 * GIB


def test_a_group_that_is_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    files = {"memory.max": f"{GIB}", "memory.current": f"{2 * GIB}"}
    assert available_memory_bytes(machine(tmp_path, files)) == 0


@pytest.mark.parametrize("tightest", ["user.slice/run.scope", "user.slice", ""])
def test_the_tightest_group_around_the_process_counts(tightest: str, tmp_path: Path) -> None:
    files = {"/proc/self/cgroup": "0::/user.slice/run.scope\n"}
    for group in ("user.slice/run.scope", "user.slice", ""):
        files[f"{group}/memory.max" if group else "memory.max"] = f"{(4 if group == tightest else 16) * GIB}"
        files[f"{group}/memory.current" if group else "memory.current"] = f"{GIB}"
    assert available_memory_bytes(machine(tmp_path, files)) == 3 * GIB


def test_a_group_elsewhere_does_not_count(tmp_path: Path) -> None:
    files = {"/proc/self/cgroup": "0::/mine\n", "other/memory.max": "1", "other/memory.current": "0"}
    assert available_memory_bytes(machine(tmp_path, files)) == 40 * GIB


def test_old_groups_are_found_by_their_controller(tmp_path: Path) -> None:
    files = {
        "/proc/self/cgroup": "12:cpu,cpuacct:/elsewhere\n5:memory:/docker/abc\n0::/unified\n",
        "memory/docker/abc/memory.limit_in_bytes": f"{6 * GIB}",
        "memory/docker/abc/memory.usage_in_bytes": f"{GIB}",
    }
    assert available_memory_bytes(machine(tmp_path, files)) == 5 * GIB


@pytest.mark.parametrize("line", ["0::/../../host\n", "0::/gone/away\n", "rubbish", "\xff"])
def test_a_path_that_leads_nowhere_leaves_the_groups_that_are_seen(line: str, tmp_path: Path) -> None:
    files = {"/proc/self/cgroup": line, "memory.max": f"{8 * GIB}", "memory.current": f"{3 * GIB}"}
    assert available_memory_bytes(machine(tmp_path, files)) == 5 * GIB


def test_resident_memory_is_what_the_kernel_says_of_this_process(tmp_path: Path) -> None:
    status = "Name:\tplait\nVmHWM:\t  9999 kB\nVmRSS:\t  2048 kB\nThreads:\t3\n"
    assert resident_bytes(machine(tmp_path / "linux", {"/proc/self/status": status})) == 2 * 2**20
    assert resident_bytes(tmp_path) is None


def test_this_machine_has_memory_and_cores() -> None:
    assert available_memory_bytes() > 2**20
    assert 1 <= num_cores() <= (os.cpu_count() or 1)


# Processors


def test_usable_processors_are_distinct_and_counted() -> None:
    usable = usable_processors()
    assert usable == sorted(set(usable))
    assert len(usable) == num_cores()


def test_of_two_processors_that_share_a_core_the_first_is_taken(tmp_path: Path) -> None:
    siblings = {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5", 2: "2,6"}
    files = {
        f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list": f"{text}\n"
        for number, text in siblings.items()
    }
    root = machine(tmp_path, files)
    assert one_of_each_core([0, 1, 2, 4, 5], root) == [0, 1, 2]
    assert one_of_each_core([4, 5], root) == [4, 5]


def test_where_nothing_is_said_of_cores_every_processor_is_one(tmp_path: Path) -> None:
    assert one_of_each_core([0, 1, 7], machine(tmp_path, {})) == [0, 1, 7]


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "nonsense\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
    ],
)
def test_a_control_groups_time_is_a_number_of_processors(
    files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    assert processor_quota(machine(tmp_path, files)) == quota


def test_the_least_time_of_all_groups_around_the_process_counts(tmp_path: Path) -> None:
    files = {
        "/proc/self/cgroup": "0::/outer/inner\n",
        "outer/cpu.max": "200000 100000",
        "outer/inner/cpu.max": "300000 100000",
    }
    assert processor_quota(machine(tmp_path, files)) == 2.0


def test_the_processor_is_called_what_it_calls_itself(tmp_path: Path) -> None:
    cpuinfo = "processor\t: 0\nvendor_id\t: X\nmodel name\t: A  Processor 9000 \nmodel name\t: another\n"
    assert processor_model(machine(tmp_path / "a", {"/proc/cpuinfo": cpuinfo})) == "A Processor 9000"
    assert processor_model(machine(tmp_path / "b", {"/proc/cpuinfo": "processor: 0\n"})) == "unknown"


def test_seconds_of_all_processors_and_of_this_process(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    files = {
        "/proc/stat": f"cpu  {3 * ticks} {ticks} {ticks} {500 * ticks} {7 * ticks} 0 {2 * ticks} {ticks} 0 0\ncpu0 1\n",
        "/proc/self/stat": f"1 (a) b) S 1 1 1 0 -1 0 0 0 0 0 {4 * ticks} {2 * ticks} 0 0 20 0 1 0 1\n",
    }
    assert processor_seconds(machine(tmp_path / "a", files)) == (8.0, 6.0)
    assert processor_seconds(machine(tmp_path / "b", {})) is None
