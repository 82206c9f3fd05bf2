"""GGUF: headers of each kind of architecture, files cut behind the header, and types that are only counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.tiny_model import write_tiny_model
from tests.unit.weights.gguf_bytes import ARRAY, STRING, U32, GgufBytes, array, key, string, tensor, u32

from plait.core.errors import ModelError
from plait.inspect.gguf import KNOWN, facts_from_gguf
from plait.inspect.layers import NumberType, memory_groups
from plait.weights.gguf import read_gguf
from plait.weights.gguf_outline import read_outline


def write(path: Path, arch: str, tensors: list[bytes] | None = None, **numbers: int | list[int]) -> Path:
    """A header alone: every key is ARCH.name with dots for double underscores."""
    keys = [key("general.architecture", STRING, string(arch))]
    values: dict[str, int | list[int]] = {
        "block_count": 4,
        "embedding_length": 64,
        "context_length": 1000,
        "attention__head_count": 4,
        "attention__head_count_kv": 2,
        **numbers,
    }
    for name, value in values.items():
        full_name = f"{arch}.{name.replace('__', '.')}"
        if isinstance(value, list):
            keys.append(key(full_name, ARRAY, array(U32, [u32(one) for one in value])))
        else:
            keys.append(key(full_name, U32, u32(value)))
    path.write_bytes(GgufBytes(keys=keys, tensors=tensors or [], contents=b"").build())
    return path


def groups_of(path: Path) -> list[tuple[str, int, int]]:
    facts = facts_from_gguf(path)
    groups = memory_groups(facts.layers, NumberType.F16, facts.numbers)
    return [(group.name, group.num_layers, group.token_bytes or group.state_bytes) for group in groups]


SSM = {"ssm__conv_kernel": 4, "ssm__inner_size": 128, "ssm__state_size": 16}


@pytest.mark.parametrize(
    ("arch", "numbers", "expected"),
    [
        ("llama", {}, [("full", 4, 128)]),
        ("qwen3", {"attention__key_length": 32, "attention__value_length": 32}, [("full", 4, 256)]),
        ("gemma2", {"attention__sliding_window": 100}, [("window 100", 2, 128), ("full", 2, 128)]),
        ("gemma3", {"attention__sliding_window": 100, "block_count": 6}, [("window 100", 5, 128), ("full", 1, 128)]),
        ("gpt-oss", {"attention__sliding_window": 100}, [("window 100", 2, 128), ("full", 2, 128)]),
        (
            "gemma3n",
            {"attention__sliding_window": 100, "block_count": 10, "attention__shared_kv_layers": 5},
            [("window 100", 4, 128), ("full", 1, 128)],
        ),
        ("llama4", {"attention__chunk_size": 100}, [("chunked 100", 3, 128), ("full", 1, 128)]),
        (
            "deepseek2",
            {"attention__kv_lora_rank": 512, "rope__dimension_count": 64, "attention__head_count_kv": 1},
            [("latent", 4, 1152)],
        ),
        ("deci", {"attention__head_count_kv": [2, 0, 1, 2]}, [("full", 2, 128), ("full 2", 1, 64)]),
        ("glm4moe", {"block_count": 5, "nextn_predict_layers": 1}, [("full", 4, 128)]),
        (
            "jamba",
            {"attention__head_count_kv": [0, 0, 2, 0], **SSM},
            [("mamba", 3, 4 * (384 + 2048)), ("full", 1, 128)],
        ),
        (
            "granitehybrid",
            {"attention__head_count_kv": [0, 2, 0, 0], "ssm__group_count": 2, **SSM},
            [("mamba2", 3, 4 * (192 * 3 + 2048)), ("full", 1, 128)],
        ),
        (
            "nemotron_h",
            {
                "attention__head_count_kv": [0, 0, 0, 2],
                "feed_forward_length": [0, 96, 0, 0],
                "ssm__group_count": 2,
                **SSM,
            },
            [("mamba2", 2, 4 * (192 * 3 + 2048)), ("full", 1, 128)],
        ),
        ("falcon-h1", {"ssm__group_count": 2, **SSM}, [("mamba2", 4, 4 * (192 * 3 + 2048)), ("full", 4, 128)]),
        (
            "qwen3next",
            {"full_attention_interval": 4, "ssm__group_count": 2, **SSM},
            [("gated delta", 3, 4 * (192 * 3 + 2048)), ("full", 1, 128)],
        ),
        (
            "lfm2",
            {"attention__head_count_kv": [0, 2, 0, 0], "shortconv__l_cache": 3},
            [("short conv", 3, 4 * 128), ("full", 1, 128)],
        ),
        (
            "rwkv7",
            {"attention__head_count_kv": 0, "wkv__head_size": 16},
            [("rwkv", 4, 4 * (2 * 64 + 64 * 16))],
        ),
    ],
)
def test_what_each_architecture_keeps(
    tmp_path: Path, arch: str, numbers: dict[str, int | list[int]], expected: list[tuple[str, int, int]]
) -> None:
    assert groups_of(write(tmp_path / "model.gguf", arch, **numbers)) == expected


def test_a_file_that_ends_behind_its_header_is_enough(tmp_path: Path) -> None:
    whole = write_tiny_model(tmp_path / "tiny.gguf")
    first = min(one.offset for one in read_gguf(whole).tensors.values())
    cut = tmp_path / "begun.gguf"
    cut.write_bytes(whole.read_bytes()[:first])
    with pytest.raises(ModelError, match="ends at byte"):
        read_gguf(cut)
    assert facts_from_gguf(cut).layers == facts_from_gguf(whole).layers
    assert facts_from_gguf(cut).parameters == facts_from_gguf(whole).parameters


def test_a_file_cut_inside_its_header_is_refused(tmp_path: Path) -> None:
    whole = write_tiny_model(tmp_path / "tiny.gguf").read_bytes()
    for num_bytes in (3, 20, 100, 1000):
        cut = tmp_path / "begun.gguf"
        cut.write_bytes(whole[:num_bytes])
        with pytest.raises(ModelError) as caught:
            facts_from_gguf(cut)
        assert "\n" not in str(caught.value)


def test_an_outline_agrees_with_the_reader_of_whole_files(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf")
    outline, file = read_outline(path), read_gguf(path)
    assert outline.metadata == file.metadata
    assert {one.name: (one.shape, one.format, one.num_bytes) for one in outline.tensors} == {
        one.name: (one.shape, one.format.name.lower(), one.num_bytes) for one in file.tensors.values()
    }


def test_sizes_of_all_tensor_types_are_those_of_the_gguf_package(tmp_path: Path) -> None:
    from gguf.constants import GGML_QUANT_SIZES

    from plait.weights.gguf_outline import _TYPES

    assert {number: (block, size) for number, (_, block, size) in _TYPES.items()} == {
        int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items() if kind.name not in ("Q8_1", "Q8_K")
    }


def test_types_that_plait_does_not_compute_with_are_counted_too(tmp_path: Path) -> None:
    tensors = [
        tensor("token_embd.weight", [256, 8], 23, 0),
        tensor("blk.0.ffn_down_exps.weight", [256, 4, 4], 23, 4096),
    ]
    path = write(tmp_path / "model.gguf", "qwen3moe", tensors, expert_count=4, expert_used_count=1)
    facts = facts_from_gguf(path)
    assert facts.formats == (("iq4_xs", 256 * 24, 24 * 136),)
    assert facts.parameters is not None
    # Tied to the head, the embedding is multiplied with; of four experts one is.
    assert (facts.parameters.total, facts.parameters.active) == (256 * 24, 256 * 8 + 256 * 4)
    assert facts.parts == (("embedding", 2048, 8 * 136), ("experts", 4096, 16 * 136))


def test_an_unknown_type_or_architecture_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has type 99, which is not known"):
        facts_from_gguf(write(tmp_path / "a.gguf", "llama", [tensor("a", [4], 99, 0)]))
    with pytest.raises(ModelError, match=r"'qwen33' keeps in memory is not known \(the nearest known one is qwen3\)"):
        facts_from_gguf(write(tmp_path / "b.gguf", "qwen33"))


@pytest.mark.parametrize("arch", sorted(KNOWN))
def test_a_header_without_sizes_is_an_error_of_one_line(tmp_path: Path, arch: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(
        GgufBytes(keys=[key("general.architecture", STRING, string(arch))], tensors=[], contents=b"").build()
    )
    with pytest.raises(ModelError) as caught:
        facts_from_gguf(path)
    assert "block_count is missing" in str(caught.value)


def test_states_without_sizes_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", "jamba", attention__head_count_kv=[0, 2, 0, 0])
    with pytest.raises(ModelError, match="layer 0 keeps a state, but the sizes of states are missing"):
        facts_from_gguf(path)
