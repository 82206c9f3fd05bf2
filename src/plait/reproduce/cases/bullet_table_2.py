"""Bullet's Table 2: how much of an A100 idles because blocks do not fill its last wave.

Owns the twelve cells that follow from the shapes of the kernels and the size of their tiles, which three of them give
(the paper does not name it), and says of the others what is missing.
"""

from __future__ import annotations

from itertools import product

from plait.cost.waves import attention_blocks, gemm_blocks, idle_ratio
from plait.reproduce.band import Printed, Value
from plait.reproduce.case import Answers, Case
from plait.reproduce.figure import BULLET, Figure, NotRun, Reference

SMS = 108
WIDTHS = {"QKV": 6144, "O": 4096}
"""Columns of the products of Llama-3.1-8B."""
HEADS = 32
MLP_WIDTHS = {"gate and up": 28672, "down": 4096}
SIZES = (64, 128, 192, 256)
"""Rows and columns that tiles commonly have."""

TOKENS = (1024, 2048, 4096, 16384)
PUBLISHED = {
    "QKV": ("11.1", "11.1", "11.1", "1.9"),
    "attention": ("21.0", "5.2", "5.2", "0.2"),
    "O": ("40.7", "21.0", "5.2", "0.2"),
    "MLP": ("13.0", "7.6", "7.6", "0.4"),
    "layer": ("19.4", "10.4", "9.1", "0.5"),
}
PRODUCT_INPUTS = (("O", 1024), ("O", 2048))
"""Cells that leave one size of a product's tile: 128 x 256, either way round."""
ATTENTION_INPUT = ("attention", 1024)


def cell(kernel: str, tokens: int) -> str:
    return PUBLISHED[kernel][TOKENS.index(tokens)]


def product_tiles() -> list[tuple[int, int]]:
    """Common tiles that give the cells of `PRODUCT_INPUTS`. All of them give the same everywhere else."""
    return [
        tile
        for tile in product(SIZES, SIZES)
        if all(
            Printed().holds(_product_idle(WIDTHS[kernel], tokens, tile), cell(kernel, tokens))
            for kernel, tokens in PRODUCT_INPUTS
        )
    ]


def attention_tiles() -> list[int]:
    """Query rows of a block that give the cell of `ATTENTION_INPUT`."""
    kernel, tokens = ATTENTION_INPUT
    return [rows for rows in SIZES if Printed().holds(_attention_idle(tokens, rows), cell(kernel, tokens))]


def _product_idle(width: int, tokens: int, tile: tuple[int, int]) -> float:
    return 100 * idle_ratio(gemm_blocks(tokens, width, *tile), SMS)


def _attention_idle(tokens: int, rows: int) -> float:
    return 100 * idle_ratio(attention_blocks(tokens, HEADS, rows), SMS)


def _figures() -> tuple[Figure, ...]:
    products = tuple(_reference(*place) for place in PRODUCT_INPUTS)
    inputs = {"QKV": products, "O": products, "attention": (_reference(*ATTENTION_INPUT),)}
    return tuple(
        Figure(
            _name(kernel, tokens),
            _reference(kernel, tokens),
            printed,
            Printed(),
            " %",
            calibrated_on=inputs.get(kernel, ()),
        )
        for kernel, cells in PUBLISHED.items()
        for tokens, printed in zip(TOKENS, cells, strict=True)
    )


def _work_out() -> Answers:
    tile, rows = product_tiles()[0], attention_tiles()[0]

    def idle(kernel: str, tokens: int) -> Value | NotRun:
        if kernel in WIDTHS:
            return _product_idle(WIDTHS[kernel], tokens, tile)
        return _attention_idle(tokens, rows) if kernel == "attention" else unknown

    unknown = NotRun(_missing(tile))
    return {_name(kernel, tokens): idle(kernel, tokens) for kernel in PUBLISHED for tokens in TOKENS}


def _missing(tile: tuple[int, int]) -> str:
    guesses = "; ".join(
        f"{name} {', '.join(f'{_product_idle(width, tokens, tile):.1f}' for tokens in TOKENS)} %"
        for name, width in MLP_WIDTHS.items()
    )
    return (
        "the paper gives neither the tiles of gate, up and down nor the times that weight the kernels; with the tile "
        f"of the other products they would idle {guesses}, which no weights turn into the MLP's 7.6 % at 4,096 tokens"
    )


def _name(kernel: str, tokens: int) -> str:
    return f"{kernel}, {tokens:,} tokens"


def _reference(kernel: str, tokens: int) -> Reference:
    return Reference(BULLET, "2.1", f"Table 2, {_name(kernel, tokens)}")


TILE_INPUTS = tuple(_reference(*place) for place in (*PRODUCT_INPUTS, ATTENTION_INPUT))
"""The cells that say how large tiles are."""

CASE = Case("bullet-table-2", "idle share of an A100 by wave quantisation", BULLET, _figures(), _work_out)
