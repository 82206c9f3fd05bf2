"""HF rope: the rotary tables that a config.json describes, in any of the ways it was written over the years.

Owns the keys `rope_parameters`, `rope_scaling`, `rope_theta` and `partial_rotary_factor`, and every known kind of
scaling. A scaling that depends on the current length is refused: cached keys would be wrong.
Invariant: a table follows from the configuration alone, whatever a sequence is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from plait.model.facts import Facts
from plait.model.limits import MAX_POSITIONS, MAX_SCALING, MAX_THETA, MIN_SCALING
from plait.model.rope import LinearScaling, Llama3Scaling, LongScaling, RopeScaling, RopeSpec, YarnScaling

DEFAULT_THETA: Final = 10_000.0
LAYER_TABLES: Final = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the facts of one table stand: `rope` if there is a table of them, `outer` the whole file."""

    rope: Facts
    outer: Facts
    max_positions: int

    def original_positions(self) -> int:
        """The file's own key goes before the table's."""
        for facts in (self.outer, self.rope):
            if facts.has("original_max_position_embeddings"):
                return facts.integer("original_max_position_embeddings", 1, MAX_POSITIONS)
        return self.max_positions

    def factor(self) -> float:
        if self.rope.has("factor"):
            return self.rope.number("factor", MIN_SCALING, MAX_SCALING)
        return self.max_positions / self.original_positions()


def rope_of(
    facts: Facts,
    head_dim: int,
    max_positions: int,
    *,
    layers: str = "full_attention",
    theta_key: str = "rope_theta",
    default_theta: float | None = None,
    scaled: bool = True,
) -> RopeSpec:
    """The table of the named kind of layers; most models have one table for all. `scaled` False: without the scaling
    that stands outside a table of its own.
    """
    newer = facts.table("rope_parameters")
    nested = newer is not None and any(name in newer.values for name in LAYER_TABLES)
    if nested and newer is not None:
        newer = newer.table(layers)
    older = facts.table("rope_scaling")
    rope = newer or (older if scaled else None) or Facts(facts.source, {})
    outer = Facts(facts.source, {"rope_theta": default_theta, **_renamed(facts, theta_key)})
    base = rope if rope.has("rope_theta") else outer
    theta = base.number("rope_theta", 1.0, MAX_THETA, DEFAULT_THETA)
    part_of = rope if rope.has("partial_rotary_factor") else facts
    part = part_of.number("partial_rotary_factor", 0.0, 1.0, 1.0)
    scaling = _scaling(_Source(rope, facts, max_positions)) if scaled or newer is not None else None
    return RopeSpec(theta, int(head_dim * part), max_positions, scaling)


def _renamed(facts: Facts, theta_key: str) -> Mapping[str, object]:
    return {"rope_theta": facts.values[theta_key]} if facts.has(theta_key) else {}


def _scaling(source: _Source) -> RopeScaling | None:
    rope = source.rope
    key = "rope_type" if rope.has("rope_type") or not rope.has("type") else "type"
    if rope.values.get(key) == "dynamic":
        raise rope.error(
            f"{key} is 'dynamic': dynamic NTK scaling changes with the current length, so cached keys would be wrong "
            "and answers would depend on the load; remove it or use linear, llama3 or yarn scaling"
        )
    return _KINDS[rope.word(key, _KINDS, "rope scaling", "default")](source)


def _none(_: _Source) -> None:
    return None


def _linear(source: _Source) -> RopeScaling:
    return LinearScaling(source.rope.number("factor", MIN_SCALING, MAX_SCALING))


def _llama3(source: _Source) -> RopeScaling:
    rope = source.rope
    factor = rope.number("factor", MIN_SCALING, MAX_SCALING)
    low = rope.number("low_freq_factor", MIN_SCALING, MAX_SCALING)
    high = rope.number("high_freq_factor", MIN_SCALING, MAX_SCALING)
    if high <= low:
        raise rope.error(f"high_freq_factor is {high}; it must be above low_freq_factor, {low}")
    return Llama3Scaling(factor, low, high, source.original_positions())


def _yarn(source: _Source) -> RopeScaling:
    rope, factor = source.rope, source.factor()
    if rope.has("attention_factor"):
        attention = rope.number("attention_factor", MIN_SCALING, MAX_SCALING)
    elif rope.has("mscale") and rope.has("mscale_all_dim"):
        scales = [rope.number(name, MIN_SCALING, MAX_SCALING) for name in ("mscale", "mscale_all_dim")]
        attention = yarn_magnitude(factor, scales[0]) / yarn_magnitude(factor, scales[1])
    else:
        attention = yarn_magnitude(factor)
    return YarnScaling(
        factor,
        source.original_positions(),
        attention,
        rope.number("beta_fast", MIN_SCALING, MAX_SCALING, 32.0),
        rope.number("beta_slow", MIN_SCALING, MAX_SCALING, 1.0),
        rope.flag("truncate", True),
    )


def _long(source: _Source) -> RopeScaling:
    rope, original = source.rope, source.original_positions()
    if rope.has("attention_factor"):
        attention = rope.number("attention_factor", MIN_SCALING, MAX_SCALING)
    else:
        attention = long_magnitude(source.factor(), original)
    return LongScaling(_factors(rope, "short_factor"), _factors(rope, "long_factor"), original, attention)


def _factors(rope: Facts, key: str) -> tuple[float, ...]:
    listed = rope.values.get(key)
    if not isinstance(listed, list) or not listed:
        raise rope.error(f"{key} must be a list of numbers")
    places = Facts(f"{rope.source}, {key}", {str(place): value for place, value in enumerate(listed)})
    return tuple(places.number(place, MIN_SCALING, MAX_SCALING) for place in places.values)


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """What Yarn multiplies cosines and sines with."""
    return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0


def long_magnitude(factor: float, original_positions: int) -> float:
    if factor <= 1.0 or original_positions <= 1:
        return 1.0
    return math.sqrt(1.0 + math.log(factor) / math.log(original_positions))


_KINDS: Final[Mapping[str, Callable[[_Source], RopeScaling | None]]] = {
    "default": _none,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _long,
    "su": _long,
}
