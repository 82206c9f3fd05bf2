"""Native answers do not depend on the policy, to the last bit: in fused steps, and in steps side by side whose shares
a scheduler with prices drawn at random changes all the time; and as a machine is served, with its own prices and time.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

from tests.conformance.drafting import adversaries
from tests.conformance.models import VOCAB_SIZE
from tests.conformance.native_rooms import Treatment
from tests.conformance.serving import Answer, AnswerKey, Serving, Setup, alone, compare
from tests.e2e.tiny_model import write_tiny_model
from tests.properties.test_load_tiny import NOISE, REQUESTS, SERVED, of_requests
from tests.properties.test_policies_answers import SPANS, AnyPrice
from tests.unit.cost.invented import ABOUT

from plait.assembly import Drafting, Policy
from plait.build import LANES
from plait.cli.main import main
from plait.core.request import Slo
from plait.cost.hardware import find_hardware, write_hardware
from plait.draft.depth import PricedDepth
from plait.sched.multiplex.presets import BULLET, MUXWISE, PLAIT, TEMPORAL, XYSERVE, Preset
from plait.sched.multiplex.situation import Choice, Form, Situation

Answers = dict[AnswerKey, Answer]


@pytest.fixture(scope="module")
def answers() -> Answers:
    serving = Serving(SERVED, Setup(make_room=Treatment(threads=1)))
    found = alone(serving, REQUESTS)
    serving.close()
    return found


def serve(
    preset: Preset, seed: int, *, has_lanes: bool, drafting: Drafting | None = None
) -> tuple[Answers, set[Form], int]:
    """Answers, forms that were chosen, and how many drafts were verified."""
    forms: set[Form] = set()

    def observe(situation: Situation, choice: Choice) -> None:
        forms.add(choice.form)

    policy = Policy(
        preset,
        AnyPrice(seed),
        num_spans=SPANS,
        has_lanes=has_lanes,
        observe=observe,
        runs_ahead=seed != 2,
        margin_s=1e-3 if seed == 3 else None,
    )
    # Not paced: whoever waits for a step on a lane that rests waits for the scheduler, and so for himself.
    room = Treatment(threads=3, lanes=LANES, blocking_seed=seed, paced=False)
    setup = Setup(max_step_tokens=48, enable_prefix=True, make_room=room, policy=policy, drafting=drafting)
    serving = Serving(SERVED, setup)
    # With a bound on first tokens prompts may be overtaken, and with one on gaps decode is due.
    requests = [replace(one, slo=Slo(ttft_s=30.0, itl_s=0.01)) for one in REQUESTS] if seed > 1 else REQUESTS
    serving.serve([*requests, NOISE], aborted={NOISE.id: 40}, ticks_between=2)
    serving.close()
    return dict(of_requests(serving)), forms, serving.num_drafts


@pytest.mark.parametrize("has_lanes", [False, True], ids=["fused", "lanes"])
@pytest.mark.parametrize("preset", [BULLET, MUXWISE, PLAIT, TEMPORAL, XYSERVE], ids=lambda one: one.name)
def test_every_bit_is_that_of_solitude(answers: Answers, preset: Preset, has_lanes: bool) -> None:
    for seed in (1, 2, 3):
        found, forms, _ = serve(preset, seed, has_lanes=has_lanes)
        compared = compare(found, answers)
        assert compared.num_equal == compared.num_logprobs > 100, compared
        assert compared.largest == 0.0
        assert (Form.FUSED in forms) if preset is XYSERVE or not has_lanes else forms & {Form.LANES, Form.PREFILL}


@pytest.mark.parametrize("has_lanes", [False, True], ids=["fused", "lanes"])
@pytest.mark.parametrize("preset", [BULLET, MUXWISE, PLAIT, TEMPORAL, XYSERVE], ids=lambda one: one.name)
def test_so_it_is_with_drafts(answers: Answers, preset: Preset, has_lanes: bool) -> None:
    """Guesses that are right to some place, verified without asking for a price, and n-grams at prices that say nothing
    true.
    """
    prompts = {one.id: one.prompt for one in REQUESTS}
    texts = [[*prompts[request], *answer.tokens] for (request, _), answer in answers.items()]
    spoiled = adversaries(texts, VOCAB_SIZE)["right to some place"]
    for seed, drafting in ((1, spoiled), (2, Drafting(spoiled.source, PricedDepth()))):
        found, _, num_drafts = serve(preset, seed, has_lanes=has_lanes, drafting=drafting)
        compared = compare(found, answers)
        assert compared.num_equal == compared.num_logprobs > 100, compared
        assert num_drafts > (50 if drafting is spoiled else 0)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, prompts, and what a calibration of this machine might have measured."""
    folder = tmp_path_factory.mktemp("machine")
    write_tiny_model(folder / "tiny.gguf")
    prompts = [{"prompt": "abcdefgh" * count} for count in (1, 20, 3, 25, 8, 14)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in prompts))
    (folder / "hardware").mkdir()
    spec = replace(find_hardware("zen3-2core"), calibration=ABOUT)
    write_hardware(spec, folder / "hardware" / "this-machine.json", "invented")
    return folder


@pytest.mark.parametrize("scheduler", ["bullet", "muxwise", "plait", "static:1", "temporal", "unpartitioned"])
def test_what_is_served_with_lanes_has_the_bits_of_solitude(
    machine: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two workers, pieces of prompts on a lane of their own; whose turn it is real time decides."""
    asked = ["--prompts", str(machine / "prompts.jsonl"), "-n", "6", "--max-tokens", "10", "--mixes", "2", "--json"]
    served = ["--scheduler", scheduler, "--threads", "2", "--cache-dir", str(machine), "--max-num-batched-tokens", "64"]
    assert main(["verify", str(machine / "tiny.gguf"), *asked, *served]) == 0
    said = capsys.readouterr()
    verdict = json.loads(said.out.splitlines()[-1])
    assert verdict["num_bit_equal"] == verdict["num_answers"] == 12
