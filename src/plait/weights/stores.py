"""Stores: the folders in which this and other programs keep models on this machine.

Owns where they are, from those programs' own variables and habits. Looks into none of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SERVICE_OLLAMA: Final = (Path("/usr/share/ollama/.ollama/models"), Path("/var/lib/ollama/models"))
"""Where Ollama keeps models when it runs as a service of a Linux system."""


@dataclass(frozen=True, slots=True)
class Stores:
    """Folders that may be there. Of several for one program, the first that holds a model gives it."""

    hub: Path | None = None
    """Of huggingface_hub: models--ORG--NAME folders."""
    ollama: tuple[Path, ...] = ()
    lmstudio: tuple[Path, ...] = ()
    llama_cpp: tuple[Path, ...] = ()


NO_STORES: Final = Stores()


def stores_here(environment: Mapping[str, str] | None = None, home: Path | None = None) -> Stores:
    """The stores of this user. `environment` None: the process's own."""
    variables = os.environ if environment is None else environment
    home = _home() if home is None else home
    cache = _folder(variables.get("XDG_CACHE_HOME"), home) or home / ".cache"
    hf_home = _folder(variables.get("HF_HOME"), home) or cache / "huggingface"
    ollama = _folder(variables.get("OLLAMA_MODELS"), home)
    return Stores(
        hub=_folder(variables.get("HF_HUB_CACHE"), home) or hf_home / "hub",
        ollama=(home / ".ollama" / "models", *SERVICE_OLLAMA) if ollama is None else (ollama,),
        lmstudio=(home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"),
        llama_cpp=(_folder(variables.get("LLAMA_CACHE"), home) or cache / "llama.cpp",),
    )


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user without one, as in a container that runs under a bare number
        return Path("/dev/null/no-home")


def _folder(said: str | None, home: Path) -> Path | None:
    if not said:
        return None
    return home / said[2:] if said.startswith("~/") else Path(said)
