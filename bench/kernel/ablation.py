"""Ablation: K10, a whole engine with one thing more each time: kernels, fused operations, mixed steps, prefix cache.

Owns the variants and the loads. Baseline is the runtime as it is but with SSE2 kernels, every operation of the program
on its own, steps of prefill or of decode alone (prefill first), and no prefix cache; the last variant is Plait as it
ships. Nothing in Plait switches fusion or mixing off, so this file puts other functions in their place.
Invariant: all variants answer the same requests with the same number of tokens.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise

from serving.driver import run_workload
from serving.figures import Figures
from serving.plait_engine import PlaitEngine, engine_options, open_model, running
from serving.prompts import Word, prompt, whole_words
from serving.workloads import Ask, Draw, Sizes, Workload

from plait import assembly
from plait.build import LoadedModel
from plait.exec.native import lowering
from plait.exec.native.fusion import Fused, Plain, Projections
from plait.exec.native.uses import Uses
from plait.model.ops import Linear
from plait.model.program import Program
from plait.sched.chunked import ChunkedScheduler
from plait.sched.open_step import OpenStep
from plait.weights.gguf import read_gguf

from .mixtures import read_lengths
from .report import Section
from .setting import Setting
from .turns import geomean, spread

AT_ONCE = 4
"""Sequences that run together; the others wait, so that prompts come while others decode."""
VOCABULARY_KEY = "tokenizer.ggml.tokens"


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    options: Mapping[str, str]
    fuses: bool
    mixes: bool


def variants(target: str) -> list[Variant]:
    old, best = {"instruction-set": "baseline"}, {"instruction-set": target}
    no_prefix = {"enable-prefix-caching": "false"}
    return [
        Variant("baseline", old | no_prefix, fuses=False, mixes=False),
        Variant("+ kernels", best | no_prefix, fuses=False, mixes=False),
        Variant("+ fused operations", best | no_prefix, fuses=True, mixes=False),
        Variant("+ mixed steps", best | no_prefix, fuses=True, mixes=True),
        Variant("+ prefix cache", best, fuses=True, mixes=True),
    ]


def conversation(sizes: Sizes, shapes: random.Random, draw: Draw) -> list[Ask]:
    """Lengths of recorded conversations, a sixteenth of them; a system prompt of 32 tokens that all share."""
    system = draw(32)
    lengths = shapes.sample(read_lengths("conversation"), sizes.num_requests)
    return [Ask(system + draw(max(1, one.prompt_tokens // 16)), max(2, one.output_tokens // 16)) for one in lengths]


def prefill_heavy(sizes: Sizes, shapes: random.Random, draw: Draw) -> list[Ask]:
    shared = draw(64)
    return [Ask(shared + draw(shapes.randint(64, 128)), 8) for _ in range(sizes.num_requests)]


def decode_heavy(sizes: Sizes, shapes: random.Random, draw: Draw) -> list[Ask]:
    shared = draw(16)
    return [Ask(shared + draw(16), shapes.randint(32, 64)) for _ in range(sizes.num_requests)]


LOADS = (
    Workload("conversation", "lengths of conversations", "total_tokens_per_s", "tokens/s", True, True, conversation),
    Workload("prefill-heavy", "long prompts", "total_tokens_per_s", "tokens/s", True, True, prefill_heavy),
    Workload("decode-heavy", "long answers", "total_tokens_per_s", "tokens/s", True, True, decode_heavy),
)


def k10(setting: Setting) -> Section:
    section = Section("K10", "a whole engine with one thing more each time: gain over the variant before it")
    model = open_model(engine_options({}))
    vocabulary = read_gguf(model.weights.source).metadata[VOCABULARY_KEY]
    assert isinstance(vocabulary, Sequence)
    words = whole_words([str(one) for one in vocabulary])
    chosen = variants(setting.target)
    samples: dict[tuple[str, str], list[Figures]] = {}
    # The baseline is many times slower than the rest: once is enough to see that.
    rest = chosen[1:]
    cycles = max(1, setting.effort.num_rounds // 4)
    for variant in [chosen[0], *[*rest, *reversed(rest)] * cycles]:
        print(f"K10: {variant.name}", file=sys.stderr, flush=True)
        for load, figures in _visit(variant, model, words, 2 if setting.quick else 12).items():
            samples.setdefault((variant.name, load), []).append(figures)
    for load in LOADS:
        _add(section, load.name, chosen, samples)
    return section


def _add(
    section: Section,
    load: str,
    chosen: Sequence[Variant],
    samples: Mapping[tuple[str, str], Sequence[Figures]],
) -> None:
    def middle(variant: Variant, figure: str) -> float:
        return spread(one.values[figure] for one in samples[variant.name, load]).seconds

    for before, after in pairwise(chosen):
        gain = middle(after, "total_tokens_per_s") / middle(before, "total_tokens_per_s")
        ttft, itl = (middle(after, name) / middle(before, name) for name in ("ttft_p50_s", "itl_p99_s"))
        note = f"TTFT p50 x {ttft:.2f}, gap p99 x {itl:.2f}; {middle(after, 'total_tokens_per_s'):.0f} tokens/s"
        section.add(f"{load}: {after.name}, throughput", gain, unit="x", note=note)
    errors = sum(one.num_errors + one.num_short for variant in chosen for one in samples[variant.name, load])
    section.add(f"{load}: answers with errors or too short", float(errors), at_most=0.0)
    section.detail[load] = {variant.name: [one.values for one in samples[variant.name, load]] for variant in chosen} | {
        "all": geomean([middle(chosen[-1], "total_tokens_per_s") / middle(chosen[0], "total_tokens_per_s")])
    }


def _visit(variant: Variant, model: LoadedModel, words: Sequence[Word], num_requests: int) -> dict[str, Figures]:
    options = engine_options({**variant.options, "max-num-seqs": str(AT_ONCE), "kv-cache-memory": "512MiB"})
    rng = random.Random(variant.name)
    sizes = Sizes(num_requests=num_requests)

    def draw(count: int) -> tuple[Word, ...]:
        return prompt(rng, words, count)

    async def all_loads(engine: PlaitEngine) -> dict[str, Figures]:
        first = await engine.answer(Ask(draw(8), 2), 0.0, stream=False)
        if first.error:
            raise ValueError(first.error)
        return {load.name: await run_workload(engine, load, sizes, random.Random(load.name), draw) for load in LOADS}

    with ExitStack() as stack:
        if not variant.fuses:
            stack.enter_context(replaced(lowering, "fuse", unfused))
        if not variant.mixes:
            stack.enter_context(replaced(assembly, "ChunkedScheduler", UnmixedScheduler))
        engine = stack.enter_context(running(options, model))
        return asyncio.run(all_loads(PlaitEngine(engine)))


@contextmanager
def replaced(module: object, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def unfused(program: Program, uses: Uses, integer: frozenset[str]) -> list[tuple[int, Fused]]:
    """In place of `fusion.fuse`: every op on its own."""
    return [
        (place, Projections((op,)) if isinstance(op, Linear) else Plain(op)) for place, op in enumerate(program.ops)
    ]


class UnmixedScheduler(ChunkedScheduler):
    """Steps of prompts or of decode rows alone; prompts, those that wait too, come first."""

    def _plan_running(self, step: OpenStep, now: float) -> None:
        running = [(seq, seq.num_plannable) for seq in self._lives.running]
        prompts = [(seq, count) for seq, count in running if seq.num_computed < len(seq.request.prompt)]
        self._give(step, prompts, now)
        super()._plan_waiting(step, now)
        if not step.chunks:
            self._give(step, running, now)

    def _plan_waiting(self, step: OpenStep, now: float) -> None:
        """Done already, before decode rows."""

    def _give(self, step: OpenStep, wants: Sequence[tuple[object, int]], now: float) -> None:
        for seq, num_tokens in wants:
            if step.budget > 0 and num_tokens > 0:
                self._go_on(step, seq, num_tokens, now)  # type: ignore[arg-type]
