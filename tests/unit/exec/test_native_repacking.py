"""Repacking: formats that kernels do not know become schemes that they do, and every weight keeps its value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

_native = pytest.importorskip("plait._native", exc_type=ModuleNotFoundError)

from plait.exec.native.repacking import BITS, repacked, scheme_of  # noqa: E402 - only where the runtime is
from plait.exec.native.tape import Scheme  # noqa: E402
from plait.weights import formats  # noqa: E402
from plait.weights.formats import ALL_FORMATS, Bytes, Floats, WeightFormat  # noqa: E402
from plait.weights.gguf import FORMAT_OF_TYPE  # noqa: E402

IN_PARTS = [form for form in ALL_FORMATS if form.split is not None]
IQ4_NUMBERS = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]


def meant(stored: Bytes, scheme: Scheme) -> Floats:
    """What rows of a scheme mean, by the words of docs/adr/0006-number-schemes.md."""
    with np.errstate(all="ignore"):
        if scheme is Scheme.Q4_0:
            return formats.Q4_0.dequantize(stored)
        if scheme is Scheme.IQ4:
            blocks = stored.reshape(-1, 20)
            codes = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
            numbers = np.array(IQ4_NUMBERS, np.float32)[codes]
            return (numbers * blocks[:, :4].copy().view("<f4")).reshape(-1)
        blocks = stored.reshape(-1, 40)
        sixteens = blocks[:, 8:].view(np.int8).astype(np.float32).reshape(-1, 2, 16)
        return (sixteens * blocks[:, :8].copy().view("<f4")[:, :, None]).reshape(-1)


@pytest.mark.parametrize("form", IN_PARTS, ids=lambda one: one.name)
def test_any_blocks_mean_what_they_meant_before(form: WeightFormat) -> None:
    """Scales that are subnormal, infinite or NaN among them."""
    rows = np.random.default_rng(3).integers(0, 256, (64, 1024 // form.block_weights * form.block_bytes), np.uint8)
    scheme = scheme_of(form)
    stored = repacked(rows, form, scheme)
    assert stored.shape[0] == 64
    ours, theirs = meant(stored, scheme), form.dequantize(rows)
    numbers = ~np.isnan(theirs)
    np.testing.assert_array_equal(numbers, ~np.isnan(ours))
    np.testing.assert_array_equal(ours[numbers].view(np.uint32), theirs[numbers].view(np.uint32))


def packed_bits(scheme: Scheme) -> float:
    return _native.Panels([(scheme, 16, 4096)]).num_bytes * 8 / (16 * 4096)


def test_bits_in_the_start_up_report_are_those_of_panels() -> None:
    assert {scheme: packed_bits(scheme) for scheme in BITS} == BITS


def test_the_reference_page_says_what_each_format_costs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "formats.md").read_text(encoding="utf-8")
    said = [line.strip("| \n").split(" | ") for line in page.splitlines() if line.startswith("| ")][1:]
    numbers = {known.name: number for number, known in FORMAT_OF_TYPE.items()}
    assert {name: (int(number), float(bits), scheme, float(kept)) for name, number, bits, scheme, kept in said} == {
        form.name: (numbers[form.name], form.bits_per_weight, scheme_of(form).name, packed_bits(scheme_of(form)))
        for form in ALL_FORMATS
    }


def test_every_format_has_a_scheme_and_known_ones_their_own() -> None:
    names = {form.name: scheme_of(form).name for form in ALL_FORMATS}
    assert {name: scheme for name, scheme in names.items() if name != scheme} == {
        **dict.fromkeys(("IQ4_NL", "IQ4_XS"), "IQ4"),
        **dict.fromkeys(("TQ1_0", "TQ2_0"), "Q4_0"),
        **dict.fromkeys(("MXFP4", "NVFP4", "IQ1_S", "IQ1_M"), "Q8_16"),
        **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), "Q8_16"),
    }
