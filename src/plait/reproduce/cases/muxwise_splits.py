"""MuxWise's splits of a device, and those of the engine in SGLang that is named after it.

Owns the published lists. The last A100 and H100 splits are not on the paper's axes; the counts it gives imply them.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.cost.partitions import Split, splits
from plait.cost.stream_groups import automatic_splits, group_of
from plait.reproduce.band import Equal
from plait.reproduce.case import Answers, Case
from plait.reproduce.figure import MUXWISE, Figure, Reference

DECODE = {"A100": (108, "12 28 44 60 76 92"), "H100": (132, "20 36 52 68 84 100 116")}
UPSTREAM = {
    "A100": (108, 8, "84/24 78/30 72/36 66/42 60/48 54/54"),
    "H100": (132, 9, "112/20 104/28 96/36 88/44 80/52 72/60"),
    "H20": (78, 9, "56/22 48/30 40/38"),
}
BATCHES = (11, 12, 18, 24, 30, 36, 64)
ON_AXIS = "the last one is not on the axis of the paper's figure; six splits (A100) and seven (H100) are in its text"
SGLANG = "SGLang --enable-pdmux, prefill/decode; worked out from its rules, which are in its code and not in the paper"


def _reference(section: str, what: str) -> Reference:
    return Reference(MUXWISE, section, what)


def _figures() -> tuple[Figure, ...]:
    decode = [
        Figure(f"decode SMs, {name}", _reference("3.2", f"splits, {name}"), listed, Equal(), note=ON_AXIS)
        for name, (_, listed) in DECODE.items()
    ]
    upstream = [
        Figure(f"SGLang's, {name}", _reference("SGLang", f"splits, {name}"), "", worked_out=listed, note=SGLANG)
        for name, (_, _, listed) in UPSTREAM.items()
    ]
    groups = Figure(
        "SGLang's group for batches 11 .. 64",
        _reference("SGLang", "group of a batch"),
        "",
        worked_out="1 2 3 4 5 6 6",
        note="decode batches 11, 12, 18, 24, 30, 36 and 64, with 8 groups",
    )
    return (*decode, *upstream, groups)


def _work_out() -> Answers:
    found = {f"decode SMs, {name}": _listed([one.decode for one in splits(sms)]) for name, (sms, _) in DECODE.items()}
    for name, (sms, capability, _) in UPSTREAM.items():
        found[f"SGLang's, {name}"] = _listed([_pair(one) for one in automatic_splits(sms, capability)])
    return {**found, "SGLang's group for batches 11 .. 64": _listed([group_of(batch) for batch in BATCHES])}


def _pair(split: Split) -> str:
    return f"{split.prefill}/{split.decode}"


def _listed(values: Sequence[object]) -> str:
    return " ".join(map(str, values))


CASE = Case("muxwise-splits", "splits of A100 and H100, and SGLang's", MUXWISE, _figures(), _work_out)
