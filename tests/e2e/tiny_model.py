"""A made-up model small enough for whole commands in a second: two layers, bytes as tokens, random weights.

Its answers mean nothing, but they are answers: long enough, different for different prompts, the same in every run.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from tests.unit.api.byte_text import BEGIN, CONTROL, END, TEMPLATE, VOCAB_SIZE

from plait.text.alphabet import ALPHABET

# The file format cannot hold an empty list of merges, so there is one that no test's text needs.
TWO_NULS = ALPHABET[0] * 2
NUM_TOKENS = VOCAB_SIZE + 1
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, CONTEXT = 2, 32, 64, 4, 2, 256


def write_tiny_model(
    path: Path,
    *,
    table_rows: int = NUM_TOKENS,
    rows_said: int | None = None,
    template: str | None = TEMPLATE,
    context: int = CONTEXT,
    pre: str | None = "gpt-2",
    architecture: str = "llama",
) -> Path:
    """Write the model as a GGUF file and return its path.

    The embedding table, which is also the head, has `table_rows`. Rows behind the last token are loud: some of their
    logits are far above every token's. `rows_said` is what the header says instead of the truth. Without
    `template` or `pre` the file lacks that key, as old ones do.
    """
    writer = gguf.GGUFWriter(str(path), architecture)
    said = table_rows if rows_said is None else rows_said
    write_tiny_facts(writer, said, template=template, context=context, pre=pre)
    for name, array in tiny_arrays(table_rows).items():
        writer.add_tensor(f"{name}.weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tiny_arrays(table_rows: int = NUM_TOKENS) -> dict[str, Floats]:
    """The weights by their names in a GGUF file without `.weight`, q and k in its row order."""
    random = np.random.default_rng(5)
    head_dim = HIDDEN // HEADS
    shapes = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (KV_HEADS * head_dim, HIDDEN),
        "attn_v": (KV_HEADS * head_dim, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (FFN, HIDDEN),
        "ffn_up": (FFN, HIDDEN),
        "ffn_down": (HIDDEN, FFN),
    }
    # A wide spread, so that the most likely token is ahead of the second by more than rounding.
    table = random.normal(0, 1.0, (NUM_TOKENS, HIDDEN))
    padding = np.random.default_rng(6).normal(0, 10.0, (max(0, table_rows - NUM_TOKENS), HIDDEN))
    arrays = {"token_embd": np.concatenate([table, padding])[:table_rows], "output_norm": np.ones(HIDDEN)}
    for layer in range(LAYERS):
        arrays[f"blk.{layer}.attn_norm"] = np.ones(HIDDEN)
        arrays[f"blk.{layer}.ffn_norm"] = np.ones(HIDDEN)
        for name, shape in shapes.items():
            arrays[f"blk.{layer}.{name}"] = random.normal(0, 0.4, shape)
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def write_tiny_facts(
    writer: gguf.GGUFWriter,
    rows_said: int = NUM_TOKENS,
    *,
    template: str | None = TEMPLATE,
    context: int = CONTEXT,
    pre: str | None = "gpt-2",
) -> None:
    """All that the header says besides the tensors."""
    write_facts_of(writer, context=context)
    writer.add_vocab_size(rows_said)
    write_tokens(writer, template, pre)


def write_facts_of(
    writer: gguf.GGUFWriter, *, layers: int = LAYERS, hidden: int = HIDDEN, ffn: int = FFN, context: int = CONTEXT
) -> None:
    writer.add_block_count(layers)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_context_length(context)
    writer.add_layer_norm_rms_eps(1e-5)


def write_tokens(writer: gguf.GGUFWriter, template: str | None = TEMPLATE, pre: str | None = "gpt-2") -> None:
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list([*ALPHABET, *CONTROL, TWO_NULS])
    writer.add_token_types([1] * 256 + [3] * len(CONTROL) + [1])
    writer.add_token_merges([" ".join(TWO_NULS)])
    writer.add_bos_token_id(BEGIN)
    writer.add_eos_token_id(END)
    if template is not None:
        writer.add_chat_template(template)
