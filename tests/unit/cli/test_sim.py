"""plait sim, sim goodput, sim import and sim cards, as they are called."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import jsonschema
import pytest
from tests.unit.cost.test_calibrated import ABOUT
from tests.unit.sim.traces.test_forms import DATA, SAMPLES

from plait.cli.main import main
from plait.cost.alpha import constant_alpha
from plait.cost.calibration import CountedAs
from plait.cost.hardware import find_hardware, write_hardware
from plait.inspect.programs import find_model
from plait.model.cost import Formats
from plait.sim.cards.card import card_names
from plait.sim.page.page import BEGINNING
from plait.sim.traces.forms import open_trace

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "sim-report-1.schema.json").read_text())
SMALL = ["--model", "meta-llama/Llama-3.2-1B", "--hardware", "l4-24g", "--quiet"]


def report(capsys: pytest.CaptureFixture[str], *options: str) -> Mapping[str, object]:
    """What `plait sim` says as JSON, checked against the schema."""
    assert main(["sim", *SMALL, *options, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, SCHEMA)
    assert isinstance(found, dict)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["sim", *arguments]) in (1, 2)
    text = capsys.readouterr().err.strip()
    assert "\n" not in text
    assert text.startswith("plait: ")
    return text


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_form_of_trace_can_be_simulated(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    form, count = SAMPLES[name]
    needs_rate = name.startswith(("lengths", "agents"))
    # Sessions of agents are longer than the model's context; a block of theirs then stands for four tokens.
    shorter = ["--length-divisor", "16"] if name == "agents.jsonl" else []
    wanted = min(count, 10)
    found = report(
        capsys, "--trace", str(DATA / name), "--requests", str(wanted), *shorter, *(["--rate", "5"] * needs_rate)
    )
    assert found["requests"] == {
        "finished": wanted,
        "failed": 0,
        "refused": 0,
        "overloaded": 0,
        "preemptions": 0,
    }
    inputs = found["inputs"]
    assert isinstance(inputs, dict)
    assert (inputs["trace"], inputs["trace_form"]) == (name, str(form))
    if name in ("agents.jsonl", "gsm8k.jsonl.gz"):
        assert float(str(found["prefix_hit_fraction"])) > 0.3


@pytest.mark.parametrize(
    ("name", "divisor"), [("mooncake_conversation.jsonl.gz", 16), ("agents.jsonl", 16), ("gsm8k.jsonl.gz", 1)]
)
def test_hits_are_those_that_the_trace_has(name: str, divisor: int, capsys: pytest.CaptureFixture[str]) -> None:
    seen: set[int] = set()
    hits = tokens = 0
    for one in open_trace(DATA / name).requests():
        hits += len(list(takewhile(seen.__contains__, one.blocks))) * one.block_tokens
        tokens += one.num_prompt
        seen.update(one.blocks)
    # So slowly that each request finds whatever was computed before it.
    found = report(capsys, "--trace", str(DATA / name), "--rate", "0.02", "--length-divisor", str(divisor))
    assert found["prefix_hit_fraction"] == pytest.approx(hits / tokens, abs=0.02)


@pytest.mark.parametrize("name", card_names())
def test_every_card_can_be_simulated(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "--card", name, "--rate", "2", "--requests", "4")
    requests, inputs = found["requests"], found["inputs"]
    assert isinstance(requests, dict)
    assert isinstance(inputs, dict)
    assert requests["finished"] == 4
    assert (inputs["card"], inputs["card_label"]) == (name, "surrogate")


def test_equal_calls_give_equal_reports_and_other_seeds_others(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("--card", "burstgpt", "--rate", "20", "--requests", "30")
    first = report(capsys, *call)
    assert report(capsys, *call) == first
    assert report(capsys, *call, "--seed", "1")["plan_hash"] != first["plan_hash"]


def test_several_replicas_and_devices_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("--card", "sharegpt", "--rate", "50", "--requests", "30", "--hardware", "a100-80g")
    one, two = report(capsys, *call), report(capsys, *call, "--replicas", "2")
    cut = report(capsys, *call, "--tensor-parallel-size", "2")
    assert isinstance(two["engines"], list)
    assert len(two["engines"]) == 2
    assert float(str(two["optimum_s"])) == pytest.approx(float(str(one["optimum_s"])) / 2)
    assert float(str(cut["optimum_s"])) == pytest.approx(float(str(one["optimum_s"])) / 2)
    assert float(str(cut["makespan_s"])) < float(str(one["makespan_s"]))


def test_engines_of_prompts_and_of_answers_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(
        capsys,
        "--card",
        "sharegpt",
        "--rate",
        "5",
        "--requests",
        "10",
        "--hardware",
        "a100-80g",
        "--replicas",
        "disagg:1x2",
    )
    engines, requests = found["engines"], found["requests"]
    assert isinstance(engines, list)
    assert isinstance(requests, dict)
    assert [engine["role"] for engine in engines] == ["prefill", "decode", "decode"]
    assert requests["finished"] == 10


def test_a_calibrated_device_is_slower_than_its_roofs_and_says_what_it_was_measured_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bare = find_hardware("l4-24g")
    path = tmp_path / "mine.json"
    write_hardware(replace(bare, calibration=replace(ABOUT, alpha=constant_alpha(2.0))), path, "mine")
    call = ("--card", "mmlu", "--rate", "1", "--requests", "5")
    first, measured = report(capsys, *call), report(capsys, *call, "--hardware", str(path))
    assert first["calibrated_on"] is None
    assert measured["calibrated_on"] == f"{ABOUT.calibrated_on} with {ABOUT.model}"
    means = [one["ttft_s"] for one in (first, measured)]
    assert all(isinstance(one, dict) for one in means)
    assert means[1]["mean"] > 1.5 * means[0]["mean"]  # type: ignore[index]
    assert main(["sim", *SMALL, *call, "--hardware", str(path)]) == 0
    assert f"simulated, calibrated on {ABOUT.calibrated_on}" in capsys.readouterr().out


def test_prices_of_another_model_or_format_are_a_warning(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bare, model = find_hardware("l4-24g"), find_model("meta-llama/Llama-3.2-1B")
    path = tmp_path / "mine.json"

    def said(counted: CountedAs) -> str:
        write_hardware(replace(bare, calibration=replace(ABOUT, counted=counted)), path, "mine")
        call = ["sim", *SMALL, "--card", "mmlu", "--rate", "1", "--requests", "2", "--hardware", str(path)]
        assert main([*call, "--json", "-"]) == 0
        return capsys.readouterr().err

    same = CountedAs.of(
        model.program.num_parameters, Formats(default_weight_bytes=2.0, default_cache_bytes=2.0), bare.numbers
    )
    assert said(same) == ""
    other = said(replace(same, num_parameters=134_515_008))
    assert other.startswith(f"warning: calibrated with {ABOUT.model} (134,515,008 numbers), and this model has 1,235")
    assert "weights in 5.76 bits, and here they have 16" in said(replace(same, weight_bytes=0.72))
    assert "keys and values in 8.25 bits, and here they have 16" in said(replace(same, cache_bytes=1.03125))


@pytest.mark.parametrize(("word", "is_json"), [("1", True), ("true", True), ("0", False), ("off", False)])
def test_what_is_a_flag_elsewhere_names_no_file_here(
    word: str, is_json: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLAIT_JSON", word)
    assert main(["sim", *SMALL, "--card", "mmlu", "--rate", "1", "--requests", "2"]) == 0
    assert capsys.readouterr().out.startswith('{"schema": "plait.sim"') is is_json
    assert main(["reproduce", "muxwise-splits"]) == 0
    assert capsys.readouterr().out.startswith("{") is is_json
    assert list(tmp_path.iterdir()) == []


def test_targets_decide_goodput(capsys: pytest.CaptureFixture[str]) -> None:
    call = ("--card", "sharegpt", "--rate", "5", "--requests", "20")
    assert report(capsys, *call)["goodput_requests_per_s"] is None
    easy = report(capsys, *call, "--ttft-slo", "1000s", "--tpot-slo", "1000s", "--itl-slo", "1000s")
    assert easy["slo_attainment_fraction"] == 1.0
    throughput = easy["throughput"]
    assert isinstance(throughput, dict)
    assert easy["goodput_requests_per_s"] == pytest.approx(throughput["requests_per_s"])
    assert report(capsys, *call, "--itl-slo", "1ms")["slo_attainment_fraction"] == 0.0


def test_the_table_says_what_was_simulated_and_that_it_was_not_calibrated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    call = ["sim", *SMALL, "--trace", str(DATA / "azure_code.csv"), "--requests", "5", "--ttft-slo", "1s"]
    assert main([*call, "--html", str(page), "--json", str(tmp_path / "report.json")]) == 0
    text = capsys.readouterr().out
    assert "meta-llama/Llama-3.2-1B: 1.24 B numbers, 16 bits each" in text
    assert "1 x l4-24g" in text
    assert "simulated, not calibrated" in text
    assert "TTFT 1 s: " in text
    assert max(map(len, text.splitlines())) <= 120
    assert page.read_text().startswith(BEGINNING)
    jsonschema.validate(json.loads((tmp_path / "report.json").read_text()), SCHEMA)
    assert main([*call, "--html", str(page)]) == 0, "a page of ours may be replaced"


def test_other_files_are_not_overwritten(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.html"
    mine.write_text("my own page")
    call = ("--card", "mmlu", "--rate", "1", "--requests", "1")
    assert "exists and is no page of plait sim" in refused(capsys, *call, "--html", str(mine))
    assert "exists and is no report of plait sim" in refused(capsys, *call, "--json", str(mine))
    assert mine.read_text() == "my own page"


@pytest.mark.parametrize("command", [[], ["goodput", "--ttft-slo", "1s"]])
@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_place_where_no_file_can_be_is_named_before_the_run(
    command: list[str],
    option: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("nothing may be simulated for a report that has no place")

    for name in ("sim", "sim_goodput"):
        monkeypatch.setattr(f"plait.cli.{name}.run_trial", never)
    place = tmp_path / "none" / "report"
    text = refused(capsys, *command, "--card", "mmlu", "--rate", "1", "--requests", "1", option, str(place))
    assert f"{option} {place} cannot be written: there is no folder {place.parent}; choose another file" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give the requests: --trace FILE, or --card NAME"),
        (["--card", "mmlu"], "give --rate R, in requests a second"),
        (["--card", "nobody", "--rate", "1"], "no card is called 'nobody'"),
        (["--card", "mmlu", "--rate", "1", "--model", "Qwen/Qwen3-235B-A22B"], "use a larger --tensor-parallel-size"),
        (["--card", "mmlu", "--rate", "1", "--hardware", "abacus"], "hardware 'abacus' is not known"),
        (["--card", "mmlu", "--rate", "1", "--replicas", "some"], "form 'some' is not known"),
        (["--card", "mmlu", "--rate", "1", "--speed", "2"], "give one of them"),
        (["--card", "mmlu", "--rate", "0"], "a number above 0"),
        (
            ["--card", "mmlu", "--rate", "1", "--model", "meta-llama/Llama-3.1-70B"],
            "use a larger --tensor-parallel-size",
        ),
        (["--card", "mmlu", "--rate", "1", "--max-model-len", "9M"], "the model was made for 131072 tokens"),
        (["--trace", "nothing.csv"], "there is no such file"),
        (["--trace", str(DATA / "lengths_lmsys.csv")], "the trace says no arrival times; give --rate R"),
    ],
)
def test_what_cannot_be_simulated_is_said_in_a_line(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, *options)


def test_goodput_finds_a_rate_and_shows_the_sweep(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    # A slow machine and short answers: few steps are enough.
    slow = ["--model", "meta-llama/Llama-3.2-1B", "--hardware", "zen3-2core", "--quiet"]
    call = ["sim", "goodput", *slow, "--card", "mmlu", "--ttft-slo", "60s", "--requests", "40", "--repeats", "2"]
    assert main([*call, "--rate", "0.05", "--html", str(page), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "plait.sim.goodput"
    jsonschema.validate(found["run"], SCHEMA)
    held = [point["rate"] for point in found["points"] if point["holds"]]
    assert found["rate"] in held
    assert found["is_enclosed"]
    assert all(len(point["attainments"]) == 2 for point in found["points"])
    assert found["run"]["inputs"]["slo"]["ttft_s"] == 60.0
    assert found["run"]["inputs"]["rate"] == found["rate"]
    assert found["run"]["inputs"]["requests"] == found["run"]["requests"]["finished"]
    assert "Targets met over rate" in page.read_text()


def test_goodput_needs_a_target_and_fails_where_none_can_be_met(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no target was given" in refused(capsys, "goodput", "--card", "mmlu")
    call = ["sim", "goodput", *SMALL, "--card", "mmlu", "--ttft-slo", "1ms", "--requests", "1", "--repeats", "1"]
    assert main([*call, "--rate", "0.1"]) == 1
    assert "no rate that was tried holds" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["sglang.log", "litellm.json", "mooncake_conversation.jsonl.gz"])
def test_an_import_is_read_as_its_source_was(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "trace.jsonl.gz"
    assert main(["sim", "import", str(DATA / name), "-o", str(out)]) == 0
    assert f"requests of {name}" in capsys.readouterr().err
    assert out.read_bytes()[:2] == b"\x1f\x8b"
    expected = list(open_trace(DATA / name).requests())
    found = list(open_trace(out).requests())
    assert [(one.num_prompt, one.num_output, one.blocks) for one in found] == [
        (one.num_prompt, one.num_output, one.blocks) for one in expected
    ]


def test_an_import_leaves_no_part_behind(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = tmp_path / "in.csv.gz"
    broken.write_bytes(gzip.compress(b"arrival_s,input_tokens,output_tokens\n0,1,1\n1,0,1\n"))
    assert "line 3: input_tokens is '0'" in refused(capsys, "import", str(broken), "-o", str(tmp_path / "out.csv"))
    assert list(tmp_path.iterdir()) == [broken]
    assert "must end in one of .csv" in refused(capsys, "import", str(broken), "-o", str(tmp_path / "out.txt"))
    assert "exists; remove it" in refused(
        capsys, "import", str(DATA / "sglang.log"), "-o", str(DATA / "azure_code.csv")
    )
    assert "write plait sim import FILE -o" in refused(capsys, "import")


def test_cards_are_listed_with_what_is_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "cards"]) == 0
    text = capsys.readouterr().out
    assert "surrogates" in text
    assert all(name in text for name in card_names())
    assert main(["sim", "cards", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["cards"]
    assert [one["name"] for one in found] == card_names()
    assert all(one["label"] == "surrogate" and one["assumed"] for one in found)


def test_offline_jobs_run_in_an_order_and_on_interleaved_steps(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--card", "mmlu", "--requests", "30", "--scheduler", "interleaved", "--order"]
    blend, dfs = (report(capsys, *options, order) for order in ("blend", "dfs"))
    for found in (blend, dfs):
        requests, inputs = found["requests"], found["inputs"]
        assert isinstance(requests, dict)
        assert isinstance(inputs, dict)
        assert requests["finished"] == 30
        assert inputs["rate"] is None
    assert blend["plan_hash"] != dfs["plan_hash"]
    assert "leave out --rate and --speed" in refused(capsys, *options, "dfs", "--rate", "3")
