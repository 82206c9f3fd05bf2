"""Native answers do not depend on the policy, to the last bit: in fused steps, and in steps side by side whose shares
a scheduler with prices drawn at random changes all the time.
"""

from __future__ import annotations

import pytest

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

from tests.conformance.native_rooms import Treatment
from tests.conformance.serving import Answer, AnswerKey, Serving, Setup, alone, compare
from tests.properties.test_load_tiny import NOISE, REQUESTS, SERVED, of_requests
from tests.properties.test_policies_answers import SPANS, AnyPrice

from plait.assembly import Policy
from plait.sched.multiplex.presets import BULLET, MUXWISE, PLAIT, TEMPORAL, XYSERVE, Preset
from plait.sched.multiplex.situation import Choice, Form, Situation

Answers = dict[AnswerKey, Answer]


@pytest.fixture(scope="module")
def answers() -> Answers:
    serving = Serving(SERVED, Setup(make_room=Treatment(threads=1)))
    found = alone(serving, REQUESTS)
    serving.close()
    return found


def serve(preset: Preset, seed: int, *, has_lanes: bool) -> tuple[Answers, set[Form]]:
    forms: set[Form] = set()

    def observe(situation: Situation, choice: Choice) -> None:
        forms.add(choice.form)

    policy = Policy(preset, AnyPrice(seed), num_spans=SPANS, has_lanes=has_lanes, observe=observe)
    room = Treatment(threads=3, blocking_seed=seed)
    serving = Serving(SERVED, Setup(max_step_tokens=48, enable_prefix=True, make_room=room, policy=policy))
    serving.serve([*REQUESTS, NOISE], aborted={NOISE.id: 40}, ticks_between=2)
    serving.close()
    return dict(of_requests(serving)), forms


@pytest.mark.parametrize("has_lanes", [False, True], ids=["fused", "lanes"])
@pytest.mark.parametrize("preset", [BULLET, MUXWISE, PLAIT, TEMPORAL, XYSERVE], ids=lambda one: one.name)
def test_every_bit_is_that_of_solitude(answers: Answers, preset: Preset, has_lanes: bool) -> None:
    for seed in (1, 2, 3):
        found, forms = serve(preset, seed, has_lanes=has_lanes)
        compared = compare(found, answers)
        assert compared.num_equal == compared.num_logprobs > 100, compared
        assert compared.largest == 0.0
        assert (Form.FUSED in forms) if preset is XYSERVE or not has_lanes else forms & {Form.LANES, Form.PREFILL}
