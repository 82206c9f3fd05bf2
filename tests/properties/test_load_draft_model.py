"""A draft model changes no answer: whatever it is, in every company, every token, ending and log-probability is to the
last bit what it is without, and nothing of it stays in memory.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.serving import Answer, AnswerKey, Served, Serving, Setup, alone
from tests.properties import test_load_tiny as tiny

from plait.assembly import Drafting
from plait.draft.depth import Depth, FixedDepth, PricedDepth
from plait.draft.draft_model import ModelDrafts
from plait.model.visibility import CAUSAL, window

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

from tests.conformance.models import MAX_POSITIONS, tiny_model
from tests.conformance.native_rooms import Treatment
from tests.properties import test_load_forms as forms
from tests.properties.test_load_native import QUIET, check_bits

Answers = dict[AnswerKey, Answer]
ASKED = [*tiny.REQUESTS, *tiny.GROWING]


def served(model: object, weights: object, max_tokens: int = MAX_POSITIONS) -> Served:
    return Served(model, weights, tiny.BLOCK, max_tokens, (3,))  # type: ignore[arg-type]


SMALL = tiny_model((CAUSAL,), seed=9, hidden=16, ffn_hidden=24)
WINDOWED = tiny_model((window(21), CAUSAL), seed=10)
NAN = {"head": tiny.MODEL.arrays["head"] * np.float32(np.nan)}
FIRST = ("the target itself", "one that has nothing to do with it")
NO_NUMBERS = "one whose logits are no numbers"
DRAFTS = {
    "the target itself": tiny.SERVED,
    "one that has nothing to do with it": served(SMALL.program, SMALL.table()),
    "one with a window": served(WINDOWED.program, WINDOWED.table()),
    "one that ends early": served(SMALL.program, SMALL.table(), 48),
    NO_NUMBERS: served(tiny.MODEL.program, tiny.MODEL.table(NAN)),
}


def drafted(draft: Served, setup: Setup, depth: Depth | None = None) -> Serving:
    drafting = Drafting(ModelDrafts(), FixedDepth(5) if depth is None else depth)
    return Serving(tiny.SERVED, replace(setup, draft=draft, drafting=drafting))


@pytest.fixture(scope="module")
def expected() -> Answers:
    serving = Serving(tiny.SERVED, Setup(max_step_tokens=512, make_room=QUIET))
    answers = alone(serving, ASKED)
    serving.close()
    return answers


@pytest.mark.parametrize("kind", DRAFTS)
def test_answers_are_the_same_in_any_company_and_any_chunks(expected: Answers, kind: str) -> None:
    for place, budget in enumerate((7, 64) if kind in FIRST else (16,)):
        # A paced executor counts a step that fails before the engine hears of it, and then refuses what is planned.
        room = Treatment(threads=1 + place % 2, blocking_seed=place, paced=kind != NO_NUMBERS)
        serving = drafted(DRAFTS[kind], Setup(budget, enable_prefix=budget != 7, make_room=room))
        serving.serve([*tiny.REQUESTS, tiny.NOISE], aborted={tiny.NOISE.id: 40}, ticks_between=place)
        check_bits(dict(tiny.of_requests(serving)), expected)
        assert serving.num_rounds > 0
        serving.serve(tiny.GROWING)
        check_bits(serving.answers, expected)
        if kind == "the target itself":
            assert serving.num_accepted == serving.num_drafts > 100
        elif kind == NO_NUMBERS:
            assert serving.num_drafts == 0
        else:
            assert serving.num_drafts > 50
        serving.close()


@pytest.mark.parametrize("kind", ["the target itself", "one that has nothing to do with it"])
def test_so_they_are_where_memory_is_short(expected: Answers, kind: str) -> None:
    """What drafts hold goes before anybody is preempted, and those who are preempted draft again."""
    serving = drafted(DRAFTS[kind], Setup(64, cache_tokens=240, enable_prefix=True, make_room=QUIET))
    check_bits(serving.serve(tiny.GROWING), expected)
    assert serving.num_preemptions >= 5
    assert serving.num_accepted > 0 or kind != "the target itself"
    serving.close()


def test_so_they_are_where_the_price_decides(expected: Answers) -> None:
    for kind in ("the target itself", "one that has nothing to do with it"):
        room = Treatment(threads=1, paced=False)
        serving = drafted(DRAFTS[kind], Setup(64, enable_prefix=True, make_room=room), PricedDepth())
        check_bits(serving.serve(ASKED), expected)
        serving.close()


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_so_they_are_under_any_load(expected: Answers, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(DRAFTS)))
    chosen = data.draw(st.lists(st.sampled_from(ASKED), min_size=1, max_size=8, unique_by=lambda one: one.id))
    setup = Setup(
        data.draw(st.sampled_from([2, 16, 64])),
        cache_tokens=data.draw(st.sampled_from([360, 480, 4096])),
        enable_prefix=data.draw(st.booleans()),
        max_rows=data.draw(st.sampled_from([2, 16])),
        make_room=Treatment(threads=1, blocking_seed=data.draw(st.integers(0, 9)), paced=kind != NO_NUMBERS),
    )
    serving = drafted(DRAFTS[kind], setup, FixedDepth(data.draw(st.integers(1, 16)), data.draw(st.booleans())))
    try:
        given_up = {tiny.NOISE.id: data.draw(st.integers(0, 60))}
        serving.serve([*chosen, tiny.NOISE], aborted=given_up, ticks_between=data.draw(st.integers(0, 3)))
        check_bits(dict(tiny.of_requests(serving)), expected)
    finally:
        serving.close()


@pytest.mark.parametrize("kind", ["window beside causal", "chunked beside window", "states only"])
def test_so_is_every_form_of_answer_of_every_kind_of_layer(kind: str) -> None:
    """The target has windows or states, whose rejected drafts are taken back; forms, scores and embeddings beside."""
    subject, requests = forms.served(kind), forms.write_requests(4)
    quiet = Serving(subject, Setup(max_step_tokens=512, make_room=QUIET))
    wanted = alone(quiet, requests)
    quiet.close()
    small = served(SMALL.program, SMALL.table())
    drafting = Drafting(ModelDrafts(), FixedDepth(4))
    serving = Serving(subject, Setup(24, enable_prefix=True, make_room=QUIET, drafting=drafting, draft=small))
    forms.check_all(serving.serve(requests), wanted)
    serving.close()
    assert serving.num_drafts > 20
    assert serving.num_rounds > 20
