"""Sim import: `plait sim import`, a trace or a log of any known form as a file of our own.

Owns the file that is written. Only numbers go into it: times, lengths, and which prompts begin alike.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO, cast

from plait.cli.streams import say
from plait.config.option import OptionSources
from plait.config.sim_options import SimImportOptions
from plait.core.errors import UsageError
from plait.sim.traces.forms import Reading, open_trace
from plait.sim.traces.writing import csv_lines, json_lines

_ENDINGS = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz")


def run_import(sources: OptionSources) -> int:
    options = sources.read(SimImportOptions)
    if options.input is None or options.output is None:
        raise UsageError("write plait sim import FILE -o TRACE.jsonl (or .csv)")
    if not options.output.name.endswith(_ENDINGS):
        raise UsageError(f"--output is {options.output}; its name must end in one of {', '.join(_ENDINGS)}")
    if os.path.lexists(options.output):
        raise UsageError(f"--output {options.output} exists; remove it, or choose another file")
    trace = open_trace(options.input, options.format, Reading(seed=options.seed))
    write = csv_lines if ".csv" in options.output.suffixes else json_lines
    count = _write(options.output, write(trace.requests()))
    if not options.quiet:
        for note in trace.notes:
            say(note)
        say(f"{count:,} requests of {options.input.name} ({trace.form}) are in {options.output}")
    return 0


def _write(path: Path, lines: Iterable[str]) -> int:
    """Write lines, and return how many are requests. What is not whole does not stay."""
    part = path.with_name(f"{path.name}.part")
    count = 0
    try:
        with _opened(part, packed=path.name.endswith(".gz")) as file:
            for line in lines:
                file.write(f"{line}\n")
                count += 1
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"--output {path} cannot be written: {error.strerror}; choose another file") from None
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return count - (".csv" in path.suffixes)


def _opened(path: Path, *, packed: bool) -> TextIO:
    if packed:
        return cast(TextIO, gzip.open(path, "wt", encoding="utf-8", newline="\n"))
    return path.open("w", encoding="utf-8", newline="\n")
