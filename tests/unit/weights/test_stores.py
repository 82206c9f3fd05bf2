"""Stores: where other programs keep models, from their own variables and habits."""

from __future__ import annotations

from pathlib import Path

from plait.weights.stores import SERVICE_OLLAMA, Stores, stores_here

HOME = Path("/somewhere")


def test_by_default_everything_is_where_its_program_puts_it() -> None:
    assert stores_here({}, HOME) == Stores(
        hub=HOME / ".cache/huggingface/hub",
        ollama=(HOME / ".ollama/models", *SERVICE_OLLAMA),
        lmstudio=(HOME / ".lmstudio/models", HOME / ".cache/lm-studio/models"),
        llama_cpp=(HOME / ".cache/llama.cpp",),
    )


def test_the_programs_variables_count() -> None:
    found = stores_here({"XDG_CACHE_HOME": "/cache", "OLLAMA_MODELS": "~/ollama", "LLAMA_CACHE": "/llama"}, HOME)
    assert (found.hub, found.ollama, found.llama_cpp) == (
        Path("/cache/huggingface/hub"),
        (HOME / "ollama",),
        (Path("/llama"),),
    )
    assert stores_here({"HF_HOME": "/hf", "XDG_CACHE_HOME": "/cache"}, HOME).hub == Path("/hf/hub")
    assert stores_here({"HF_HOME": "/hf", "HF_HUB_CACHE": "/hub"}, HOME).hub == Path("/hub")
    assert stores_here({"OLLAMA_MODELS": ""}, HOME).ollama[0] == HOME / ".ollama/models"
