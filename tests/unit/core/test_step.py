"""Plans: what contradicts itself is found, equal plans have equal digests, and a shape keeps what prices need."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.decision import SeqUpdate
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.plan_hash import plan_hash
from plait.core.sampling import SamplingParams
from plait.core.step import (
    FROM_DEVICE,
    SAMPLES_ONE,
    BlockGrant,
    Chunk,
    ChunkShape,
    Drafts,
    Encode,
    FromDevice,
    Join,
    Leave,
    Move,
    OutputKind,
    Outputs,
    RowMask,
    SeqResult,
    SeqStatus,
    Snapshot,
    StepPlan,
    StepShape,
    TokenLogprob,
    plan_fault,
)

SAMPLE = Outputs(3, 1, OutputKind.SAMPLE)
CHUNK = Chunk(SeqId(1), 8, 4, (5, 6, 7, 8), outputs=(SAMPLE,))


def plan(*chunks: Chunk) -> StepPlan:
    return StepPlan(StepId(9), LaneId(0), (), (), (), chunks)


def fault(**changes: object) -> str | None:
    return plan_fault(plan(CHUNK._replace(**changes)))  # type: ignore[arg-type]


def test_a_plan_has_the_fields_of_the_contract_and_no_side_door() -> None:
    names = [field.name for field in fields(StepPlan)]
    assert names == [
        "step",
        "lane",
        "roster",
        "blocks",
        "moves",
        "chunks",
        "encodes",
        "sampling",
        "program",
        "num_steps",
    ]


def test_sound_plans_have_no_fault() -> None:
    decode = Chunk(SeqId(2), 30, 1, FROM_DEVICE, outputs=(Outputs(0, 1, OutputKind.SAMPLE),))
    verify = Chunk(SeqId(3), 7, 4, (9,), Drafts((1, 2, 3), (-1, 0, 0)), (Outputs(0, 4, OutputKind.SAMPLE),))
    scored = Chunk(SeqId(4), 0, 2, (1, 2), outputs=(Outputs(0, 2, OutputKind.LOGPROBS, targets=(2, 3)),))
    placed = CHUNK._replace(positions=(8, 9, 9, 9), snapshots=(Snapshot(0, GroupId(0), BlockId(1)),))
    assert plan_fault(plan()) is None
    assert plan_fault(plan(placed, decode, verify, scored)) is None


def test_a_sequence_has_one_chunk_in_a_step() -> None:
    assert plan_fault(plan(CHUNK, CHUNK._replace(start=12))) == "sequence 1 has two chunks in step 9"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_tokens": 5}, "4 known and 0 draft tokens but num_tokens 5"),
        ({"num_tokens": 3}, "4 known and 0 draft tokens but num_tokens 3"),
        ({"num_tokens": 0, "tokens": (), "outputs": ()}, "0 known and 0 draft tokens but num_tokens 0"),
        ({"tokens": FROM_DEVICE}, "1 known and 0 draft tokens but num_tokens 4"),
        ({"tokens": (), "drafts": Drafts((1, 2, 3, 4), (-1, 0, 1, 2))}, "0 known and 4 draft tokens"),
        ({"start": -1}, "start -1 is negative"),
        ({"positions": (1, 2, 3)}, "3 positions for 4 tokens"),
        ({"positions": ()}, "0 positions for 4 tokens"),
        ({"outputs": (Outputs(4, 1, OutputKind.SAMPLE),)}, "output rows [4, 5) lie outside 4 tokens"),
        ({"outputs": (Outputs(-1, 1, OutputKind.SAMPLE),)}, "output rows [-1, 0) lie outside 4 tokens"),
        ({"outputs": (Outputs(0, 0, OutputKind.POOL),)}, "output rows [0, 0) lie outside 4 tokens"),
        ({"outputs": (SAMPLE, Outputs(1, 2, OutputKind.LOGPROBS, (7,)))}, "1 targets for 2 scored rows"),
        ({"snapshots": (Snapshot(4, GroupId(0), BlockId(0)),)}, "a snapshot behind token 4 of 4 tokens"),
        ({"snapshots": (Snapshot(-1, GroupId(0), BlockId(0)),)}, "a snapshot behind token -1 of 4 tokens"),
    ],
)
def test_a_chunk_that_contradicts_itself_is_named(changes: dict[str, object], expected: str) -> None:
    found = fault(**changes)
    assert found is not None
    assert found.startswith("chunk of sequence 1 in step 9: ")
    assert expected in found


@pytest.mark.parametrize(
    ("parents", "expected"),
    [
        ((-1, 0), "2 parents for 3 drafts"),
        ((-1, 1, 0), "draft 1 has parent 1"),
        ((-1, 2, 0), "draft 1 has parent 2"),
        ((-2, 0, 1), "draft 0 has parent -2"),
    ],
)
def test_a_draft_tree_grows_from_the_known_token_down(parents: tuple[int, ...], expected: str) -> None:
    found = fault(tokens=(5,), drafts=Drafts((6, 7, 8), parents))
    assert found is not None
    assert expected in found


def test_only_a_line_of_drafts_is_a_chain() -> None:
    assert Drafts((), ()).is_chain
    assert Drafts((4, 5, 6), (-1, 0, 1)).is_chain
    assert not Drafts((4, 5, 6), (-1, 0, 0)).is_chain
    assert not Drafts((4, 5), (-1, -1)).is_chain


def test_a_chunk_knows_its_end_and_its_output_rows() -> None:
    chunk = CHUNK._replace(outputs=(Outputs(0, 3, OutputKind.POOL), SAMPLE))
    assert chunk.end == 12
    assert chunk.num_outputs == 4


def test_what_is_made_by_place_is_what_the_constructor_makes() -> None:
    """One of each is made for nearly every chunk of every step, so they are made in a quicker way."""
    made = Chunk(SeqId(3), 7, 1, FROM_DEVICE, None, SAMPLES_ONE)
    assert Chunk.of_unknown(SeqId(3), 7) == made
    assert Chunk.of_unknown(SeqId(3), 7, 5) == made._replace(num_tokens=5)
    assert type(Chunk.of_unknown(SeqId(3), 7)) is Chunk
    assert ChunkShape.of_one(9) == ChunkShape(9, 1, 1)
    assert SeqResult.of_tokens(SeqId(1), 4, (8, 9)) == SeqResult(SeqId(1), SeqStatus.OK, 4, (8, 9))
    logprobs = (TokenLogprob(5, -0.5),)
    assert SeqUpdate.of_tokens(SeqId(1), (5,), logprobs) == SeqUpdate(SeqId(1), (5,), logprobs)


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": (5,)},
        {"drafts": Drafts((1,), (-1,))},
        {"outputs": ()},
        {"outputs": (Outputs(0, 1, OutputKind.POOL),)},
        {"snapshots": (Snapshot(0, GroupId(0), BlockId(1)),)},
        {"positions": (3,)},
    ],
)
def test_a_chunk_is_like_most_only_if_nothing_else_is_asked_of_it(change: dict[str, object]) -> None:
    made = Chunk.of_unknown(SeqId(3), 7)
    assert made.is_unknown
    assert Chunk(SeqId(1), 4, 1, FROM_DEVICE, outputs=(Outputs(0, 1, OutputKind.SAMPLE),)).is_unknown
    assert not made._replace(**change).is_unknown  # type: ignore[arg-type]


def test_a_shape_keeps_start_tokens_and_outputs_of_every_chunk() -> None:
    shape = plan(CHUNK, Chunk(SeqId(2), 0, 2, (1, 2))).shape()
    assert shape == StepShape((ChunkShape(8, 4, 1), ChunkShape(0, 2, 0)))
    assert (shape.num_tokens, shape.num_outputs) == (6, 1)
    assert StepShape(()).num_tokens == 0


def test_a_shape_counts_the_places_at_which_states_are_kept_and_the_rows_of_images() -> None:
    places = ((0, 0, 1), (0, 1, 5), (3, 0, 2))  # offset, group, block: two groups keep their states behind token 0
    snapshots = tuple(Snapshot(offset, GroupId(group), BlockId(block)) for offset, group, block in places)
    image = Encode(SeqId(1), b"image", 256, GroupId(2), (BlockId(7),))
    shape = replace(plan(CHUNK._replace(snapshots=snapshots)), encodes=(image,)).shape()
    assert shape == StepShape((ChunkShape(8, 4, 1, num_snapshots=2),), encoded_rows=(256,))
    assert shape.num_snapshots == 2


def full_plan() -> StepPlan:
    join = Join(SeqId(1), 0, SamplingParams(temperature=0.5, stop=("ä",)), 2**64 - 1, 1, 8, (1, 2), "style", (0,))
    return StepPlan(
        step=StepId(3),
        lane=LaneId(1),
        roster=(Leave(SeqId(0)), join),
        blocks=(BlockGrant(SeqId(1), GroupId(0), 0, (BlockId(4), BlockId(2))),),
        moves=(Move(GroupId(0), BlockId(1), 0, BlockId(2), 0, 3),),
        chunks=(CHUNK, Chunk(SeqId(2), 0, 1, FROM_DEVICE)),
        sampling=(RowMask(SeqId(1), 3, b"\xff\x01"),),
    )


def test_equal_plans_have_equal_digests_and_any_difference_shows() -> None:
    base = full_plan()
    assert plan_hash([base]) == plan_hash([full_plan()])
    others = [
        replace(base, step=StepId(4)),
        replace(base, lane=LaneId(0)),
        replace(base, roster=()),
        replace(base, moves=()),
        replace(base, sampling=()),
        replace(base, blocks=(BlockGrant(SeqId(1), GroupId(0), 0, (BlockId(2), BlockId(4))),)),
        replace(base, chunks=(CHUNK._replace(tokens=(5, 6, 7, 9)), base.chunks[1])),
    ]
    assert len({plan_hash([one]) for one in [base, *others]}) == len(others) + 1


def test_the_order_and_the_number_of_plans_count() -> None:
    first, second = full_plan(), replace(full_plan(), step=StepId(4))
    assert plan_hash([first, second]) != plan_hash([second, first])
    assert plan_hash([first]) != plan_hash([first, first])
    assert plan_hash([]) == plan_hash(iter(()))


def test_the_digest_is_the_same_in_another_process_with_another_hash_seed() -> None:
    code = (
        "from plait.core.step import *; from plait.core.ids import *; from plait.core.plan_hash import plan_hash;"
        "c = Chunk(SeqId(1), 8, 4, (5, 6, 7, 8), outputs=(Outputs(3, 1, OutputKind.SAMPLE),));"
        "print(plan_hash([StepPlan(StepId(9), LaneId(0), (), (), (), (c,))]))"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.strip() == plan_hash([plan(CHUNK)])


@st.composite
def sound_chunks(draw: st.DrawFn, seq: int) -> Chunk:
    """Chunks as schedulers may make them: known or unknown tokens, a tree of drafts, outputs and snapshots inside."""
    from_device = draw(st.booleans())
    tokens = FROM_DEVICE if from_device else tuple(draw(st.lists(st.integers(0, 99), min_size=1, max_size=6)))
    parents = [draw(st.integers(-1, place - 1)) for place in range(draw(st.integers(0, 4)))]
    drafts = Drafts(tuple(range(len(parents))), tuple(parents)) if parents else None
    num_tokens = (1 if isinstance(tokens, FromDevice) else len(tokens)) + len(parents)
    first = draw(st.integers(0, num_tokens - 1))
    num_rows = draw(st.integers(1, num_tokens - first))
    kind = draw(st.sampled_from(OutputKind))
    targets = (5,) * num_rows if kind is OutputKind.LOGPROBS else ()
    return Chunk(
        seq=SeqId(seq),
        start=draw(st.integers(0, 1000)),
        num_tokens=num_tokens,
        tokens=tokens,
        drafts=drafts,
        outputs=(Outputs(first, num_rows, kind, targets),),
        snapshots=(Snapshot(draw(st.integers(0, num_tokens - 1)), GroupId(0), BlockId(0)),),
        positions=draw(st.none() | st.just(tuple(range(num_tokens)))),
    )


@given(st.data(), st.integers(0, 4))
def test_plans_of_sound_chunks_are_sound(data: st.DataObject, count: int) -> None:
    made = plan(*[data.draw(sound_chunks(seq)) for seq in range(count)])
    assert plan_fault(made) is None
    shape = made.shape()
    assert shape.num_tokens == sum(chunk.end - chunk.start for chunk in made.chunks)
    assert [one.num_outputs for one in shape.chunks] == [chunk.num_outputs for chunk in made.chunks]
    assert plan_hash([made]) == plan_hash([replace(made)])


@given(sound_chunks(1), st.sampled_from(["num_tokens", "start", "positions", "outputs", "twice"]))
def test_one_wrong_number_anywhere_is_found(chunk: Chunk, what: str) -> None:
    beyond = (Outputs(chunk.num_tokens, 1, OutputKind.SAMPLE),)
    broken = {
        "num_tokens": plan(chunk._replace(num_tokens=chunk.num_tokens + 1, positions=None)),
        "start": plan(chunk._replace(start=-1 - chunk.start)),
        "positions": plan(chunk._replace(positions=(0,) * (chunk.num_tokens + 1))),
        "outputs": plan(chunk._replace(outputs=(*chunk.outputs, *beyond))),
        "twice": plan(chunk, chunk),
    }[what]
    found = plan_fault(broken)
    assert found is not None
    assert "sequence 1" in found
    assert "step 9" in found


def run_of(num_steps: int, **changes: object) -> StepPlan:
    chunk = Chunk(SeqId(1), 8, num_steps, FROM_DEVICE, None, SAMPLES_ONE)
    return replace(StepPlan(StepId(9), LaneId(0), (), (), (), (chunk,), num_steps=num_steps), **changes)  # type: ignore[arg-type]


def test_a_run_has_the_ids_and_the_shapes_of_its_steps() -> None:
    run = run_of(4)
    assert plan_fault(run) is None
    assert run.last_step == 12
    assert [run.shape(place) for place in range(4)] == [StepShape((ChunkShape(8 + n, 1, 1),)) for n in range(4)]


@pytest.mark.parametrize(
    "wrong",
    [
        run_of(4, chunks=(Chunk(SeqId(1), 8, 3, FROM_DEVICE, None, SAMPLES_ONE),)),
        run_of(4, chunks=(Chunk(SeqId(1), 8, 4, (1, 2, 3, 4), None, SAMPLES_ONE),)),
        run_of(4, chunks=(Chunk(SeqId(1), 8, 4, FROM_DEVICE),)),
        run_of(4, moves=(Move(GroupId(0), BlockId(0), 0, BlockId(1), 0, 1),)),
        run_of(4, sampling=(RowMask(SeqId(1), 0, b"1"),)),
    ],
)
def test_steps_of_a_run_differ_in_nothing_but_where_they_start(wrong: StepPlan) -> None:
    assert plan_fault(wrong) is not None
