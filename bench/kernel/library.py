"""Library: the native functions that are measured, built when they are first wanted.

Owns the build of `plait_bench` (csrc/bench) and its types. Times are seconds, taken by native threads that are pinned
and do nothing else; Python only says what is next.
Invariant: a handle is closed once, after everything that was made from it.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "bench"

SCHEMES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "int8")
"""Where Plait is not installed: the first ones of csrc/formats/scheme.h."""

_HANDLE = ctypes.c_void_p
_U64 = ctypes.c_uint64
_F64 = ctypes.c_double
_INT = ctypes.c_int


class RowRule(IntEnum):
    EXACT = 0
    PADDED = 1
    FOURS_AND_SINGLE = 2


class Way(IntEnum):
    ONE_CALL = 0
    SEPARATE = 1
    GATHERED = 2
    PADDED = 3
    REPACKED = 4
    WIDENED = 5
    MASKED = 6
    TILED = 7
    SINGLY = 8


class Stage(IntEnum):
    PREFILL = 0
    DECODE = 1
    VERIFY = 2


class CacheType(IntEnum):
    F32 = 0
    F16 = 1
    BF16 = 2
    INT8 = 3

    def vector_bytes(self, width: int) -> int:
        """csrc/ops/cache_layout.h, for widths of whole sixteens."""
        return width + 4 if self is CacheType.INT8 else width * (4 if self is CacheType.F32 else 2)


_SIGNATURES: dict[str, tuple[object, ...]] = {
    # name: result, arguments
    "machine": (_HANDLE, ctypes.c_char_p, _INT, _INT, _U64),
    "has_target": (_INT, ctypes.c_char_p),
    "close_machine": (None, _HANDLE),
    "compute_rate": (_F64, _HANDLE, ctypes.c_char_p, _U64),
    "read_rate": (_F64, _HANDLE, _U64),
    "is_integer": (_INT, _INT),
    "depth_multiple": (_U64, _INT),
    "products": (_HANDLE, _HANDLE, _INT, _U64, _U64, _U64, _U64),
    "close_products": (None, _HANDLE),
    "products_bytes": (_U64, _HANDLE),
    "multiply": (_F64, _HANDLE, _HANDLE, _U64, _INT, _U64),
    "quantize": (_F64, _HANDLE, _HANDLE, _U64, _U64),
    "attention": (_HANDLE, _HANDLE, _U64, _U64, _U64, _INT, _U64, _U64, _U64, _U64),
    "close_attention": (None, _HANDLE),
    "batch": (_HANDLE, _HANDLE, _U64, ctypes.c_char_p, ctypes.POINTER(_U64), ctypes.POINTER(ctypes.c_uint32), _U64),
    "close_batch": (None, _HANDLE),
    "attend": (_F64, _HANDLE, _HANDLE, _HANDLE, _INT, _U64),
    "plan": (_F64, _HANDLE, _HANDLE, _U64),
    "units": (_U64, _HANDLE, _HANDLE, _HANDLE, ctypes.POINTER(_F64), _U64),
}


class Library:
    """The functions, by their names in csrc/bench/exports.cc without the `plait_bench_` in front."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        for name, (result, *arguments) in _SIGNATURES.items():
            function = self._library[f"plait_bench_{name}"]
            function.restype = result  # type: ignore[assignment]
            function.argtypes = arguments
            self._library.__dict__[name] = function

    def call(self, name: str, *arguments: object) -> float | int | None:
        return self._library.__dict__[name](*arguments)  # type: ignore[no-any-return]

    def number(self, name: str, *arguments: object) -> float:
        found = self.call(name, *arguments)
        assert found is not None
        return float(found)


def targets_of(library: Library) -> list[str]:
    """Instruction sets that run here, the best one last."""
    return [name for name in ("baseline", "avx2", "avx512") if library.call("has_target", name.encode())]


def scheme_names() -> tuple[str, ...]:
    """All number schemes, in the order of csrc/formats/scheme.h."""
    try:
        from plait.exec.native.tape import Scheme
    except ImportError:
        return SCHEMES
    return tuple(scheme.name.lower() for scheme in Scheme)


class _Handle:
    """Something that the library made. Leaving it closes it."""

    def __init__(self, library: Library, handle: float | int | None, close: str, trouble: str) -> None:
        if not handle:
            raise ValueError(trouble)
        self.library = library
        self.handle = int(handle)
        self._close = close

    def __enter__(self):  # type: ignore[no-untyped-def]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.library.call(self._close, self.handle)


class Machine(_Handle):
    """Threads on cores of their own, computing for one instruction set."""

    def __init__(
        self, library: Library, target: str, num_threads: int, read_bytes: int, *, processor_time: bool = False
    ) -> None:
        handle = library.call("machine", target.encode(), num_threads, int(processor_time), read_bytes)
        super().__init__(library, handle, "close_machine", f"no instruction set {target} here, or too little memory")
        self.target = target
        self.num_threads = num_threads

    def compute_rate(self, kind: str, rounds: int) -> float:
        return self.library.number("compute_rate", self.handle, kind.encode(), rounds)

    def read_rate(self, num_bytes: int) -> float:
        return self.library.number("read_rate", self.handle, num_bytes)


class Products(_Handle):
    """One matrix, so many copies of it that together they have `cold_bytes`, and rows for it."""

    def __init__(
        self, machine: Machine, scheme: int, shape: tuple[int, int], max_rows: int, *, cold_bytes: int = 0
    ) -> None:
        library = machine.library
        depth, columns = shape
        handle = library.call("products", machine.handle, scheme, depth, columns, cold_bytes, max_rows)
        super().__init__(library, handle, "close_products", f"scheme {scheme} has no matrix of {depth} x {columns}")
        self.machine = machine
        self.depth, self.columns = depth, columns
        self.is_integer = bool(library.call("is_integer", scheme))
        self.num_bytes = int(library.number("products_bytes", self.handle))

    def multiply(self, rows: int, num_calls: int, rule: RowRule = RowRule.EXACT) -> float:
        return self.library.number("multiply", self.machine.handle, self.handle, rows, int(rule), num_calls)

    def quantize(self, rows: int, num_calls: int) -> float:
        return self.library.number("quantize", self.machine.handle, self.handle, rows, num_calls)

    def flops(self, rows: int) -> float:
        return 2.0 * rows * self.depth * self.columns


class Attention(_Handle):
    """A cache of one geometry, (query heads, KV heads, numbers of a head), with queries and results."""

    def __init__(
        self,
        machine: Machine,
        geometry: tuple[int, int, int],
        cache_type: CacheType,
        *,
        num_layers: int,
        num_tokens: int,
        max_rows: int,
        tokens_per_block: int = 32,
    ) -> None:
        library = machine.library
        blocks = -(-num_tokens // tokens_per_block)
        handle = library.call(
            "attention",
            machine.handle,
            *geometry,
            int(cache_type),
            tokens_per_block,
            num_layers,
            blocks,
            max_rows,
        )
        super().__init__(library, handle, "close_attention", f"no attention of {geometry}, or too little memory")
        self.machine = machine
        self.geometry = geometry
        self.bytes_per_token = 2 * geometry[1] * cache_type.vector_bytes(geometry[2])
        """Of one layer."""

    def batch(self, segments: Sequence[tuple[Stage, int, int]], num_workers: int | None = None) -> Batch:
        return Batch(self, segments, num_workers or self.machine.num_threads)


class Batch(_Handle):
    """Segments (stage, tokens in front, rows) of one step, planned for `num_workers`."""

    def __init__(self, attention: Attention, segments: Sequence[tuple[Stage, int, int]], num_workers: int) -> None:
        count = len(segments)
        stages = bytes(int(stage) for stage, _, _ in segments)
        starts = (_U64 * count)(*(start for _, start, _ in segments))
        rows = (ctypes.c_uint32 * count)(*(row for _, _, row in segments))
        library = attention.library
        handle = library.call("batch", attention.handle, count, stages, starts, rows, num_workers)
        super().__init__(library, handle, "close_batch", f"the cache is too small for {list(segments)}")
        self.attention = attention
        self.segments = tuple(segments)
        self.num_workers = num_workers

    def attend(self, num_layers: int, way: Way = Way.ONE_CALL) -> float:
        attention = self.attention
        return self.library.number(
            "attend", attention.machine.handle, attention.handle, self.handle, int(way), num_layers
        )

    def plan_s(self) -> float:
        return self.library.number("plan", self.attention.handle, self.handle, self.num_workers)

    def unit_seconds(self) -> list[list[float]]:
        """Of the one call, then of each of the separate ones."""
        room = 1 << 16
        seconds = (_F64 * room)()
        attention = self.attention
        used = self.library.number("units", attention.machine.handle, attention.handle, self.handle, seconds, room)
        launches: list[list[float]] = [[]]
        for value in seconds[: min(int(used), room)]:
            if value < 0:
                launches.append([])
            else:
                launches[-1].append(value)
        return launches[:-1]

    def flops(self) -> float:
        """Multiplications and additions of scores and of sums, softmax not counted."""
        heads, _, head_dim = self.attention.geometry
        keys = sum(rows * start + rows * (rows + 1) // 2 for _, start, rows in self.segments)
        return 4.0 * keys * heads * head_dim

    def key_bytes(self) -> int:
        """Of keys and values that are read at least once."""
        return sum(start + rows for _, start, rows in self.segments) * self.attention.bytes_per_token


def build() -> Path:
    """The library, built anew where a source is younger. `ValueError` without CMake or a compiler."""
    tools = [str(ROOT / ".venv" / "bin"), str(Path(sys.executable).parent)]
    found = {name: shutil.which(name, path=":".join(tools)) or shutil.which(name) for name in ("cmake", "ninja")}
    cmake, ninja = found["cmake"], found["ninja"]
    if cmake is None or ninja is None:
        raise ValueError("cmake and ninja are needed to build the kernels that are measured: make run brings them")
    print(f"building {BUILD.relative_to(ROOT)} (minutes when it is new)", file=sys.stderr, flush=True)
    configure = [cmake, "-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    for command in ([*configure, "-DPLAIT_BENCH=ON"], [cmake, "--build", str(BUILD), "--target", "plait_bench"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ValueError(f"the build failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return next(path for path in BUILD.glob("libplait_bench.*") if path.suffix in (".so", ".dylib"))
