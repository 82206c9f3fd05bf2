"""Plait: an LLM serving engine for online and offline work on shared memory and shared devices.

The Python API is here by name and loaded when a name is first used, so that `import plait` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plait.core.errors import ModelError, PlaitError, RequestError, UsageError
    from plait.llm.async_llm import AsyncEngineArgs, AsyncLLM, EngineArgs
    from plait.llm.errors import InputError
    from plait.llm.llm import LLM
    from plait.llm.outputs import (
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        Logprob,
        RequestOutput,
    )
    from plait.llm.prompts import PromptType, TextPrompt, TokensPrompt
    from plait.llm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "InputError",
    "Logprob",
    "ModelError",
    "PlaitError",
    "PromptType",
    "RequestError",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "UsageError",
]

_HOMES = {
    "plait.llm.llm": ("LLM",),
    "plait.llm.async_llm": ("AsyncEngineArgs", "AsyncLLM", "EngineArgs"),
    "plait.llm.outputs": (
        "CompletionOutput",
        "EmbeddingOutput",
        "EmbeddingRequestOutput",
        "Logprob",
        "RequestOutput",
    ),
    "plait.llm.sampling_params": ("RequestOutputKind", "SamplingParams", "StructuredOutputsParams"),
    "plait.llm.prompts": ("PromptType", "TextPrompt", "TokensPrompt"),
    "plait.llm.errors": ("InputError",),
    "plait.core.errors": ("ModelError", "PlaitError", "RequestError", "UsageError"),
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
