"""What a source found: the place of a model on this machine.

Owns the one value that every source gives back, and the rule for a directory: which model it holds.
Invariant: a path that comes out exists and is a model's: a GGUF file, a safetensors file, or a directory as
`transformers` writes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.core.errors import ModelError
from plait.weights.gguf_choice import GGUF, choose_gguf
from plait.weights.hf_layout import CONFIG, ENDING


@dataclass(frozen=True, slots=True)
class ModelFile:
    path: Path
    """Of a split GGUF model the first part."""
    name: str
    """The catalogue name, the name in a store, or the file's name without its ending."""
    sha256: str | None
    """Known only for files that were checked against it; otherwise it is computed when it is wanted."""
    notes: tuple[str, ...] = ()
    """What a user should know about this source, one sentence each."""


def model_in(directory: Path, name: str, quantisation: str | None = None) -> ModelFile:
    """The model that a directory holds: a checkpoint in Hugging Face's layout, or the one GGUF model in it."""
    try:
        names = sorted(path.name for path in directory.iterdir())
    except OSError as error:
        raise ModelError(f"{directory}: cannot be read ({error.strerror or error}); check its permissions") from error
    holds_checkpoint = CONFIG in names and any(entry.endswith(ENDING) for entry in names)
    if quantisation is None and holds_checkpoint:
        return ModelFile(directory, name, None)
    if any(entry.endswith(GGUF) for entry in names):
        chosen = choose_gguf(names, quantisation, str(directory), lambda choice: str(directory / choice.first))
        return ModelFile(directory / chosen.first, name, None)
    if quantisation is not None:
        raise ModelError(f"{directory}: no {GGUF} file in it, so none in {quantisation}; leave that out")
    if CONFIG not in names and not _names_weights(names):
        raise ModelError(
            f"{directory}: no model in it; a model directory holds {CONFIG} and {ENDING} files, or a {GGUF} file"
        )
    return ModelFile(directory, name, None)


def _names_weights(names: list[str]) -> bool:
    return any(name.endswith((ENDING, ".bin", ".pth", ".pt")) for name in names)
