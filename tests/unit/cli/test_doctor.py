"""`plait doctor`: expectations follow from what was measured, and each trouble has a remedy. No speed is judged."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from tests.e2e.tiny_model import write_tiny_model

from plait.build import LoadedModel, load_model
from plait.cli.doctor import Findings, Trouble, Weight, _judge, lines
from plait.cli.machine_rates import MachineRates
from plait.cli.main import main
from plait.config.engine_options import EngineOptions
from plait.weights.sources import ignore_progress

expectation = pytest.importorskip("plait.cli.expectation", reason="no native runtime", exc_type=ImportError)
Capture = pytest.CaptureFixture[str]
RATES = MachineRates(2, 100e9, 400e9, 20e9, 12e9)

QUESTION = expectation.Question(users=2, context=64, memory_bytes=1 << 30, cache_bytes=2.0, capacity_tokens=1000)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(tiny: Path) -> LoadedModel:
    return load_model(EngineOptions(model=str(tiny)), ignore_progress, datetime.now)


def findings(**changes: object) -> Findings:
    found = Findings(
        plait="1",
        python="3",
        processor="a processor",
        logical=4,
        physical=2,
        quota=None,
        workers=2,
        workers_reason="one on each core",
        instruction_sets=("baseline", "avx2"),
        free_bytes=8 << 30,
        memory_limit_bytes=None,
        cache_dir="cache",
        native="",
        compiler=None,
        rates=RATES,
    )
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def prices(model: LoadedModel, max_step_tokens: int = 512) -> expectation.Prices:
    options = EngineOptions(max_num_batched_tokens=max_step_tokens)
    return expectation.prices_of(model, options, RATES, QUESTION)


def test_expectations_are_prices_by_the_measured_part_of_the_roofline(model: LoadedModel) -> None:
    found = prices(model)
    requests = expectation.Requests.within(4096)
    assert requests == expectation.Requests((128, 128), 1024, (128, 64))
    whole = expectation.outlook(found, expectation.Efficiency(1.0, 1.0, 1.0), 4, requests)
    half = expectation.outlook(found, expectation.Efficiency(0.5, 0.25, 0.5), 4, requests)
    assert whole.alone == pytest.approx(1 / found.decode_s(1, 128 + 64))
    assert half.alone == pytest.approx(whole.alone / 2)
    assert half.prompt == pytest.approx(whole.prompt / 4)
    assert whole.crowd / 4 < half.crowd < whole.crowd / 2


def test_a_prompt_costs_the_sum_of_its_chunks(model: LoadedModel) -> None:
    from plait.core.step import ChunkShape

    found = prices(model, 64)
    chunks = [ChunkShape(0, 64, 0), ChunkShape(64, 64, 0), ChunkShape(128, 22, 1)]
    assert found.prompt_s(150) == pytest.approx(sum(found.step_s(one) for one in chunks))
    # Two prompts of 32 share a step of 64.
    assert found.crowd_prompts_s(3, 32) == pytest.approx(
        found.step_s(*[ChunkShape(0, 32, 1)] * 2) + found.step_s(ChunkShape(0, 32, 1))
    )
    assert found.crowd_prompts_s(2, 150) == pytest.approx(2 * found.prompt_s(150))


def test_of_a_large_model_the_first_layers_are_measured(model: LoadedModel) -> None:
    assert expectation.part_of(model) is model, "a small one is measured as it is"
    part = expectation.part_of(model, probe_bytes=1, whole_bytes=0)
    assert (part.config.num_layers, model.config.num_layers) == (1, 2)
    assert set(part.program.weights) < set(model.program.weights)
    found, checked = expectation.expect(model, EngineOptions(), RATES, QUESTION, part=part, check=True)
    assert (found.measured_layers, found.num_layers, found.fitting_users) == (1, 2, 15)
    assert found.expected.alone > 0
    assert checked.alone > 0


def test_lengths_are_halved_until_a_model_of_short_contexts_holds_them() -> None:
    assert expectation._fitted((128, 128), 8192) == (128, 128)
    assert expectation._fitted((128, 128), 256) == (128, 128)
    assert expectation._fitted((128, 128), 100) == (32, 32)
    assert expectation.Requests.within(64) == expectation.Requests((32, 32), 32, (32, 16))


@pytest.mark.parametrize(
    ("changes", "weight", "what", "remedy"),
    [
        ({"native": "no module"}, Weight.SLOWS, "no native runtime", "install a C++ compiler"),
        ({"instruction_sets": ("baseline",)}, Weight.SLOWS, "the processor has no AVX2", "AVX2"),
        ({"free_bytes": 1 << 20}, Weight.PREVENTS, "1 MiB of memory are free", "raise the container's limit"),
        ({"quota": 0.5}, Weight.SLOWS, "the control group allows 0.5 of 2 cores", "quota"),
        ({"others": 0.4}, Weight.NOTE, "other programs used 40% of the machine", "--again"),
    ],
)
def test_each_trouble_has_a_remedy(changes: dict[str, object], weight: Weight, what: str, remedy: str) -> None:
    found = findings(**changes)
    _judge(found)
    (trouble,) = found.troubles
    assert trouble.weight is weight
    assert what in trouble.what
    assert remedy in trouble.remedy
    assert found.exit_code == int(weight is Weight.PREVENTS)
    told = "\n".join(lines(found, wants_model=False))
    assert f"{weight}: {trouble.what}\n  -> {trouble.remedy}" in told


def test_a_machine_without_trouble_says_so() -> None:
    found = findings()
    _judge(found)
    told = list(lines(found, wants_model=False))
    assert told[-1] == "nothing prevents serving"
    assert any("2 cores (4 threads)" in line for line in told)
    assert "memory      8.0 GiB free; no limit by a control group" in told
    limited = list(lines(findings(memory_limit_bytes=4 << 30), wants_model=False))
    assert "memory      8.0 GiB free; a control group allows 4.0 GiB in all" in limited
    assert any("of a model file of 1 GB at most 20 tokens a second" in line for line in told)


def test_what_came_is_set_beside_what_was_expected() -> None:
    outlook = expectation.Outlook
    model = expectation.Expectation(
        model="m",
        weight_bytes=4 << 30,
        users=16,
        requests=expectation.Requests.within(8192),
        expected=outlook(10.0, 100.0, 50.0),
        efficiency=expectation.Efficiency(0.8, 0.6, 0.7),
        measured_layers=2,
        num_layers=36,
        context=4096,
        capacity_tokens=50_000,
        fitting_users=12,
        fitting_each_per_s=3.0,
    )
    near = "\n".join(lines(findings(model=model, checked=outlook(11.0, 90.0, 50.0)), wants_model=True))
    assert "what 2 of 36 layers reached of it: 80% for one answer" in near
    assert "12 users fit with 4,096 tokens each" in near
    assert "what came is within 15%" in near
    far = "\n".join(lines(findings(model=model, checked=outlook(11.0, 80.0, 60.0)), wants_model=True))
    assert "what came is NOT within 15%: prompt, crowd" in far


# The whole command, on the native runtime


def command(tmp_path: Path, *more: str) -> list[str]:
    return ["doctor", "--cache-dir", str(tmp_path / "cache"), *more]


@pytest.fixture
def quick_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.cli.doctor.measure_rates", lambda native, threads: replace(RATES, threads=threads))


@pytest.mark.usefixtures("quick_rates")
def test_a_model_is_measured_and_checked(tiny: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(command(tmp_path, str(tiny), "--check", "--users", "3", "--context", "64", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["serves"] is True
    assert found["model"]["measured_layers"] == found["model"]["num_layers"] == 2
    assert found["model"]["context"] == 64
    assert found["model"]["fitting_users"] == found["model"]["capacity_tokens"] // 64 > 0
    for kind in ("alone", "prompt", "crowd"):
        assert found["model"]["expected"][kind] > 0
        assert found["checked"][kind] > 0


@pytest.mark.usefixtures("quick_rates")
def test_a_model_that_is_not_there_prevents_serving_it(tmp_path: Path, capsys: Capture) -> None:
    assert main(command(tmp_path, str(tmp_path / "none.gguf"))) == 1
    told = capsys.readouterr().out
    trouble, remedy, verdict = told.splitlines()[-3:]
    assert trouble.startswith("prevents serving: ")
    assert "none.gguf: no such file" in trouble
    assert remedy.startswith("  -> check the path")
    assert verdict == "something prevents serving"


@pytest.mark.usefixtures("quick_rates")
def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "cache").touch()
    assert main(command(tmp_path)) == 1
    told = capsys.readouterr().out
    assert f"prevents serving: models cannot be kept in {tmp_path / 'cache'}" in told
    assert "  -> name a folder that can be written with --cache-dir" in told


def test_without_the_native_runtime_the_rest_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "plait._native", None)
    monkeypatch.delattr("plait._native", raising=False)
    assert main(command(tmp_path)) == 0
    told = capsys.readouterr().out
    assert "native      not here: " in told
    assert "slows: no native runtime, so models run on the reference executor" in told


def test_a_trouble_keeps_its_parts() -> None:
    trouble = Trouble(Weight.NOTE, "a", "b")
    assert findings(troubles=[trouble]).json_object()["troubles"] == [{"weight": "note", "what": "a", "remedy": "b"}]
