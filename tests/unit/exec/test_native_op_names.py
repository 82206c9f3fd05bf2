"""Names of a tape's operations: those of the program's weights, without a layer where kinds are meant."""

from __future__ import annotations

from tests.unit.exec.test_native_lowering import schemes, smollm2

from plait.exec.native.lowering import lower
from plait.exec.native.op_names import op_names
from plait.exec.native.tape import Scheme

LAYER = [
    ("attn_norm norm+quantise", "norm+quantise"),
    ("q,k,v gemm Q4_1/Q8_0", "gemm q,k,v"),
    ("rope+cache write", "rope+cache write"),
    ("attention+quantise", "attention+quantise"),
    ("o gemm Q4_1", "gemm o"),
    ("ffn_norm norm+quantise", "norm+quantise"),
    ("gate,up gemm+glu Q4_1", "gemm+glu gate,up"),
    ("down gemm Q4_1", "gemm down"),
]


def test_operations_are_called_after_their_layer_and_their_weights() -> None:
    program = smollm2(2)
    mixed = schemes(program, Scheme.Q4_1, v=Scheme.Q8_0)
    names = op_names(program, lower(program, mixed), mixed)
    assert (names[0].name, names[0].kind) == ("embed", "embed")
    for layer in range(2):
        found = names[1 + 8 * layer : 9 + 8 * layer]
        joints = [" " if " " not in name or name.startswith(("rope", "attention")) else "." for name, _ in LAYER]
        assert [one.name for one in found] == [
            f"layers.{layer}{joint}{name}" for joint, (name, _) in zip(joints, LAYER, strict=True)
        ]
        assert [one.kind for one in found] == [kind for _, kind in LAYER]
    head = [(one.name, one.kind) for one in names[17:]]
    assert head == [
        ("head select", "select"),
        ("head.final_norm norm+quantise", "norm+quantise"),
        ("head.embed gemm Q4_1", "head"),
        ("head sampler", "sampler"),
    ]
    assert len({one.name for one in names}) == len(names)
