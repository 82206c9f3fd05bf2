"""GGUF files byte by byte, for tests that need every kind of wrong file.

Owns a small writer that checks nothing: each part can be replaced by anything. Well-formed files for comparison are
written by the `gguf` package instead, so that the reader is not tested against its author's idea of the format alone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
F32_TENSOR, F16_TENSOR, Q4_0_TENSOR, Q4_1_TENSOR, Q8_K_TENSOR, Q6_K_TENSOR = 0, 1, 2, 3, 15, 14


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes) -> bytes:
    encoded = text.encode() if isinstance(text, str) else text
    return u64(len(encoded)) + encoded


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return string(name) + u32(kind) + value


def array(kind: int, values: Sequence[bytes]) -> bytes:
    return u32(kind) + u64(len(values)) + b"".join(values)


def tensor(name: str | bytes, dims: Sequence[int], kind: int, offset: int) -> bytes:
    """`dims` in the file's order: the innermost, which is a row's length, first."""
    return string(name) + u32(len(dims)) + b"".join(u64(dim) for dim in dims) + u32(kind) + u64(offset)


@dataclass
class GgufBytes:
    """By default one F32 tensor of 2 rows of 4 and one Q4_1 tensor of 3 rows of 64, back to back at alignment 32."""

    magic: bytes = b"GGUF"
    version: bytes = field(default_factory=lambda: u32(3))
    keys: list[bytes] = field(default_factory=lambda: [key("general.architecture", STRING, string("llama"))])
    tensors: list[bytes] = field(
        default_factory=lambda: [tensor("a", [4, 2], F32_TENSOR, 0), tensor("b", [64, 3], Q4_1_TENSOR, 32)]
    )
    num_tensors: int | None = None
    num_keys: int | None = None
    alignment: int = 32
    contents: bytes = bytes(range(152))

    def build(self) -> bytes:
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_keys = len(self.keys) if self.num_keys is None else self.num_keys
        header = self.magic + self.version + u64(num_tensors) + u64(num_keys) + b"".join(self.keys + self.tensors)
        return header + bytes(-len(header) % self.alignment) + self.contents
