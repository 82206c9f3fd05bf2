"""Made-up weights of every format: any codes, with scales that make weights of the size that a model has.

Owns where each format keeps its scales. Formats that nobody here can round to are tested with these, because any blocks
are valid. Invariant: the same seed gives the same bytes.
"""

from __future__ import annotations

import numpy as np

from plait.weights.formats import Bytes, WeightFormat

SIZE = 0.05
"""About what the root of the mean square of the weights is."""
HALVES_AT = {
    **{"Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "IQ4_NL": (0,), "IQ4_XS": (0,)},
    **{
        "Q2_K": (80, 82),
        "Q3_K": (108,),
        "Q4_K": (0, 2),
        "Q5_K": (0, 2),
        "Q6_K": (208,),
        "TQ1_0": (52,),
        "TQ2_0": (64,),
    },
    **dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0,)),
}
MINIMUM_OF_SCALE = {"Q4_1": -7.5, "Q5_1": -15.5, "Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}
"""So many scales are the minimum at which weights are zero on average."""


def made_rows(form: WeightFormat, rows: int, depth: int, seed: int, size: float = SIZE) -> Bytes:
    """[rows, row_bytes] of a matrix."""
    random = np.random.default_rng(seed)
    if form.name in ("F32", "F16", "BF16"):
        floats = random.normal(0, size, (rows, depth)).astype(np.float32)
        if form.name == "BF16":
            return (floats.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
        return floats.astype("<f4" if form.name == "F32" else "<f2").view(np.uint8)
    count = rows * (depth // form.block_weights)
    blocks = random.integers(0, 256, (count, form.block_bytes), dtype=np.uint8)
    if form.name == "MXFP4":
        blocks[:, 0] = random.integers(119, 122, count)
    elif form.name == "NVFP4":
        blocks[:, :4] = random.integers(0, 24, (count, 4))
    else:
        _put_scale(form, blocks, 2.0**-7)
        typical = float(np.sqrt(np.mean(np.square(form.dequantize(blocks)))))
        _put_scale(form, blocks, 2.0**-7 * size / typical)
    return blocks.reshape(rows, -1)


def _put_scale(form: WeightFormat, blocks: Bytes, scale: float) -> None:
    if form.name == "IQ1_M":
        # Four bits of the half are on top of each of four words.
        bits = np.float16(scale).view(np.uint16)
        words = blocks[:, 48:56].view("<u2")
        nibbles = np.array([bits >> np.uint16(shift) & np.uint16(15) for shift in (0, 4, 8, 12)], np.uint16)
        words[...] = words & np.uint16(0x0FFF) | nibbles << np.uint16(12)
        return
    scales = (scale, scale * MINIMUM_OF_SCALE.get(form.name, 0.0))
    for at, value in zip(HALVES_AT[form.name], scales, strict=False):
        blocks[:, at : at + 2] = np.array([value], "<f2").view(np.uint8)
