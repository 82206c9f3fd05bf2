"""GPT-OSS as it is published, in 4-bit codes apart from their scales, beside the same numbers as floats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pytest
from tests.conformance.families import CASES, FamilyCase, FamilyModel, family_model, logits_of, stored_tensor
from tests.conformance.test_families import EXECUTORS
from tests.conformance.test_goldens import EIGHT_BITS
from tests.e2e.tiny_checkpoint import framed

from plait.core.errors import ModelError
from plait.exec.loading import LoadableExecutor
from plait.exec.native import presence
from plait.exec.scoring import LogitsTap
from plait.model.config import config_from_hf
from plait.model.families import build_program
from plait.model.program import expected_weights
from plait.weights.hf_names import load_hf_weights
from plait.weights.safetensors import read_checkpoint
from plait.weights.table import WeightTable

Floats = npt.NDArray[np.float32]
TOKENS = tuple(int(token) for token in np.random.default_rng(4).integers(3, 131, 40))
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def published_case() -> FamilyCase:
    """At widths of whole blocks."""
    case = next(one for one in CASES if one.model_type == "gpt_oss")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    quantised = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}
    return FamilyCase(case.number, case.name, {**case.config, **sizes, **quantised})


def coded(name: str, shape: tuple[int, ...]) -> tuple[dict[str, npt.NDArray[np.uint8]], Floats]:
    """Codes and scales of a matrix on its side, [experts, depth, rows], and the floats that they mean."""
    experts, depth, rows = shape
    draws = np.random.default_rng(crc32(name.encode()))
    codes = draws.integers(0, 256, (experts, rows, depth // 32, 16), dtype=np.uint8)
    scales = draws.integers(120, 124, (experts, rows, depth // 32), dtype=np.uint8)
    weights = np.stack([FP4[codes & 15], FP4[codes >> 4]], axis=-1).reshape(*scales.shape, 32)
    meant = np.ldexp(weights, scales.astype(np.int32)[..., None] - 127).reshape(experts, rows, depth)
    return {f"{name}_blocks": codes, f"{name}_scales": scales}, np.ascontiguousarray(meant.transpose(0, 2, 1))


def write_checkpoint(folder: Path, case: FamilyCase) -> dict[str, Floats]:
    """Returns the same tensors in floats."""
    tensors: dict[str, npt.NDArray[np.generic]] = {}
    floats: dict[str, Floats] = {}
    for name, array in family_model(case).tensors.items():
        floats[name] = array
        if name.endswith(".experts.gate_up_proj") or name.endswith(".experts.down_proj"):
            parts, floats[name] = coded(name, array.shape)
            tensors.update(parts)
        else:
            tensors[name] = array
    header, body = {}, b""
    for name, one in tensors.items():
        kind = "U8" if one.dtype == np.uint8 else "F32"
        header[name] = {"dtype": kind, "shape": one.shape, "data_offsets": [len(body), len(body) + one.nbytes]}
        body += one.tobytes()
    (folder / "config.json").write_text(json.dumps(case.config), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(framed(json.dumps(header).encode(), body))
    return floats


def loaded(folder: Path) -> FamilyModel:
    checkpoint = read_checkpoint(folder)
    config = config_from_hf(checkpoint.config)
    program = build_program(config)
    weights = load_hf_weights(checkpoint.tensors, expected_weights(program), config, folder, "0" * 64)
    return FamilyModel(config, program, {}, weights)


def of_floats(case: FamilyCase, tensors: Mapping[str, Floats]) -> WeightTable:
    config = case.model_config()
    stored = {name: stored_tensor(name, array) for name, array in tensors.items()}
    return load_hf_weights(stored, expected_weights(build_program(config)), config, Path("made-up"), "0" * 64)


def test_codes_and_scales_give_what_their_floats_give(tmp_path: Path) -> None:
    case = published_case()
    floats = write_checkpoint(tmp_path, case)
    model = loaded(tmp_path)
    assert {model.weights[f"layers.0.experts.1.{part}"].format.name for part in ("gate", "up", "down")} == {"MXFP4"}

    def logits(make: str, weights: WeightTable) -> Floats:
        tap = LogitsTap()
        executor: LoadableExecutor = EXECUTORS[make](tap)
        return logits_of(executor, tap, model, TOKENS, weights)

    wanted = logits("reference", of_floats(case, floats))
    assert np.array_equal(logits("reference", model.weights), wanted)
    if presence.missing():
        pytest.skip("the rest needs the native runtime, and that a C++ compiler")
    errors = abs(logits("native", model.weights) - wanted) / abs(wanted).max()
    assert 0 < np.sqrt(np.square(errors).mean()) <= EIGHT_BITS.typical


def test_a_checkpoint_of_another_family_in_such_codes_is_refused(tmp_path: Path) -> None:
    case = published_case()
    write_checkpoint(tmp_path, case)
    (tmp_path / "config.json").write_text(json.dumps({**case.config, "model_type": "mixtral"}), encoding="utf-8")
    with pytest.raises(ModelError, match="quant_method 'mxfp4'; checkpoints that were quantised by another program"):
        loaded(tmp_path)
