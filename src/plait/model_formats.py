"""Model formats: how many bytes a loaded model's numbers take, and in what its kernels multiply them.

Owns the way from weights and number schemes to `Formats`, by which the cost model counts. Needs the native runtime's
schemes. Invariant: bytes are those of the weights as they are kept.
"""

from __future__ import annotations

from plait.config.engine_options import EngineOptions
from plait.cost.hardware import ATTENTION
from plait.exec.native.packing import WeightDtype, schemes_of
from plait.exec.native.tape import Scheme
from plait.loading import LoadedModel
from plait.model.cache_type import CacheType
from plait.model.cost import Formats

_FOUR_BITS = (Scheme.Q4_0, Scheme.Q4_1, Scheme.Q4_K, Scheme.IQ4, Scheme.Q2_K, Scheme.Q3_K)
"""Whose numbers are kept and multiplied as 4 bits by 8."""
CACHE_BYTES = {CacheType.F32: 4.0, CacheType.F16: 2.0, CacheType.BF16: 2.0, CacheType.INT8: 1.0}


def compute_format(scheme: Scheme) -> str:
    """The name that hardware files have for what such weights are multiplied in."""
    if not scheme.is_integer:
        return "f32"
    return "int4" if scheme in _FOUR_BITS else "int8"


def formats_of(model: LoadedModel, options: EngineOptions, cache_type: CacheType) -> Formats:
    """Of the native executor: the mean over all weights, and what most of the products are computed in.

    Prices of a model are calibrated, so what this leaves out is in alpha; and it can be said without the weights.
    """
    schemes = schemes_of(model.program, model.weights, WeightDtype(options.dtype))
    stored, numbers = 0.0, 0
    by_format: dict[str, int] = {}
    for name, spec in model.program.weights.items():
        numbers += spec.num_elements
        is_f32 = schemes.get(name) is Scheme.F32
        stored += 4.0 * spec.num_elements if is_f32 else model.weights[name].num_bytes
        if name in schemes:
            compute = compute_format(schemes[name])
            by_format[compute] = by_format.get(compute, 0) + spec.num_elements
    return Formats(
        default_weight_bytes=stored / numbers,
        default_cache_bytes=CACHE_BYTES[cache_type],
        default_compute=max(by_format, key=lambda name: by_format[name]),
        attention=ATTENTION,
    )
