"""What a memory cut by kinds of layers is worth on a hybrid of recurrence and attention: the same requests, the same
engine, the same budget, only --kv-layout differs.

    .venv/bin/python bench/memory_hybrid.py [--layouts paged,vllm,max-page,static] [--prompts 40] [--json OUT]

The model is made up from a seed: Bamba's layers, 12 of them, three of which attend. Prompts have 200 to 4,000 tokens,
some of them twice. Prints by layout: tokens a second, sequences at once, what was found again, and of the memory that
was lent, while it ran: what lay idle on its pages, all the time and while no page was free; padding; and partly filled
blocks. There and back; the last line is one JSON object. A page of each block table is partly used at any time, so the
idle part falls with the budget (--budget 400 --prompts 160 is short of memory too). About three minutes on two quiet
cores.

    .venv/bin/python bench/memory_hybrid.py --simulated [--budget 96 --prompts 200]

The same by the simulator, at every step: counts that no clock is in. 512 tokens a step, 64 sequences at most.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
from layouts.simulated import Held, run
from layouts.visit import Refused, Visit, visit
from layouts.workload import Batch
from serving.plait_engine import open_model

from plait.build import LoadedModel, LocalEngine
from plait.config.engine_options import EngineOptions
from plait.core.errors import PlaitError
from plait.kv.layouts.serving import cut
from plait.model.cache_type import CacheType
from plait.model.config import config_from_hf
from plait.model.families import build_program
from plait.weights.formats import F32
from plait.weights.table import WeightTable
from plait.weights.tensor import Tensor

LAYERS, ATTENDING = 12, [2, 6, 10]
CONFIG: dict[str, object] = {
    "model_type": "bamba",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": LAYERS,
    "attn_layer_indices": ATTENDING,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "mamba_expand": 2,
    "mamba_n_heads": 8,
    "mamba_d_head": 64,
    "mamba_d_state": 32,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
SAMPLE_S = 0.05


class Waste(Held):
    """As a real engine goes on, now and then."""

    async def watch(self, engine: LocalEngine) -> None:
        while engine.cache_report is not None:
            self.look(engine.cache_report())
            await asyncio.sleep(SAMPLE_S)


def main() -> None:
    args = _arguments()
    if args.simulated:
        return simulated(args)
    model = hybrid()
    batch = batch_of(args.prompts, model.program.vocab_size)
    print(f"{len(batch.prompts)} requests, {batch.num_tokens:,} tokens, budget {args.budget} MiB")
    visits: dict[str, list[Visit]] = {}
    wastes: dict[str, Waste] = {}
    layouts = args.layouts.split(",")
    for layout in [*layouts, *reversed(layouts)]:
        waste = wastes.setdefault(layout, Waste())
        options = EngineOptions(
            model="smollm2",
            max_model_len=4096 + 64,
            max_num_seqs=16,
            kv_layout=layout,
            kv_cache_memory=args.budget << 20,
        )
        try:
            one = visit(model, options, batch, waste.watch)
        except Refused as trouble:
            print(f"  {layout:<10}refused: {trouble}")
            continue
        visits.setdefault(layout, []).append(one)
        print(
            f"  {layout:<10}{one.tokens_per_s:>9,.0f} tokens/s{one.hit_fraction:>8.1%} found again"
            f"{one.most_answering:>4} at once, idle {waste.share(waste.idle):.3%} ({waste.idle_when_full:.3%} while "
            f"full), padding {waste.share(waste.padding):.3%}, partly filled {waste.share(waste.partial):.2%}, "
            f"{one.num_preemptions} preemptions",
            flush=True,
        )
    if len({one.digest for ones in visits.values() for one in ones}) > 1:
        raise SystemExit("answers differ between layouts")
    speeds = {layout: statistics.geometric_mean([one.tokens_per_s for one in ones]) for layout, ones in visits.items()}
    base = speeds[layouts[0]]
    for layout, speed in speeds.items():
        print(f"  {layout:<10}{base / speed:>8.2f} x is {layouts[0]}")
    shares = {
        layout: {
            "idle": waste.share(waste.idle),
            "idle_when_full": waste.idle_when_full,
            "padding": waste.share(waste.padding),
            "partly_filled": waste.share(waste.partial),
        }
        for layout, waste in wastes.items()
        if waste.lent
    }
    return print(json.dumps({"tokens_per_s": speeds, "of_lent": shares}))


def simulated(args: argparse.Namespace) -> None:
    """What each layout holds for nothing, in a model of the same shapes."""
    program = build_program(config_from_hf({**CONFIG, "vocab_size": 49_152}))
    batch = batch_of(args.prompts, program.vocab_size)
    print(f"{len(batch.prompts)} requests, {batch.num_tokens:,} tokens, budget {args.budget} MiB, simulated")
    found = {}
    for layout in args.layouts.split(","):
        try:
            one = run(cut(program, layout, 32, CacheType.F16), args.budget << 20, batch, 64, 4096 + 64)
        except (PlaitError, Refused) as trouble:
            print(f"  {layout:<10}refused: {trouble}")
            continue
        held = one.held
        found[layout] = {
            "idle": held.share(held.idle),
            "idle_when_full": held.idle_when_full,
            "padding": held.share(held.padding),
            "partly_filled": held.share(held.partial),
            "hit_fraction": one.hit_fraction,
        }
        print(
            f"  {layout:<10}{one.num_steps:>7,} steps, {one.hit_fraction:.1%} found again, idle "
            f"{held.share(held.idle):.3%} ({held.idle_when_full:.3%} while full), padding "
            f"{held.share(held.padding):.3%}, partly filled {held.share(held.partial):.2%}, "
            f"{one.num_preemptions} preemptions",
            flush=True,
        )
    print(json.dumps(found))


def hybrid() -> LoadedModel:
    """A made-up hybrid behind the tokenizer of a small model, whose tokens it reads."""
    small = open_model(EngineOptions(model="smollm2"))
    config = config_from_hf({**CONFIG, "vocab_size": small.program.vocab_size})
    program = build_program(config)
    dice = np.random.default_rng(1)
    tensors = {}
    for name, spec in program.weights.items():
        values = (dice.standard_normal(spec.shape) * 0.05 + ("norm" in name)).astype(np.float32)
        tensors[name] = Tensor(name, spec.shape, F32, values.reshape(len(values), -1).view(np.uint8))
    return replace(
        small, name="hybrid", config=config, program=program, weights=WeightTable(tensors, Path("made-up"), "0" * 64)
    )


def batch_of(count: int, vocab: int) -> Batch:
    dice = random.Random(5)
    prompts: list[tuple[int, ...]] = []
    for _ in range(count):
        if prompts and dice.random() < 0.3:
            prompts.append(dice.choice(prompts))
        else:
            prompts.append(tuple(dice.randrange(1000, vocab) for _ in range(dice.randrange(200, 4001))))
    return Batch(tuple(prompts), 64, 12)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", default="paged,vllm,max-page,static")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--budget", type=int, default=24, help="MiB of memory")
    parser.add_argument("--simulated", action="store_true", help="count in the simulator; nothing is computed")
    return parser.parse_args()


if __name__ == "__main__":
    main()
