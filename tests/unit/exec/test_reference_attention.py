"""Attention of the reference executor against a dense softmax in double precision, and against keys that are NaN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from tests.conformance.oracle import sees
from tests.conformance.serving import EVEN_BLAS
from threadpoolctl import threadpool_limits

from plait.core.ids import GroupId
from plait.exec.reference.attention import attend, whole_tiles
from plait.model.ops import KEY_TILE, Attend, ValueId
from plait.model.visibility import ALL, CAUSAL, Visibility, chunk, window

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Picture:
    """Rows [start, start + num_rows) of a sequence, whose keys and values are known up to there."""

    start: int
    num_rows: int
    visibility: Visibility = CAUSAL
    heads: int = 6
    kv_heads: int = 2
    width_k: int = 16
    width_v: int = 16
    softcap: float | None = None
    has_sinks: bool = False

    @property
    def end(self) -> int:
        return self.start + self.num_rows

    @property
    def op(self) -> Attend:
        q, y = ValueId(0), ValueId(1)
        sizes = (self.heads, self.kv_heads, self.width_k, self.width_v)
        return Attend((q,), y, GroupId(0), 0, *sizes, self.width_k**-0.5, self.visibility, self.softcap)

    def numbers(self, seed: int = 1) -> tuple[Floats, Floats, Floats, Floats | None]:
        """q [rows, heads * width_k], keys [end, kv_heads, width_k], values [end, kv_heads, width_v], sinks [heads]."""
        random = np.random.default_rng(seed)

        def some(*shape: int) -> Floats:
            return random.standard_normal(shape).astype(np.float32)

        q = 2 * some(self.num_rows, self.heads * self.width_k)
        keys, values = some(self.end, self.kv_heads, self.width_k), some(self.end, self.kv_heads, self.width_v)
        return q, keys, values, some(self.heads) if self.has_sinks else None


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As the executor sets it: threads cut a product where they like."""
    with threadpool_limits(1, user_api="blas"):
        yield


def run(picture: Picture, q: Floats, keys: Floats, values: Floats, sinks: Floats | None) -> Floats:
    """As the executor calls it: whole tiles, with zeros where the chunk does not look."""
    seen = range(picture.visibility.first(picture.start), picture.end)
    tiles = whole_tiles(seen)
    laid_keys = np.zeros((picture.kv_heads, picture.width_k, len(tiles)), np.float32)
    laid_values = np.zeros((picture.kv_heads, len(tiles), picture.width_v), np.float32)
    inside = slice(seen.start - tiles.start, seen.stop - tiles.start)
    laid_keys[:, :, inside] = keys[seen.start : seen.stop].transpose(1, 2, 0)
    laid_values[:, inside] = values[seen.start : seen.stop].transpose(1, 0, 2)
    return attend(picture.op, q, laid_keys, laid_values, tiles.start, picture.start, sinks)


def dense(picture: Picture, q: Floats, keys: Floats, values: Floats, sinks: Floats | None) -> npt.NDArray[np.float64]:
    op = picture.op
    queries = q.astype(np.float64).reshape(picture.num_rows, op.heads, op.head_dim_k)
    k, v = (np.repeat(one.astype(np.float64), op.heads // op.kv_heads, axis=1) for one in (keys, values))
    scores = np.einsum("nhd,mhd->hnm", queries, k) * op.scale
    if op.softcap is not None:
        scores = op.softcap * np.tanh(scores / op.softcap)
    scores = np.where(sees(op.visibility, picture.end)[picture.start :], scores, -np.inf)
    if sinks is not None:
        column = np.broadcast_to(sinks.astype(np.float64)[:, None, None], (op.heads, picture.num_rows, 1))
        scores = np.concatenate([column, scores], axis=2)
    p = np.exp(scores - scores.max(axis=2, keepdims=True))
    p /= p.sum(axis=2, keepdims=True)
    y = np.einsum("hnm,mhd->nhd", p if sinks is None else p[:, :, 1:], v)
    return np.asarray(y.reshape(picture.num_rows, -1))


def error(given: Floats, exact: npt.NDArray[np.float64]) -> float:
    return float(np.abs(given - exact).max() / np.abs(exact).max())


PICTURES = {
    "the first row of all": Picture(0, 1),
    "a short prompt": Picture(0, 7),
    "a decode": Picture(100, 1),
    "a tile but one": Picture(0, KEY_TILE - 1),
    "a whole tile": Picture(0, KEY_TILE),
    "a tile and one": Picture(0, KEY_TILE + 1),
    "the last row of a tile": Picture(KEY_TILE - 1, 1),
    "the first row of a tile": Picture(KEY_TILE, 1),
    "the second row of a tile": Picture(KEY_TILE + 1, 1),
    "a chunk across a border": Picture(KEY_TILE - 6, 20),
    "a chunk behind two tiles": Picture(2 * KEY_TILE + 3, 40),
    "three tiles at once": Picture(0, 3 * KEY_TILE),
    "one head": Picture(30, 5, heads=1, kv_heads=1),
    "a head each": Picture(30, 5, heads=4, kv_heads=4),
    "all heads on one": Picture(30, 5, heads=8, kv_heads=1),
    "wide keys, narrow values": Picture(30, 5, width_k=24, width_v=8),
    "a window inside a tile": Picture(300, 30, window(9)),
    "a window of one": Picture(300, 3, window(1)),
    "a window across a border": Picture(KEY_TILE + 2, 30, window(20)),
    "a window of a tile": Picture(2 * KEY_TILE, 30, window(KEY_TILE)),
    "a window longer than the text": Picture(0, 30, window(1000)),
    "chunks inside a tile": Picture(290, 30, chunk(16)),
    "a chunk that begins in the rows": Picture(500, 30, chunk(256)),
    "chunks across a border": Picture(KEY_TILE - 3, 60, chunk(100)),
    "all keys": Picture(0, 30, ALL),
    "a softcap": Picture(250, 20, softcap=2.0),
    "sinks": Picture(250, 20, has_sinks=True),
    "sinks, softcap and a window": Picture(520, 20, window(40), softcap=3.0, has_sinks=True),
}


@pytest.mark.parametrize("name", PICTURES)
def test_it_is_the_softmax_over_the_visible_keys(name: str) -> None:
    picture = PICTURES[name]
    numbers = picture.numbers()
    assert error(run(picture, *numbers), dense(picture, *numbers)) < 2e-6


@pytest.mark.skipif(not EVEN_BLAS, reason="what this BLAS does with places was never measured")
@pytest.mark.parametrize("name", [name for name, one in PICTURES.items() if one.visibility != ALL])
@pytest.mark.usefixtures("one_thread")
def test_a_row_has_the_same_bits_alone_and_among_others(name: str) -> None:
    picture = PICTURES[name]
    q, keys, values, sinks = picture.numbers()
    together = run(picture, q, keys, values, sinks)
    for at in range(0, picture.num_rows, 1 + picture.num_rows // 64):
        alone = replace(picture, start=picture.start + at, num_rows=1)
        given = run(alone, q[at : at + 1], keys[: alone.end], values[: alone.end], sinks)
        assert np.array_equal(given[0], together[at])


def test_large_scores_do_not_overflow() -> None:
    picture = Picture(KEY_TILE, 4)
    q, keys, values, sinks = picture.numbers()
    given = run(picture, 3e3 * q, keys, values, sinks)
    assert error(given, dense(picture, 3e3 * q, keys, values, sinks)) < 1e-3
    assert np.isfinite(given).all()


def test_sinks_far_above_every_score_leave_nothing_of_the_values() -> None:
    picture = Picture(10, 3, has_sinks=True)
    q, keys, values, sinks = picture.numbers()
    assert sinks is not None
    assert np.abs(run(picture, q, keys, values, sinks + 200)).max() < 1e-30


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["a chunk across a border", "a window across a border", "a decode"])
def test_what_is_behind_the_end_is_not_looked_at(name: str, poison: float) -> None:
    """The slots that a block still has, and the blocks that a window has left behind."""
    picture = PICTURES[name]
    q, keys, values, sinks = picture.numbers()
    first = picture.visibility.first(picture.start)
    clean = run(picture, q, keys, values, sinks)
    keys, values = keys.copy(), values.copy()
    keys[:first], values[:first] = poison, poison
    more = np.full((KEY_TILE, *keys.shape[1:]), poison, np.float32)
    given = run(picture, q, np.concatenate([keys, more]), np.concatenate([values, more]), sinks)
    assert np.array_equal(given, clean)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("what", ["keys", "values"])
def test_a_slot_that_is_not_a_number_reaches_the_rows_that_see_it_and_no_other(what: str, poison: float) -> None:
    picture = Picture(KEY_TILE - 6, 20, window(8))
    q, keys, values, sinks = picture.numbers()
    clean = run(picture, q, keys, values, sinks)
    bad = picture.start + 9
    (keys if what == "keys" else values)[bad] = poison
    with np.errstate(all="ignore"):
        given = run(picture, q, keys, values, sinks)
    visible = sees(picture.visibility, picture.end)[picture.start :, bad]
    assert not np.isfinite(given[visible]).any(axis=1).any()
    assert np.array_equal(given[~visible], clean[~visible])
