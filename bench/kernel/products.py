"""Products: K1 (share of the roofline), K2 (integers against f32), K3 (one row) and K9 (an even rate) of the matrices.

Owns which shapes and rows are measured and what they are compared with. A roofline is max(flops / rate, bytes / read),
rates and reading taken in turns with the products. Weights come from memory; K1 says apart how fast they are from a
cache. Invariant: a ratio is of products that were measured in turns, with the same number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace

from .library import Machine, Products
from .report import Section
from .setting import SMOLLM2_HEAD, SMOLLM2_LAYER, Rates, Setting, measure
from .turns import Spread, Take, geomean

LAYER_ROWS = (*range(1, 65), 80, 96, 128, 192, 256, 384, 512, 768, 1024)
QUICK_ROWS = (1, 2, 4, 6, 8, 12, 13, 16, 24, 32, 48, 64, 96, 128, 256, 512)
HEAD_ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
"""More rows never go through the head at once."""
K2_ROWS = (48, 64, 96, 128, 256, 512)
K2_BARS = {"q8_0": 1.25, "q4_1": 1.6, "q4_0": 1.6}
K2_OTHERS = 1.4
"""Of schemes with a scale per channel or per 128 weights."""
NEIGHBOURS = (95, 96, 97, 119, 120, 121, 127, 128, 129, 191, 192, 193, 255, 256, 257, 383, 384, 385, 511, 512, 513)
EVEN_ROWS = (96, 112, 128, 160, 192, 200, 256, 300, 320, 384, 448, 500, 512, 640, 768, 896, 1000, 1024)
FOUR_BIT = ("q4_0", "q4_1", "q4_k")


@dataclass(frozen=True, slots=True)
class Point:
    """A product of one matrix. `of_compute`: against the machine's rate for the scheme's own kind of numbers."""

    scheme: str
    shape: str
    rows: int
    seconds: float
    iqr: float
    of_f32: float
    of_compute: float
    of_read: float
    of_roof: float
    """Against the f32 rate for all schemes."""
    of_own_roof: float


@dataclass(frozen=True, slots=True)
class Curve:
    """All rows of one matrix in one scheme."""

    scheme: str
    shape: str
    rates: Rates
    points: tuple[Point, ...]
    crossing: float
    """Rows at which multiplying takes as long as reading, at the f32 rate: M*."""


def take(products: Products, rows: int) -> Take:
    return lambda calls: products.multiply(rows, calls)


def curve(setting: Setting, machine: Machine, scheme: str, shape: str, rows: Sequence[int], *, cold: bool) -> Curve:
    cold_bytes = setting.cold_bytes if cold else 0
    size = {**SMOLLM2_LAYER, **SMOLLM2_HEAD}[shape]
    with Products(machine, setting.schemes[scheme], size, max(rows), cold_bytes=cold_bytes) as products:
        found, rates = measure(machine, {count: take(products, count) for count in rows}, setting.effort)
        points = tuple(_point(scheme, shape, products, count, found[count], rates) for count in rows)
        crossing = products.num_bytes / rates.read * rates.f32 / products.flops(1)
        return Curve(scheme, shape, rates, points, crossing)


def _point(scheme: str, shape: str, products: Products, rows: int, time: Spread, rates: Rates) -> Point:
    of_f32 = products.flops(rows) / rates.f32 / time.seconds
    of_compute = products.flops(rows) / rates.compute(is_integer=products.is_integer) / time.seconds
    of_read = products.num_bytes / rates.read / time.seconds
    roofs = max(of_f32, of_read), max(of_compute, of_read)
    return Point(scheme, shape, rows, time.seconds, time.iqr_fraction, of_f32, of_compute, of_read, *roofs)


def bar(rows: int, crossing: float) -> float:
    """What share of the roofline a product of so many rows should reach."""
    if rows >= 96:
        return 0.85
    return 0.80 if rows <= crossing / 2 or rows >= 2 * crossing else 0.70


def k1(setting: Setting) -> Section:
    section = Section("K1", "share of the roofline max(flops / F, bytes / B), every product of a layer and the head")
    section.detail["curves"] = curves = []
    for threads in setting.threads:
        with setting.machine(threads) as machine:
            for scheme in setting.schemes:
                cold = list(_curves(setting, machine, scheme, cold=True))
                warm = list(_curves(setting, machine, scheme, cold=False)) if not setting.quick else []
                curves += [{"threads": threads, "cold": True, **asdict(one)} for one in cold]
                curves += [{"threads": threads, "cold": False, **asdict(one)} for one in warm]
                _add_worst(section, f"{scheme}, {threads} thread(s)", cold)
                if warm:
                    _add_warm(section, f"{scheme}, {threads} thread(s)", warm)
    return section


def _curves(setting: Setting, machine: Machine, scheme: str, *, cold: bool) -> Iterable[Curve]:
    rows = QUICK_ROWS if setting.quick or not cold else LAYER_ROWS
    shapes = {"gate-up": rows, "down": rows} if setting.quick else dict.fromkeys(SMOLLM2_LAYER, rows)
    if cold:
        shapes["head"] = HEAD_ROWS[::3] if setting.quick else HEAD_ROWS
    for shape, counts in shapes.items():
        yield curve(setting, machine, scheme, shape, counts, cold=cold)


def _add_worst(section: Section, name: str, curves: Sequence[Curve]) -> None:
    """A line for each zone of rows: how its share of points stands to the bar, and the worst of them."""
    zones: dict[float, list[tuple[Point, Curve]]] = {}
    for one in curves:
        for point in one.points:
            zones.setdefault(bar(point.rows, one.crossing), []).append((point, one))
    for least, found in sorted(zones.items(), reverse=True):
        worst = min(found, key=lambda pair: pair[0].of_roof)[0]
        reached = sum(point.of_roof >= least for point, _ in found)
        zone = {0.85: "M >= 96", 0.80: "M far from M*", 0.70: "M around M*"}[least]
        middle = geomean(point.of_roof for point, _ in found)
        own = geomean(point.of_own_roof for point, _ in found)
        note = (
            f"{reached} of {len(found)} reach it; worst {worst.of_roof:.2f} ({worst.shape}, M = {worst.rows}); "
            f"against the scheme's own rate {own:.2f}"
        )
        section.add(f"{name}: {zone}, geometric mean", middle, at_least=least, note=note)


def _add_warm(section: Section, name: str, curves: Sequence[Curve]) -> None:
    large = [point.of_f32 for one in curves for point in one.points if point.rows >= 96]
    small = [point.of_f32 for one in curves for point in one.points if point.rows == 1]
    note = f"M = 1: {geomean(small):.2f}"
    section.add(f"{name}: weights in caches, share of F, M >= 96", geomean(large), note=note)


def k2(setting: Setting) -> Section:
    section = Section("K2", "integer schemes against f32, time of a whole layer's products, M >= 48")
    rows = K2_ROWS[::2] if setting.quick else K2_ROWS
    section.detail["times"] = times = []
    for target in setting.targets:
        for threads in setting.threads:
            with setting.machine(threads, target) as machine:
                layer = _layer_times(setting, machine, rows)
            times.append({"target": target, "threads": threads, "seconds": {f"{k}": v for k, v in layer.items()}})
            for scheme in setting.schemes:
                if (scheme, rows[0], "quantize") not in layer:
                    continue
                ratios = [layer["f32", count, ""] / layer[scheme, count, ""] for count in rows]
                honest = [
                    layer["f32", count, ""] / (layer[scheme, count, ""] + layer[scheme, count, "quantize"])
                    for count in rows
                ]
                note = f"least {min(ratios):.2f}; with quantising rows {geomean(honest):.2f}"
                least = K2_BARS.get(scheme, K2_OTHERS if scheme not in _STORED else None)
                bars = {} if least is None else {"at_least": least}
                section.add(f"{scheme} on {target}, {threads} thread(s)", geomean(ratios), note=note, **bars)
    return section


_STORED = ("q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4", "q8_16")
"""Schemes of files that have no bar of their own."""


def _layer_times(setting: Setting, machine: Machine, rows: Sequence[int]) -> dict[tuple[str, int, str], float]:
    """Seconds of all products of a layer by (scheme, rows, ""), and of quantising their rows."""
    total: dict[tuple[str, int, str], float] = {}
    schemes = {"f32": 0, **setting.schemes}
    for size in SMOLLM2_LAYER.values():
        with ExitStack() as stack:
            takes: dict[tuple[str, int, str], Take] = {}
            for scheme, code in schemes.items():
                products = stack.enter_context(Products(machine, code, size, max(rows), cold_bytes=setting.cold_bytes))
                for count in rows:
                    takes[scheme, count, ""] = take(products, count)
                    if products.is_integer:
                        takes[scheme, count, "quantize"] = _quantize(products, count)
            found, _ = measure(machine, takes, setting.effort)
        for key, time in found.items():
            total[key] = total.get(key, 0.0) + time.seconds
    return total


def _quantize(products: Products, rows: int) -> Take:
    return lambda calls: products.quantize(rows, calls)


def k3(setting: Setting) -> Section:
    section = Section("K3", "one row, cold: share of the read bandwidth")
    section.detail["points"] = points = []
    effort = replace(setting.effort, num_rounds=2 * setting.effort.num_rounds)
    sizes = {**SMOLLM2_LAYER, **SMOLLM2_HEAD}
    for threads in setting.threads:
        with setting.machine(threads) as machine:
            for scheme, code in setting.schemes.items():
                with ExitStack() as stack:
                    each = {
                        shape: stack.enter_context(Products(machine, code, size, 1, cold_bytes=setting.cold_bytes))
                        for shape, size in sizes.items()
                    }
                    found, rates = measure(machine, {shape: take(one, 1) for shape, one in each.items()}, effort)
                shares = {shape: one.num_bytes / rates.read / found[shape].seconds for shape, one in each.items()}
                points.append({"threads": threads, "scheme": scheme, "shares": shares, "rates": asdict(rates)})
                num_bytes = sum(each[shape].num_bytes for shape in SMOLLM2_LAYER)
                seconds = sum(found[shape].seconds for shape in SMOLLM2_LAYER)
                note = ", ".join(f"{shape} {share:.2f}" for shape, share in shares.items())
                least = 0.78 if scheme in FOUR_BIT else 0.85
                layer = num_bytes / rates.read / seconds
                section.add(f"{scheme}, {threads} thread(s): products of a layer", layer, at_least=least, note=note)
                section.add(f"{scheme}, {threads} thread(s): head", shares["head"], at_least=least)
    return section


def k9(setting: Setting) -> Section:
    section = Section("K9", "an even rate: GFLOP/s over M in 96..1024, and t(M) <= 1.03 t(M + 1)")
    section.detail["seconds"] = detail = []
    even = EVEN_ROWS[::3] if setting.quick else EVEN_ROWS
    small = range(1, 18) if setting.quick else range(1, 66)
    rows = sorted({*small, *(() if setting.quick else NEIGHBOURS), *even})
    for threads in setting.threads:
        with setting.machine(threads) as machine:
            for scheme, code in setting.schemes.items():
                for shape in ("gate-up", "down"):
                    size = SMOLLM2_LAYER[shape]
                    with Products(machine, code, size, max(rows), cold_bytes=setting.cold_bytes) as products:
                        found, _ = measure(machine, {count: take(products, count) for count in rows}, setting.effort)
                    seconds = {count: time.seconds for count, time in found.items()}
                    detail.append({"threads": threads, "scheme": scheme, "shape": shape, "seconds": seconds})
                    _add_even(section, f"{scheme} {shape}, {threads} thread(s)", seconds, even)
    return section


def _add_even(section: Section, name: str, seconds: Mapping[int, float], even: Sequence[int]) -> None:
    rates = {rows: rows / seconds[rows] for rows in even}
    worst = min(rates, key=rates.__getitem__)
    section.add(f"{name}: rate, most by least", max(rates.values()) / rates[worst], at_most=1.10, note=f"M = {worst}")
    steps = {rows: seconds[rows] / seconds[rows + 1] for rows in seconds if rows + 1 in seconds}
    worst = max(steps, key=steps.__getitem__)
    over = sum(step > 1.03 for step in steps.values())
    note = f"at M = {worst}; {over} of {len(steps)} neighbours are above"
    section.add(f"{name}: t(M) by t(M + 1), most", steps[worst], at_most=1.03, note=note)
