"""The time that a batch is said to need, against the time that it then needs: real engine, simulated device and clock.

Every run is told to a tally as a server tells it. The error at a moment is (estimate - truth) / whole time, so that it
can be read as a share of what a user waits for.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from plait.api.answers import Usage
from plait.batch.ledger import Counts
from plait.batch.lengths import Lengths, LengthsByLimit
from plait.batch.outcomes import LineOutcome
from plait.batch.pace import steps_until_all_ended
from plait.batch.planned import Planned
from plait.batch.progress import BatchProgress, OpenLine, Tally
from plait.core.client import Delta
from plait.core.clock import SimClock, WaitSource
from plait.core.errors import RequestError
from plait.core.ids import RequestId
from plait.core.request import Request, ServiceClass
from plait.core.sampling import SamplingParams
from plait.cost.calibrated import cost_model
from plait.cost.hardware import HardwareSpec, find_hardware
from plait.engine.engine import Ports
from plait.engine.inbox import Arrive, Close, Inbox
from plait.model.cost import Formats, Parallel
from plait.model.families import build_program
from plait.model.model_config import ModelConfig
from plait.model.ops import Activation
from plait.model.rope import RopeSpec
from plait.model.visibility import CAUSAL
from plait.sched.blend.prices import step_costs
from plait.sim.replica import ReplicaSpec, replica

VOCAB = 49_152
SMALL = build_program(
    ModelConfig(
        family="llama",
        num_layers=30,
        hidden=576,
        ffn_hidden=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab_size=VOCAB,
        max_positions=8192,
        norm_eps=1e-5,
        rope=RopeSpec(10000.0, 64, 8192),
        activation=Activation.SILU,
        layer_visibility=(CAUSAL,) * 30,
        tied_embeddings=True,
    )
)
ROWS, STEP_TOKENS, IN_FLIGHT = 16, 128, 32
# A step costs nearly the same whatever is in it: as on a device with much arithmetic and slow memory.
BY_MEMORY = HardwareSpec("by-memory", 50e12, 5e9, 2**36, 2, 1.6, 1e-3, 0.0)


@dataclass(frozen=True)
class Line:
    """A prompt, how long its answer may become, and how long it does."""

    prompt: int
    limit: int
    length: int


@dataclass
class Run:
    """A file of lines, served as a batch serves them. An outbox, and the engine's clock."""

    lines: Sequence[Line]
    starts_s: float = 0.0
    """When the engine gets to the batch: what was before it is served until then."""
    sim: SimClock = field(default_factory=SimClock)
    inbox: Inbox = field(default_factory=Inbox)
    told: list[BatchProgress] = field(default_factory=list)
    open: dict[RequestId, OpenLine] = field(default_factory=dict)
    next_line: int = 0
    plan: Planned | None = None

    def __post_init__(self) -> None:
        self.tally = Tally(len(self.lines), Counts(0, 0, Usage()), self.now, self.told.append)
        if self.plan is not None:
            self.tally.plan(self.plan)

    def go(self, hardware: HardwareSpec) -> Run:
        spec = ReplicaSpec(SMALL, Formats(), hardware, cache_bytes=2**32, max_rows=ROWS, max_step_tokens=STEP_TOKENS)
        engine = replica(spec)(self, Ports(self.inbox, self, lambda event: None))
        self.sim.wait(until=self.starts_s)
        for _ in range(IN_FLIGHT):
            self._submit_next()
        engine.run()
        self.tally.report()
        return self

    def _submit_next(self) -> None:
        if self.next_line == len(self.lines):
            if not self.open:
                self.inbox.put(Close())
            return
        number, line = self.next_line, self.lines[self.next_line]
        self.next_line += 1
        name = RequestId(str(number))
        self.open[name] = self.tally.opened(
            line.limit, line.prompt, is_known=self.plan is not None and line.limit == line.length
        )
        random_ids = random.Random(number)
        prompt = tuple(random_ids.randrange(VOCAB) for _ in range(line.prompt))
        sampling = SamplingParams(temperature=0.0, max_tokens=line.length, ignore_eos=True)
        self.inbox.put(Arrive(Request(name, prompt, sampling, service_class=ServiceClass.BATCH)))

    def put(self, request: RequestId, answer: Delta | RequestError) -> None:
        assert isinstance(answer, Delta), answer
        line = self.open[request]
        computed = 0 if line.is_begun else answer.num_prompt - answer.num_cached
        self.tally.emitted(line, len(answer.tokens), computed)
        if answer.finish_reason is not None:
            self.tally.closed(self.open.pop(request))
            self.tally.recorded([LineOutcome(1, "a", "{}", False, Usage(answer.num_prompt, 0, line.emitted_tokens))])
            self._submit_next()

    def flush(self) -> None:
        """Everything was told as it was put."""

    def now(self) -> float:
        return self.sim.now()

    def wait(self, *sources: WaitSource, until: float | None = None) -> None:
        if not self.inbox.ready():
            self.sim.wait(*sources, until=until)

    def error_at(self, share: float) -> float:
        """Of the first estimate behind this share of the time that was spent on the batch."""
        whole_s = self.told[-1].elapsed_s - self.starts_s
        moment = next(one for one in self.told if one.elapsed_s - self.starts_s >= share * whole_s)
        assert moment.left_s is not None, f"no estimate at {share:.0%}"
        return (moment.left_s - (self.told[-1].elapsed_s - moment.elapsed_s)) / whole_s

    def errors(self) -> dict[int, float]:
        """Percent of the way -> error."""
        return {percent: self.error_at(percent / 100) for percent in (20, 30, 40, 50, 60, 70, 80, 90)}


def homogeneous(count: int, prompt: int, length: int, limit: int | None = None) -> list[Line]:
    return [Line(prompt, limit or length, length)] * count


def mixed(count: int, length: Callable[[random.Random], int], limit: int = 0) -> list[Line]:
    """Prompts of 16 to 400 tokens; answers of any length, with limits of their own or one for all."""
    draw = random.Random(3)
    made = []
    for _ in range(count):
        prompt, answer = draw.randint(16, 400), length(draw)
        made.append(Line(prompt, limit or answer, min(answer, limit or answer)))
    return made


def uniform(draw: random.Random) -> int:
    return draw.randint(8, 200)


def long_tailed(draw: random.Random) -> int:
    return max(1, int(draw.lognormvariate(4.0, 0.8)))


HOMOGENEOUS = {
    "answers to their limit": homogeneous(125, 100, 64),
    "answers that end before their limit": homogeneous(125, 100, 64, limit=4096),
    "long prompts and short answers": homogeneous(100, 600, 8),
    "short prompts and long answers": homogeneous(80, 16, 200),
}
FEW = {
    "not two rounds of the rows": homogeneous(25, 60, 50),
    "fewer lines than rows": homogeneous(10, 200, 100),
}
# With how large an error at most. The longest of a few answers with a long tail, which the end waits for, are not known
# before they come.
MIXED = {
    "limits of their own": (mixed(150, uniform), 0.15),
    "one limit for all": (mixed(150, uniform, limit=256), 0.15),
    "a long tail under a far limit": (mixed(200, long_tailed, limit=4096), 0.35),
}


DEVICES = pytest.mark.parametrize("hardware", [find_hardware("zen3-2core"), BY_MEMORY], ids=lambda one: one.name)


@pytest.mark.parametrize("lines", HOMOGENEOUS.values(), ids=HOMOGENEOUS)
@DEVICES
def test_after_a_fifth_of_like_lines_the_end_is_known_to_a_tenth(hardware: HardwareSpec, lines: list[Line]) -> None:
    errors = Run(lines).go(hardware).errors()
    assert max(abs(error) for error in errors.values()) <= 0.1, errors


@pytest.mark.parametrize("lines", FEW.values(), ids=FEW)
@DEVICES
def test_few_lines_are_judged_when_some_of_their_answers_are_there(hardware: HardwareSpec, lines: list[Line]) -> None:
    run = Run(lines).go(hardware)
    errors = {percent: run.error_at(percent / 100) for percent in (50, 60, 70, 80, 90)}
    assert max(abs(error) for error in errors.values()) <= 0.15, errors


@pytest.mark.parametrize(("lines", "most"), MIXED.values(), ids=MIXED)
@DEVICES
def test_unlike_lines_are_judged_as_far_as_they_can_be(hardware: HardwareSpec, lines: list[Line], most: float) -> None:
    errors = Run(lines).go(hardware).errors()
    assert max(abs(error) for error in errors.values()) <= most, errors


def planned_on(hardware: HardwareSpec, lines: Sequence[Line]) -> Planned:
    prompts, most = sum(line.prompt for line in lines), sum(line.limit for line in lines)
    known = sum(line.limit for line in lines if line.limit == line.length)
    limits = Counter(line.limit for line in lines if line.limit != line.length)
    cost = cost_model(SMALL, Formats(), hardware, Parallel(1))
    context = round((prompts + most / 2) / len(lines))
    costs = step_costs(cost, hardware.share_units, ROWS, STEP_TOKENS, context)
    return Planned(prompts, known, limits, prompts, costs, ROWS)


@DEVICES
def test_an_order_that_puts_the_short_ones_first_is_known_to_go_on_with_long_ones(hardware: HardwareSpec) -> None:
    """As questions before whole texts: by those that came alone, a third of the time would be promised."""
    lines = [*homogeneous(160, 60, 2, limit=4), *homogeneous(60, 40, 100)]
    run = Run(lines, plan=planned_on(hardware, lines)).go(hardware)
    errors = run.errors()
    assert max(abs(error) for error in errors.values()) <= 0.15, errors


@DEVICES
def test_an_order_that_puts_the_long_ones_first_is_known_to_go_on_with_short_ones(hardware: HardwareSpec) -> None:
    lines = [*homogeneous(60, 40, 100), *homogeneous(160, 60, 2, limit=4)]
    errors = Run(lines, plan=planned_on(hardware, lines)).go(hardware).errors()
    assert max(abs(error) for error in errors.values()) <= 0.15, errors


def test_answers_under_a_near_limit_say_little_about_those_under_a_far_one() -> None:
    lengths = LengthsByLimit()
    for _ in range(40):
        lengths.ended(0.5, 4)
    for _ in range(4):
        lengths.ended(1.0, 300)
    outlook = lengths.outlooks([(0.8, 300)] * 4)
    assert outlook(4).further_share(0.0) == pytest.approx(0.5, abs=0.02)
    assert outlook(300).further_share(0.0) > 0.85
    # Of a size that nobody has, what is known of all.
    assert 0.5 < outlook(20).further_share(0.0) < 0.65


def test_what_was_waited_for_before_the_first_token_is_not_the_pace() -> None:
    run = Run(homogeneous(80, 100, 40), starts_s=1000.0).go(find_hardware("zen3-2core"))
    assert abs(run.error_at(0.2)) <= 0.1


def test_answers_that_go_on_count_as_longer_than_they_are() -> None:
    lengths = Lengths()
    for _ in range(30):
        lengths.ended(0.1)
    mean = lengths.outlook([]).further_share(0.0)
    assert mean == pytest.approx(0.1)
    with_open = lengths.outlook([0.4] * 30).further_share(0.0)
    # Half end at 0.1; the others are beyond 0.4, and end as often as all did so far: 30 in 15 whole lengths.
    assert 0.25 < with_open < 0.45
    assert lengths.outlook([0.4] * 30).further_share(0.4) > 0.2


def test_answers_that_always_reach_their_limit_are_expected_to() -> None:
    lengths = Lengths()
    for share in (0.0, 0.3, 0.999):
        assert lengths.outlook([0.5]).further_share(share) == pytest.approx(1 - share)
    lengths.ended(1.0)
    assert lengths.outlook([]).further_share(0.25) == pytest.approx(0.75)
    assert lengths.outlook([]).further_share(1.0) == 0.0


def test_answers_of_one_length_are_expected_to_have_it() -> None:
    lengths = Lengths()
    for _ in range(10):
        lengths.ended(0.02)
    outlook = lengths.outlook([0.005] * 5)
    assert outlook.further_share(0.0) == pytest.approx(0.02, rel=0.05)
    assert outlook.further_share(0.015) == pytest.approx(0.005, rel=0.2)


def test_the_last_answers_run_in_rows_that_nobody_else_takes() -> None:
    assert steps_until_all_ended(4, [], 0.0, [10.0] * 8) == 20.0
    assert steps_until_all_ended(4, [], 0.0, [10.0] * 9) == 30.0
    assert steps_until_all_ended(4, [1.0, 50.0], 0.0, [10.0] * 2) == 50.0
    assert steps_until_all_ended(4, [1.0, 2.0, 3.0, 4.0], 4000.0, [10.0]) == 1011.0
    assert steps_until_all_ended(0, [], 0.0, [10.0]) == 10.0
    assert steps_until_all_ended(0, [], 0.0, []) == 0.0


def test_a_spread_has_the_mean_and_the_long_ones_of_what_was_seen() -> None:
    lengths = Lengths()
    for share in (*[0.1] * 90, *[0.9] * 10):
        lengths.ended(share)
    spread = lengths.outlook([]).spread(20)
    assert sum(spread) == pytest.approx(20)
    assert sorted(round(one / min(spread)) for one in spread) == [1] * 18 + [9] * 2
    assert Lengths().outlook([]).spread(3) == [1.0, 1.0, 1.0]


def test_lines_that_ended_without_a_token_foretell_no_length() -> None:
    """As when a batch is interrupted before anything was said."""
    lengths = Lengths()
    for _ in range(50):
        lengths.ended(0.0)
    assert lengths.outlook([]).spread(3) == [1.0, 1.0, 1.0]
