"""Operations: the list is closed, every one is defined in words, and each names what it touches."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields, is_dataclass
from pathlib import Path

import pytest

from plait.core.ids import GroupId
from plait.model import ops
from plait.model.ops import OP_TYPES, Op, ValueId, op_group, op_name, op_weights
from plait.model.rope import RopeSpec
from plait.model.visibility import CAUSAL

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "ops.md"

CONTRACT = [
    *("Embed", "Place", "Norm", "Linear", "Rope", "CacheWrite", "Attend", "Glu", "Act", "Add", "Mul", "Scale"),
    *("Conv", "Scan", "Route", "Experts", "Select", "Sample", "Pool", "Tap", "AllReduce"),
]

X, Y, Z = ValueId(0), ValueId(1), ValueId(2)
G = GroupId(3)
SILU = ops.Activation.SILU

EXAMPLES: list[tuple[Op, tuple[str, ...], GroupId | None]] = [
    (ops.Embed((), Y, "table"), ("table",), None),
    (ops.Place((X,), Y, G), (), G),
    (ops.Norm((X,), Y, "w", 1e-5, bias="b"), ("w", "b"), None),
    (ops.Norm((X,), Y, None, 1e-5), (), None),
    (ops.Linear((X,), Y, "w"), ("w",), None),
    (ops.Linear((X,), Y, "w", "b"), ("w", "b"), None),
    (ops.Rope((X,), Y, RopeSpec(1e4, 4, 64), 2, 4), (), None),
    (ops.CacheWrite((X, Y), G, 0), (), G),
    (ops.Attend((X,), Y, G, 0, 2, 1, 4, 4, 0.5, CAUSAL), (), G),
    (ops.Attend((X,), Y, G, 0, 2, 1, 4, 4, 0.5, CAUSAL, sinks="s"), ("s",), G),
    (ops.Attend((X, Y, Z), Z, None, 0, 2, 1, 4, 4, 0.5, CAUSAL), (), None),
    (ops.Glu((X, Y), Z, SILU), (), None),
    (ops.Act((X,), Y, SILU), (), None),
    (ops.Add((X, Y), Z), (), None),
    (ops.Mul((X, Y), Z), (), None),
    (ops.Scale((X,), Y, 2.0), (), None),
    (ops.Conv((X,), Y, "w", 4, G, 0), ("w",), G),
    (ops.Scan((X,), Y, ops.ScanKind.RWKV7, ("a", "b"), 2, 4, 4, G, 0), ("a", "b"), G),
    (ops.Route((X,), Y, 8, 2), (), None),
    (ops.Route((X,), Y, 8, 2, bias="b"), ("b",), None),
    (ops.Experts((X, Y), Z, ("g",), ("u",), ("d",), 1, 16, SILU), ("g", "u", "d"), None),
    (ops.Experts((X, Y), Z, ("g",), ("u",), ("d",), 1, 16, SILU, ("a", "b", "c")), tuple("gudabc"), None),
    (ops.Select((X,), Y), (), None),
    (ops.Sample((X,), 32), (), None),
    (ops.Pool((X,), ops.PoolKind.LAST), (), None),
    (ops.Tap((X,), "hidden"), (), None),
    (ops.AllReduce((X,), Y, 2), (), None),
]


def test_the_list_of_operations_is_the_contracts() -> None:
    assert [kind.__name__ for kind in OP_TYPES] == CONTRACT


def test_every_operation_has_an_example_below() -> None:
    assert {type(op) for op, _, _ in EXAMPLES} == set(OP_TYPES)


@pytest.mark.parametrize(("op", "weights", "group"), EXAMPLES)
def test_an_operation_names_its_weights_and_its_group(op: Op, weights: tuple[str, ...], group: GroupId | None) -> None:
    assert op_weights(op) == weights
    assert op_group(op) == group
    assert op_name(op) == type(op).__name__


@pytest.mark.parametrize("kind", OP_TYPES, ids=lambda kind: str(kind.__name__))
def test_every_operation_is_a_frozen_value_with_inputs_and_output(kind: type) -> None:
    assert is_dataclass(kind)
    assert {"inputs", "output"} <= {field.name for field in fields(kind)}
    assert "__slots__" in vars(kind)


def test_operations_with_equal_fields_are_equal_and_cannot_be_changed() -> None:
    op = ops.Linear((X,), Y, "w")
    assert op == ops.Linear((X,), Y, "w")
    assert hash(op) == hash(ops.Linear((X,), Y, "w"))
    with pytest.raises(FrozenInstanceError):
        op.weight = "other"  # type: ignore[misc]


@pytest.mark.parametrize("kind", OP_TYPES, ids=lambda kind: str(kind.__name__))
def test_every_operation_is_defined_with_its_shapes(kind: type) -> None:
    text = kind.__doc__ or ""
    assert "inputs" in text
    assert "output" in text
    assert re.search(r"\[R|no output", text), f"{kind.__name__} gives no shape"


@pytest.mark.parametrize("name", CONTRACT)
def test_the_reference_page_has_every_operation_with_definition_and_cost(name: str) -> None:
    definition, cost = PAGE.read_text().split("## Costs")
    row = re.compile(rf"^\|.*`{name}`.*\|", re.MULTILINE)
    assert row.search(definition), f"{PAGE.name} does not define {name}"
    assert row.search(cost), f"{PAGE.name} has no cost of {name}"


@pytest.mark.parametrize("name", CONTRACT)
def test_the_reference_page_names_only_attributes_that_exist(name: str) -> None:
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |"))
    listed = re.sub(r"\([^)]*\)|:.*", "", row.rstrip("| ").split(" | ")[-1] if row.count(" | ") > 3 else "")
    short = {"d_k": "head_dim_k", "d_v": "head_dim_v", "eps": "eps", "offset 0 or 1": "offset"}
    known = {field.name for field in fields(getattr(ops, name))}
    for word in filter(None, (part.strip() for part in listed.split(","))):
        assert short.get(word, word) in known, f"{name} has no attribute {word}"


@pytest.mark.parametrize("enum", [ops.Activation, ops.ScanKind, ops.NormKind, ops.Pairing, ops.PoolKind, ops.Space])
def test_the_reference_page_names_every_choice(enum: type[ops.Activation]) -> None:
    text = PAGE.read_text().lower()
    for choice in enum:
        assert choice.value in text, f"{PAGE.name} does not name {choice}"


def test_a_scans_state_is_one_matrix_for_each_head() -> None:
    op = ops.Scan((X,), Y, ops.ScanKind.MAMBA2, (), heads=3, head_dim=4, state_dim=5, group=G, slot=0)
    assert op.state_elements == 60
