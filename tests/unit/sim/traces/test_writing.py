"""Writing: what is written in our forms is read back equal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.sim.traces.test_forms import DATA, SAMPLES

from plait.core.errors import UsageError
from plait.sim.traces.forms import Trace, open_trace
from plait.sim.traces.request import TraceRequest
from plait.sim.traces.writing import csv_lines, json_lines


def back(path: Path, lines: list[str]) -> list[TraceRequest]:
    path.write_text("\n".join(lines) + "\n")
    return list(open_trace(path).requests())


def rounded(requests: list[TraceRequest]) -> list[TraceRequest]:
    return [one if one.at_s is None else replace(one, at_s=round(one.at_s, 6)) for one in requests]


@pytest.mark.parametrize("name", SAMPLES)
def test_every_form_goes_round_by_json_lines(tmp_path: Path, name: str) -> None:
    found = list(open_trace(DATA / name).requests())
    assert back(tmp_path / "out.jsonl", list(json_lines(found))) == rounded(found)


@pytest.mark.parametrize("name", ["azure_code.csv", "lengths_sharegpt.csv", "servegen_reasoning.csv", "litellm.json"])
def test_lengths_and_times_go_round_by_csv(tmp_path: Path, name: str) -> None:
    found = list(open_trace(DATA / name).requests())
    assert back(tmp_path / "out.csv", list(csv_lines(found))) == rounded(found)


def test_a_client_may_be_called_anything(tmp_path: Path) -> None:
    found = [TraceRequest(1.0, 2, 3, client='a, "b"')]
    assert back(tmp_path / "out.csv", list(csv_lines(found))) == found


def test_csv_is_refused_to_what_it_cannot_hold() -> None:
    trace: Trace = open_trace(DATA / "mooncake_conversation.jsonl.gz")
    with pytest.raises(UsageError, match=r"write to a file that ends in \.jsonl"):
        list(csv_lines(trace.requests()))
