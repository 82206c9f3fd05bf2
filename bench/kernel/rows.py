"""Rows: K4, exact numbers of rows against padded ones and against fours and singles.

Owns the closed form of what padding costs and the weights of row counts, which are log-uniform on 1 to 64: a count's
weight is 1 / M. Invariant: all three rules use the same kernel, the same weights and the same units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict

from .library import Machine, Products, RowRule
from .report import Section
from .setting import SMOLLM2_LAYER, Rates, Setting, measure
from .turns import Take, weighted_geomean

TILE = 12
SHAPE = "gate-up"
QUICK_ROWS = (1, 2, 3, 5, 7, 9, 12, 13, 15, 18, 25, 31, 37, 49, 61, 64)


def padding_cost(rows: int, crossing: float, tile: int = TILE) -> float:
    """How many times as long padded rows take if a product takes as long as multiplying or reading does, whichever is
    longer, and they take equally long at `crossing` rows."""
    padded = math.ceil(rows / tile) * tile
    return max(padded / crossing, 1.0) / max(rows / crossing, 1.0)


def log_uniform(rows: int) -> float:
    return 1.0 / rows


def k4(setting: Setting) -> Section:
    section = Section("K4", "exact rows against rows padded to 12, and against fours and singles; M log-uniform 1-64")
    section.detail["schemes"] = detail = []
    rows = QUICK_ROWS if setting.quick else tuple(range(1, 65))
    for threads in setting.threads:
        with setting.machine(threads) as machine:
            for scheme, code in setting.schemes.items():
                name = f"{scheme}, {threads} thread(s)"
                size = SMOLLM2_LAYER[SHAPE]
                with Products(machine, code, size, 256, cold_bytes=setting.cold_bytes) as products:
                    seconds, rates = _times(setting, machine, products, rows)
                    # Rows at which the kernel itself, not the machine's best loop, is as slow as reading.
                    crossing = products.num_bytes / rates.read / (seconds[192, RowRule.EXACT] / 192)
                found = _add(section, name, seconds, rows, crossing)
                detail.append({"scheme": scheme, "threads": threads, "rates": asdict(rates), **found})
    return section


def _times(
    setting: Setting, machine: Machine, products: Products, rows: tuple[int, ...]
) -> tuple[dict[tuple[int, RowRule], float], Rates]:
    def take(count: int, rule: RowRule) -> Take:
        return lambda calls: products.multiply(count, calls, rule)

    takes = {(count, rule): take(count, rule) for count in rows for rule in RowRule}
    takes[192, RowRule.EXACT] = take(192, RowRule.EXACT)
    found, rates = measure(machine, takes, setting.effort)
    return {key: time.seconds for key, time in found.items()}, rates


def _add(
    section: Section,
    name: str,
    seconds: Mapping[tuple[int, RowRule], float],
    rows: tuple[int, ...],
    crossing: float,
) -> dict[str, object]:
    padded = {count: seconds[count, RowRule.PADDED] / seconds[count, RowRule.EXACT] for count in rows}
    fours = {count: seconds[count, RowRule.FOURS_AND_SINGLE] / seconds[count, RowRule.EXACT] for count in rows}
    closed = {count: padding_cost(count, crossing) for count in rows}
    gain, form = (weighted_geomean(one, log_uniform) for one in (padded, closed))
    note = f"closed form {form:.2f} at the kernel's own M* = {crossing:.1f}"
    section.add(f"{name}: padded by exact", gain, at_least=0.9 * form, note=note)
    worst = min(fours, key=fours.__getitem__)
    note = f"least {fours[worst]:.2f} at M = {worst}, most {max(fours.values()):.2f}"
    section.add(f"{name}: fours and singles by exact", weighted_geomean(fours, log_uniform), at_least=1.1, note=note)
    return {"crossing": crossing, "padded": padded, "fours_and_singles": fours, "closed_form": closed}
