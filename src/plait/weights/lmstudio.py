"""LM Studio's store: PUBLISHER/REPOSITORY folders with model files.

Owns the reading of names in it; a name cannot lead out of the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from plait.core.errors import ModelError
from plait.weights.found import ModelFile, model_in
from plait.weights.hf_layout import is_plain_name


def find_lmstudio(name: str, roots: Sequence[Path]) -> ModelFile:
    """The model called PUBLISHER/REPOSITORY, with a file or a quantisation behind it where it has several."""
    whole, _, quantisation = name.partition(":")
    parts = whole.split("/")
    if not 2 <= len(parts) <= 3 or not all(map(is_plain_name, parts)):
        raise ModelError(f"lmstudio:{name} is no model of LM Studio; write lmstudio:PUBLISHER/REPOSITORY[/FILE]")
    for root in roots:
        path = root.joinpath(*parts)
        try:
            if not path.exists():
                continue
        except OSError as error:
            raise ModelError(f"{path}: cannot be read ({error.strerror or error}); check its permissions") from error
        if not path.resolve().is_relative_to(root.resolve()):
            raise ModelError(f"{path}: leads out of LM Studio's store; give its path instead")
        if path.is_dir():
            return model_in(path, "/".join(parts), quantisation or None)
        return ModelFile(path, path.stem, None)
    known = ["/".join(folder.parts[-2:]) for root in roots for folder in folders_in(root)]
    there = f"there are {', '.join(known[:8])}" if known else f"there is no model in {' or '.join(map(str, roots))}"
    raise ModelError(f"LM Studio's store has no {whole}; {there}")


def folders_in(root: Path) -> Iterator[Path]:
    """Every PUBLISHER/REPOSITORY of a store."""
    try:
        yield from [folder for folder in sorted(root.glob("*/*")) if folder.is_dir()]
    except OSError:  # closed to this user
        return
