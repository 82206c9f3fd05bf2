"""`--scheduler` on a machine's own prices: none without a calibration, and a word where another model was measured."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from tests.e2e.tiny_model import write_tiny_model
from tests.unit.cost.invented import ABOUT

from plait.build import LoadedModel, check_scheduler, fused_only, load_model, policy_of
from plait.config.engine_options import EngineOptions
from plait.config.machine import num_cores
from plait.config.schedulers import SchedulerChoice, parse_scheduler
from plait.core.errors import UsageError
from plait.cost.calibration import CountedAs
from plait.cost.hardware import find_hardware, write_hardware
from plait.exec.native import presence
from plait.model.cost import Formats
from plait.sched.multiplex.presets import CHUNKED, MUXWISE, PLAIT

needs_native = pytest.mark.skipif(presence.missing() is not None, reason="the native runtime is not built")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


def loaded(options: EngineOptions) -> LoadedModel:
    return load_model(options, lambda done, total: None, datetime.now)


def options_of(path: Path, cache: Path, executor: str = "auto") -> EngineOptions:
    scheduler = parse_scheduler("muxwise")
    threads = None if executor == "reference" or presence.missing() is not None else min(2, num_cores())
    return EngineOptions(model=str(path), cache_dir=cache, executor=executor, scheduler=scheduler, threads=threads)


def said(options: EngineOptions, model: LoadedModel, counted: CountedAs | None) -> list[str]:
    """What a user is told where a calibration counted its model like that."""
    folder = options.cache_dir / "hardware"
    folder.mkdir(exist_ok=True)
    spec = replace(find_hardware("zen3-2core"), calibration=replace(ABOUT, counted=counted))
    write_hardware(spec, folder / "this-machine.json", "mine")
    words: list[str] = []
    policy = policy_of(options, model, words.append)
    assert policy.cost is not None
    assert policy.has_lanes == (options.executor != "reference" and presence.missing() is None)
    return words


def counted(model: LoadedModel, cache_bytes: float) -> CountedAs:
    formats = Formats(default_weight_bytes=4.0, default_cache_bytes=cache_bytes)
    return CountedAs.of(model.program.num_parameters, formats, "f32")


def test_without_a_calibration_prices_are_refused_with_the_way_out(path: Path, tmp_path: Path) -> None:
    options = options_of(path, tmp_path)
    with pytest.raises(UsageError, match=r"this-machine\.json is not there: run plait calibrate"):
        policy_of(options, loaded(options), pytest.fail)


def test_a_split_that_this_machine_does_not_have_is_refused(path: Path, tmp_path: Path) -> None:
    options = options_of(path, tmp_path)
    model = loaded(options)
    assert said(replace(options, scheduler=parse_scheduler("static:1")), model, None) == []
    for text in ("static:2", "static:99"):
        with pytest.raises(UsageError, match="for decode: static:1 to static:1 do"):
            said(replace(options, scheduler=parse_scheduler(text)), model, None)


@pytest.mark.parametrize(
    ("executor", "cache_bytes"), [pytest.param("native", 2.0, marks=needs_native), ("reference", 4.0)]
)
def test_prices_of_another_model_or_format_are_a_warning(
    path: Path, tmp_path: Path, executor: str, cache_bytes: float
) -> None:
    options = options_of(path, tmp_path, executor)
    model = loaded(options)
    same = counted(model, cache_bytes)
    assert said(options, model, same) == said(options, model, None) == []
    (other,) = said(options, model, replace(same, num_parameters=134_515_008))
    assert other.startswith(f"warning: --scheduler muxwise: calibrated with {ABOUT.model} (134,515,008 numbers), and")
    (coarser,) = said(options, model, replace(same, weight_bytes=0.72))
    assert "weights in 5.76 bits, and here they have 32" in coarser
    (narrower,) = said(options, model, replace(same, cache_bytes=1.0))
    assert f"keys and values in 8 bits, and here they have {8 * cache_bytes:.0f}" in narrower


def refusal(options: EngineOptions) -> str:
    """Of a model that is not there: nobody has looked for it."""
    with pytest.raises(UsageError) as caught:
        check_scheduler(replace(options, model="no-such-model"))
    return str(caught.value)


def test_what_cannot_be_had_is_refused_before_the_model_is_looked_for(path: Path, tmp_path: Path) -> None:
    options = options_of(path, tmp_path)
    assert "run plait calibrate" in refusal(options)
    said(options, loaded(options), None)
    assert "static:1 to static:1 do" in refusal(replace(options, scheduler=parse_scheduler("static:2")))
    assert "has no mechanism 'admission'" in refusal(replace(options, ablate="admission"))
    assert "interleaved is there in plait sim alone" in refusal(
        replace(options, scheduler=SchedulerChoice("interleaved"))
    )
    preset, hardware = check_scheduler(replace(options, scheduler=parse_scheduler("plait"), ablate="admission"))
    assert hardware is not None
    assert not preset.admits_by_time


@needs_native
def test_more_workers_than_were_measured_are_refused_before_the_model_is_looked_for(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(path, tmp_path)
    said(options, loaded(options), None)
    monkeypatch.setattr("plait.build.usable_processors", lambda: [0, 1, 2, 3])
    assert "steps were measured on 2 cores, but 3 compute here" in refusal(replace(options, threads=3))


def test_a_policy_that_is_restricted_to_fused_steps_says_so_at_the_start() -> None:
    (line,) = fused_only(PLAIT, 1, is_native=True)
    assert line == (
        "scheduler plait: every step is fused, because one worker computes; steps side by side take two workers"
    )
    (line,) = fused_only(MUXWISE, 2, is_native=False)
    assert "because the reference executor computes with one" in line
    assert fused_only(PLAIT, 2, is_native=True) == fused_only(CHUNKED, 1, is_native=True) == ()


def test_half_a_draft_model_is_refused_before_any_model_is_looked_for(path: Path, tmp_path: Path) -> None:
    options = replace(options_of(path, tmp_path), scheduler=parse_scheduler("chunked"))
    assert "name it with --draft-model" in refusal(replace(options, speculative="model"))
    assert "not used with --speculative ngram" in refusal(replace(options, speculative="ngram", draft_model="small"))
