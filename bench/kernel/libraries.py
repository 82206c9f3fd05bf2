"""Libraries: K5, our products in f32 beside those of NumPy's BLAS and of torch, where it is installed.

Owns how the others are called: as fast as they can be, with the better of two layouts of the weights, into memory that
is there already. Threads of a library spin for a while after a call and would disturb whoever comes next, so all rows
of one contender are measured in a block, blocks go there and back, and between two there is a pause.
Invariant: all contenders use as many threads and read weights that no cache holds.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .library import Machine, Products
from .products import take
from .report import Section
from .setting import SMOLLM2_LAYER, Setting
from .turns import Effort, Take, geomean, spread

ROWS = (*range(1, 65), 72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
QUICK_ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 64, 128, 512)
_MAPS = Path("/proc/self/maps")
SETTLE_S = 0.06
"""A little longer than OpenBLAS's threads spin."""

Contender = Callable[[int], Take]
"""For so many rows."""
Floats = npt.NDArray[np.float32]


def k5(setting: Setting) -> Section:
    section = Section("K5", "f32 products beside NumPy and torch: their best time by ours, cold weights")
    rows = QUICK_ROWS if setting.quick else ROWS
    shapes = ("gate-up", "down") if setting.quick else tuple(SMOLLM2_LAYER)
    section.detail["seconds"] = detail = []
    for threads in setting.threads:
        ratios: dict[tuple[str, int], float] = {}
        with setting.machine(threads) as machine:
            for shape in shapes:
                seconds = _times(setting, machine, SMOLLM2_LAYER[shape], rows)
                named = {name: {str(row): one[row] for row in rows} for name, one in seconds.items()}
                detail.append({"threads": threads, "shape": shape, **named})
                for row in rows:
                    best = min(one[row] for name, one in seconds.items() if name != "plait")
                    ratios[shape, row] = best / seconds["plait"][row]
        peers = ", ".join(name for name in seconds if name != "plait")
        _add(section, f"{threads} thread(s)", ratios, peers)
    return section


def _add(section: Section, name: str, ratios: Mapping[tuple[str, int], float], peers: str) -> None:
    section.add(f"{name}: geometric mean of all shapes and M", geomean(ratios.values()), at_least=1.05, note=peers)
    (shape, row) = worst = min(ratios, key=ratios.__getitem__)
    below = sum(ratio < 0.93 for ratio in ratios.values())
    note = f"{shape}, M = {row}; {below} of {len(ratios)} are below"
    section.add(f"{name}: least", ratios[worst], at_least=0.93, note=note)
    large = [ratio for (_, row), ratio in ratios.items() if row >= 96]
    section.add(f"{name}: geometric mean of M >= 96", geomean(large))


def _times(
    setting: Setting, machine: Machine, shape: tuple[int, int], rows: Sequence[int]
) -> dict[str, dict[int, float]]:
    """Seconds of a product by contender and rows."""
    copies = -(-setting.cold_bytes // (4 * shape[0] * shape[1]))
    with ExitStack() as stack:
        products = stack.enter_context(Products(machine, 0, shape, max(rows), cold_bytes=setting.cold_bytes))
        stack.enter_context(_blas_threads(machine.num_threads))
        contenders: dict[str, Contender] = {"plait": lambda row: take(products, row)}
        weights = np.full((copies, shape[1], shape[0]), 0.01, np.float32)
        x = np.full((max(rows), shape[0]), 0.5, np.float32)
        contenders |= _numpy(weights, x, "numpy [N, K]", transposed=True)
        # The same memory, understood the other way round: as many bytes, other strides.
        contenders |= _numpy(weights.reshape(copies, shape[0], shape[1]), x, "numpy [K, N]", transposed=False)
        contenders |= _torch(weights, x, machine.num_threads)
        clock = time.thread_time if setting.processor_time else time.perf_counter
        return _in_blocks(contenders, rows, setting.effort, clock)


def _in_blocks(
    contenders: Mapping[str, Contender], rows: Sequence[int], effort: Effort, clock: Callable[[], float]
) -> dict[str, dict[int, float]]:
    def timed(one: Take) -> Take:
        """Of a library's call the clock is ours; our own products bring their time with them."""

        def run(calls: int) -> float:
            began = clock()
            seconds = one(calls)
            return seconds if seconds > 0.0 else clock() - began

        return run

    takes = {(name, row): timed(contender(row)) for name, contender in contenders.items() for row in rows}
    calls: dict[tuple[str, int], int] = {}
    for key, one in takes.items():
        one(1)
        calls[key] = max(1, round(effort.sample_s / max(one(1), 1e-9)))
    samples: dict[tuple[str, int], list[float]] = {key: [] for key in takes}
    names = list(contenders)
    for _ in range(effort.num_rounds):
        for name in [*names, *reversed(names)]:
            time.sleep(SETTLE_S)
            takes[name, rows[0]](calls[name, rows[0]])
            for row in rows:
                samples[name, row].append(takes[name, row](calls[name, row]) / calls[name, row])
    best = effort.takes_best
    return {name: {row: spread(samples[name, row], takes_best=best).seconds for row in rows} for name in names}


def _numpy(weights: Floats, x: Floats, name: str, *, transposed: bool) -> dict[str, Contender]:
    matrices = [one.T if transposed else one for one in weights]
    out = np.empty((x.shape[0], matrices[0].shape[1]), np.float32)
    turn = _turns(len(matrices))

    def contender(row: int) -> Take:
        rows, result = x[:row], out[:row]

        def run(calls: int) -> float:
            for _ in range(calls):
                np.matmul(rows, matrices[next(turn)], out=result)
            return 0.0

        return run

    return {name: contender}


def _torch(weights: Floats, x: Floats, num_threads: int) -> dict[str, Contender]:
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return {}
    torch.set_num_threads(num_threads)
    matrices = [torch.from_numpy(one).T for one in weights]
    rows_of = torch.from_numpy(x)
    out = torch.empty((x.shape[0], weights.shape[1]))
    turn = _turns(len(matrices))

    def contender(row: int) -> Take:
        rows, result = rows_of[:row], out[:row]

        def run(calls: int) -> float:
            with torch.inference_mode():
                for _ in range(calls):
                    torch.mm(rows, matrices[next(turn)], out=result)
            return 0.0

        return run

    return {"torch": contender}


def _turns(count: int) -> Iterator[int]:
    while True:
        yield from range(count)


@contextmanager
def _blas_threads(count: int) -> Iterator[None]:
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        _set_openblas_threads(count)
        yield
        return
    with threadpool_limits(count, user_api="blas"):
        yield


def _set_openblas_threads(count: int) -> None:
    """`ValueError` if this NumPy's BLAS is none that can be told."""
    for path in sorted({line.split()[-1] for line in _MAPS.read_text().splitlines() if "openblas" in line}):
        library = ctypes.CDLL(path)
        for name in ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads"):
            if hasattr(library, name):
                getattr(library, name)(ctypes.c_int(count))
                return
    raise ValueError("the threads of this NumPy's BLAS cannot be set; install threadpoolctl")
