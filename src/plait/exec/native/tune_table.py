"""Tune table: what `plait tune` measured on a machine, as a file.

Owns the file's form, its name and its checks. Measures nothing; whether a table is used is decided where an engine is
built. Invariant: a file appears whole or not at all, and a table that was read holds numbers of the right kind; their
limits are the runtime's to check.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final, TypeAlias

from plait.core.errors import PlaitError, UsageError
from plait.core.own_file import check_replaceable
from plait.exec.native.blocking import ROW_BUCKETS, Blocking, GemmBlocks, UnitSizes, row_bucket

FORM: Final = 1
BEGINNING: Final = b'{\n "plait_tune": '
"""By which a table of ours is known, so that nothing else is ever overwritten."""
MAX_BYTES: Final = 1 << 20
"""A table is a few kilobytes. What is larger is something else, and is not read."""
MAX_REASON: Final = 200
"""Characters of what is wrong with a file."""

Json: TypeAlias = "Mapping[str, Json] | list[Json] | str | int | float | bool | None"


@dataclass(frozen=True, slots=True)
class TuneKey:
    """What a table was measured for."""

    processor: str
    workers: int
    target: str
    build: str
    products: tuple[str, ...]

    def path(self, cache_dir: Path) -> Path:
        digest = hashlib.blake2b(repr(self).encode(), digest_size=10).hexdigest()
        return cache_dir / "tune" / f"{digest}.json"


@dataclass(frozen=True, slots=True)
class TuneTable:
    key: TuneKey
    blocking: Blocking

    @property
    def num_entries(self) -> int:
        """Numbers that differ from the built-in ones, and blocks of products."""
        usual = asdict(UnitSizes())
        changed = [name for name, value in asdict(self.blocking.sizes).items() if value != usual[name]]
        return len(changed) + sum(map(len, self.blocking.products.values()))


def check_output(path: Path) -> None:
    """Before anything is measured: whether a table may take this place, and whether that would destroy something."""
    check_replaceable(path, BEGINNING, "--output", "tune table")


def check_folder(folder: Path) -> None:
    """Before anything is measured: whether a file can be made there. Makes the folder. `PlaitError` if it cannot."""
    probe = folder / f".plait_tune.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _unwritable(folder, error) from None


def _unwritable(place: Path, error: OSError) -> PlaitError:
    return PlaitError(f"a file cannot be written to {place}: {error.strerror}; give a place with --output")


def write_table(table: TuneTable, path: Path) -> None:
    """`PlaitError` if the system does not let it be written."""
    products = {
        name: {str(1 << bucket): asdict(blocks) for bucket, blocks in sorted(buckets.items())}
        for name, buckets in sorted(table.blocking.products.items())
    }
    document = {
        "plait_tune": FORM,
        "key": asdict(table.key),
        "sizes": asdict(table.blocking.sizes),
        "products": products,
    }
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink()
        raise _unwritable(path, error) from None


def read_table(path: Path) -> TuneTable:
    """`UsageError` for a file that holds no table, in one line."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the tune table {path} cannot be read: {error.strerror}; make one with plait tune") from None
    try:
        if len(raw) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES} bytes")
        return _table(json.loads(raw))
    except (ValueError, RecursionError) as error:
        reason = _in_a_line(str(error))
        raise UsageError(f"{path} is no tune table: {reason}; make one with plait tune") from None


def _in_a_line(text: str) -> str:
    """Words that may come from the file: one line, no control characters, no more than a line's worth."""
    clean = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return clean if len(clean) <= MAX_REASON else f"{clean[:MAX_REASON]}..."


def _table(document: Json) -> TuneTable:
    parts = _mapping(document, "the file")
    form = parts.get("plait_tune")
    if isinstance(form, bool) or form != FORM:
        raise ValueError(f"plait_tune is {form!r} and not {FORM}")
    key = _mapping(parts.get("key"), "key")
    products = key.get("products")
    if not isinstance(products, list):
        raise ValueError("key.products is no list")
    return TuneTable(
        TuneKey(
            _text(key, "processor"),
            _whole(key.get("workers"), "key.workers"),
            _text(key, "target"),
            _text(key, "build"),
            tuple(str(one) for one in products),
        ),
        Blocking(
            _sizes(_mapping(parts.get("sizes"), "sizes")),
            {name: _buckets(name, value) for name, value in _mapping(parts.get("products"), "products").items()},
        ),
    )


def _sizes(given: Mapping[str, Json]) -> UnitSizes:
    known = {one.name for one in fields(UnitSizes)}
    for name in given:
        if name not in known:
            raise ValueError(f"sizes has {name}, which there is not")
    usual = UnitSizes()

    def number(name: str, otherwise: float) -> float:
        return _number(given[name], name) if name in given else otherwise

    def whole(name: str, otherwise: int) -> int:
        return _whole(given[name], name) if name in given else otherwise

    return UnitSizes(
        number("smallest_us", usual.smallest_us),
        number("largest_us", usual.largest_us),
        number("per_worker", usual.per_worker),
        number("largest_attend_us", usual.largest_attend_us),
        whole("least_attend_rows", usual.least_attend_rows),
        whole("stack_tasks_per_worker", usual.stack_tasks_per_worker),
    )


def _buckets(name: str, given: Json) -> dict[int, GemmBlocks]:
    made: dict[int, GemmBlocks] = {}
    for rows, value in _mapping(given, name).items():
        most = 1 << (ROW_BUCKETS - 1)
        if not (rows.isascii() and rows.isdigit() and len(rows) < 10 and 1 <= int(rows) <= most):
            raise ValueError(f"{name} has blocks for {rows} rows; 1 to {most} are possible")
        blocks = _mapping(value, f"{name}, {rows} rows")
        made[row_bucket(int(rows))] = GemmBlocks(
            _whole(blocks.get("most_rows"), f"most_rows of {name}, {rows} rows,"),
            _whole(blocks.get("panels_per_block"), f"panels_per_block of {name}, {rows} rows,"),
        )
    return made


def _mapping(value: Json, what: str) -> Mapping[str, Json]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no JSON object")
    return value


def _text(of: Mapping[str, Json], name: str) -> str:
    value = of.get(name)
    if not isinstance(value, str):
        raise ValueError(f"key.{name} is no text")
    return value


def _number(value: Json, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # NaN is not itself
        raise ValueError(f"{what} is {value!r} and no number")
    # A whole number of hundreds of digits fits no float.
    return float(value) if abs(value) < 1e18 else float("inf")


def _whole(value: Json, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise ValueError(f"{what} is {value!r} and no whole number from 0 to {(1 << 32) - 1}")
    return value
