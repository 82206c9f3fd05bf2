"""GGUF: sound files are read as the `gguf` package reads them, everything else is one clear line."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.unit.weights.gguf_bytes import (
    ARRAY,
    BOOL,
    F16_TENSOR,
    F32_TENSOR,
    I32,
    Q4_0_TENSOR,
    Q4_1_TENSOR,
    Q6_K_TENSOR,
    Q8_K_TENSOR,
    STRING,
    U8,
    U32,
    U64,
    GgufBytes,
    array,
    key,
    string,
    tensor,
    u32,
    u64,
)

from plait.core.errors import ModelError
from plait.weights.gguf import read_gguf


def written(folder: Path, contents: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(contents)
    return path


def trouble(folder: Path, contents: bytes) -> str:
    """The message for a file that must be refused; always one line that begins with the file's path."""
    path = written(folder, contents)
    with pytest.raises(ModelError) as caught:
        read_gguf(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert len(message) < len(str(path)) + 400
    return message.removeprefix(f"{path}: ")


def test_a_small_file_is_read_whole(tmp_path: Path) -> None:
    file = read_gguf(written(tmp_path, GgufBytes().build()))
    assert (file.version, file.alignment, file.metadata) == (3, 32, {"general.architecture": "llama"})
    a, b = file.tensors["a"], file.tensors["b"]
    assert (a.shape, a.format.name, a.num_bytes) == ((2, 4), "F32", 32)
    assert (b.shape, b.format.name, b.num_bytes) == ((3, 64), "Q4_1", 120)
    assert b.offset == a.offset + 32
    assert a.raw().tolist() == list(range(32))
    assert b.raw().tolist() == list(range(32, 152))


def test_version_2_is_read_too(tmp_path: Path) -> None:
    assert read_gguf(written(tmp_path, GgufBytes(version=u32(2)).build())).version == 2


def test_tensors_are_views_of_the_file_that_cannot_be_written(tmp_path: Path) -> None:
    path = written(tmp_path, GgufBytes().build())
    raw = read_gguf(path).tensors["a"].raw()
    assert not raw.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        raw[0] = 1
    with path.open("r+b") as file:
        file.seek(-152, os.SEEK_END)
        file.write(b"\xaa")
    assert raw[0] == 0xAA


def test_a_file_without_tensors_is_a_vocabulary(tmp_path: Path) -> None:
    contents = GgufBytes(tensors=[], contents=b"", alignment=1).build()
    assert read_gguf(written(tmp_path, contents)).tensors == {}


def test_a_larger_alignment_moves_the_tensors(tmp_path: Path) -> None:
    parts = GgufBytes(alignment=4096)
    parts.keys.append(key("general.alignment", U32, u32(4096)))
    parts.tensors[1] = tensor("b", [4], F32_TENSOR, 4096)
    parts.contents = bytes(4096) + bytes(range(16))
    file = read_gguf(written(tmp_path, parts.build()))
    assert (file.alignment, file.tensors["b"].offset) == (4096, 8192)
    assert file.tensors["b"].raw().tolist() == list(range(16))


def test_a_file_of_the_gguf_package_is_read_as_it_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "theirs.gguf"
    rng = np.random.default_rng(11)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(8192)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_add_bos_token(True)
    writer.add_token_list(["<s>", "löwe", "🦁", ""])
    writer.add_token_scores([0.0, -1.5, -2.5, 3.25])
    writer.add_token_types([3, 1, 1, 6])
    for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        floats = rng.standard_normal((3, 5, 64), dtype=np.float32)
        kind = gguf.GGMLQuantizationType[name]
        writer.add_tensor(f"tensor.{name}", gguf.quantize(floats, kind), raw_dtype=kind)
    for name in ("Q4_K", "Q5_K", "Q6_K"):  # which the package reads but does not make
        kind = gguf.GGMLQuantizationType[name]
        row_bytes = 2 * gguf.GGML_QUANT_SIZES[kind][1]
        writer.add_tensor(f"tensor.{name}", rng.integers(0, 256, (3, 5, row_bytes), dtype=np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert_equal_to_the_gguf_package(path)


@pytest.mark.model
def test_the_default_model_is_read_as_the_gguf_package_reads_it(model_path: Path) -> None:
    assert_equal_to_the_gguf_package(model_path)


def assert_equal_to_the_gguf_package(path: Path) -> None:
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.metadata == fields
    assert [type(value) for value in ours.metadata.values()] == [type(value) for value in fields.values()]
    assert list(ours.tensors) == [entry.name for entry in theirs.tensors]
    for entry in theirs.tensors:
        tensor_ = ours.tensors[entry.name]
        assert tensor_.shape == tuple(int(dim) for dim in reversed(entry.shape))
        assert (tensor_.format.name, tensor_.offset) == (entry.tensor_type.name, entry.data_offset)
        np.testing.assert_array_equal(tensor_.raw(), np.asarray(entry.data).reshape(-1).view(np.uint8))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (GgufBytes(magic=b"PK\x03\x04"), "not a GGUF file (it begins with b'PK\\x03\\x04', not b'GGUF')"),
        (GgufBytes(magic=b"FUGG"), "not a GGUF file"),
        (GgufBytes(version=u32(1)), "GGUF version 1 is not supported, only 2 and 3"),
        (GgufBytes(version=u32(4)), "GGUF version 4 is not supported, only 2 and 3"),
        (GgufBytes(version=u32(3)[::-1]), "a big-endian GGUF file (version 3)"),
        (GgufBytes(num_tensors=2**63), "number of tensors is 9,223,372,036,854,775,808; the limit is 65,536"),
        (GgufBytes(num_tensors=60_000), "the header at byte 24 needs 1,920,013 bytes but"),
        (GgufBytes(num_keys=2**40), "number of metadata keys is 1,099,511,627,776; the limit is 65,536"),
        (GgufBytes(num_keys=1000), "the header at byte 24 needs 13,064 bytes but"),
    ],
)
def test_a_wrong_beginning_is_refused(tmp_path: Path, parts: GgufBytes, expected: str) -> None:
    assert expected in trouble(tmp_path, parts.build())


@pytest.mark.parametrize(
    ("bad_key", "expected"),
    [
        (key("k", 13, b""), "metadata 'k' has value type 13; GGUF knows types 0 to 12"),
        (key("k", ARRAY, u32(99) + u64(1)), "metadata 'k' has element type 99; GGUF knows types 0 to 12"),
        (key("k", BOOL, b"\x02"), "metadata 'k' is a boolean with value 2; only 0 and 1 exist"),
        (key("k", ARRAY, array(BOOL, [b"\1", b"\7"])), "metadata 'k' holds a boolean with value 7"),
        (key("k", STRING, string(b"a\xffb")), "metadata 'k' is not valid UTF-8: byte 0xff at byte 91"),
        (key(b"k\xc3", U8, b"\0"), "name of metadata key 1 is not valid UTF-8: byte 0xc3"),
        (key("k", STRING, u64(2**50)), "claims a string of 1,125,899,906,842,624 bytes; the limit is 67,108,864"),
        (key("k", STRING, u64(60_000_000)), "metadata 'k' at byte 90 needs 60,000,000 bytes but"),
        (key("k", ARRAY, u32(U8) + u64(2**62)), "claims 4,611,686,018,427,387,904 values; the limit for a file is"),
        (key("k", ARRAY, u32(U64) + u64(4_000_000)), "metadata 'k' at byte 94 needs 32,000,000 bytes but"),
        (key("k", ARRAY, array(STRING, [string("ok"), u64(9999)])), "string 1 of metadata 'k' claims 9,999 bytes"),
        (
            key("k", ARRAY, array(STRING, [string("ok"), string(b"\x80")])),
            "string 1 of metadata 'k' is not valid UTF-8",
        ),
        (key("general.architecture", U8, b"\0"), "metadata key 'general.architecture' appears twice"),
        (key("a\nb" * 50, 13, b""), r"metadata 'a\nba\nb"),
    ],
)
def test_wrong_metadata_is_refused(tmp_path: Path, bad_key: bytes, expected: str) -> None:
    parts = GgufBytes()
    parts.keys.append(bad_key)
    assert expected in trouble(tmp_path, parts.build())


def test_arrays_in_arrays_are_read_to_a_depth_of_four(tmp_path: Path) -> None:
    nested = array(I32, [u32(5)])
    for _ in range(3):
        nested = array(ARRAY, [nested])
    parts = GgufBytes()
    parts.keys.append(key("k", ARRAY, nested))
    assert read_gguf(written(tmp_path, parts.build())).metadata["k"] == [[[[5]]]]
    parts.keys[1] = key("k", ARRAY, array(ARRAY, [nested]))
    assert "metadata 'k' nests arrays deeper than 4" in trouble(tmp_path, parts.build())


def test_a_file_cannot_claim_many_large_arrays(tmp_path: Path) -> None:
    parts = GgufBytes()
    bulky = u32(U8) + u64(1_500_000) + bytes(1_500_000)
    parts.keys += [key(name, ARRAY, bulky) for name in ("k", "l", "m")]
    assert "metadata 'm' claims 1,500,000 values; the limit for a file is 4,194,304" in trouble(tmp_path, parts.build())


@pytest.mark.parametrize(
    ("alignment", "shown"),
    [
        (key("general.alignment", U32, u32(0)), "'0'"),
        (key("general.alignment", U32, u32(48)), "'48'"),
        (key("general.alignment", I32, u32(2**32 - 32)), "'-32'"),
        (key("general.alignment", BOOL, b"\1"), "'True'"),
        (key("general.alignment", STRING, string("32")), "'32'"),
    ],
)
def test_an_impossible_alignment_is_refused(tmp_path: Path, alignment: bytes, shown: str) -> None:
    parts = GgufBytes()
    parts.keys.append(alignment)
    assert f"general.alignment is {shown}; it must be a power of two" in trouble(tmp_path, parts.build())


@pytest.mark.parametrize(
    ("bad_tensor", "expected"),
    [
        (tensor("a", [4], F32_TENSOR, 32), "tensor 'a' appears twice"),
        (tensor("b", [], F32_TENSOR, 32), "tensor 'b' has 0 dimensions; 1 to 4 are possible"),
        (tensor("b", [1] * 5, F32_TENSOR, 32), "tensor 'b' has 5 dimensions; 1 to 4 are possible"),
        (tensor("b", [4, 0], F32_TENSOR, 32), "tensor 'b' has shape (0, 4) with an empty dimension"),
        (tensor("b", [2**63, 2**63, 2**63, 2**63], F32_TENSOR, 32), "tensor 'b' ends at byte 28,948,022,309,329,048"),
        (tensor("b", [2**32, 2**32], F16_TENSOR, 32), "tensor 'b' ends at byte 36,893,488,147,419,103,"),
        (tensor("b", [48, 3], Q4_0_TENSOR, 32), "rows of 48 weights, which are not whole Q4_0 blocks of 32"),
        (tensor("b", [576, 3], Q6_K_TENSOR, 32), "rows of 576 weights, which are not whole Q6_K blocks of 256"),
        (tensor("b", [4], F32_TENSOR, 2**63), "tensor 'b' ends at byte 9,223,372,036,854,775,"),
        (tensor("b", [4], F32_TENSOR, 160), "tensor 'b' ends at byte"),
        (tensor("b", [4], F32_TENSOR, 36), "tensor 'b' has offset 36, not a multiple of the alignment 32"),
        (tensor("b", [4], F32_TENSOR, 0), "tensor 'b' at offset 0 overlaps tensor 'a'"),
        (tensor(b"\xff", [4], F32_TENSOR, 32), "name of tensor 1 is not valid UTF-8: byte 0xff"),
        (tensor("b", [256], Q8_K_TENSOR, 32), "tensor 'b' has type 15 (Q8_K); supported are F32, F16, BF16, Q8_0"),
        (tensor("b", [256], 4096, 32), "tensor 'b' has type 4096 (unknown); supported are F32, F16, BF16, Q8_0"),
    ],
)
def test_a_wrong_tensor_is_refused(tmp_path: Path, bad_tensor: bytes, expected: str) -> None:
    parts = GgufBytes()
    parts.tensors[1] = bad_tensor
    assert expected in trouble(tmp_path, parts.build())


def test_the_last_tensor_may_end_exactly_with_the_file_and_not_one_byte_later(tmp_path: Path) -> None:
    contents = GgufBytes().build()
    assert read_gguf(written(tmp_path, contents)).tensors["b"].num_bytes == 120
    expected = f"tensor 'b' ends at byte {len(contents):,} but the file has {len(contents) - 1:,}; the file is damaged"
    assert expected in trouble(tmp_path, contents[:-1])


def test_a_tensor_over_another_but_listed_before_it_is_refused(tmp_path: Path) -> None:
    parts = GgufBytes(tensors=[tensor("b", [64, 3], Q4_1_TENSOR, 32), tensor("a", [16], F32_TENSOR, 0)])
    assert "tensor 'b' at offset 32 overlaps tensor 'a'" in trouble(tmp_path, parts.build())


def test_an_empty_file_is_named_so(tmp_path: Path) -> None:
    assert trouble(tmp_path, b"") == "the file is empty; fetch or convert it again"


@pytest.mark.parametrize(("name", "expected"), [("missing.gguf", "No such file"), ("", "not a regular file")])
def test_a_path_that_is_no_file_is_refused(tmp_path: Path, name: str, expected: str) -> None:
    with pytest.raises(ModelError, match=expected):
        read_gguf(tmp_path / name)


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelError, match="not a regular file"):
        read_gguf(tmp_path / "pipe.gguf")


def test_a_path_with_a_zero_byte_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'a\\x00b': cannot be read"):
        read_gguf("a\0b")
