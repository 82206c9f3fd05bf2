"""Playing a scenario: from the given tables to an engine in simulated time, and from its events to the expected ones.

Owns the meaning of every table and column (README.md says it for readers). Every value of an expected table is made
from the run, so a scenario that does not hold shows the table that does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.scenarios.markdown import Scenario, Table
from tests.unit.engine.kit import Stage, ask, letter_at, says

from plait.core.events import Arrived, Collected, Finished, Preempted, Refused, Submitted
from plait.core.ids import SeqId, StepId
from plait.core.request import Request, ServiceClass
from plait.core.sampling import SamplingParams
from plait.core.step import Chunk, SeqStatus, StepResult, StepStatus

NOTHING = "-"
"""How an empty cell is written."""


def check_scenario(scenario: Scenario) -> None:
    """Play it and compare every expected table with what happened."""
    given = {_kind(table): table for table in scenario.tables}
    assert len(given) == len(scenario.tables), "two tables of one kind"
    expected = [kind for kind in ("steps", "answers", "refusals") if kind in given]
    assert "arrivals" in given, "a scenario needs arrivals"
    assert expected, "a scenario expects steps, answers or refusals"
    run = Run(_play(given))
    for kind in expected:
        happened = Table(given[kind].columns, tuple(_happened(kind, given[kind].columns, run)))
        written = given[kind]
        assert happened == written, f"what happened:\n{happened.text()}\nbut what was written:\n{written.text()}"


def _kind(table: Table) -> str:
    """What a table is, by its first columns."""
    for kind, first in (
        ("settings", ("setting", "value")),
        ("arrivals", ("at", "request")),
        ("aborts", ("at", "abort")),
        ("steps", ("start", "end")),
        ("answers", ("answer",)),
        ("refusals", ("refused",)),
    ):
        if table.columns[: len(first)] == first:
            return kind
    raise ValueError(f"nobody knows a table that begins with {table.columns}")


# What is given


def _play(given: Mapping[str, Table]) -> Stage:
    settings = {row["setting"]: row["value"] for row in given["settings"].dicts()} if "settings" in given else {}
    stage = Stage(
        max_step_tokens=int(settings.pop("tokens per step", "16")),
        max_rows=int(settings.pop("sequences at once", "4")),
        num_blocks=int(settings.pop("blocks", "64")),
        max_model_tokens=int(settings.pop("context", "100")),
        enable_prefix=settings.pop("prefix index", "on") == "on",
        queue_depth=int(settings.pop("steps in flight", "2")),
        token_at=says(text) if (text := settings.pop("every sequence says", "")) else letter_at,
    )
    assert not settings, f"nobody knows the settings {list(settings)}"
    for row in given["arrivals"].dicts():
        stage.arrive(_request(row), at_s=float(row["at"]))
    for row in given["aborts"].dicts() if "aborts" in given else []:
        stage.abort(row["abort"], at_s=float(row["at"]))
    stage.run()
    return stage


def _request(row: Mapping[str, str]) -> Request:
    cells = {name: value for name, value in row.items() if value != NOTHING and name != "at"}
    name, prompt = cells.pop("request"), cells.pop("prompt")
    stops = cells.pop("stop", None)
    request = ask(
        name,
        # A number stands for a prompt of that length that nobody shares: the request's name over and over.
        (name[0] * int(prompt)) if prompt.isdigit() else prompt.replace(" ", ""),
        max_tokens=int(cells.pop("max tokens", "4")),
        sampling=SamplingParams(stop=() if stops is None else (stops,)),
        n=int(cells.pop("n", "1")),
        service_class=ServiceClass(cells.pop("class", "online")),
        priority=int(cells.pop("priority", "0")),
        deadline_s=float(cells.pop("deadline")) if "deadline" in cells else None,
        cache_prefix=cells.pop("cache", "yes") == "yes",
        tenant=cells.pop("tenant", ""),
    )
    assert not cells, f"nobody knows the columns {list(cells)}"
    return request


# What happened


class Run:
    """A finished run, by name instead of id."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.results: dict[StepId, StepResult] = {event.result.step: event.result for event in stage.of(Collected)}
        requests = [event.request for event in stage.of(Arrived)]
        self.names: dict[SeqId, str] = {}
        for event in stage.of(Arrived):
            choice = sum(name.split("/")[0] == event.request for name in self.names.values())
            several = requests.count(event.request) > 1
            self.names[event.seq] = f"{event.request}/{choice}" if several else event.request


@dataclass(frozen=True, slots=True)
class Step:
    """A step with what was said in its plan's tick before it."""

    run: Run
    event: Submitted
    preempted: tuple[SeqId, ...]

    @property
    def result(self) -> StepResult:
        return self.run.results[self.event.plan.step]

    def chunk(self, chunk: Chunk) -> str:
        given = next(one for one in self.result.seqs if one.seq == chunk.seq)
        mark = " cancelled" if given.status is SeqStatus.CANCELLED else "*" * bool(given.tokens)
        return f"{self.run.names[chunk.seq]} {chunk.start}+{chunk.num_tokens}{mark}"


def _happened(kind: str, columns: tuple[str, ...], run: Run) -> list[tuple[str, ...]]:
    if kind == "steps":
        return [tuple(STEP[column](step) for column in columns) for step in _steps(run)]
    if kind == "answers":
        ends = sorted(run.stage.of(Finished), key=lambda event: run.names[event.seq])
        return [tuple(ANSWER[column](run, event) for column in columns) for event in ends]
    return [tuple(REFUSAL[column](run, event) for column in columns) for event in run.stage.of(Refused)]


def _steps(run: Run) -> list[Step]:
    steps: list[Step] = []
    preempted: list[SeqId] = []
    for event in run.stage.events:
        if isinstance(event, Preempted):
            preempted.append(event.seq)
        elif isinstance(event, Submitted):
            steps.append(Step(run, event, tuple(preempted)))
            preempted.clear()
    return steps


def _time(at_s: float | None) -> str:
    return NOTHING if at_s is None else f"{round(at_s, 2):g}"


def _listed(words: list[str]) -> str:
    return ", ".join(words) or NOTHING


def _text(run: Run, event: Finished) -> str:
    request, _, choice = run.names[event.seq].partition("/")
    return run.stage.answers.text(request, int(choice or "0")) or NOTHING


STEP: Mapping[str, Callable[[Step], str]] = {
    "planned": lambda step: _time(step.event.at_s),
    "sequences": lambda step: str(len(step.event.plan.chunks)),
    "start": lambda step: _time(step.result.start_s),
    "end": lambda step: _time(step.result.end_s),
    "chunks": lambda step: _listed([step.chunk(chunk) for chunk in step.event.plan.chunks]),
    "tokens": lambda step: str(step.event.plan.shape().num_tokens),
    "waiting": lambda step: str(step.event.num_waiting),
    "short of": lambda step: step.event.blocked or NOTHING,
    "preempted": lambda step: _listed([step.run.names[seq] for seq in step.preempted]),
    "status": lambda step: "cancelled" if step.result.status is StepStatus.CANCELLED else "completed",
}
ANSWER: Mapping[str, Callable[[Run, Finished], str]] = {
    "answer": lambda run, event: run.names[event.seq],
    "text": _text,
    "reason": lambda run, event: str(event.reason),
    "tokens": lambda run, event: str(event.num_output),
    "cached": lambda run, event: str(event.num_cached),
    "preemptions": lambda run, event: str(event.num_preemptions),
    "scheduled": lambda run, event: _time(event.scheduled_s),
    "first token": lambda run, event: _time(event.first_token_s),
    "end": lambda run, event: _time(event.at_s),
}
REFUSAL: Mapping[str, Callable[[Run, Refused], str]] = {
    "refused": lambda run, event: event.request,
    "at": lambda run, event: _time(event.at_s),
    "code": lambda run, event: event.code,
    "message": lambda run, event: event.reason,
}
