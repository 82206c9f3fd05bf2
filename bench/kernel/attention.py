"""Attention: K6, prefill and decode against the machine's rates, long prompts in chunks, and repacking beside it.

Owns the geometries and the contexts. Layers are used in turn, more of them than caches hold, and blocks lie in
disorder, as in a cache that has been used for a while.
Invariant: the work of a share is the multiplications and additions alone, exp and conversion are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from .library import Attention, Batch, Machine, Stage, Way
from .report import Section
from .setting import Setting, measure
from .turns import Take, geomean

CHUNK = 64
GEOMETRIES = {"9/3 heads of 64": (9, 3, 64), "16/8 heads of 128": (16, 8, 128)}
CONTEXTS = (1024, 2048, 4096, 8192)
STEP = 512
"""Between the contexts of a long prompt's chunks."""


def k6(setting: Setting) -> Section:
    numbers = setting.cache_type.name.lower()
    section = Section("K6", f"attention with a cache of {numbers}: prefill in chunks of {CHUNK}, decode, long prompts")
    for threads in setting.threads:
        with setting.machine(threads) as machine:
            for name, geometry in GEOMETRIES.items():
                label = f"{name}, {threads} thread(s)"
                with _cache(setting, machine, geometry) as attention:
                    least = 0.70 if geometry[2] >= 128 else 0.65
                    section.detail[f"prefill, {label}"] = _prefill(setting, attention, section, label, least)
                    section.detail[f"decode, {label}"] = _decode(setting, attention, section, label)
            with _cache(setting, machine, GEOMETRIES["9/3 heads of 64"]) as attention:
                label = f"{threads} thread(s)"
                section.detail[f"long, {label}"] = _long(setting, attention, section, label)
                section.detail[f"repacked, {label}"] = _repacked(setting, attention, section, label)
    return section


def _cache(setting: Setting, machine: Machine, geometry: tuple[int, int, int]) -> Attention:
    """Of so many layers that the shortest context of all of them is not in a cache."""
    bytes_per_token = 2 * geometry[1] * setting.cache_type.vector_bytes(geometry[2])
    num_layers = max(2, -(-setting.cold_bytes // (2048 * bytes_per_token)))
    return Attention(
        machine,
        geometry,
        setting.cache_type,
        num_layers=num_layers,
        num_tokens=CONTEXTS[-1] + 10 * CHUNK,
        max_rows=2 * CHUNK,
    )


def take(batch: Batch, way: Way = Way.ONE_CALL) -> Take:
    return lambda calls: batch.attend(calls, way)


def chunk_at(context: int) -> list[tuple[Stage, int, int]]:
    """The chunk that ends where the context does."""
    return [(Stage.PREFILL, context - CHUNK, CHUNK)]


def _prefill(
    setting: Setting, attention: Attention, section: Section, label: str, least: float
) -> Mapping[int, object]:
    with ExitStack() as stack:
        batches = {context: stack.enter_context(attention.batch(chunk_at(context))) for context in CONTEXTS}
        found, rates = measure(attention.machine, {at: take(one) for at, one in batches.items()}, setting.effort)
        shares = {at: one.flops() / rates.f32 / found[at].seconds for at, one in batches.items()}
    note = ", ".join(f"{at // 1024}k {share:.2f}" for at, share in shares.items())
    section.add(f"prefill, {label}: share of F", geomean(shares.values()), at_least=least, note=note)
    return shares


def _decode(setting: Setting, attention: Attention, section: Section, label: str) -> Mapping[str, object]:
    one_row = {f"{at // 1024}k": [(Stage.DECODE, at - 1, 1)] for at in CONTEXTS[1:]}
    several = {"4 x 2k": [(Stage.DECODE, 2047, 1)] * 4, "8 x 1k": [(Stage.DECODE, 1023, 1)] * 8}
    with ExitStack() as stack:
        batches = {
            name: stack.enter_context(attention.batch(segments)) for name, segments in {**one_row, **several}.items()
        }
        found, rates = measure(attention.machine, {name: take(one) for name, one in batches.items()}, setting.effort)
        shares = {name: one.key_bytes() / rates.read / found[name].seconds for name, one in batches.items()}
    note = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
    section.add(f"decode, cold, {label}: share of B", geomean(shares.values()), at_least=0.75, note=note)
    return shares


def _long(setting: Setting, attention: Attention, section: Section, label: str) -> Mapping[int, float]:
    """Seconds a token of a chunk behind so many tokens; how far they are from a straight line."""
    step = 2 * STEP if setting.quick else STEP
    with ExitStack() as stack:
        batches = {at: stack.enter_context(attention.batch(chunk_at(at))) for at in range(step, CONTEXTS[-1] + 1, step)}
        found, _ = measure(attention.machine, {at: take(one) for at, one in batches.items()}, setting.effort)
    seconds = {at: time.seconds / CHUNK for at, time in found.items()}
    first, slope = straight_line(list(seconds), list(seconds.values()))
    off = {at: value / (first + slope * at) for at, value in seconds.items()}
    worst = max(off, key=lambda at: abs(off[at] - 1.0))
    note = f"{slope * 1e9:.1f} ns a token and key of context, {first * 1e6:.1f} us besides; worst at {worst}"
    section.add(f"chunks up to 8k, {label}: off a straight line", abs(off[worst] - 1.0), at_most=0.10, note=note)
    return seconds


def straight_line(at: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Value at 0 and slope of least squares."""
    middle, mean = sum(at) / len(at), sum(values) / len(values)
    slope = sum((x - middle) * (y - mean) for x, y in zip(at, values, strict=True)) / sum((x - middle) ** 2 for x in at)
    return mean - slope * middle, slope


def _repacked(setting: Setting, attention: Attention, section: Section, label: str) -> Mapping[str, float]:
    ways = {"copied": Way.REPACKED, "turned into f32": Way.WIDENED}
    ratios: dict[str, float] = {}
    with ExitStack() as stack:
        batches = {context: stack.enter_context(attention.batch(chunk_at(context))) for context in CONTEXTS}
        takes = {(at, way): take(one, way) for at, one in batches.items() for way in (Way.ONE_CALL, *ways.values())}
        found, _ = measure(attention.machine, takes, setting.effort)
    for name, way in ways.items():
        each = {at: found[at, way].seconds / found[at, Way.ONE_CALL].seconds for at in CONTEXTS}
        ratios |= {f"{name}, {at}": ratio for at, ratio in each.items()}
        note = ", ".join(f"{at // 1024}k {ratio:.2f}" for at, ratio in each.items())
        section.add(
            f"history {name} for each chunk, {label}: by in place", geomean(each.values()), at_least=1.15, note=note
        )
    return ratios
