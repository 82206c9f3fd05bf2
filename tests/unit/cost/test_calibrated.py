"""Calibrated prices: alpha by state, the way of a file and back, and how finished steps move the tables."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cost.invented import ABOUT, BF16, SMOLLM2, bare
from tests.unit.cost.invented import both as merged

from plait.core.errors import UsageError
from plait.core.step import ChunkShape, StepShape
from plait.cost.alpha import LEAST, MOST, AlphaTable, alpha_axes, constant_alpha
from plait.cost.calibrated import CalibratedModel, LearningModel, Observation, cost_model
from plait.cost.calibration import Calibration, HeldOut
from plait.cost.fit import fit_alpha, fit_calibration, fit_mixed, fit_scatter
from plait.cost.grid import Axis, Grid
from plait.cost.guard import GuardTable, guard_from, pair_of
from plait.cost.hardware import find_hardware, hardware_object, read_hardware, write_hardware
from plait.cost.model import CostModel, both, pair_prices
from plait.cost.roofline import RooflineModel
from plait.cost.scatter import Scatter
from plait.cost.solo import Sample, decode_shape, fit_solo, prefill_shape

SPEC = bare(find_hardware("zen3-2core"))
ROOFLINE = RooflineModel(SMOLLM2, BF16, SPEC)


def measured(shape: StepShape, share: int, alpha: float, *beside: StepShape) -> Sample:
    return Sample(shape, share, alpha * ROOFLINE.roof(shape, share, beside).seconds, beside)


SAMPLES = [
    measured(decode_shape(rows, context), share, 1.0 + 0.1 * share + rows / 100 + context / 10_000)
    for share in (1, 2)
    for rows in (1, 4, 16)
    for context in (64, 1024)
] + [measured(prefill_shape(tokens, start), share, 1.5 + 0.1 * share + start / 10_000)
     for share in (1, 2) for tokens in (16, 128, 512) for start in (0, 1024)]  # fmt: skip

FITTED = fit_alpha(SAMPLES, ROOFLINE)


def test_it_is_a_cost_model() -> None:
    model: CostModel = CalibratedModel(ROOFLINE, ABOUT)
    assert model.price(decode_shape(1, 0), 1).expected_s > 0


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_was_measured_is_the_price(sample: Sample) -> None:
    model = CalibratedModel(ROOFLINE, replace(ABOUT, alpha=FITTED))
    assert model.price(sample.shape, sample.share).expected_s == pytest.approx(sample.seconds)


def test_the_median_of_a_visit_counts_and_of_visits_the_quiet_ones() -> None:
    shape = decode_shape(4, 64)
    several = [*SAMPLES, measured(shape, 2, 99.0), measured(shape, 2, 1.5), measured(shape, 2, 1.4)]
    table = fit_alpha(several, ROOFLINE)
    # Visits: 1.2464, and 1.4, 1.5, 99.
    assert table.of(shape, 2) == pytest.approx(1.2464 + 0.25 * (1.5 - 1.2464))


def test_visits_that_differ_agree_with_states_of_less_and_more_context() -> None:
    """Of two visits one was disturbed. Which one, only the line through the others can tell."""
    about = {64: 1.0, 512: 1.0 + 448e-3, 1024: 1.0 + 960e-3}
    samples = [Sample(decode_shape(4, context), 2, seconds) for context, seconds in about.items()]
    between = 1.0 + 192e-3
    for disturbed in (1.4, 1.9):
        visits = [Sample(decode_shape(4, 256), 2, between), *samples, Sample(decode_shape(4, 256), 2, disturbed)]
        model = CalibratedModel(ROOFLINE, replace(ABOUT, alpha=fit_alpha(visits, ROOFLINE)))
        assert model.price(decode_shape(4, 256), 2).expected_s == pytest.approx(between)
        # What is measured once is what it is, wherever it lies.
        once = [*samples, Sample(decode_shape(4, 256), 2, disturbed)]
        model = CalibratedModel(ROOFLINE, replace(ABOUT, alpha=fit_alpha(once, ROOFLINE)))
        assert model.price(decode_shape(4, 256), 2).expected_s == pytest.approx(disturbed)


def test_scatter_is_what_visits_took_by_the_price_in_their_order() -> None:
    model = CalibratedModel(ROOFLINE, replace(ABOUT, alpha=FITTED))
    usual_s = model.price(decode_shape(4, 64), 2).expected_s
    long_s = model.price(prefill_shape(512), 2).expected_s
    ran = [
        *(Sample(decode_shape(4, 64), 2, ratio * usual_s) for ratio in (1.1, 1.2, 1.5)),
        Sample(decode_shape(4, 64), 1, 9.0),
        Sample(decode_shape(4, 64), 2, 9.0, (prefill_shape(64),)),
        Sample(prefill_shape(512), 2, long_s),
    ]
    found = fit_scatter(ran, model, 2, [2e-3, -1e-3], [3e-4, 1e-4, 2e-4], 5e-4)
    assert found is not None
    # On other units, and side by side with something of which the other lane tells too: the spell goes on.
    assert found.spell_s == pytest.approx((3.8 * usual_s + 9.0 + 4.5, long_s))
    assert found.spell_ratios == pytest.approx((1.2, 1.0))
    assert (found.jitter_s, found.late_s, found.rested_s) == ((-1e-3, 2e-3), (1e-4, 2e-4, 3e-4), 5e-4)
    assert fit_scatter(ran[3:5], model, 2, [0.0], [1e-4], 0.0) is None
    assert fit_scatter(ran, model, 2, [0.0], [], 0.0) is None


def test_between_measured_states_alpha_lies_between() -> None:
    table = FITTED
    low, high = table.of(decode_shape(4, 64), 2), table.of(decode_shape(16, 1024), 2)
    assert low < table.of(decode_shape(9, 500), 2) < high
    # The context is linear: half way is half way.
    assert table.of(decode_shape(4, 544), 2) == pytest.approx(
        (table.of(decode_shape(4, 64), 2) + table.of(decode_shape(4, 1024), 2)) / 2
    )


def test_a_crossing_that_was_not_measured_lies_on_the_line_between_its_neighbours() -> None:
    """One core at half the crossings of both: what it lacks lies between what it has, contexts first, then tokens."""
    of_both = [measured(decode_shape(rows, context), 2, 2.0) for rows in (1, 3, 7) for context in (64, 512, 1024)]
    of_one = [
        measured(decode_shape(rows, context), 1, 1.0 + rows + context / 1000)
        for rows in (1, 7)
        for context in (64, 1024)
    ]
    prompts = [measured(prefill_shape(16), 2, 1.0), measured(prefill_shape(64), 2, 1.0)]
    table = fit_alpha([*of_both, *of_one, *prompts], ROOFLINE)
    assert table.of(decode_shape(1, 512), 1) == pytest.approx(2.512)
    # log2(1 + 3) is half way from log2(1 + 1) to log2(1 + 7).
    assert table.of(decode_shape(3, 64), 1) == pytest.approx((2.064 + 8.064) / 2)
    assert table.of(decode_shape(3, 512), 1) == pytest.approx((2.512 + 8.512) / 2)
    assert table.of(decode_shape(7, 1024), 1) == pytest.approx(9.024)
    assert table.of(decode_shape(3, 512), 2) == pytest.approx(2.0)


def test_beyond_what_was_measured_alpha_goes_on_in_a_line_within_limits() -> None:
    axes = alpha_axes((1.0,), (1.0,), (0.0, 1000.0))
    rising = AlphaTable(Grid(axes, (1.0, 2.0)), Grid(axes, (1.0, 2.0)))
    falling = AlphaTable(Grid(axes, (2.0, 1.5)), Grid(axes, (2.0, 1.5)))
    assert rising.of(decode_shape(1, 2000), 1) == pytest.approx(3.0)
    assert rising.of(decode_shape(1, 90_000), 1) == MOST
    assert falling.of(decode_shape(1, 90_000), 1) == LEAST


def test_measured_alphas_beyond_the_limits_stay_what_they_are() -> None:
    axes = alpha_axes((1.0,), (1.0,), (0.0, 1000.0))
    table = AlphaTable(Grid(axes, (6.0, 8.0)), Grid(axes, (0.5, 0.4)))
    assert table.of(prefill_shape(2, 1000), 1) == 8.0
    assert table.of(decode_shape(1, 1000), 1) == pytest.approx(0.4)
    assert table.of(decode_shape(1, 9000), 1) == pytest.approx(0.4)


def test_a_step_of_both_phases_weighs_their_alphas_by_their_roofs() -> None:
    axes = alpha_axes((1.0,), (1.0,), (0.0,))
    table = AlphaTable(Grid(axes, (3.0,)), Grid(axes, (1.0,)))
    model = CalibratedModel(ROOFLINE, replace(ABOUT, alpha=table))
    shape = merged(100, 7, 256)
    prefill_s, decode_s = (ROOFLINE.roof(part, 2).seconds for part in (prefill_shape(100, 256), decode_shape(7, 256)))
    alpha = (3.0 * prefill_s + decode_s) / (prefill_s + decode_s)
    assert model.price(shape, 2).expected_s == pytest.approx(alpha * ROOFLINE.roof(shape, 2).seconds)
    mixed = Grid((Axis("share", (2.0,)), Axis("tokens", (64.0,)), Axis("rows", (8.0,))), (1.25,))
    factored = CalibratedModel(ROOFLINE, replace(ABOUT, alpha=table, mixed=mixed))
    assert factored.price(shape, 2).expected_s == pytest.approx(1.25 * model.price(shape, 2).expected_s)


def test_the_factor_of_mixed_steps_goes_by_what_is_before_their_prompts() -> None:
    """Few tokens behind many others take more of what their parts say. Files without that axis are read as before."""

    def taken_s(tokens: int, start: int) -> float:
        plain_s = ROOFLINE.roof(merged_behind(tokens, start), 2).seconds
        return plain_s * (1.0 + 0.2 * start / 3072 * 8 / tokens)

    def merged_behind(tokens: int, start: int) -> StepShape:
        return StepShape((ChunkShape(start, tokens, 1), *decode_shape(8, 512).chunks))

    measured = product((4, 8, 32), (0, 1024, 3072))
    samples = [Sample(merged_behind(*at), 2, taken_s(*at)) for at in measured]
    model = CalibratedModel(ROOFLINE, replace(ABOUT, alpha=constant_alpha()))
    by_context, without = fit_mixed(samples, model, by_context=True), fit_mixed(samples, model)
    assert by_context is not None
    assert without is not None
    assert [axis.name for axis in by_context.axes] == ["share", "tokens", "rows", "context"]
    fitted, blind = (CalibratedModel(ROOFLINE, replace(ABOUT, alpha=constant_alpha(), mixed=one))
                     for one in (by_context, without))  # fmt: skip
    for tokens, start in ((4, 0), (8, 3072), (8, 2048), (32, 512)):
        shape = merged_behind(tokens, start)
        assert fitted.price(shape, 2).expected_s == pytest.approx(taken_s(tokens, start), rel=1e-3)
        assert pair_prices(fitted)(decode_shape(8, 512), StepShape(shape.chunks[:1]), 2).expected_s == pytest.approx(
            fitted.price(shape, 2).expected_s
        )
    assert blind.price(merged_behind(8, 3072), 2).expected_s < 0.95 * taken_s(8, 3072)


def test_overheads_are_the_engines_and_come_on_top() -> None:
    about = replace(ABOUT, alpha=constant_alpha(2.0), step_overhead_s=0.5, seq_overhead_s=0.25, prompt_overhead_s=0.125)
    model = CalibratedModel(ROOFLINE, about)
    price = model.price(decode_shape(3, 100), 2)
    assert price.expected_s == pytest.approx(2.0 * ROOFLINE.roof(decode_shape(3, 100), 2).seconds + 0.5 + 3 * 0.25)
    assert (
        model.overhead_s(StepShape((*prefill_shape(64).chunks, *decode_shape(2, 100).chunks))) == 0.5 + 3 * 0.25 + 0.125
    )


def test_the_worst_of_decode_beside_a_prefill_is_the_guards() -> None:
    shape, neighbour = decode_shape(4, 64), prefill_shape(256)
    guard = guard_from([(pair_of(shape, 1, neighbour), 1.4)], (1,), new_tokens=(512,), reused_tokens=(0,))
    about = replace(ABOUT, alpha=FITTED, guard=guard, spread=1.1)
    model = CalibratedModel(ROOFLINE, about)
    alone_s = model.price(shape, 1).expected_s
    assert model.price(shape, 1, [neighbour]).worst_s == pytest.approx(1.4 * alone_s)
    assert model.price(shape, 1).worst_s == pytest.approx(1.1 * alone_s)
    assert model.price(neighbour, 1).worst_s == pytest.approx(1.1 * model.price(neighbour, 1).expected_s)


@given(starts=st.lists(st.integers(0, 3000), min_size=1, max_size=4), tokens=st.integers(1, 2), share=st.integers(1, 2))
def test_a_run_of_steps_has_the_very_prices_of_its_steps(starts: list[int], tokens: int, share: int) -> None:
    about = replace(ABOUT, alpha=FITTED, step_overhead_s=1e-4, seq_overhead_s=1e-5)
    model = CalibratedModel(ROOFLINE, about)
    steps = [StepShape(tuple(ChunkShape(start + later, tokens, 1) for start in starts)) for later in range(4)]
    assert list(islice(model.run_prices(steps[0], share), 4)) == [model.price(one, share).expected_s for one in steps]


def test_a_pair_has_the_price_of_the_step_that_it_makes() -> None:
    """Also where one of the two is not of one phase, or empty."""
    mixed = Grid((Axis("share", (1.0, 2.0)), Axis("tokens", (64.0,)), Axis("rows", (8.0,))), (1.25, 1.5))
    about = replace(ABOUT, alpha=FITTED, mixed=mixed, spread=1.3, step_overhead_s=1e-4, prompt_overhead_s=1e-3)
    model = CalibratedModel(ROOFLINE, about)
    price_of_pair = pair_prices(model)
    shapes = [decode_shape(3, 500), prefill_shape(48, 64), decode_shape(1, 0), merged(20, 2, 300), StepShape(())]
    for first, second in product(shapes, shapes):
        for share in (1, 2):
            price, whole = price_of_pair(first, second, share), model.price(both(first, second), share)
            assert price.expected_s == pytest.approx(whole.expected_s, rel=1e-12)
            assert price.worst_s == pytest.approx(whole.worst_s, rel=1e-12)


def test_finished_steps_move_alpha_towards_what_they_took() -> None:
    model = LearningModel(ROOFLINE, replace(ABOUT, alpha=FITTED), rate=0.2)
    shape, far = decode_shape(4, 64), prefill_shape(512, 1024)
    before, untouched = model.price(shape, 2).expected_s, model.price(far, 2).expected_s
    for _ in range(60):
        model.observe(Observation(shape, 2, 1.5 * before))
    assert model.price(shape, 2).expected_s == pytest.approx(1.5 * before, rel=1e-3)
    assert model.price(far, 2).expected_s == untouched


def test_a_disturbed_step_hardly_shows_and_equal_steps_teach_the_same() -> None:
    def taught(seconds: list[float]) -> float:
        model = LearningModel(ROOFLINE, replace(ABOUT, alpha=FITTED))
        for value in seconds:
            model.observe(Observation(decode_shape(4, 64), 2, value))
        return model.price(decode_shape(4, 64), 2).expected_s

    usual = CalibratedModel(ROOFLINE, replace(ABOUT, alpha=FITTED))
    usual_s = usual.price(decode_shape(4, 64), 2).expected_s
    assert taught([1000.0]) == pytest.approx(1.05 * usual_s)
    assert taught([0.0, -1.0]) == usual_s
    assert taught([0.01, 0.02, 0.015]) == taught([0.01, 0.02, 0.015])


def test_a_step_of_both_phases_teaches_both() -> None:
    model = LearningModel(ROOFLINE, replace(ABOUT, alpha=constant_alpha(2.0)), rate=0.5)
    shape = merged(64, 4, 128)
    before = model.price(shape, 2).expected_s
    for _ in range(30):
        model.observe(Observation(shape, 2, before / 1.5))
    assert model.price(shape, 2).expected_s == pytest.approx(before / 1.5, rel=1e-3)
    assert model.price(decode_shape(1, 0), 2).expected_s < 2.0 * ROOFLINE.roof(decode_shape(1, 0), 2).seconds


def test_the_guard_rises_with_what_is_seen_beside_a_prefill() -> None:
    shape, neighbour = decode_shape(4, 64), prefill_shape(256)
    guard = guard_from([(pair_of(shape, 1, neighbour), 1.1)], (1,), new_tokens=(512,), reused_tokens=(0,))
    model = LearningModel(ROOFLINE, replace(ABOUT, guard=guard))
    alone_s = model.price(shape, 1).expected_s
    for _ in range(3):
        model.observe(Observation(shape, 1, 1.6 * alone_s, (neighbour,)))
    found = model.calibration.guard
    assert found is not None
    assert found.slowdown(pair_of(shape, 1, neighbour)) == pytest.approx(1.1 * (1 + 0.05 * 0.99) ** 3, rel=1e-6)


def whole() -> Calibration:
    """With everything that a calibration can hold."""
    edges = GuardTable((1,), (256.0,), (0.0,), (4.0,), (512.0,), {})
    beside = measured(decode_shape(4, 64), 1, 1.7, prefill_shape(200))
    found = fit_calibration([*SAMPLES, measured(merged(64, 4, 256), 2, 2.0), beside], ROOFLINE, ABOUT, edges)
    bandwidth = Grid((Axis("share", (1.0, 2.0)), Axis("beside", (64.0, 512.0), is_log=True)), (1e9, 2e9, 3e9, 4e9))
    scatter = Scatter((0.5, 2.0), (1.0, 1.25), (-1e-4, 0.0, 1e-3), (1e-4,), 1e-3)
    return replace(found, bandwidth=bandwidth, scatter=scatter, held_out=HeldOut(9, 0.01, 0.02, 0.1, 0.2, 3, 0.0, 1.2))


def test_a_calibration_goes_to_a_file_and_back(tmp_path: Path) -> None:
    found = whole()
    assert found.solo == fit_solo(SAMPLES)
    path = tmp_path / "mine.json"
    write_hardware(replace(SPEC, calibration=found), path, "mine")
    back = read_hardware(path, str(path))
    assert back.calibration is not None
    assert back.calibration.json_object() == found.json_object()
    again = tmp_path / "again.json"
    write_hardware(back, again, "mine")
    assert again.read_bytes() == path.read_bytes()
    assert isinstance(cost_model(SMOLLM2, BF16, back), CalibratedModel)
    assert isinstance(cost_model(SMOLLM2, BF16, SPEC), RooflineModel)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("alpha", "decode", "values"), [0.0] * 999, r"calibration\.alpha\.decode\.values has 999 entries"),
        (("alpha", "prefill", "axes"), [], r"the axes must be share, tokens, context, beside"),
        (("evidence",), "hearsay", r'calibration\.evidence is "hearsay"; it must be one of real-cpu'),
        (("step_overhead_s",), -1, r"calibration\.step_overhead_s is -1; it must be a number of 0 or more"),
        (("spread",), 0.5, r"calibration\.spread is 0\.5; it must be a number of 1 or more"),
        (("guard", "cells"), [{"cell": [9, 0, 0, 0, 0], "slowdown": 2}], r"cell is .* its places must lie below 1, 1"),
        (("guard", "shares"), [], r"calibration\.guard\.shares is \[\]; it must be numbers that ascend"),
        (
            ("solo", "decode"),
            [{"share": 1, "coefficients": [1]}],
            r"coefficients has 1 entries; it must be a list of 3",
        ),
        (("scatter", "spell_s"), [1.0], r"calibration\.scatter\.spell_ratios has 2 entries; it must be a list of 1"),
        (("scatter", "spell_ratios"), [1.0, 0.0], r"spell_ratios is \[1\.0, 0\.0\]; there must be some, above 0"),
        (("scatter", "spell_ratios"), [1.0, 101.0], r"spell_ratios is \[1\.0, 101\.0\]; .* ratios at most 100"),
        (("scatter", "jitter_s"), [1.1, 1.0], r"jitter_s is \[1\.1, 1\.0\]; there must be some, and they must ascend"),
        (("scatter", "late_s"), [], r"late_s is \[\]; there must be some"),
        (("scatter", "rested_s"), -1, r"calibration\.scatter\.rested_s is -1; it must be a number of 0 or more"),
        (("surprise",), 1, r"calibration\.surprise is not known; there can be model,"),
    ],
)
def test_a_calibration_that_makes_no_sense_is_refused(
    tmp_path: Path, place: tuple[str, ...], value: object, words: str
) -> None:
    path = tmp_path / "bad.json"
    write_hardware(replace(SPEC, calibration=whole()), path, "bad")
    found = json.loads(path.read_text())
    part = found["calibration"]
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    path.write_text(json.dumps(found))
    with pytest.raises(UsageError, match=words):
        read_hardware(path, "bad.json")


WHOLE = hardware_object(replace(SPEC, calibration=whole()), "whole")
JSON = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 1 << 70),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(-1, 3), max_size=6),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@given(data=st.data())
def test_a_file_with_anything_changed_is_taken_or_refused_in_a_line(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = json.loads(json.dumps(WHOLE))
    part = found
    while isinstance(part, dict | list) and part:
        key = data.draw(st.sampled_from(sorted(part) if isinstance(part, dict) else range(len(part))))
        if not isinstance(part[key], dict | list) or data.draw(st.integers(0, 3)) == 0:
            part[key] = data.draw(JSON)
            break
        part = part[key]
    path = tmp_path_factory.getbasetemp() / "changed.json"
    path.write_text(json.dumps(found))
    refused = ""
    try:
        spec = read_hardware(path, "changed.json")
        price = cost_model(SMOLLM2, BF16, spec).price(merged(64, 4, 256), 1)
        assert 0 < price.expected_s <= price.worst_s
    except UsageError as error:
        refused = str(error)
    assert not refused or refused.startswith("changed.json: ")
    assert "\n" not in refused


def test_alpha_of_nothing_is_refused() -> None:
    edges = GuardTable((), (1.0,), (0.0,), (1.0,), (1.0,), {})
    prompts = [one for one in SAMPLES if one.shape.num_tokens > 16]
    with pytest.raises(UsageError, match="no decode step was measured"):
        fit_calibration(prompts, ROOFLINE, ABOUT, edges)
    with pytest.raises(UsageError, match="no prompt was measured"):
        fit_calibration([one for one in SAMPLES if one.shape.num_tokens == 1], ROOFLINE, ABOUT, edges)
