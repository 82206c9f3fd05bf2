"""`plait calibrate`: which steps are measured, the whole command on a tiny model, and a fit to a benchmark. No time is
judged.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.e2e.tiny_model import write_tiny_model

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

from plait.cli.calibrate import STEPS_S, planned_s
from plait.cli.calibrate_report import KINDS, kind_of
from plait.cli.calibrate_states import Limits, State, guard_edges, part_on_whole_device, shares_of, states
from plait.cli.engine_gaps import EngineStep, Overhead, StepRecorder, fit_overhead, jitter, lateness
from plait.cli.main import main
from plait.cli.step_bench import LONG_S, steps_alone
from plait.core.events import Collected, Submitted
from plait.core.ids import LaneId, SeqId, StepId
from plait.core.step import (
    FROM_DEVICE,
    Chunk,
    OutputKind,
    Outputs,
    StepPlan,
    StepResult,
    StepShape,
    StepStatus,
)
from plait.cost.alpha import constant_alpha
from plait.cost.calibrated import CalibratedModel
from plait.cost.calibration import Calibration
from plait.cost.hardware import find_hardware
from plait.cost.roofline import RooflineModel
from plait.cost.solo import Sample, decode_shape, prefill_shape
from plait.inspect.programs import find_model
from plait.model.cost import Formats

Capture = pytest.CaptureFixture[str]
USUAL = Limits(units=2, most_rows=64, most_tokens=512, most_context=8192, block=32)


@given(
    st.builds(
        Limits,
        units=st.integers(1, 64),
        most_rows=st.integers(1, 300),
        most_tokens=st.integers(2, 2048),
        most_context=st.integers(2048, 100_000),
        block=st.sampled_from((16, 32, 256)),
    )
)
def test_what_is_measured_is_possible_and_each_state_stands_once(limits: Limits) -> None:
    found = states(limits)
    assert len({(one.shape, one.share, one.beside) for one in found}) == len(found)
    for state in found:
        assert 1 <= state.share <= limits.units - (state.beside is not None)
        for shape in (state.shape, state.beside or StepShape(())):
            assert shape.num_tokens <= limits.most_tokens or shape.num_tokens == len(shape.chunks)
            assert len(shape.chunks) <= limits.most_rows
            for chunk in shape.chunks:
                assert chunk.start % limits.block == 0
                assert chunk.start + chunk.num_tokens <= limits.most_context


def test_what_is_held_out_lies_between_what_is_fitted_and_is_never_fitted() -> None:
    found = states(USUAL)
    held = [one for one in found if one.is_held_out]
    fitted = {(one.shape, one.share, one.beside) for one in found if not one.is_held_out}
    assert len(held) > 20
    assert not fitted & {(one.shape, one.share, one.beside) for one in held}
    rows = {len(shape.chunks) for shape, _, _ in fitted}
    assert all(min(rows) < len(one.shape.chunks) < max(rows) or one.shape.num_tokens > 1 for one in held)


@pytest.mark.parametrize("is_held_out", [False, True])
def test_few_prompt_tokens_beside_eight_rows_are_measured_behind_many_others(is_held_out: bool) -> None:
    """What steps with a bound on gaps consist of."""
    several = [
        (one.shape.chunks[0].num_tokens, one.shape.chunks[0].start)
        for one in states(USUAL)
        if one.is_held_out == is_held_out and len(one.shape.chunks) == 9 and one.shape.chunks[0].num_tokens > 1
    ]
    few = {tokens for tokens, start in several if start >= 2048 and tokens <= 16}
    assert few == ({3, 6, 12} if is_held_out else {2, 4, 8, 16})


def test_every_kind_of_step_is_measured_and_held_out() -> None:
    def sample(shape: StepShape, beside: StepShape | None) -> Sample:
        return Sample(shape, 1, 1.0, () if beside is None else (beside,))

    for is_held_out in (False, True):
        of = [one for one in states(USUAL) if one.is_held_out == is_held_out]
        seen = {kind_of(sample(one.shape, one.beside)) for one in of}
        seen |= {kind_of(sample(one.beside, one.shape)) for one in of if one.beside is not None}
        assert seen == set(KINDS)


def test_a_calibration_is_planned_to_take_less_than_three_minutes() -> None:
    """By the sum of what steps take on two cores of an EPYC: 233 GFLOP/s, and 30 GB/s, of which one core has 21.6."""
    rates = {"f32": 233e9, "int8": 917e9, "int4": 917e9, "attention": 233e9}
    spec = replace(
        find_hardware("zen3-2core"), flops_per_s=233e9, rates=rates, bytes_per_s=29.6e9, memory_knee_units=1.37
    )
    formats = Formats(default_weight_bytes=0.65, default_compute="int4", attention="attention")
    roofline = RooflineModel(find_model("smollm2").program, formats, spec)

    def step_s(state: State) -> float:
        return 1.7 * roofline.roof(state.shape, state.share).seconds

    found = states(USUAL)
    assert planned_s(found, step_s) < STEPS_S
    # Fifty seconds are for the engine, loading and the machine's roofs; on that machine they took 30.
    assert STEPS_S + 50.0 <= 150.0


def test_a_long_step_counts_once_and_a_short_one_after_those_that_warm_up() -> None:
    assert steps_alone(prefill_shape(512), LONG_S, 2) == 1
    assert steps_alone(decode_shape(4, 64), LONG_S, 2) == 2
    assert steps_alone(prefill_shape(512), LONG_S / 2, 2) == 3
    # Eight warm up, two count, one more is in flight by then.
    assert steps_alone(decode_shape(4, 64), 5e-3, 2) == 11
    assert steps_alone(decode_shape(4, 64), LONG_S / 2, 2) == 4


def test_who_measures_in_parts_measures_the_whole_device_and_short_steps_in_every_part() -> None:
    found = states(USUAL)
    parts = [part_on_whole_device(found, USUAL.units, number, 6) for number in range(6)]
    whole = [state for state in found if state.share == USUAL.units and state.beside is None]
    short = [state for state in whole if state.is_short(USUAL.units)]
    assert {state for part in parts for state in part} == set(whole)
    assert sum(len(part) for part in parts) == len(whole) + 5 * len(short)
    assert all(part[: len(short)] == short for part in parts)
    assert any(state.shape.num_tokens == 1 for state in short)
    assert part_on_whole_device(found, USUAL.units, 6, 6) == parts[0]


def test_one_core_has_no_neighbours_and_many_have_a_middle() -> None:
    assert shares_of(1) == (1,)
    assert shares_of(2) == (1, 2)
    assert shares_of(16) == (1, 8, 16)
    assert not any(one.beside for one in states(Limits(1, 64, 512, 8192, 32)))
    assert guard_edges(1).shares == ()
    assert guard_edges(16).shares == (1, 8)


def test_the_engines_overhead_is_what_periods_have_beyond_the_device() -> None:
    bare = find_model("smollm2")
    about = Calibration("m", "-", "simulated", 1, constant_alpha(2.0), 0.0, 0.0)
    model = CalibratedModel(RooflineModel(bare.program, Formats(), find_hardware("zen3-2core")), about)

    def step(rows: int, more_s: float) -> EngineStep:
        device_s = model.price(decode_shape(rows, 40), 2).expected_s
        return EngineStep(decode_shape(rows, 40), device_s, device_s + more_s)

    steps = [step(rows, 2e-4 + 1e-5 * rows) for rows in (1, 1, 4, 16, 16, 32)]
    found = fit_overhead([*steps, step(16, 9.0)], model, 2)
    assert (found.step_s, found.seq_s) == pytest.approx((2e-4, 1e-5), rel=1e-3)
    assert fit_overhead([step(4, -1.0)], model, 2) == Overhead()
    assert fit_overhead([], model, 2) == Overhead()
    # Prices that are a twentieth off at many rows hide nothing of what one row waits for.
    added_s, off_s = (0.1 * model.price(decode_shape(rows, 40), 2).expected_s for rows in (1, 32))
    off = [step(1, added_s), step(2, added_s), step(4, added_s), step(32, added_s - off_s / 2)]
    assert fit_overhead(off, model, 2).step_s == pytest.approx(added_s, rel=0.25)


def test_an_engines_steps_are_compared_with_those_of_the_same_minute() -> None:
    """A machine that is a quarter slower when the engine is measured does not make the engine dear."""
    about = Calibration("m", "-", "simulated", 1, constant_alpha(2.0), 0.0, 0.0)
    model = CalibratedModel(RooflineModel(find_model("smollm2").program, Formats(), find_hardware("zen3-2core")), about)

    def step(rows: int, slow: float) -> EngineStep:
        device_s, alone_s = (slow * model.price(decode_shape(rows, at), 2).expected_s for at in (40, 64))
        period_s = device_s + 2e-4 + 1e-5 * rows
        return EngineStep(decode_shape(rows, 40), device_s, period_s, alone=Sample(decode_shape(rows, 64), 2, alone_s))

    for slow in (1.0, 1.25, 0.8):
        found = fit_overhead([step(rows, slow) for rows in (1, 4, 16, 32)], model, 2)
        assert (found.step_s, found.seq_s) == pytest.approx((2e-4, 1e-5), rel=1e-3)


def test_what_a_prompt_waits_for_in_an_idle_engine_is_beyond_what_every_step_has() -> None:
    bare = find_model("smollm2")
    about = Calibration("m", "-", "simulated", 1, constant_alpha(2.0), 0.0, 0.0)
    model = CalibratedModel(RooflineModel(bare.program, Formats(), find_hardware("zen3-2core")), about)
    device_s = model.price(decode_shape(1, 40), 2).expected_s
    decode = EngineStep(decode_shape(1, 40), device_s, device_s + 2e-4)
    # By its own time on the device, whatever its price says.
    prompt = EngineStep(prefill_shape(128), 0.5, 0.5 + 1e-3, from_idle=True)
    found = fit_overhead([decode, prompt], model, 2)
    assert found.step_s + found.seq_s == pytest.approx(2e-4)
    assert found.prompt_s == pytest.approx(8e-4)


def test_periods_begin_with_the_step_before_or_when_an_idle_engine_plans() -> None:
    recorder = StepRecorder()
    shape = decode_shape(1, 40)

    def submitted(step: int, at_s: float) -> None:
        chunk = Chunk(SeqId(0), 40, 1, FROM_DEVICE, outputs=(Outputs(0, 1, OutputKind.SAMPLE),))
        recorder(Submitted(at_s, StepPlan(StepId(step), LaneId(0), (), (), (), (chunk,)), 0, 1))

    def collected(step: int, start_s: float, end_s: float, at_s: float) -> None:
        result = StepResult(StepId(step), LaneId(0), StepStatus.COMPLETED, start_s, end_s, 2, ())
        recorder(Collected(at_s, result))

    submitted(0, 1.0)
    submitted(1, 1.0)
    collected(0, 1.1, 2.0, 2.05)
    collected(1, 2.1, 3.0, 3.05)
    submitted(2, 5.0)
    collected(2, 5.25, 6.0, 6.5)
    found = recorder.take()
    assert [one.shape for one in found] == [shape] * 3
    assert [one.from_idle for one in found] == [True, False, True]
    assert [one.period_s for one in found] == pytest.approx([1.05, 1.0, 1.5])
    assert [one.device_s for one in found] == pytest.approx([0.9, 0.9, 0.75])
    assert [one.idle_s for one in found] == pytest.approx([0.0, 0.0, 2.0])
    assert [one.late_s for one in found] == pytest.approx([0.05, 0.05, 0.5])
    assert recorder.take() == []
    # An engine that comes for the first of two finds both, and was late for the first only.
    submitted(3, 7.0)
    submitted(4, 7.0)
    collected(3, 7.1, 8.0, 9.5)
    collected(4, 8.0, 9.0, 9.5)
    both = recorder.take()
    assert [one.late_s for one in both] == [pytest.approx(1.5), None]
    assert lateness([*both, *found]) == pytest.approx([1.5, 0.05, 0.05, 0.5])


def test_jitter_is_by_what_is_usual_among_the_same_answers() -> None:
    def decode(rows: int, period_s: float, *, from_idle: bool = False) -> EngineStep:
        return EngineStep(decode_shape(rows, 40), period_s, period_s, from_idle)

    one = [decode(1, 2.0), decode(1, 2.5), decode(1, 1.75)]
    after = EngineStep(prefill_shape(32), 9.0, 9.0, from_idle=True)
    four = [decode(4, 5.0), decode(4, 6.0), decode(4, 7.0)]
    # Steps of thrice the shortest are no short ones; those of twice are.
    assert jitter([*one, decode(1, 9.0, from_idle=True), after, *four]) == [0.0, 0.5, -0.25]
    four = [replace(step, period_s=step.period_s - 2.0) for step in four]
    assert jitter([*one, *four]) == [0.0, 0.5, -0.25, -1.0, 0.0, 1.0]
    assert jitter([]) == []


def test_a_rest_costs_what_prompts_take_more_after_it_than_right_behind_others() -> None:
    about = Calibration("m", "-", "simulated", 1, constant_alpha(2.0), 0.0, 0.0)
    model = CalibratedModel(RooflineModel(find_model("smollm2").program, Formats(), find_hardware("zen3-2core")), about)

    def prompt(tokens: int, idle_s: float, period_s: float, late_s: float = 0.0) -> EngineStep:
        device_s = 0.1 * tokens
        return EngineStep(prefill_shape(tokens), device_s, device_s + period_s, True, idle_s, late_s)

    soon = [prompt(tokens, 1e-3, 7e-4, 2e-4) for tokens in (32, 128, 256)]
    rested = [prompt(32, 0.03, 2.0e-3), prompt(128, 0.04, 2.2e-3), prompt(256, 0.03, 9.9e-3)]
    found = fit_overhead([*soon, *rested], model, 2)
    # How late its end is seen has a term of its own.
    assert found.prompt_s == pytest.approx(5e-4)
    assert found.rested_s == pytest.approx(1.5e-3)
    assert fit_overhead(soon, model, 2).rested_s == 0.0
    assert lateness(soon) == []


def test_the_command_writes_a_file_that_prices_come_from(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.cli.calibrate.QUICK_STEPS_S", 0.0)
    monkeypatch.setattr("plait.cli.calibrate._BESIDE_S", 0.05)
    for name, value in (("_COMPUTE_S", 1e-3), ("_READ_S", 1e-3), ("_READ_BYTES", 1 << 20)):
        monkeypatch.setattr(f"plait.cli.machine_rates.{name}", value)
    model = str(write_tiny_model(tmp_path / "tiny.gguf"))
    path = tmp_path / "mine.json"
    sizes = ["--cache-dir", str(tmp_path), "--max-num-batched-tokens", "64", "--max-num-seqs", "8", "--threads", "2"]
    assert main(["calibrate", model, "--quick", "--json", "-o", str(path), *sizes]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "plait.calibrate/1"
    assert told["num_steps"] > 20
    assert told["held_out"]["num_steps"] > 5
    spec = find_hardware(str(path))
    assert spec.calibration is not None
    assert spec.calibration.evidence == "real-cpu"
    assert spec.share_units == 2
    assert {"f32", "int8"} <= set(spec.rates)
    assert spec.calibration.guard is not None
    assert spec.calibration.scatter is not None
    assert len(spec.calibration.scatter.late_s) > 50
    assert min(spec.calibration.alpha.decode.values) > 0
    # Its own file may be replaced; another one may not.
    assert main(["calibrate", model, "--quick", "--quiet", "-o", str(path), *sizes]) == 0
    said = capsys.readouterr().out
    assert "steps that nothing was fitted to: roofline with alpha" in said
    assert f"{path} (" in said


def test_what_cannot_end_well_is_said_before_anything_is_measured(tmp_path: Path, capsys: Capture) -> None:
    model = str(write_tiny_model(tmp_path / "tiny.gguf"))
    notes = tmp_path / "notes"
    notes.write_text("mine")

    def refused(*more: str) -> str:
        assert main(["calibrate", model, "--cache-dir", str(tmp_path / "cache"), *more]) in (1, 2)
        said = capsys.readouterr()
        assert said.out == ""
        (line,) = said.err.splitlines()
        return line

    assert "exists and is no hardware file" in refused("--output", str(notes))
    assert notes.read_text() == "mine"
    assert "is no regular file" in refused("--output", str(tmp_path))
    assert "cannot be written to" in refused("--output", str(notes / "mine.json"))
    assert "only the native executor is measured" in refused("--executor", "reference")
    assert "it is for what is served" in refused("--profile", str(tmp_path / "trace.json"))
    assert "without drafts; leave both out" in refused("--speculative", "ngram")
    assert "are measured as --scheduler chunked plans them" in refused("--scheduler", "muxwise")
    assert "give --fit-from too" in refused("--hardware", "a100-80g")
    assert "name it with --hardware" in refused("--fit-from", str(notes))
    assert "say where with -o FILE" in refused("--fit-from", str(notes), "--hardware", "a100-80g")


def test_a_benchmark_becomes_a_calibration(tmp_path: Path, capsys: Capture) -> None:
    results = tmp_path / "results"
    results.mkdir()
    for name, rows, gap_ms, ttft_ms in (("lone", 1, 12.0, 60.0), ("crowd", 32, 18.0, 900.0)):
        result = {
            "completed": 100,
            "total_input_tokens": 51200,
            "total_output_tokens": 12800,
            "output_throughput": rows / gap_ms * 1e3,
            "mean_tpot_ms": gap_ms,
            "median_tpot_ms": gap_ms,
            "median_itl_ms": gap_ms,
            "median_ttft_ms": ttft_ms,
            "max_concurrency": rows,
        }
        (results / f"{name}.json").write_text(json.dumps(result))
    path = tmp_path / "fitted.json"
    fit = [
        "calibrate",
        "meta-llama/Llama-3.1-8B",
        "--fit-from",
        str(results),
        "--hardware",
        "a100-80g",
        "-o",
        str(path),
    ]
    assert main(fit) == 0
    assert "Llama-3.1-8B on a100-80g: 3 moments" in capsys.readouterr().out
    spec = find_hardware(str(path))
    assert spec.calibration is not None
    assert spec.calibration.evidence == "benchmark"
    bare = find_model("meta-llama/Llama-3.1-8B")
    assert spec.calibration.counted is not None
    formats = spec.calibration.counted.formats(Formats(), bare.program.num_parameters)
    assert formats.default_weight_bytes == 2.0
    model = CalibratedModel(RooflineModel(bare.program, formats, spec), spec.calibration)
    assert model.price(decode_shape(32, 576), 108).expected_s == pytest.approx(0.018, rel=0.01)
    assert model.price(prefill_shape(512), 108).expected_s == pytest.approx(0.060, rel=0.01)
