"""What a memory cut by kinds of layers is worth: the same requests, the same engine, the same budget, only --kv-layout
differs.

    .venv/bin/python bench/memory_layouts.py --model gemma.gguf [--scale 0.25] [--rows capacity,answers] [--json OUT]

The model has layers with windows (gemma3-270m: 3 layers of 18 see everything). The budget holds two sequences of 6,000
tokens under `uniform`. Rows: what is found again by number of documents (the memory alone, without a model); how many
such sequences are answered at once, beside the closed form; ten long answers to short prompts; questions about six
documents in random order; what the memory costs in a step of a model with one kind of layer; and how many steps the ten
answers take, by the simulator and with gemma3-270m's shape whatever the model. The first two layouts
are visited again at the end, the other way round (A B ... B A). Bounds come first. The last line is one JSON object.
About ten minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from layouts.memory_alone import hit_fraction
from layouts.simulated import run
from layouts.taking_turns import turns
from layouts.visit import Refused, Visit, visit
from layouts.workload import Batch, Sizes, answers_batch, capacity_batch, documents_batch
from memory_per_block import GROUPS, us_per_step
from serving.limits import MachineLimits, Weights, decode_steps, measure, step_s
from serving.plait_engine import open_model
from serving.quiet import QUIET_FRACTION, busy_fraction

from plait import _native
from plait.config.engine_options import EngineOptions
from plait.core.errors import PlaitError
from plait.core.step import ChunkShape, StepShape
from plait.kv.layouts.serving import cut
from plait.model.cache_layout import group_token_bytes, token_bytes
from plait.model.cache_type import CacheType
from plait.model.config import config_from_hf
from plait.model.families import build_program
from plait.model.keeping import keep_all_tokens
from plait.model.program import CacheGroup, Program

LAYOUTS = "uniform,paged,vllm,max-page,static"
ROWS = "hits,capacity,answers,documents,kv,steps"
KV_SEQUENCES, KV_OUTPUT = 32, 64
GEMMA3_270M: dict[str, object] = {
    "model_type": "gemma3_text",
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
    "vocab_size": 262_144,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "layer_types": ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(18)],
}
F16, BLOCK = CacheType.F16, 32


class Bench:
    """One model, mapped once and started anew for every visit."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.sizes = Sizes().scaled(args.scale)
        longest = max(self.sizes.document, self.sizes.short_prompt + self.sizes.long_output)
        context = -(-longest // BLOCK) * BLOCK
        self.options = EngineOptions(model=str(args.model), max_model_len=context, max_num_seqs=16)
        self.models = {
            uniform: open_model(replace(self.options, kv_layout="uniform" if uniform else "paged"))
            for uniform in (False, True)
        }
        self.program = self.models[False].program
        self.length = -(-self.sizes.document // BLOCK) * BLOCK
        """Of a document in whole blocks."""
        self.budget = 2 * self.length * token_bytes(self.program, F16)
        self.vocab = self.program.vocab_size
        self.answers: dict[str, int] = {}

    def __call__(self, layout: str, batch: Batch) -> Visit:
        options = replace(self.options, kv_layout=layout, kv_cache_memory=self.budget)
        return visit(self.models[layout == "uniform"], options, batch)


def main() -> None:
    args = _arguments()
    found: dict[str, object] = {"scale": args.scale}
    rows = args.rows.split(",")
    program = build_program(config_from_hf(GEMMA3_270M))
    if args.model is None:
        print("without --model, a GGUF file whose layers have windows, the rows kv and steps alone")
        rows = [row for row in rows if row in ("kv", "steps")]
    else:
        found |= _of_windows(args, rows)
    if "steps" in rows:
        found["steps"] = _steps(program, Sizes().scaled(args.scale), args.layouts.split(","))
    if "kv" in rows:
        found["kv"] = _kv_part(args.small_model)
    print(json.dumps(found))


def _of_windows(args: argparse.Namespace, rows: Sequence[str]) -> dict[str, object]:
    """The rows of a model whose layers have windows."""
    busy = busy_fraction() or 0.0
    if busy > QUIET_FRACTION:
        print(f"warning: others use {busy:.0%} of this machine, so speeds and their ratios say little")
    bench = Bench(args)
    layouts = args.layouts.split(",")
    print(f"budget {bench.budget / 2**20:,.1f} MiB: two sequences of {bench.length:,} tokens under uniform")
    found: dict[str, object] = {"model": bench.models[False].name, "budget_bytes": bench.budget}
    bounds = _bounds(bench, measure(_native, quick=True)) if {"answers", "documents"} & set(rows) else {}
    for name, bound in bounds.items():
        print(f"bound: {name} {bound:,.0f} tokens/s")
    found["bounds"] = bounds
    if "hits" in rows:
        found["hits"] = _hits(bench, layouts)
    if "capacity" in rows:
        found["capacity"] = _capacity(bench, layouts)
    if "answers" in rows:
        found["answers"] = _real_row(bench, "answers", answers_batch(bench.sizes, bench.vocab), layouts, bounds)
    if "documents" in rows:
        batch = documents_batch(bench.sizes, bench.sizes.documents, bench.vocab, args.users)
        found["documents"] = _real_row(bench, "documents", batch, layouts, bounds)
    return found


def _kv_part(name: str) -> dict[str, float]:
    """What the memory costs in a decode step of a model with one group, and which part of the step that is."""
    model = open_model(EngineOptions(model=name))
    dice = random.Random(4)
    prompts = [tuple(dice.randrange(1000, model.program.vocab_size) for _ in range(32)) for _ in range(KV_SEQUENCES)]
    one = visit(model, EngineOptions(model=name, max_model_len=512), Batch(tuple(prompts), KV_OUTPUT, KV_SEQUENCES))
    step_us, kv_us = 1e6 * one.seconds / one.num_steps, KV_SEQUENCES * us_per_step(GROUPS["full"])
    print(
        f"\n{model.name}: a step of {KV_SEQUENCES} sequences {step_us:,.0f} us, of the memory {kv_us:,.0f} us CPU",
        end="",
    )
    print(f", {kv_us / step_us:.2%}; beside an older version: bench/memory_per_block.py --against CHECKOUT")
    return {"step_us": step_us, "kv_us": kv_us}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF file whose layers have windows")
    parser.add_argument("--layouts", default=LAYOUTS)
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--scale", type=float, default=1.0, help="of lengths and questions, the budget with them")
    parser.add_argument("--users", type=int, default=4, help="questions about documents open at once")
    parser.add_argument("--small-model", default="smollm2", help="of the row kv: a model whose layers see everything")
    parser.add_argument("--quick", action="store_true", help="a twentieth of everything")
    args = parser.parse_args()
    args.scale = 0.05 if args.quick else args.scale
    unknown = [row for row in args.rows.split(",") if row not in ROWS.split(",")]
    if unknown or not (args.model is None or args.model.is_file()) or args.scale <= 0:
        parser.error(f"rows are {ROWS}, --model is a file and --scale above 0")
    return args


def closed_form(groups: Sequence[CacheGroup], memory_bytes: int, num_tokens: int) -> float:
    """Sequences of so many tokens of which memory holds exactly what layers look at."""
    needed = sum(group_token_bytes(one, F16) * min(num_tokens, one.window or num_tokens) for one in groups)
    return memory_bytes / needed


def _capacity(bench: Bench, layouts: Sequence[str]) -> dict[str, object]:
    length = bench.length
    most = closed_form(bench.program.cache_groups, bench.budget, length)
    print(f"\ncapacity: sequences of {length:,} tokens answered at once; closed form {most:.2f}")
    batch = capacity_batch(bench.sizes, length, int(most) + 3, bench.vocab)
    found: dict[str, object] = {"closed_form": most}
    for layout in layouts:
        one = _visited(bench, layout, batch)
        if one is not None:
            part = one.most_answering / most
            print(f"  {layout:<10}{one.most_answering:>4}, {part:.3f} of it, {one.num_preemptions} preemptions")
            found[layout] = {"at_once": one.most_answering, "of_closed_form": part}
    return found


def _real_row(
    bench: Bench, name: str, batch: Batch, layouts: Sequence[str], bounds: dict[str, float]
) -> dict[str, object]:
    print(f"\n{name}: {len(batch.prompts)} requests, {batch.num_tokens:,} tokens, {batch.output:,} out each")
    visits: dict[str, list[Visit]] = {}
    digests = set()
    for layout in _order(layouts):
        one = _visited(bench, layout, batch)
        if one is None:
            continue
        visits.setdefault(layout, []).append(one)
        digests.add(one.digest)
        print(
            f"  {layout:<10}{one.tokens_per_s:>9,.0f} tokens/s{one.seconds:>8.1f} s{one.cpu_s:>8.1f} s CPU"
            f"{one.hit_fraction:>8.1%} found again{one.most_answering:>4} at once{one.num_preemptions:>4} preemptions",
            flush=True,
        )
    if len(digests) > 1:
        raise SystemExit("answers differ between layouts")
    base = _speed(visits.get("uniform", []))
    found: dict[str, object] = {}
    for layout, ones in visits.items():
        speed = _speed(ones)
        found[layout] = {
            "tokens_per_s": speed,
            "of_uniform": speed / base if base else None,
            "of_bound": speed / bounds[name] if name in bounds else None,
            "hit_fraction": statistics.fmean(one.hit_fraction for one in ones),
            "at_once": max(one.most_answering for one in ones),
            "cpu_s": [one.cpu_s for one in ones],
        }
        if base:
            print(f"  {layout:<10}{speed / base:>8.2f} x uniform{speed / bounds[name]:>8.1%} of the bound")
    return found


def _order(layouts: Sequence[str]) -> Iterator[str]:
    """The first two come again at the end, the other way round."""
    yield from layouts
    yield from reversed(layouts[:2])


def _visited(bench: Bench, layout: str, batch: Batch) -> Visit | None:
    try:
        return bench(layout, batch)
    except Refused as trouble:
        print(f"  {layout:<10}refused: {trouble}")
        return None


def _speed(visits: Sequence[Visit]) -> float:
    return statistics.geometric_mean([one.tokens_per_s for one in visits]) if visits else 0.0


def _bounds(bench: Bench, limits: MachineLimits) -> dict[str, float]:
    """Tokens a second, prompts' too, of an engine that does everything in ideal steps and has memory for all."""
    program, sizes = bench.program, bench.sizes
    weights = Weights(bench.models[False].weights.total_bytes, "int8")

    def seconds(steps: Sequence[StepShape]) -> float:
        return sum(step_s(program, step, weights, limits) for step in steps)

    answers = answers_batch(sizes, bench.vocab)
    prompts = StepShape((ChunkShape(0, sizes.short_prompt, 1),) * sizes.answers)
    # One step in twenty stands for its neighbours: context grows evenly.
    some = decode_steps(sizes.answers, sizes.short_prompt, sizes.long_output)[::20]
    took = seconds([prompts]) + seconds(some) * (sizes.long_output - 1) / max(1, len(some))
    print(f"at most: answers {_most_ratio(bench, took, seconds):.2f} x uniform, whose ideal steps hold fewer rows")
    documents = documents_batch(sizes, sizes.documents, bench.vocab, 1)
    text = sizes.document - sizes.question - sizes.reply
    own = [StepShape((ChunkShape(text, sizes.question, 1),)), *decode_steps(1, text + sizes.question, sizes.reply)]
    once = seconds([StepShape((ChunkShape(0, text, 0),) * sizes.documents)])
    return {
        "answers": answers.num_tokens / took,
        "documents": documents.num_tokens / (once + seconds(own) * len(documents.prompts) / 4),
    }


def _most_ratio(bench: Bench, all_at_once_s: float, seconds: Callable[[Sequence[StepShape]], float]) -> float:
    """What memory for everybody can be worth over uniform, which has room for two documents, in ideal steps of both. It
    is little where a step of ten rows takes twice as long as one of five.
    """
    sizes = bench.sizes
    found = turns(2 * bench.length, sizes.answers, sizes.short_prompt, sizes.long_output)
    prompts = StepShape((ChunkShape(0, sizes.short_prompt, 1),) * sizes.answers)
    again = [StepShape((ChunkShape(0, length, 0),)) for length in found.again]
    # One step in twenty stands for its neighbours.
    some = [StepShape(tuple(ChunkShape(length, 1, 1) for length in step)) for step in found.lengths[::20]]
    took = seconds([prompts]) + seconds(again) + seconds(some) * len(found.lengths) / len(some)
    print(
        f"uniform: {len(found.lengths):,} steps instead of {sizes.long_output:,}, {len(found.again)} answers leave, "
        f"{sum(found.again):,} tokens are computed again"
    )
    return took / all_at_once_s


def _steps(program: Program, sizes: Sizes, layouts: Sequence[str]) -> dict[str, object]:
    """Of the ten long answers, what each layout has the engine do: counts by the simulator, with no clock in them."""
    batch = answers_batch(sizes, program.vocab_size)
    length = -(-sizes.document // BLOCK) * BLOCK
    least = batch.num_tokens - len(batch.prompts)
    print(f"\n{program.name}: steps of {len(batch.prompts)} answers of {batch.output:,} tokens, by the simulator")
    found: dict[str, object] = {}
    for layout in layouts:
        kept = keep_all_tokens(program) if layout == "uniform" else program
        try:
            one = run(cut(kept, layout, BLOCK, F16), 2 * length * token_bytes(program, F16), batch, 16, length + BLOCK)
        except (PlaitError, Refused) as trouble:
            print(f"  {layout:<10}refused: {trouble}")
            continue
        again = one.num_computed - least
        print(
            f"  {layout:<10}{one.num_steps:>6,} steps of {one.rows_of_a_step:.2f} sequences, "
            f"{one.num_preemptions} leave, {again:,} tokens computed again"
        )
        found[layout] = {"steps": one.num_steps, "sequences": one.rows_of_a_step, "computed_again": again}
    return found


def _hits(bench: Bench, layouts: Sequence[str]) -> dict[str, object]:
    counts = range(1, bench.sizes.documents + 3)
    print(f"\nfound again by number of documents of {bench.sizes.document:,} tokens, {bench.sizes.questions} questions")
    print(f"  {'':<10}" + "".join(f"{count:>8}" for count in counts))
    found: dict[str, object] = {}
    for layout in layouts:
        program: Program = keep_all_tokens(bench.program) if layout == "uniform" else bench.program
        cutting = cut(program, layout, BLOCK, F16)
        batches = [documents_batch(bench.sizes, count, bench.vocab, 1) for count in counts]
        rates = [hit_fraction(cutting, bench.budget, batch) for batch in batches]
        print(f"  {layout:<10}" + "".join(f"{rate:>8.1%}" for rate in rates), flush=True)
        found[layout] = rates
    return found


if __name__ == "__main__":
    main()
