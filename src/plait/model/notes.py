"""Notes: what a user should know about a loaded model before the first answer, a line each.

Owns the words for choices that were made at load and change memory or numbers: windows that memory does not use yet,
and which of two sets of rotary divisors a model has.
"""

from __future__ import annotations

from collections.abc import Iterator

from plait.model.model_config import ModelConfig
from plait.model.program import GroupKind, Program
from plait.model.rope import LongScaling


def model_notes(config: ModelConfig, program: Program) -> tuple[str, ...]:
    """`program` as it is executed."""
    return (*_window_notes(config, program), *_rope_notes(config))


def _window_notes(config: ModelConfig, program: Program) -> Iterator[str]:
    sizes = [seen.size for seen in config.layer_visibility if seen.size]
    if sizes and all(group.kind is GroupKind.FULL for group in program.cache_groups):
        spans = " or ".join(f"{size:,}" for size in sorted(set(sizes)))
        yield (
            f"{len(sizes)} of {config.num_layers} layers look at the last {spans} tokens only; memory keeps keys and "
            "values of all tokens for them too"
        )


def _rope_notes(config: ModelConfig) -> Iterator[str]:
    scaling = config.rope.scaling
    if not isinstance(scaling, LongScaling):
        return
    original = f"{scaling.original_positions:,}"
    if config.rope.is_long:
        yield (
            f"long rotary factors, because sequences may have more than {original} tokens; with --max-model-len "
            f"{scaling.original_positions} or less it is the short ones"
        )
    else:
        yield f"short rotary factors: sequences have at most {config.max_positions:,} of {original} tokens"
