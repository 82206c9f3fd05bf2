"""Windows in the memory that serves: what layers with a window give up, others get, in the real scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.sim.kit import SPEC, VOCAB, plans
from tests.unit.sim.test_driver import run

from plait.core.events import Event, Submitted
from plait.kv.cache import KVCache
from plait.kv.keeps import KeepsTokens
from plait.model.cache_layout import token_bytes
from plait.model.cache_type import CacheType
from plait.model.config import ModelConfig
from plait.model.families import build_program
from plait.model.keeping import keep_all_tokens
from plait.model.ops import Activation
from plait.model.parts import GroupKind
from plait.model.program import Program
from plait.model.rope import RopeSpec
from plait.model.visibility import CAUSAL, window
from plait.sched.multiplex.presets import CHUNKED, Preset, timed_chunks
from plait.sim.arrivals import TraceRow, arrivals_of
from plait.sim.driver import simulate
from plait.sim.replica import watched_replica

WINDOW, LENGTH, OUTPUT = 512, 6000, 240
LIKE_GEMMA3_270M = build_program(
    ModelConfig(
        family="llama",
        num_layers=18,
        hidden=16,
        ffn_hidden=16,
        num_heads=1,
        num_kv_heads=1,
        head_dim=16,
        vocab_size=VOCAB,
        max_positions=8192,
        norm_eps=1e-5,
        rope=RopeSpec(10000.0, 16, 8192),
        activation=Activation.SILU,
        layer_visibility=tuple(CAUSAL if layer % 6 == 5 else window(WINDOW) for layer in range(18)),
        tied_embeddings=True,
    )
)
"""3 layers that see everything and 15 that see the last 512 tokens, all of one width."""


def most_at_once(program: Program, memory_bytes: int, budget: int) -> int:
    """Sequences of 6,000 tokens that decode in one step, at most; each prompt has its own tokens."""
    spec = replace(
        SPEC, program=program, cache_bytes=memory_bytes, max_step_tokens=budget, max_rows=16, max_model_tokens=8192
    )
    report, events = run([TraceRow(0.0, LENGTH - OUTPUT, OUTPUT)] * 12, replace(spec, enable_prefix=False))
    assert (report.num_finished, report.num_preemptions) == (12, 0)
    return max(sum(chunk.num_tokens == 1 for chunk in plan.chunks) for plan in plans(events))


@pytest.mark.parametrize("budget", [256, 512])
def test_memory_for_two_sequences_of_every_token_holds_what_the_closed_form_says(budget: int) -> None:
    per_token = token_bytes(LIKE_GEMMA3_270M, CacheType.F16)
    memory_bytes = 2 * per_token * 6016
    closed_form = 2 * 18 * LENGTH / (3 * LENGTH + 15 * min(LENGTH, WINDOW))
    assert most_at_once(keep_all_tokens(LIKE_GEMMA3_270M), memory_bytes, budget) == 2
    assert most_at_once(LIKE_GEMMA3_270M, memory_bytes, budget) >= 0.95 * closed_form
    assert closed_form == pytest.approx(8.41, abs=0.01)


PROMPT = 32_768


@pytest.mark.parametrize(
    ("preset", "budget", "num_ahead"), [(CHUNKED, 256, 512), (CHUNKED, 512, 1024), (timed_chunks(1.0), 512, 512)]
)
def test_a_long_prompt_holds_of_its_windows_what_its_chunks_are_about_to_write(
    preset: Preset, budget: int, num_ahead: int
) -> None:
    """`num_ahead`: tokens in steps in flight. What is behind the window is given back with every commit, so the length
    of the prompt is no matter; all that it holds counts as used.
    """
    memory = {"cache_bytes": 10**9, "enable_prefix": False}
    spec = replace(
        SPEC, program=LIKE_GEMMA3_270M, preset=preset, max_step_tokens=budget, max_model_tokens=40_960, **memory
    )
    (full,) = (one.id for one in LIKE_GEMMA3_270M.cache_groups if one.kind is GroupKind.FULL)
    (windowed,) = (one.id for one in LIKE_GEMMA3_270M.cache_groups if one.kind is GroupKind.WINDOW)
    seen: list[KVCache] = []
    whole: list[int] = []
    windows: list[int] = []

    def look(event: Event) -> None:
        if isinstance(event, Submitted):
            groups = seen[0].explain().groups
            whole.append(groups[full].blocks.used)
            windows.append(groups[windowed].blocks.used)

    row = TraceRow(0.0, PROMPT, 4)
    simulate(arrivals_of([row], VOCAB), watched_replica(spec, seen.append), look)
    size = spec.tokens_per_block
    assert max(windows) == -(-(WINDOW - 1) // size) + num_ahead // size
    assert max(windows) <= KeepsTokens(size, window(WINDOW)).most_blocks(PROMPT, num_ahead)
    assert max(whole) >= PROMPT // size
