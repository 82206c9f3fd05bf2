"""The step bench: what its steps read and write was written before. No time is judged."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from tests.e2e.tiny_model import write_tiny_model

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

from plait.build import choose_executor, load_executor, load_model
from plait.cli.step_bench import StepBench, bench_memory
from plait.config.engine_options import EngineOptions
from plait.core.clock import RealClock
from plait.core.step import StepPlan
from plait.cost.solo import decode_shape, prefill_shape
from plait.exec.native.executor import NativeExecutor
from plait.model.cache_layout import token_bytes

ROWS, TOKENS = 8, 64


def test_every_block_that_a_step_reads_or_writes_was_written_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is written for the first time takes a step up to twice as long."""
    options = EngineOptions(
        model=str(write_tiny_model(tmp_path / "tiny.gguf")), max_num_batched_tokens=TOKENS, threads=2
    )
    model = load_model(options, lambda done, total: None, datetime.now)
    per_token = token_bytes(model.program, choose_executor(options, model.program, None).cache_type)
    cache = bench_memory(per_token, options.block_size, ROWS, TOKENS) * 4
    options = EngineOptions(
        model=options.model, max_num_batched_tokens=TOKENS, threads=2, max_num_seqs=2 * ROWS, kv_cache_memory=cache
    )
    ready = load_executor(options, model, RealClock())
    plans: list[StepPlan] = []
    submit = NativeExecutor.submit
    monkeypatch.setattr(NativeExecutor, "submit", lambda self, plan: (plans.append(plan), submit(self, plan)))
    try:
        assert isinstance(ready.executor, NativeExecutor)
        bench = StepBench(ready.executor, ready.layout, model.program.vocab_size)
        (group,) = ready.layout.groups
        computed = {block for grant in plans[0].blocks for block in grant.blocks}
        written = computed | {move.dst_block for plan in plans for move in plan.moves}
        assert written == set(range(group.num_blocks))
        plans.clear()
        for shape in (decode_shape(ROWS, 0), prefill_shape(TOKENS)):
            assert len(bench.alone(shape, bench.units, 2)) >= 1
        assert {block for plan in plans for grant in plan.blocks for block in grant.blocks} <= written
    finally:
        ready.executor.close()
