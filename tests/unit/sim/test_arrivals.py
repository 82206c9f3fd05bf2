"""Traces and synthetic load: what is read, what is refused and where, and what the requests look like."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path
from statistics import fmean

import pytest

from plait.core.errors import UsageError
from plait.core.request import Slo
from plait.sim.arrivals import Lengths, TraceRow, arrivals_of, poisson_trace, read_trace
from plait.sim.prompts import made_up_prompt

HEADER = "arrival_s,input_tokens,output_tokens\n"
GOOD = HEADER + "0.0,374,44\n4.3146,396,109\n4.3146,7,1\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_trace_is_read_row_by_row(tmp_path: Path) -> None:
    rows = read_trace(write(tmp_path / "trace.csv", GOOD))
    assert rows == [TraceRow(0.0, 374, 44), TraceRow(4.3146, 396, 109), TraceRow(4.3146, 7, 1)]


def test_a_compressed_trace_is_read_alike(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(GOOD.encode()))
    assert read_trace(path) == read_trace(write(tmp_path / "trace.csv", GOOD))


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.csv", "output_tokens,client,arrival_s,input_tokens\n9,3,1.5,20\n")
    assert read_trace(path) == [TraceRow(1.5, 20, 9)]


def test_a_trace_can_be_played_faster_and_in_part(tmp_path: Path) -> None:
    rows = read_trace(write(tmp_path / "trace.csv", GOOD), speed=2.0, limit=2)
    assert rows == [TraceRow(0.0, 374, 44), TraceRow(2.1573, 396, 109)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: column arrival_s is missing; a trace needs arrival_s,input_tokens,output_tokens"),
        ("arrival_s,input_tokens\n0,1\n", "line 1: column output_tokens is missing"),
        (GOOD + "soon,1,1\n", "line 5: arrival_s is 'soon'; it must be seconds from the start"),
        (GOOD + "nan,1,1\n", "line 5: arrival_s is 'nan'"),
        (HEADER + "-1,1,1\n", "line 2: arrival_s is '-1'"),
        (GOOD + "5,0,1\n", "line 5: input_tokens is '0'; it must be a whole number of tokens, 1 or more"),
        (GOOD + "5,3.5,1\n", "line 5: input_tokens is '3.5'"),
        (GOOD + "5,\u0663,1\n", "line 5: input_tokens is"),
        (GOOD + "5,3\n", "line 5: output_tokens is None"),
        (GOOD + "\n\n6,3,x\n", "line 7: output_tokens is 'x'"),
        (GOOD + "4.0,3,1\n", "line 5: arrival_s 4.0 lies before the line above; sort the trace by time"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "trace.csv", text)
    with pytest.raises(UsageError) as error:
        read_trace(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    whole = gzip.compress((HEADER + "0,1,1\n" * 5000).encode())
    broken = {"no.csv": None, "cut.csv.gz": whole[:-20], "plain.csv.gz": GOOD.encode(), "latin.csv": b"\xff\xfe"}
    for name, content in broken.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UsageError, match=f"{name} cannot be read as a trace"):
            read_trace(path)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan")])
def test_a_speed_is_positive(tmp_path: Path, speed: float) -> None:
    with pytest.raises(UsageError, match="speed is"):
        read_trace(write(tmp_path / "trace.csv", GOOD), speed=speed)


def test_poisson_load_is_a_function_of_its_seed() -> None:
    lengths = Lengths(100, 0.5, 1000)
    rows = poisson_trace(5.0, 50, lengths, lengths, seed=3)
    assert rows == poisson_trace(5.0, 50, lengths, lengths, seed=3)
    assert rows != poisson_trace(5.0, 50, lengths, lengths, seed=4)


def test_poisson_load_has_the_rate_and_the_lengths_it_was_asked_for() -> None:
    rows = poisson_trace(5.0, 4000, Lengths(334, 0.8, 100_000), Lengths(83, 0.0, 1000), seed=0)
    gaps = [later.at_s - row.at_s for row, later in itertools.pairwise(rows)]
    assert min(gaps) >= 0
    assert fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert fmean(gap**2 for gap in gaps) == pytest.approx(2 * 0.2**2, rel=0.15)  # exponential, not regular
    assert fmean(row.num_prompt for row in rows) == pytest.approx(334, rel=0.05)
    assert {row.num_output for row in rows} == {83}


def test_lengths_are_cut_to_what_a_model_holds() -> None:
    rows = poisson_trace(1.0, 500, Lengths(10, 3.0, 50), Lengths(1, 2.0, 50), seed=0)
    assert {row.num_prompt for row in rows} >= {1, 50}
    assert all(1 <= length <= 50 for row in rows for length in (row.num_prompt, row.num_output))


def test_a_rate_is_positive() -> None:
    with pytest.raises(UsageError, match=r"arrival rate is 0\.0"):
        poisson_trace(0.0, 1, Lengths(1, 0, 1), Lengths(1, 0, 1), seed=0)


def test_arrivals_ask_for_exactly_the_lengths_of_their_rows() -> None:
    slo = Slo(ttft_s=1.0)
    rows = [TraceRow(0.5, 40, 7), TraceRow(0.5, 1, 1)]
    arrivals = list(arrivals_of(rows, vocab_size=1000, slo=slo))
    assert [one.at_s for one in arrivals] == [0.5, 0.5]
    assert [len(one.request.prompt) for one in arrivals] == [40, 1]
    assert [one.request.sampling.max_tokens for one in arrivals] == [7, 1]
    assert all(one.request.sampling.ignore_eos and one.request.slo is slo for one in arrivals)
    assert len({one.request.id for one in arrivals}) == 2
    for one in arrivals:
        one.request.sampling.validate(1000)


def test_made_up_prompts_share_no_prefix_and_stay_in_the_vocabulary() -> None:
    prompts = [made_up_prompt(index, 5, vocab_size=10) for index in range(100)]
    assert len({prompt[:2] for prompt in prompts}) == 100
    assert len({prompt[0] for prompt in prompts[:10]}) == 10
    assert all(0 <= token < 10 for prompt in prompts for token in prompt)
