"""Jenga's page geometry, and the blocks that vLLM logs for hybrid models.

Owns the published numbers. Ours come from the code behind `plait inspect memory`.
"""

from __future__ import annotations

from plait.inspect.byhand import facts_from_description
from plait.inspect.config import facts_from_config
from plait.inspect.facts import ModelFacts
from plait.inspect.layers import NumberType
from plait.reproduce.asked_memory import (
    GEMMA_3,
    JAMBA,
    MINISTRAL,
    MLLAMA,
    SCOUT,
    cut_of,
    known,
    layout_of,
    memory_report,
)
from plait.reproduce.band import Value
from plait.reproduce.case import Answers, Case
from plait.reproduce.figure import JENGA, Figure, Reference

# Numbers in one page, and small pages in it of each group, at 16 tokens a block.
PAGES: dict[str, tuple[str, str, dict[str, str]]] = {
    "Llama-3.2-Vision": (MLLAMA, "1048576", {"full": "1", "cross": "4"}),
    "Ministral": (MINISTRAL, "884736", {"full": "3", "window": "1"}),
    "Gemma-3-12B": (GEMMA_3["12B"], "2621440", {"full": "5", "window": "1"}),
    "Gemma-3-27B": (GEMMA_3["27B"], "17039360", {"full": "26", "window": "5"}),
    "Gemma-3-4B": (GEMMA_3["4B"], "4751360", {"full": "29", "window": "5"}),
    "Llama-4-Scout": (SCOUT, "1179648", {"full": "3", "chunked": "1"}),
    "Jamba-1.5-Mini": (JAMBA, "11010048", {"mamba conv": "16", "mamba ssm": "3"}),
}
# Tokens of a block and percent of padding, as public logs have them.
LOGGED: dict[str, tuple[str, str, str]] = {
    "Qwen3.5-27B": ("Qwen/Qwen3.5-27B", "784", "0.13"),
    "Qwen3.5-35B-A3B": ("Qwen/Qwen3.5-35B-A3B", "1056", "0.76"),
    "Qwen3-Next-80B-A3B": ("Qwen/Qwen3-Next-80B-A3B-Instruct", "544", "1.49"),
}
SMALL, SMALL_FP8 = "Qwen3.5-4B and 9B", "Qwen3.5-4B and 9B, fp8 cache"
SMALL_BLOCK = Reference(JENGA, "vLLM's log", f"{SMALL}, block")
SMALL_NOTE = "32 value heads and 4 KV heads: their configuration is not at hand, and this block decides between shapes"


def _reference(section: str, what: str) -> Reference:
    return Reference(JENGA, section, what)


def _figures() -> tuple[Figure, ...]:
    pages = []
    for name, (_, numbers, groups) in PAGES.items():
        what = f"{name}, numbers in a page"
        pages.append(Figure(what, _reference("4.4", what), "", worked_out=numbers))
        for group, count in groups.items():
            what = f"{name}, small pages of {group}"
            pages.append(Figure(what, _reference("4.4", what), "", worked_out=count))
    printed = (
        Figure("Jamba-1.5-Mini, small pages of full", _reference("4.4", "the largest ratio, 84x"), "84"),
        Figure("Jamba-1.5-Mini, tokens of a padded page", _reference("4.4", "1344 tokens of a page"), "1344"),
        Figure("the example of 3 self and 2 cross layers", _reference("4", "a page of 768"), "768"),
    )
    logged = []
    for name, (_, tokens, padding) in LOGGED.items():
        logged += [
            Figure(f"{name}, block", _reference("vLLM's log", f"{name}, block"), tokens, unit=" tokens"),
            Figure(f"{name}, padding", _reference("vLLM's log", f"{name}, padding"), padding, unit=" %"),
        ]
    by = (SMALL_BLOCK,)
    small = (
        Figure(f"{SMALL}, block", SMALL_BLOCK, "528", unit=" tokens", calibrated_on=by, note=SMALL_NOTE),
        _logged_small(f"{SMALL}, padding", "0.76", " %"),
        _logged_small(f"{SMALL_FP8}, block", "1056", " tokens"),
    )
    return (*pages, *printed, *logged, *small)


def _logged_small(name: str, printed: str, unit: str) -> Figure:
    return Figure(name, _reference("vLLM's log", name), printed, unit=unit, calibrated_on=(SMALL_BLOCK,))


def _work_out() -> Answers:
    found: dict[str, Value] = {}
    for name, (model, _, groups) in PAGES.items():
        layout = layout_of(memory_report(known(model), "jenga"))
        found[f"{name}, numbers in a page"] = layout.page_bytes // NumberType.BF16.number_bytes
        found |= {f"{name}, small pages of {group}": cut_of(layout, group).blocks_per_page for group in groups}
    jamba = cut_of(layout_of(memory_report(known(JAMBA), "jenga")), "full")
    found["Jamba-1.5-Mini, small pages of full"] = jamba.blocks_per_page
    found["Jamba-1.5-Mini, tokens of a padded page"] = jamba.blocks_per_page * jamba.tokens_per_block
    example = layout_of(memory_report(_example(), "jenga", tokens_per_block=1))
    found["the example of 3 self and 2 cross layers"] = example.page_bytes
    for name, (model, _, _) in LOGGED.items():
        found[f"{name}, block"], found[f"{name}, padding"] = _vllm(known(model), NumberType.BF16)
    found[f"{SMALL}, block"], found[f"{SMALL}, padding"] = _vllm(_small(), NumberType.BF16)
    found[f"{SMALL_FP8}, block"], _ = _vllm(_small(), NumberType.FP8)
    return found


def _vllm(facts: ModelFacts, numbers: NumberType) -> tuple[int, float]:
    """(tokens of a block of attention, percent by which a state is padded)"""
    layout = layout_of(memory_report(facts, "vllm", cache_numbers=numbers))
    state = cut_of(layout, "gated delta")
    padding = state.block_padding_bytes
    content = state.block_bytes * state.num_tables - state.layer_padding_bytes - padding
    return cut_of(layout, "full").tokens_per_block, 100 * padding / content


def _example() -> ModelFacts:
    """The paper's: 128 bytes of a token in each layer."""
    groups = [
        {"name": "self", "kind": "full", "layers": 3, "bytes_per_token": 128},
        {"name": "cross", "kind": "cross", "layers": 2, "bytes_per_token": 128},
    ]
    return facts_from_description({"groups": groups}, "example", "Jenga's example")


def _small() -> ModelFacts:
    config = {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 32,
        "hidden_size": 2560,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
    }
    return facts_from_config(config, SMALL, "shapes of Qwen3.5")


CASE = Case("jenga-pages", "pages of hybrid models, and vLLM's blocks", JENGA, _figures(), _work_out)
