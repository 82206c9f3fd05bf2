"""The cache of huggingface_hub: repositories by commit, and which commit a branch was when it was last asked for.

Owns the reading of its folders. A link in it may lead to another place of the same repository's folder, and no further.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from plait.core.errors import ModelError
from plait.weights.hub_names import COMMIT, HubName

DEFAULT_REVISION: Final = "main"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A repository at a commit, in the cache."""

    name: HubName
    repository: Path
    commit: str

    @classmethod
    def of(cls, name: HubName, commit: str, cache: Path) -> Snapshot:
        return cls(name, cache / f"models--{name.repository.replace('/', '--')}", commit)

    @property
    def folder(self) -> Path:
        return self.repository / "snapshots" / self.commit

    def file(self, file: str) -> Path:
        """The path of a file that is there. Its bytes are elsewhere in the cache, but nowhere else."""
        path = self.folder / file
        try:
            is_inside = path.resolve(strict=True).is_relative_to(self.repository.resolve())
        except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
            raise ModelError(f"{path}: cannot be read ({error}); remove {self.repository} and fetch again") from error
        if not is_inside:
            raise ModelError(f"{path}: leads out of the cache; remove {self.repository} and fetch again")
        return path

    def files(self) -> list[str]:
        """Everything that is there, with folders in front."""
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.folder).as_posix() for path in found)

    def note(self, revision: str) -> None:
        """Write down which commit a branch or tag was, for when the hub cannot be asked."""
        reference = self.repository / "refs" / revision
        if revision == self.commit:
            return
        try:
            reference.parent.mkdir(parents=True, exist_ok=True)
            fresh = reference.with_name(reference.name + ".plait")
            fresh.write_text(self.commit)
            fresh.replace(reference)
        except OSError:  # a cache that others keep, read-only; everything is there all the same
            return


def commit_in_cache(name: HubName, revision: str, cache: Path) -> str | None:
    """The commit that a branch or tag was when something of it was last fetched."""
    if COMMIT.fullmatch(revision):
        return revision
    try:
        noted = (Snapshot.of(name, "", cache).repository / "refs" / revision).read_text().strip()
    except (OSError, ValueError):
        return None
    return noted if COMMIT.fullmatch(noted) else None
