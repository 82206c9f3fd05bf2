"""Forms: every kind of file is known by its content and read as what it says; small files are in tests/data/traces."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from plait.config.sim_options import FORMS
from plait.core.errors import UsageError
from plait.sim.traces.forms import FORM_NAMES, Reading, TraceForm, open_trace
from plait.sim.traces.request import TraceRequest

DATA = Path(__file__).parents[3] / "data" / "traces"
SAMPLES = {
    "azure_code.csv": (TraceForm.CSV, 300),
    "azure_conv.csv.gz": (TraceForm.CSV, 200),
    "lengths_arxiv.csv": (TraceForm.CSV, 100),
    "lengths_lmsys.csv": (TraceForm.CSV, 100),
    "lengths_sharegpt.csv": (TraceForm.CSV, 200),
    "servegen_reasoning.csv": (TraceForm.CSV, 120),
    "servegen_image.jsonl": (TraceForm.JSONL, 100),
    "mooncake_conversation.jsonl.gz": (TraceForm.MOONCAKE, 120),
    "agents.jsonl": (TraceForm.AGENTS, 16),
    "gsm8k.jsonl.gz": (TraceForm.BATCH, 12),
    "vllm_benchmark.json": (TraceForm.BENCHMARK, 3),
    "vllm.log": (TraceForm.VLLM_LOG, 3),
    "vllm_json.log": (TraceForm.VLLM_LOG, 2),
    "sglang.log": (TraceForm.SGLANG_LOG, 2),
    "sglang.jsonl": (TraceForm.SGLANG_LOG, 3),
    "litellm.json": (TraceForm.LITELLM, 2),
}


def read(path: Path, form: str = "auto") -> list[TraceRequest]:
    return list(open_trace(path, form).requests())


def put(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", SAMPLES)
def test_every_form_is_known_by_its_content_and_read_to_its_end(name: str) -> None:
    form, count = SAMPLES[name]
    trace = open_trace(DATA / name)
    found = list(trace.requests())
    assert (trace.form, len(found)) == (form, count)
    assert list(trace.requests()) == found, "a second reading is like the first"
    assert list(open_trace(DATA / name, str(form)).requests()) == found
    times = [one.at_s for one in found if one.at_s is not None]
    assert times == sorted(times)


def test_every_form_can_be_named_on_the_command_line() -> None:
    assert ("auto", *FORM_NAMES) == FORMS
    assert {form for form, _ in SAMPLES.values()} == set(TraceForm), "and each has a sample"


def test_names_and_compression_do_not_matter(tmp_path: Path) -> None:
    plain = (DATA / "azure_code.csv").read_bytes()
    (tmp_path / "log").write_bytes(plain)
    (tmp_path / "packed").write_bytes(gzip.compress(plain))
    assert read(tmp_path / "log") == read(tmp_path / "packed") == read(DATA / "azure_code.csv")


def test_a_csv_is_read_by_the_names_of_its_columns(tmp_path: Path) -> None:
    ours = put(tmp_path, "a.csv", "output_tokens,client,arrival_s,input_tokens\n9,3,1.5,20\n")
    assert read(ours) == [TraceRequest(1.5, 20, 9, client="3")]
    azure = put(
        tmp_path,
        "b.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
    )
    first, second = read(azure)
    assert (first.num_prompt, first.num_output, second.num_output) == (374, 44, 109)
    assert second.at_s is not None
    assert first.at_s is not None
    assert second.at_s - first.at_s == pytest.approx(4.314579, abs=1e-5)
    burst = put(
        tmp_path,
        "c.csv",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n",
    )
    assert read(burst) == [TraceRequest(5.0, 472, 18)]


def test_lengths_alone_have_no_times() -> None:
    assert {one.at_s for one in read(DATA / "lengths_sharegpt.csv")} == {None}


def test_mooncake_files_are_read_as_published_and_spread_over_their_clock(tmp_path: Path) -> None:
    line = '{"timestamp": %d, "input_length": 600, "output_length": 5, "hash_ids": [7, %d]}\n'
    path = put(tmp_path, "trace.jsonl", line % (0, 1) + line % (0, 2) + line % (0, 3) + line % (3000, 4))
    trace = open_trace(path)
    found = list(trace.requests())
    assert [one.at_s for one in found] == [0.0, 1.0, 2.0, 3.0]
    assert [one.blocks for one in found] == [(7, 1), (7, 2), (7, 3), (7, 4)]
    assert {one.block_tokens for one in found} == {512}
    assert trace.notes == ["requests of one moment are spread over the 3 s of the file's clock"]
    kept = open_trace(path, reading=Reading(keep_bursts=True))
    assert [one.at_s for one in kept.requests()] == [0.0, 0.0, 0.0, 3.0]


def test_image_tokens_are_part_of_the_prompt(tmp_path: Path) -> None:
    line = '{"arrival_s":0,"output_tokens":19,"text_tokens":106,"image_tokens":[1250,30],"input_tokens":%d}\n'
    assert read(put(tmp_path, "a.jsonl", line % 1386))[0].num_prompt == 1386
    with pytest.raises(UsageError, match="line 1: input_tokens is 1356; text and images have 1386 tokens together"):
        read(put(tmp_path, "b.jsonl", line % 1356))


def test_common_names_and_units_of_logs_are_understood(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "log.jsonl",
        '{"ts": 1767225600000, "usage": {"prompt_tokens": 5, "completion_tokens": 2}}\n'
        '{"ts": "2026-01-01T00:00:01.5Z", "prompt_len": 6, "output_len": 3}\n',
    )
    assert [(one.at_s, one.num_prompt, one.num_output) for one in read(path)] == [
        (1767225600.0, 5, 2),
        (1767225601.5, 6, 3),
    ]


def test_a_session_of_an_agent_waits_and_shares_its_blocks() -> None:
    found = read(DATA / "agents.jsonl")
    opening, second = found[0], found[1]
    assert opening.think_s is None
    assert (second.session, second.think_s) == (opening.session, 7.0)
    assert second.blocks[:2130] == opening.blocks
    assert second.block_tokens == 64
    others = [one for one in found if one.session != opening.session]
    assert not set(others[0].blocks) & set(opening.blocks), "names are local to a session"
    capped = open_trace(DATA / "agents.jsonl", reading=Reading(think_limit_s=1.0))
    assert max(one.think_s or 0.0 for one in capped.requests()) == 1.0


def test_a_prompt_set_is_there_at_once_and_shares_what_its_prompts_share() -> None:
    found = read(DATA / "gsm8k.jsonl.gz")
    assert {one.at_s for one in found} == {0.0}
    assert {one.num_output for one in found} == {256}
    assert 500 < found[0].num_prompt < 1100, "863 tokens on average, counted without a tokenizer"
    common = min(len([1 for a, b in zip(one.blocks, found[0].blocks, strict=False) if a == b]) for one in found)
    assert common > 30, "eight examples stand before each question"


def test_a_benchmark_keeps_its_start_times_and_loses_what_failed() -> None:
    trace = open_trace(DATA / "vllm_benchmark.json")
    assert [(one.at_s, one.num_prompt, one.num_output) for one in trace.requests()] == [
        (0.0, 100, 20),
        (1.25, 90, 10),
        (1.75, 80, 30),
    ]
    assert trace.notes == ["1 requests were left out: they failed"]


def test_a_benchmark_without_start_times_is_played_at_its_rate(tmp_path: Path) -> None:
    text = '{"request_rate": %s, "input_lens": [5, 6, 7], "output_lens": [1, 2, 3]}\n'
    trace = open_trace(put(tmp_path, "a.json", text % "4.0"))
    found = list(trace.requests())
    assert found[0].at_s == 0.0
    assert all(one.at_s is not None and one.at_s < 5 for one in found)
    assert "drawn at its rate of 4 requests a second" in trace.notes[0]
    assert list(open_trace(trace.path, reading=Reading(seed=1)).requests()) != found
    at_once = open_trace(put(tmp_path, "b.json", text % '"inf"'))
    assert {one.at_s for one in at_once.requests()} == {0.0}


def test_a_benchmark_over_several_lines_or_runs_is_read(tmp_path: Path) -> None:
    pretty = put(tmp_path, "a.json", '{\n "input_lens": [5],\n "output_lens": [2],\n "start_times": [1.0]\n}\n')
    assert read(pretty) == [TraceRequest(0.0, 5, 2)]
    runs = put(
        tmp_path,
        "b.jsonl",
        '{"input_lens": [1], "output_lens": [1], "start_times": [0]}\n{"input_lens": [8], "output_lens": [9], '
        '"start_times": [0]}\n',
    )
    assert read(runs) == [TraceRequest(0.0, 8, 9)]


def test_a_vllm_log_gives_prompts_answers_and_what_they_share() -> None:
    trace = open_trace(DATA / "vllm.log")
    first, second, third = trace.requests()
    assert (first.num_prompt, first.num_output, second.num_prompt, second.num_output) == (48, 2, 35, 5)
    assert (first.at_s, second.at_s) == (0.0, 0.5), "two in one second of the log"
    assert third.at_s == 4.0, "over New Year"
    assert first.blocks[:2] == second.blocks
    assert third.num_output == 20
    assert trace.notes[1:] == [
        "1 answers are not in the log; each is taken to be as long as it may be",
        "1 requests were left out: without a number of prompt tokens",
    ]


def test_a_vllm_log_of_json_lines_is_read_alike() -> None:
    assert [(one.at_s, one.num_prompt, one.num_output) for one in read(DATA / "vllm_json.log")] == [
        (0.0, 4, 30),
        (1.5, 3, 9),
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sglang.log", [(0.0, 40, 77), (2.0, 33, 5)]),
        ("sglang.jsonl", [(0.0, 412, 38), (1.5, 3, 2), (2.4, 10, 4)]),
    ],
)
def test_an_sglang_log_gives_lengths_and_arrivals(name: str, expected: list[tuple[float, int, int]]) -> None:
    found = read(DATA / name)
    assert [(one.num_prompt, one.num_output) for one in found] == [(prompt, output) for _, prompt, output in expected]
    assert [one.at_s for one in found] == pytest.approx([at_s for at_s, _, _ in expected])
    if name == "sglang.log":
        assert found[1].blocks == found[0].blocks


def test_spend_logs_come_in_any_order_and_wrapping(tmp_path: Path) -> None:
    trace = open_trace(DATA / "litellm.json")
    found = list(trace.requests())
    assert [(one.at_s, one.num_prompt, one.num_output) for one in found] == [(0.0, 100, 20), (9.5, 900, 40)]
    assert sorted(trace.notes) == [
        "1 requests were left out: it failed",
        "1 requests were left out: with no tokens",
    ]
    text = (DATA / "litellm.json").read_text()
    assert read(put(tmp_path, "page.json", f'{{"data": {text}}}')) == found
    lines = "\n".join(json.dumps(one) for one in json.loads(text))
    assert read(put(tmp_path, "rows.jsonl", lines)) == found


GOOD = "arrival_s,input_tokens,output_tokens\n0.0,374,44\n4.3,396,109\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "", "is empty; a trace has at least one request"),
        ("a.csv", "arrival_s,input_tokens\n0,1\n", "line 1: column output_tokens is missing"),
        ("a.csv", GOOD + "soon,1,1\n", "line 4: arrival_s is 'soon'; it must be a date"),
        ("a.csv", GOOD + "nan,1,1\n", "line 4: arrival_s is 'nan'"),
        ("a.csv", GOOD + "-1,1,1\n", "line 4: arrival_s is '-1'"),
        ("a.csv", GOOD + "1e300,1,1\n", "line 4: arrival_s is '1e300'; it must be a number of seconds"),
        ("a.csv", GOOD + "5,0,1\n", "line 4: input_tokens is '0'; it must be a whole number of tokens, 1 or more"),
        ("a.csv", GOOD + "5,3.5,1\n", "line 4: input_tokens is '3.5'"),
        ("a.csv", GOOD + "5,\u0663,1\n", "line 4: input_tokens is"),
        ("a.csv", GOOD + "5,3\n", "line 4: output_tokens is None"),
        ("a.csv", GOOD + "\n\n6,3,x\n", "line 6: output_tokens is 'x'"),
        ("a.csv", GOOD + "4.0,3,1\n", "line 4: arrival_s 4.0 lies before the line above; sort the trace by time"),
        ("a.csv", GOOD + "5,99999999999999,1\n", "line 4: input_tokens is '99999999999999'"),
        ("a.txt", "hello there\n", "is in no known form: it begins 'hello there"),
        ("a.jsonl", '{"input_tokens": 5, "output_tokens": 2}\n{"input_tokens": 5\n', "line 2 is not JSON"),
        ("a.jsonl", '{"input_tokens": 5, "output_tokens": 2}\n[1]\n', "line 2 is not a JSON object but list"),
        ("a.jsonl", '{"input_tokens": 5}\n', "line 1: output_tokens is missing; a request needs it"),
        ("a.jsonl", '{"input_tokens": true, "output_tokens": 2}\n', "line 1: input_tokens is True"),
        ("a.jsonl", '{"input_tokens": 5, "output_tokens": 2, "hash_ids": [1, -2]}\n', "line 1: hash_ids is [1, -2]"),
        ("a.jsonl", '{"arrival_s": 1e400, "input_tokens": 5, "output_tokens": 2}\n', "line 1: arrival_s is inf"),
        ("a.jsonl", '{"arrival_s": 1e300, "input_tokens": 5, "output_tokens": 2}\n', "line 1: arrival_s is 1e+300"),
        ("a.jsonl", '{"think_s": 1e300, "input_tokens": 5, "output_tokens": 2}\n', "line 1: think_s is 1e+300"),
        ("a.jsonl", '{"timestamp": 1e300, "input_length": 5, "output_length": 2}\n', "line 1: timestamp is 1e+300"),
        ("a.jsonl", '{"session": "s", "block_size": 64, "requests": []}\n', "line 1: requests is []"),
        (
            "a.jsonl",
            '{"session": "s", "block_size": 64, "requests": [{"in": 5, "out": 2, "blocks": [[3, 1]]}]}\n',
            "line 1: requests[0].blocks is [3, 1]; each must be a range",
        ),
        (
            "a.jsonl",
            '{"session": "s", "block_size": 64, "requests": [{"in": 5}]}\n',
            "line 1: requests[0].out is missing",
        ),
        (
            "a.jsonl",
            '{"custom_id": "a", "body": {"max_tokens": 5}}\n',
            "line 1: body has neither messages nor a prompt",
        ),
        (
            "a.jsonl",
            '{"custom_id": "a", "body": {"prompt": ["hi", "you"], "max_tokens": 5}}\n',
            "line 1: body.prompt is ['hi', 'you']; one prompt a line is replayed here",
        ),
        (
            "a.jsonl",
            '{"custom_id": "a", "body": {"prompt": "hi", "max_tokens": "five"}}\n',
            "line 1: max_tokens is 'five'",
        ),
        ("a.json", '[{"prompt": 1}]', "is a JSON array, but not one of LiteLLM's spend logs"),
        (
            "a.json",
            '[{"startTime": "yesterday", "prompt_tokens": 1, "completion_tokens": 1}]',
            "element 1: startTime is 'yesterday'; it must be a date",
        ),
        (
            "a.json",
            '[{"startTime": "2026-01-01", "prompt_tokens": 1, "completion_tokens": 1}, {"startTime": 4',
            "element 2 of the array is not JSON",
        ),
        ("a.json", '{"input_lens": [1, 2], "output_lens": [1]}', "output_lens is '1 values'; it must have 2"),
        ("a.json", '{"total_input_tokens": 3, "duration": 1}', "input_lens is missing; save the result with"),
        ("a.log", "INFO 02-30 10:00:00 x] Received request a: prompt_token_ids: [1], max_tokens=4\n", "no such day"),
        ("a.log", "INFO 02-03 10:00:00 x] Received request a: params: None\n", "holds no request that can be replayed"),
        ("a.log", "[2026-01-01 10:00:00] Receive: obj=Gen(rid='a')\n", "start SGLang with --log-requests"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = put(tmp_path, name, text)
    with pytest.raises(UsageError) as error:
        read(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_small_times_may_be_written_with_an_exponent(tmp_path: Path) -> None:
    text = "arrival_s,input_tokens,output_tokens\n5e-05,1,1\n1.5E1,1,1\n"
    assert [one.at_s for one in read(put(tmp_path, "a.csv", text))] == [5e-5, 15.0]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_line_without_an_end_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr("plait.sim.traces.lines.MAX_LINE", 1000)
    first = '{"input_tokens": 5, "output_tokens": 2}' if form == "jsonl" else "input_tokens,output_tokens"
    with pytest.raises(UsageError, match="line 2 has more than 1,000 characters"):
        read(put(tmp_path, "a", first + "\n" + "0" * 2000), form)


def test_what_can_be_read_only_once_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(UsageError, match="is no regular file, and a trace is read more than once"):
        read(tmp_path / "pipe.csv")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    whole = gzip.compress((GOOD + "9,1,1\n" * 60_000).encode())
    contents = {"cut.csv.gz": whole[:-20], "plain.csv.gz": GOOD.encode()}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for name in ("no.csv", *contents, "."):
        with pytest.raises(UsageError, match="cannot be read as a trace"):
            read(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("first.csv", b"", b"\xff\xfe\n"),
        ("trace.csv", b"arrival_s,input_tokens,output_tokens\n0,10,4\n", b"1\xff,10,4\n"),
        (
            "trace.jsonl",
            b'{"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [1]}\n' * 2,
            b'{"\xff": 1}\n',
        ),
    ],
)
def test_a_byte_that_is_no_text_is_named_with_its_line(name: str, good: bytes, bad: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(good + bad)
    number = good.count(b"\n") + 1
    with pytest.raises(UsageError, match=rf"{name}, line {number} is no UTF-8 text: it has the byte 0xff"):
        list(open_trace(path).requests())
