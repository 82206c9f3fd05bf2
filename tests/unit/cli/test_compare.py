"""`plait bench compare` between small servers with known manners: ratios, refusals to call a difference, warnings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.e2e.tiny_model import write_tiny_model
from tests.unit.cli.load.stub_server import Manner, StubServer

from plait.cli.compare import SCHEMA
from plait.cli.load.contest import QUICK
from plait.cli.load.words import whole_words
from plait.cli.main import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_look_at_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.cli.compare.LOOK_S", 0.0)
    monkeypatch.setattr("plait.cli.compare.processor_seconds", lambda: None)


def compare(first: Manner, other: Manner, capsys: Capture, *more: str) -> tuple[int, dict[str, object]]:
    with StubServer(first) as one, StubServer(other) as two:
        code = main(["bench", "compare", "--url", one.url, "--other", two.url, "--quick", "--quiet", "--json", *more])
    return code, json.loads(capsys.readouterr().out)


def by_name(found: dict[str, object]) -> dict[str, dict[str, object]]:
    rows = found["workloads"]
    assert isinstance(rows, list)
    return {row["workload"]: row for row in rows}


def test_an_engine_that_waits_many_times_as_long_is_called_slower(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(QUICK, output_tokens=4, at_once=2, crowd_output=4, stream_output=6, begun_pieces=1)
    monkeypatch.setattr("plait.cli.compare.QUICK", short)
    code, found = compare(Manner(first_s=0.01, gap_s=0.01), Manner(first_s=0.2, gap_s=0.1), capsys)
    assert code == 0
    assert found["schema"] == SCHEMA
    rows = by_name(found)
    assert list(rows) == ["one answer", "one prompt", "many at once", "a long prompt arrives"]
    for row in rows.values():
        assert row["is_difference"] is True, row
        assert str(row["verdict"]).startswith("the first is ")
        tokens = row["tokens"]
        assert isinstance(tokens, dict)
        assert tokens["first"]["output"] == tokens["first"]["wanted_output"] == tokens["other"]["output"]
    assert found["warnings"] == []


def test_the_order_is_first_other_other_first(capsys: Capture) -> None:
    with StubServer() as one, StubServer() as two:
        argv = ["bench", "compare", "--url", one.url, "--other", two.url, "--quick", "--model-other", "theirs"]
        assert main(argv) == 0
        assert {body["model"] for body in two.bodies} == {"theirs"}
        assert {body["model"] for body in one.bodies} == {"stub-model"}
    printed = capsys.readouterr()
    turns = [line.split()[-1] for line in printed.err.splitlines()]
    first, other = f"{one.url}/v1", f"{two.url}/v1"
    assert turns == [first, other, other, first]
    assert printed.out.splitlines()[0] == f"first: {first} (HTTP)"
    assert "what lies inside is no difference" in printed.out


def test_nothing_that_was_sent_is_sent_again(capsys: Capture) -> None:
    with StubServer() as one, StubServer() as two:
        assert main(["bench", "compare", "--url", one.url, "--other", two.url, "--quick", "--quiet"]) == 0
    prompts = [body["prompt"] for body in (*one.bodies, *two.bodies)]
    assert len(set(prompts)) == len(prompts)


def test_unequal_work_is_told(capsys: Capture) -> None:
    _, found = compare(Manner(), Manner(most_tokens=3, prompt_factor=1.5, cached=9), capsys)
    told = "\n".join(map(str, found["warnings"]))  # type: ignore[call-overload]
    assert "one answer, other: SHORT: 2 of 2 answers ended after 6 of 16 tokens" in told
    assert "does not follow ignore_eos and min_tokens" in told
    assert "one answer: UNEQUAL PROMPTS: 16 tokens a request for the first, 24 for the other" in told
    assert "one answer, other: CACHED: 18 of 48 prompt tokens were not computed" in told
    assert "first: SHORT" not in told


def test_a_server_that_counts_nothing_is_told(capsys: Capture) -> None:
    _, found = compare(Manner(), Manner(has_usage=False), capsys)
    told = "\n".join(map(str, found["warnings"]))  # type: ignore[call-overload]
    assert "one answer, other: NOT COUNTED: 2 answers came without usage" in told


def test_a_workload_that_fails_is_not_measured_and_the_others_are(capsys: Capture) -> None:
    # Its answers break off behind ten tokens; streams are longer.
    code, found = compare(Manner(), Manner(breaks_after=10), capsys)
    assert code == 0
    rows = by_name(found)
    assert rows["a long prompt arrives"]["verdict"] == "not measured"
    assert rows["one answer"]["ratio"] is not None
    told = "\n".join(map(str, found["warnings"]))  # type: ignore[call-overload]
    assert "a long prompt arrives, other: ERROR, 4 x the connection ended in the middle" in told


def test_a_busy_machine_is_told(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([(0.0, 0.0), (1.0, 0.0)])
    monkeypatch.setattr("plait.cli.compare.processor_seconds", lambda: next(readings))
    monkeypatch.setattr("plait.cli.compare.num_cores", lambda: 2)
    monkeypatch.setattr("plait.cli.compare.LOOK_S", 0.01)
    _, found = compare(Manner(), Manner(), capsys)
    assert str(found["warnings"]).startswith("['NOT QUIET: ")


def test_an_engine_in_this_process_is_the_first(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    # A vocabulary of bytes has no words of one token, and its prompts are longer than the context.
    monkeypatch.setattr("plait.cli.load.open.whole_words", lambda encode: [word[:1] for word in whole_words(None)])
    with StubServer() as stub:
        argv = ["bench", "compare", str(model), "--other", stub.url, "--quick", "--quiet", "--json"]
        assert main([*argv, "--executor", "reference"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["first"] == {"label": "plait tiny", "way": "in process", "model": "tiny", "max_tokens": 256}
    assert by_name(found)["one answer"]["ratio"] is not None


def test_the_json_object_is_explained_in_the_guide(capsys: Capture) -> None:
    _, found = compare(Manner(), Manner(), capsys)
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "benchmark.md").read_text(encoding="utf-8")
    for name in (*found, *by_name(found)["one answer"]):
        assert f"`{name}`" in guide, f"{name} is not explained in docs/guides/benchmark.md"


def test_an_address_is_needed_and_must_answer(capsys: Capture) -> None:
    assert main(["bench", "compare"]) == 2
    assert "no server to compare with was named; give its address with --other" in capsys.readouterr().err
    with StubServer() as stub:
        gone = stub.url
    assert main(["bench", "compare", "--url", gone, "--other", gone, "--quiet"]) == 1
    assert "does not answer (" in capsys.readouterr().err
