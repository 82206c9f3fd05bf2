"""Configuration of one batch run, and the files that belong to it.

Owns the names of the files beside an output. The ledger lies beside the output because the two belong together: they
are moved, copied and deleted as a pair, and no hidden state elsewhere decides what a command does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plait.core.errors import UsageError

STDIN = "-"


@dataclass(frozen=True, slots=True)
class BatchConfig:
    input: str
    """A JSONL file, or `-` for standard input."""
    output: Path
    restart: bool = False
    """Forget what the ledger holds and run every line again."""
    strict: bool = False
    """Refuse the whole input before any work if a line cannot be served."""
    max_in_flight: int = 256
    """Lines submitted to the engine at once; bounds memory, and is what the scheduler can choose from."""
    seed: int = 0
    """Where the seeds of lines without one come from."""
    served_names: tuple[str, ...] = ()
    """Names for the model that lines may use besides its own."""

    def __post_init__(self) -> None:
        if self.max_in_flight < 1:
            raise UsageError(f"max_in_flight is {self.max_in_flight}; at least one line must be in flight")

    @property
    def ledger(self) -> Path:
        return self._beside(".ledger")

    @property
    def partial(self) -> Path:
        """Finished lines in the order in which they finished, while the job runs."""
        return self._beside(".partial")

    @property
    def unpublished(self) -> Path:
        """The whole output while it is being written, before it takes the output's name."""
        return self._beside(".new")

    @property
    def written(self) -> tuple[Path, ...]:
        """Every file that the job may write or remove, SQLite's files beside the ledger among them."""
        of_ledger = tuple(self._beside(f".ledger{suffix}") for suffix in ("", "-wal", "-shm", "-journal"))
        return (self.output, self.partial, self.unpublished, *of_ledger)

    def _beside(self, suffix: str) -> Path:
        return self.output.with_name(self.output.name + suffix)
