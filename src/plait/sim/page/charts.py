"""Charts: what a page shows, each a picture, its key and a table of the same numbers.

Owns what is drawn and how it is said in words. Invariant: a chart without anything to show is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plait.sim.curves import Curve
from plait.sim.figures import EngineReport, StepSample
from plait.sim.goodput import Search
from plait.sim.page import svg

BUCKETS = 160
MOST_LANES = 8
LANE_HEIGHT, LANE_GAP = 44, 22
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    note: str
    picture: str
    key: tuple[tuple[str, str], ...]
    """(class, words)."""
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def latency_chart(curves: dict[str, Curve], targets: Sequence[tuple[str, float]]) -> Chart | None:
    """Distributions over a logarithmic axis of time; targets as upright lines."""
    shown = {name: curve for name, curve in curves.items() if curve}
    if not shown:
        return None
    moments = [at for curve in shown.values() for at, _ in curve if at > 0] + [at for _, at in targets]
    across = svg.horizontal(min(moments, default=1e-3), max(moments, default=1.0), is_log=True)
    up = svg.vertical(0.0, 1.0)
    ticks = up.ticks()
    body = svg.axes(
        across,
        up,
        ("time", "part of the requests"),
        [svg.seconds(one) for one in across.ticks()],
        [f"{one:.0%}" for one in ticks],
    )
    for name, at in targets:
        x = svg.place(across(at))
        body += f'<path class="target" d="M{x} {svg.TOP}V{svg.HEIGHT - svg.BOTTOM}"><title>{name}</title></path>'
    for style, curve in zip(("c1", "c2", "c3", "c4"), shown.values(), strict=False):
        points = [(across(at), up(part)) for at, part in curve]
        body += svg.line([(points[0][0], up(0.0)), *points], style)
    rows = tuple(
        (name, *(svg.seconds(_quantile(curve, part)) for part in (0.5, 0.9, 0.99, 1.0)))
        for name, curve in shown.items()
    )
    words = "; ".join(f"{name}: half within {half}, 99 % within {most}" for name, half, _, most, _ in rows)
    key = tuple((f"c{number}", name) for number, name in enumerate(shown, 1))
    return Chart(
        "Latencies",
        "How many requests took no longer than that. Dashed: targets.",
        svg.drawing("latency", "Latencies", words, body),
        key + ((("target", "target"),) if targets else ()),
        ("", "p50", "p90", "p99", "longest"),
        rows,
    )


def goodput_chart(search: Search) -> Chart:
    """Attainment over rate: every rate that was tried, and where the answer is."""
    points = search.points
    across = svg.horizontal(0.0, max(point.rate for point in points) * 1.05)
    up = svg.vertical(0.0, 1.0)
    body = svg.axes(
        across,
        up,
        ("requests a second", "part that met every target"),
        [svg.short(one) for one in across.ticks()],
        [f"{one:.0%}" for one in up.ticks()],
    )
    y = svg.place(up(search.attainment))
    body += f'<path class="target" d="M{svg.LEFT} {y}H{svg.WIDTH - svg.RIGHT}"/>'
    for point in points:
        x = across(point.rate)
        low, high = svg.place(up(min(point.attainments))), svg.place(up(max(point.attainments)))
        body += f'<path class="spread" d="M{svg.place(x)} {low}V{high}"/>'
    body += svg.line([(across(point.rate), up(point.attainment)) for point in points], "c1")
    for point in points:
        words = f"{point.rate:.3g} requests/s: {point.attainment:.1%}"
        body += svg.dot(
            across(point.rate), up(point.attainment), "c1" if point.holds(search.attainment) else "bad", words
        )
    answer = "no rate that was tried holds" if search.rate is None else f"{search.rate:.3g} requests a second hold"
    rows = tuple(
        (
            f"{point.rate:.3f}",
            f"{point.attainment:.2%}",
            f"{min(point.attainments):.2%}",
            f"{point.goodput_per_s:.3f}",
            "holds" if point.holds(search.attainment) else ("fails" if point.is_stable else "queue grows"),
        )
        for point in points
    )
    return Chart(
        "Targets met over rate",
        f"{answer}; {search.attainment:.4g} of the requests must meet every target. Upright lines: from the worst run "
        "to the best.",
        svg.drawing("goodput", "Targets met over rate", answer, body),
        (("c1", "holds"), ("bad", "does not hold"), ("target", "what is asked for")),
        ("rate", "attainment", "worst run", "goodput", ""),
        rows,
    )


def lane_chart(engines: Sequence[EngineReport]) -> Chart | None:
    """What the steps of each lane worked on, in equal stretches of time."""
    lanes = [
        (f"{engine.role} {number}", lane, [one for one in engine.timeline if one.lane == lane])
        for number, engine in enumerate(engines)
        for lane in sorted({one.lane for one in engine.timeline})
    ]
    shown = [(f"{name}, lane {lane}" if lane else name, steps) for name, lane, steps in lanes][:MOST_LANES]
    if not shown:
        return None
    steps_shown = [one for _, steps in shown for one in steps]
    across = svg.horizontal(min(one.start_s for one in steps_shown), max(one.end_s for one in steps_shown))
    bottom = svg.TOP + len(shown) * (LANE_HEIGHT + LANE_GAP)
    body, rows = "", []
    for number, (name, steps) in enumerate(shown):
        top = svg.TOP + number * (LANE_HEIGHT + LANE_GAP) + LANE_GAP - 8
        body += svg.text(svg.LEFT, top - 4, name, "name") + _strip(across, steps, top)
        decode, prefill = _work(steps)
        rows.append((name, f"{len(steps):,}", f"{decode:.1f}", f"{prefill:,.0f}"))
    for value in across.ticks():
        body += svg.text(across(value), bottom + 12, svg.short(value), "middle")
    body += svg.text((svg.LEFT + svg.WIDTH) / 2, bottom + 32, "simulated seconds", "middle name")
    words = "; ".join(f"{name}: {decode} sequences decode in a step on average" for name, _, decode, _ in rows)
    more = f" The first {MOST_LANES} of {len(lanes)} lanes." if len(lanes) > MOST_LANES else ""
    return Chart(
        "Lanes over time",
        f"What the time in steps went to, by tokens; empty: no step was seen there.{more}",
        svg.drawing("lanes", "Lanes over time", words, body, bottom + 40),
        (("c1", "decode"), ("c2", "prompts")),
        ("lane", "steps looked at", "sequences that decode", "prompt tokens a step"),
        tuple(rows),
    )


def batch_chart(engines: Sequence[EngineReport]) -> Chart | None:
    """How many sequences decode in a step, over time; the engines together."""
    steps = [one for engine in engines for one in engine.timeline]
    if not steps:
        return None
    across = svg.horizontal(min(one.start_s for one in steps), max(one.end_s for one in steps))
    width_s = (across.high - across.low) / BUCKETS
    seen: list[list[StepSample]] = [[] for _ in range(BUCKETS)]
    for one in steps:
        seen[min(BUCKETS - 1, int((one.start_s - across.low) / width_s))].append(one)
    levels = [(across.low + (bucket + 0.5) * width_s, _work(found)) for bucket, found in enumerate(seen) if found]
    up = svg.vertical(0.0, max(decode for _, (decode, _) in levels) * 1.05)
    body = svg.axes(
        across,
        up,
        ("simulated seconds", "sequences in a step"),
        [svg.short(one) for one in across.ticks()],
        [svg.short(one) for one in up.ticks()],
    )
    body += svg.line([(across(at_s), up(decode)) for at_s, (decode, _) in levels], "c1")
    decode, prefill = _work(steps)
    words = f"{decode:.1f} sequences decode in a step on average, beside {prefill:,.0f} tokens of prompts"
    return Chart(
        "Batch over time",
        "Sequences that are given a token in one step of an engine.",
        svg.drawing("batch", "Batch over time", words, body),
        (("c1", "sequences that decode"),),
        ("", "mean", "most"),
        (
            ("sequences that decode", f"{decode:.1f}", f"{max(one.num_decode for one in steps):,}"),
            ("prompt tokens a step", f"{prefill:,.0f}", f"{max(one.num_prefill_tokens for one in steps):,}"),
        ),
    )


def _strip(across: svg.Scale, steps: list[StepSample], top: float) -> str:
    """Stacked bars: decode below, prompts above."""
    height, width_s = LANE_HEIGHT, (across.high - across.low) / BUCKETS
    spent = [[0.0, 0.0] for _ in range(BUCKETS)]
    for one in steps:
        tokens = one.num_decode * one.num_steps + one.num_prefill_tokens
        prompts = one.num_prefill_tokens / tokens if tokens else 0.0
        first = int((one.start_s - across.low) / width_s)
        last = int((one.end_s - across.low) / width_s)
        for bucket in range(max(0, first), min(BUCKETS - 1, last) + 1):
            inside = min(one.end_s, across.low + (bucket + 1) * width_s) - max(
                one.start_s, across.low + bucket * width_s
            )
            spent[bucket][0] += max(0.0, inside) * (1 - prompts)
            spent[bucket][1] += max(0.0, inside) * prompts
    bars = (
        f'<rect class="lane" x="{svg.LEFT}" y="{svg.place(top)}" width="{svg.WIDTH - svg.LEFT - svg.RIGHT}" '
        f'height="{svg.place(height)}"/>'
    )
    wide = (across.end - across.start) / BUCKETS
    for bucket, (decode, prompts) in enumerate(spent):
        if decode + prompts <= 0:
            continue
        x, part = across.start + bucket * wide, decode / (decode + prompts)
        bars += svg.bar(x, top + height * (1 - part), wide + 0.2, height * part, "c1")
        bars += svg.bar(x, top, wide + 0.2, height * (1 - part), "c2")
    return bars


def _work(steps: list[StepSample]) -> tuple[float, float]:
    """Means over steps: sequences that decode, prompt tokens."""
    count = sum(one.num_steps for one in steps)
    decode = sum(one.num_decode * one.num_steps for one in steps)
    return decode / count if count else 0.0, sum(one.num_prefill_tokens for one in steps) / count if count else 0.0


def memory_chart(engines: Sequence[EngineReport]) -> Chart | None:
    """The pool that was fullest: what sequences hold, what is kept for reuse, and what is free."""
    number, engine = max(enumerate(engines), key=lambda pair: pair[1].memory.most_used_fraction, default=(0, None))
    if engine is None or len(engine.memory.timeline) < 2:
        return None
    memory, samples = engine.memory, engine.memory.timeline
    across = svg.horizontal(samples[0].at_s, samples[-1].at_s)
    up = svg.vertical(0.0, memory.total_bytes / GIB)
    body = svg.axes(
        across,
        up,
        ("simulated seconds", "GiB"),
        [svg.short(one) for one in across.ticks()],
        [svg.short(one) for one in up.ticks()],
    )
    floor = [(across(one.at_s), up(0.0)) for one in samples]
    used = [(across(one.at_s), up(one.used_bytes / GIB)) for one in samples]
    kept = [(across(one.at_s), up((one.used_bytes + one.evictable_bytes) / GIB)) for one in samples]
    body += svg.area(used, floor, "c1") + svg.area(kept, used, "c3")
    body += svg.line([(across(one.at_s), up(one.idle_bytes / GIB)) for one in samples], "bad")
    rows = (
        ("held by sequences", f"{memory.used_fraction:.1%}", f"{memory.most_used_fraction:.1%}"),
        ("kept for reuse", f"{memory.evictable_fraction:.1%}", ""),
        ("free", f"{memory.free_fraction:.1%}", ""),
        ("held but holding no token", f"{memory.waste_fraction:.1%} of what is held", ""),
    )
    words = f"sequences hold {memory.used_fraction:.0%} of {memory.total_bytes / GIB:.3g} GiB on average"
    which = f" Engine {number}, the fullest of {len(engines)}." if len(engines) > 1 else ""
    return Chart(
        "Cache memory over time",
        f"The pool has {memory.total_bytes / GIB:.3g} GiB.{which}",
        svg.drawing("memory", "Cache memory over time", words, body),
        (("c1", "held by sequences"), ("c3", "kept for reuse"), ("bad", "held, but holding no token")),
        ("", "mean", "most"),
        rows,
    )


def _quantile(curve: Curve, part: float) -> float:
    return next((at for at, reached in curve if reached >= part - 1e-9), curve[-1][0])
