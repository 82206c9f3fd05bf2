"""Tuned: which tune table an executor uses.

Owns the choice between the table of this machine, a file that was named, and none, and the line that says so. Measures
nothing. Invariant: a table that nobody asked for by name never keeps an engine from starting.
"""

from __future__ import annotations

from pathlib import Path

from plait import _native
from plait.core.errors import UsageError
from plait.exec.native.executor import NativeExecutor
from plait.exec.native.tune_table import TuneKey, TuneTable, read_table

AUTO, NONE = "auto", "none"


def tune_key(executor: NativeExecutor, processor: str) -> TuneKey:
    """What a table must have been measured for to be this executor's own. `processor`: its model."""
    built = _native.build_info()
    build = f"{built['version']}, interface {built['interface']}, {built['compiler']}, {built['flags']}"
    return TuneKey(processor, executor.info.share_units, executor.target, build, executor.products)


def use_table(executor: NativeExecutor, wanted: str, cache_dir: Path, processor: str) -> str:
    """Make a loaded executor use what `--tune-table` says; what it uses, in a line. `UsageError`: a file that was named
    is no table, or holds numbers out of their limits.
    """
    if wanted == NONE:
        return "units by built-in estimates: --tune-table none"
    key = tune_key(executor, processor)
    if wanted != AUTO:
        table = read_table(Path(wanted))
        try:
            executor.retune(table.blocking)
        except UsageError as error:
            raise UsageError(f"{wanted}: {error}; make one with plait tune") from None
        return f"units by {_entries(table)} of {wanted}{'' if table.key == key else ', which was measured elsewhere'}"
    path = key.path(cache_dir)
    try:
        if not path.exists():
            return "units by built-in estimates; plait tune looks for better ones"
        table = read_table(path)
        if table.key != key:
            raise UsageError(f"{path} was measured for something else")
        executor.retune(table.blocking)
    except (UsageError, OSError) as error:
        # A folder that may not be looked into is an OSError.
        return f"units by built-in estimates: {error}"
    return f"units by {_entries(table)} of {path}"


def _entries(table: TuneTable) -> str:
    return f"{table.num_entries} measured entr{'y' if table.num_entries == 1 else 'ies'}"
