"""BlendServe's Table 1: estimated and measured times of one layer of Llama-3-8B on an A100, 1,024 tokens each.

Owns the reading of its estimates: attention reads the cache at one rate, which the first cell gives; products run at a
rate of their own, which the paper has profiled and does not print.
"""

from __future__ import annotations

from plait.cost.density import FLOPS_PER_PARAMETER
from plait.reproduce.band import Near, Printed
from plait.reproduce.case import Answers, Case
from plait.reproduce.figure import BLENDSERVE, Evidence, Figure, Reference

BATCHES = (512, 768, 1024)
TOKENS = 1024
LAYER_PARAMETERS = 218.1e6
TOKEN_BYTES = 4 * 1024
"""Of one layer: keys and values of 1,024 numbers, two bytes each."""
BANDWIDTH = 2.039e12
FLOPS = 312e12
ESTIMATED = {"attention": ("1.239", "1.859", "2.478"), "products": ("1.038", "1.494", "1.916")}
MEASURED = {"attention": ("1.317", "1.913", "2.515"), "products": ("1.087", "1.537", "2.005")}
WORST_ERROR = 0.06
"""Of the paper's estimates, as it says."""


def _reference(kind: str, what: str, batch: int) -> Reference:
    return Reference(BLENDSERVE, "Table 1", f"{what} {kind}, batch {batch}")


ATTENTION_INPUT = _reference("attention", "estimated", 512)
PRODUCTS_INPUT = _reference("products", "estimated", 512)


def attention_s(batch: int, bytes_per_s: float) -> float:
    """One layer of decode attention, `batch` sequences of 1,024 tokens."""
    return batch * TOKENS * TOKEN_BYTES / bytes_per_s


def products_s(batch: int, flops_per_s: float) -> float:
    return FLOPS_PER_PARAMETER * LAYER_PARAMETERS * batch / flops_per_s


def _work_out() -> Answers:
    bandwidth = attention_s(512, 1.0) / (float(ESTIMATED["attention"][0]) / 1e3)
    rate = products_s(512, 1.0) / (float(ESTIMATED["products"][0]) / 1e3)
    found: dict[str, float] = {"part of nominal bandwidth": 100 * bandwidth / BANDWIDTH}
    found["part of nominal FLOP/s"] = 100 * rate / FLOPS
    for batch in BATCHES:
        for name, seconds in (("attention", attention_s(batch, bandwidth)), ("products", products_s(batch, rate))):
            found[f"{name}, batch {batch}"] = 1e3 * seconds
            found[f"{name}, batch {batch}, measured"] = 1e3 * seconds
    return found


def _figures() -> tuple[Figure, ...]:
    rates = (
        Figure(
            "part of nominal bandwidth",
            Reference(BLENDSERVE, "Table 1", "bandwidth"),
            "",
            unit=" %",
            worked_out="85.0",
            calibrated_on=(ATTENTION_INPUT,),
        ),
        Figure(
            "part of nominal FLOP/s",
            Reference(BLENDSERVE, "Table 1", "FLOP/s"),
            "",
            unit=" %",
            worked_out="69",
            calibrated_on=(PRODUCTS_INPUT,),
        ),
    )
    attention = [_estimate("attention", place, Evidence.EXACT, ATTENTION_INPUT) for place in range(len(BATCHES))]
    products = [_estimate("products", place, Evidence.SIMULATED, PRODUCTS_INPUT) for place in range(len(BATCHES))]
    measured = [_measured(kind, place) for kind in MEASURED for place in range(len(BATCHES))]
    return (*rates, *attention, *products, *measured)


def _estimate(kind: str, place: int, evidence: Evidence, set_by: Reference) -> Figure:
    batch = BATCHES[place]
    is_exact = evidence is Evidence.EXACT
    return Figure(
        f"{kind}, batch {batch}",
        _reference(kind, "estimated", batch),
        ESTIMATED[kind][place],
        Printed() if is_exact else Near(0.1),
        " ms",
        evidence,
        calibrated_on=(set_by,),
        note=""
        if is_exact
        else "one rate for all batches; the paper's estimates rise with the batch (215 to 233 TFLOP/s)",
    )


def _measured(kind: str, place: int) -> Figure:
    batch = BATCHES[place]
    set_by = ATTENTION_INPUT if kind == "attention" else PRODUCTS_INPUT
    return Figure(
        f"{kind}, batch {batch}, measured",
        _reference(kind, "measured", batch),
        MEASURED[kind][place],
        Near(WORST_ERROR),
        " ms",
        Evidence.SIMULATED,
        calibrated_on=(set_by,),
    )


CASE = Case("blendserve-table-1", "one layer of Llama-3-8B on an A100", BLENDSERVE, _figures(), _work_out)
