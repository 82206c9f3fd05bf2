"""Tables: which block the steps in flight will fill next, as far as their tokens are known."""

from __future__ import annotations

import pytest

from plait.core.ids import SeqId, StepId
from plait.kv.hit import Root
from plait.kv.nodes import Node
from plait.kv.planned import PlannedBlock
from plait.kv.tables import SeqTable, Writing

SIZE = 4


def make_table(committed: str, *steps: tuple[int, int, str]) -> SeqTable:
    """`committed` tokens behind a node with id 7, then steps 0, 1, ... that write [start, end) with known tokens.

    A step that starts before the end of `committed` is committed itself.
    """
    node = Node(7, Root("fingerprint"), None, (), (), 0, 0.0)
    return SeqTable(
        seq=SeqId(0),
        node=node,
        publishes=True,
        blocks=([],),
        num_hit_blocks=0,
        num_slots=100,
        kept_slots=100,
        target=100,
        num_granted=[0],
        num_dead=[0],
        dead_end=[0],
        num_committed=len(committed),
        planned_end=max([len(committed), *(end for _, end, _ in steps)]),
        tail=list(map(ord, committed)),
        committed_step=StepId(sum(start < len(committed) for start, _, _ in steps) - 1),
        writing={
            StepId(number): Writing(start, end, tuple(map(ord, known)))
            for number, (start, end, known) in enumerate(steps)
        },
    )


def block(text: str, step: int) -> PlannedBlock:
    return PlannedBlock(7, tuple(map(ord, text)), StepId(step))


@pytest.mark.parametrize(
    ("committed", "steps", "expected"),
    [
        pytest.param("", [(0, 6, "abcdef")], block("abcd", 0), id="one step fills it"),
        pytest.param("ab", [(2, 4, "cd")], block("abcd", 0), id="behind committed tokens"),
        pytest.param("", [(0, 3, "abc"), (3, 5, "de")], block("abcd", 1), id="the second step completes it"),
        pytest.param("ab", [(0, 2, "ab"), (2, 4, "cd")], block("abcd", 1), id="the first is committed, not collected"),
        pytest.param("", [(0, 3, "abc")], None, id="not full"),
        pytest.param("abc", [(3, 4, "")], None, id="the last token comes from the device"),
        pytest.param("ab", [(2, 4, "c")], None, id="the last token is a draft"),
        pytest.param("", [(0, 4, "ab"), (4, 8, "efgh")], None, id="nothing is known behind a draft"),
        pytest.param("", [(2, 6, "cdef")], None, id="the step before was cancelled"),
        pytest.param("ab", [], None, id="nothing in flight"),
    ],
)
def test_the_next_planned_block(
    committed: str, steps: list[tuple[int, int, str]], expected: PlannedBlock | None
) -> None:
    assert make_table(committed, *steps).next_planned(SIZE) == expected


def test_a_sequence_is_in_flight_while_a_step_writes_or_reads_it() -> None:
    assert not make_table("ab").is_in_flight
    assert make_table("ab", (2, 3, "c")).is_in_flight
    table = make_table("ab")
    table.num_readers = 1
    assert table.is_in_flight
