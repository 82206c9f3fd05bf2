"""Notes: what was chosen at load is said in a line, and nothing is said where nothing was."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.model.programs import tiny

from plait.model.families import build_program
from plait.model.keeping import keep_all_tokens
from plait.model.model_config import ModelConfig
from plait.model.notes import model_notes
from plait.model.rope import LongScaling, RopeSpec
from plait.model.visibility import CAUSAL, window


def notes_of(config: ModelConfig) -> tuple[str, ...]:
    return model_notes(config, keep_all_tokens(build_program(config)))


def test_a_plain_model_needs_no_words() -> None:
    assert notes_of(tiny()) == ()


def test_windows_that_memory_does_not_use_are_named() -> None:
    config = tiny(window(8), CAUSAL, window(8))
    assert notes_of(config) == (
        "2 of 3 layers look at the last 8 tokens only; memory keeps keys and values of all tokens for them too",
    )
    assert model_notes(config, build_program(config)) == ()


def test_the_chosen_rotary_factors_are_named() -> None:
    scaling = LongScaling((1.0, 1.0), (2.0, 4.0), 32, 1.1)
    config = replace(tiny(), rope=RopeSpec(1e4, 4, 64, scaling))
    assert notes_of(config) == (
        "long rotary factors, because sequences may have more than 32 tokens; with --max-model-len 32 or less it is "
        "the short ones",
    )
    assert notes_of(config.within(32)) == ("short rotary factors: sequences have at most 32 of 32 tokens",)
