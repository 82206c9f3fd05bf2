"""Sources: from what the user typed to the facts of a model, without weights and without a network.

Owns the choice between a file, a directory, a known name and a mistake.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from plait.core.errors import ModelError
from plait.inspect.byhand import facts_from_description
from plait.inspect.config import facts_from_config
from plait.inspect.facts import ModelFacts
from plait.inspect.known import KnownModel, known_models

MAX_FILE_BYTES = 16 << 20
"""Of a configuration; real ones have some kilobytes."""
CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"


def find_facts(name: str) -> ModelFacts:
    """The facts of a model given by path or by the name it has on the hub."""
    path = Path(name)
    try:
        if path.is_dir():
            return _from_directory(path)
        if path.exists():
            return _from_file(path)
    except OSError as error:
        raise ModelError(f"{name[:80]!r} cannot be read ({error.strerror or error}); check the path") from None
    return _from_name(name)


def _from_directory(path: Path) -> ModelFacts:
    if (path / CONFIG_FILE).is_file():
        return replace(_from_file(path / CONFIG_FILE), name=path.name, weight_bytes=_stored_bytes(path))
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return _from_file(files[0])
    if files:
        raise ModelError(f"{path} holds {len(files)} GGUF files; give one of them, such as {files[0]}")
    raise ModelError(f"{path} holds neither {CONFIG_FILE} nor a .gguf file; give the path of one")


def _from_file(path: Path) -> ModelFacts:
    if not path.is_file():
        raise ModelError(f"{path} is not a regular file; give a config.json or a .gguf file")
    if is_gguf(path):
        from plait.inspect.gguf import facts_from_gguf  # NumPy comes with it, and only such a file needs that.

        return facts_from_gguf(path)
    values = read_json(path)
    name = path.resolve().parent.name if path.name == CONFIG_FILE else path.stem
    if "groups" in values and "model_type" not in values:
        return facts_from_description(values, name or path.stem, str(path))
    from plait.inspect.served import served_from_hf  # All families come with it, and a known name needs none.

    return served_from_hf(facts_from_config(values, name or path.stem, str(path)), values)


def is_gguf(path: Path) -> bool:
    """By its first bytes, or by its name, so that a broken one is said to be a broken GGUF file."""
    with path.open("rb") as file:
        return file.read(4) == b"GGUF" or path.suffix == ".gguf"


def read_json(path: Path) -> dict[str, object]:
    """A table out of a small JSON file."""
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ModelError(f"{path} has {size:,} bytes, too many for a configuration; give a config.json or a .gguf file")
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON ({error}); give a config.json or a .gguf file") from None
    if not isinstance(values, dict):
        raise ModelError(f"{path} holds no table of keys and values; give a config.json or a .gguf file")
    return values


def _stored_bytes(path: Path) -> int | None:
    """Bytes of a directory's safetensors, as its index or the files themselves say."""
    if (path / INDEX_FILE).is_file():
        metadata = read_json(path / INDEX_FILE).get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
        if isinstance(total, int) and total > 0:
            return total
    return sum(file.stat().st_size for file in path.glob("*.safetensors")) or None


def _from_name(name: str) -> ModelFacts:
    known = known_models()
    found = known.get(name.lower())
    if found is None:
        raise ModelError(_not_found(name, known))
    facts = facts_from_config(found.config, found.name, found.source)
    return replace(facts, parameters=found.parameters)


def _not_found(name: str, known: Mapping[str, KnownModel]) -> str:
    if "\0" in name:
        return f"{name[:80]!r} is no path and no name; give the path of a config.json or GGUF file"
    if name.endswith((".json", ".gguf")) or name.startswith((".", "/", "~")):
        return f"{name}: no such file; check the path"
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    guess = f"did you mean {known[close[0]].name}? " if close else ""
    names = len({model.name for model in known.values()})
    return (
        f"no file and no known model is called {name!r}; {guess}give the path of its config.json or GGUF file, "
        f"or one of the {names} known names that plait inspect lists"
    )
