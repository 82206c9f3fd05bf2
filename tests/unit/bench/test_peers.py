"""Peers of the command line, and the output of llama.cpp's own programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.serving.contenders import LlamaProgram, Task, batched_rate, bench_rate
from bench.serving.peers import Peer, contender_of, parse_peer
from bench.serving.workloads import Sizes, workloads_named

HTTP = '{"label": "other Q8_0", "url": "http://127.0.0.1:8000", "arithmetic": "int8"}'


def test_a_peer_is_an_object_or_a_file_with_one(tmp_path: Path) -> None:
    file = tmp_path / "peer.json"
    file.write_text(HTTP)
    expected = Peer("other Q8_0", url="http://127.0.0.1:8000", arithmetic="int8")
    assert parse_peer(HTTP) == parse_peer(str(file)) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ('{"url": "http://h:1"}', 'a peer needs a label, e.g. {"label"'),
        ('{"label": "a"}', "peer 'a' has neither url nor llama_bench nor llama_batched_bench; give one"),
        ('{"label": "a", "adress": "x"}', "a peer has no field 'adress'; there are label, url, start"),
        ('{"label": "a", "url": 8000}', "url of a peer is 8000; str is expected"),
        ('{"label": "a", "url": "http://h:1", "arithmetic": "fp8"}', "arithmetic of 'a' is 'fp8'; choose from f32"),
    ],
)
def test_a_wrong_peer_names_the_field(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.split("{")[0].rstrip('"').replace("?", r"\?")) as caught:
        parse_peer(given)
    assert str(caught.value).startswith(message)


def test_a_row_names_file_precision_flags_and_way(tmp_path: Path) -> None:
    weights = tmp_path / "small.gguf"
    weights.write_bytes(b"x" * 1000)
    described = {"start": "serve --fast", "file": str(weights), "precision": "Q8_0"}
    peer = parse_peer(json.dumps(json.loads(HTTP) | described))
    facts = contender_of(peer, tmp_path / "log", None).facts
    assert (facts.way, facts.file, facts.precision, facts.flags) == ("HTTP", "small.gguf", "Q8_0", "serve --fast")
    assert (facts.weights.num_bytes, facts.weights.arithmetic) == (1000, "int8")
    assert contender_of(Peer("own", llama_bench="bench -m x"), tmp_path / "log", None).facts.way == "own program"


def test_rates_are_read_from_the_output_of_llama_cpps_programs() -> None:
    assert bench_rate('[{"n_prompt": 0, "n_gen": 128, "avg_ts": 61.5, "stddev_ts": 0.1}]') == 61.5
    lines = 'warming up\n{"n_kv_max": 64, "pp": 128, "tg": 128, "pl": 64, "t_pp": 20.0, "t_tg": 60.0, "t": 80.0}\n'
    assert batched_rate(lines) == pytest.approx(102.4)


def test_programs_that_fail_or_say_something_else_are_errors_of_their_rows(tmp_path: Path) -> None:
    contender = contender_of(Peer("own", llama_bench="false", llama_batched_bench="echo"), tmp_path / "log", None)
    assert isinstance(contender, LlamaProgram)
    task = Task(workloads_named("w1,w2,w3,w4"), Sizes(), (), 0)
    (sample,) = contender.visit(task, 0, 1)
    assert {name: figures.num_errors for name, figures in sample.items()} == {"W1": 1, "W2": 1, "W3": 1}
    assert sample["W1"].first_error.startswith("CalledProcessError: ")
    assert sample["W3"].first_error.startswith("IndexError: ")
