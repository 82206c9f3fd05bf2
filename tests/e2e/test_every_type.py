"""A whole model in every tensor type of GGUF: written by the `gguf` package, served by `plait batch`."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.e2e.tiny_model import KV_HEADS, NUM_TOKENS, write_facts_of, write_tokens
from tests.unit.weights.made_blocks import made_rows

from plait.api.bodies import JsonObject
from plait.cli.main import main
from plait.exec.native import presence
from plait.weights.formats import ALL_FORMATS, F32, WeightFormat

pytestmark = pytest.mark.skipif(presence.missing() is not None, reason="without the native runtime")

WIDTH, HEADS, LAYERS = 256, 4, 2
EIGHT_BITS = 0.25
"""That a log-probability may differ by, where rows are rounded to 8 bits."""
# One for every way that weights go to the kernels; the others run with the slow tests.
EVERY_TIME = ("Q2_K", "Q3_K", "IQ4_XS", "MXFP4", "TQ1_0", "IQ3_S")


def arrays_of(form: WeightFormat) -> dict[str, tuple[np.ndarray, WeightFormat]]:
    """Rows as they are stored, by name."""
    kv = WIDTH // HEADS * KV_HEADS
    shapes = {"attn_q": WIDTH, "attn_k": kv, "attn_v": kv, "attn_output": WIDTH}
    shapes |= {"ffn_gate": WIDTH, "ffn_up": WIDTH, "ffn_down": WIDTH}
    ones = np.ones((WIDTH, 1), "<f4").view(np.uint8)
    arrays = {"token_embd": (made_rows(form, NUM_TOKENS, WIDTH, 1, 0.4), form), "output_norm": (ones, F32)}
    for layer in range(LAYERS):
        arrays |= {f"blk.{layer}.{name}": (ones, F32) for name in ("attn_norm", "ffn_norm")}
        for seed, (name, rows) in enumerate(shapes.items()):
            arrays[f"blk.{layer}.{name}"] = (made_rows(form, rows, WIDTH, 10 * layer + seed + 2), form)
    return arrays


def write_model(path: Path, form: WeightFormat, *, dequantized: bool) -> Path:
    path.parent.mkdir()
    writer = gguf.GGUFWriter(str(path), "llama")
    write_facts_of(writer, layers=LAYERS, hidden=WIDTH, ffn=WIDTH)
    writer.add_vocab_size(NUM_TOKENS)
    write_tokens(writer)
    for name, (rows, known) in arrays_of(form).items():
        if known is F32 and rows.shape[1] == 4:
            writer.add_tensor(f"{name}.weight", rows.reshape(-1).view("<f4"))
        elif dequantized:
            writer.add_tensor(f"{name}.weight", known.dequantize(rows).reshape(len(rows), -1))
        else:
            writer.add_tensor(f"{name}.weight", rows, raw_dtype=gguf.GGMLQuantizationType[known.name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def answers(folder: Path, model: Path, *options: str) -> list[JsonObject]:
    """What a batch says: tokens and log-probabilities of some prompts."""
    body = {"model": "tiny", "prompt": ["a", "The quick brown fox"], "max_tokens": 12, "temperature": 0}
    body |= {"logprobs": 1, "ignore_eos": True, "return_token_ids": True}
    line = {"custom_id": "0", "method": "POST", "url": "/v1/completions", "body": body}
    folder.mkdir()
    (folder / "in.jsonl").write_text(json.dumps(line) + "\n")
    files = ["-i", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl"), "-m", str(model), "--quiet"]
    assert main(["batch", *files, "--threads", "1", *options]) == 0
    choices: list[JsonObject] = json.loads((folder / "out.jsonl").read_text())["response"]["body"]["choices"]
    return choices


def logprobs(choices: list[JsonObject]) -> list[float]:
    """Of the first tokens, which follow the same text in every numbers."""
    return [choice["logprobs"]["token_logprobs"][0] for choice in choices]  # type: ignore[call-overload, index]


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, id=form.name, marks=() if form.name in EVERY_TIME else pytest.mark.slow)
        for form in ALL_FORMATS
        if form is not F32
    ],
)
def test_a_model_of_any_type_answers_as_its_dequantised_weights_do(form: WeightFormat, tmp_path: Path) -> None:
    model = write_model(tmp_path / "stored" / "tiny.gguf", form, dequantized=False)
    floats = write_model(tmp_path / "floats" / "tiny.gguf", form, dequantized=True)
    exact = answers(tmp_path / "exact", floats, "--dtype", "f32")
    assert answers(tmp_path / "f32", model, "--dtype", "f32") == exact
    given = answers(tmp_path / "given", model)
    assert max(abs(a - b) for a, b in zip(logprobs(given), logprobs(exact), strict=True)) < EIGHT_BITS
