"""What each number scheme costs: the matrices of one model file in every format, each beside itself in float32.

Rounds the matrices to each format in memory and measures, with caches of f16 and of f32, what `plait bench quality`
measures. Prints a table and, as its last line, one JSON object. docs/adr/0006-number-schemes.md has the outcome.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import datetime
from importlib.util import find_spec

import numpy as np

from plait.build import LoadedModel, load_model
from plait.cli.quality import QUICK_TOKENS, Quality, heading, measure_quality, read_text, row
from plait.config.engine_options import EngineOptions
from plait.core.errors import PlaitError
from plait.exec.native import presence
from plait.model.ops import Embed
from plait.weights import formats
from plait.weights.formats import WeightFormat
from plait.weights.table import WeightTable
from plait.weights.tensor import Tensor

FORMATS = {
    form.name: form
    for form in (formats.Q8_0, formats.Q5_1, formats.Q5_0, formats.Q4_1, formats.Q4_0, formats.BF16, formats.F16)
}
"""What the gguf package can round to."""
CACHES = ("f16", "f32", "bf16", "int8")
TOKENS = 20_000


def main() -> int:
    given = _arguments()
    if (reason := presence.missing()) is not None:
        print(f"accuracy: needs the native runtime, which is not here: {reason}", file=sys.stderr)
        return 2
    found: list[Quality] = []
    print(heading("logits", "worst"))
    try:
        options = EngineOptions(model=given.model, quantize=given.quantize)
        model = load_model(options, lambda done, total: None, datetime.now)
        tokens = model.tokenizer.encode(read_text(None), add_special=False)[: given.tokens]
        for one in _variants(model, given.formats):
            caches = [replace(options, kv_cache_dtype=cache) for cache in CACHES]
            for quality in measure_quality(one, one, caches, tokens, quiet=given.quick):
                found.append(quality)
                print(row(quality, f"{quality.logit_error:.1e}", f"{quality.largest_logit_error:.1e}"), flush=True)
    except PlaitError as error:
        print(f"accuracy: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps({"schemes": [asdict(one) for one in found], "quick": given.quick}))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2", metavar="MODEL", help="GGUF file; default: smollm2")
    parser.add_argument(
        "--quantize", default="none", choices=("none", "int8", "int4"), help="as plait's option, for every format"
    )
    parser.add_argument(
        "--formats", nargs="*", choices=FORMATS, default=list(FORMATS), help="formats besides the file's own"
    )
    parser.add_argument("--tokens", type=int, default=TOKENS, metavar="N", help=f"of the text; default {TOKENS}")
    parser.add_argument("--quick", action="store_true", help="the file as it is and few tokens: does everything work?")
    given = parser.parse_args()
    if given.tokens < 2:
        parser.error("--tokens must be at least 2")
    if given.quick:
        given.tokens, given.formats = min(given.tokens, QUICK_TOKENS), []
    if given.formats and find_spec("gguf") is None:
        parser.error("rounding needs the package gguf; install it, or give --formats and nothing behind it")
    return given


def _variants(model: LoadedModel, names: list[str]) -> Iterator[LoadedModel]:
    yield model
    for name in names:
        yield rounded(model, FORMATS[name])


def rounded(model: LoadedModel, form: WeightFormat) -> LoadedModel:
    """Every matrix in another format, but for the table of tokens where that is finer: as files have it."""
    tables = {op.table for op in model.program.ops if isinstance(op, Embed)}
    tensors = dict(model.weights)
    for name, tensor in model.weights.items():
        is_finer = name in tables and tensor.format.bits_per_weight > form.bits_per_weight
        if len(tensor.shape) == 2 and not is_finer:
            tensors[name] = Tensor(name, tensor.shape, form, _round(tensor, form))
    weights = WeightTable(tensors, model.weights.source, f"{form.name.lower()}.{model.weights.sha256}")
    return replace(model, weights=weights)


def _round(tensor: Tensor, form: WeightFormat) -> formats.Bytes:
    import gguf  # not among what Plait runs on

    kind = gguf.GGMLQuantizationType[form.name]
    return np.ascontiguousarray(gguf.quantize(tensor.dequantize(), kind)).view(np.uint8)


if __name__ == "__main__":
    sys.exit(main())
