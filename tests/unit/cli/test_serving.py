"""`plait bench serving`: what is sent for which options, what is printed, and both kinds of targets."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tests.e2e.tiny_model import write_tiny_model
from tests.unit.cli.load.stub_server import Manner, StubServer

from plait.cli.load.words import whole_words
from plait.cli.main import main
from plait.cli.serving import SCHEMA, make_asks
from plait.config.load_options import Lengths, ServingOptions

Capture = pytest.CaptureFixture[str]
WORDS = ["the", "and", "for"]


def asks(**options: object) -> list[tuple[int, int, float]]:
    made = make_asks(ServingOptions(**options), WORDS, random.Random(0))  # type: ignore[arg-type]
    return [(len(one.prompt.split()), one.output_tokens, one.arrival_s) for one in made]


def test_lengths_are_drawn_from_their_range_and_the_same_for_one_seed() -> None:
    made = asks(requests=200, prompt_tokens=Lengths(5, 9), output_tokens=Lengths(3, 3))
    assert {prompt for prompt, _, _ in made} == {5, 6, 7, 8, 9}
    assert {(output, arrival) for _, output, arrival in made} == {(3, 0.0)}
    assert made == asks(requests=200, prompt_tokens=Lengths(5, 9), output_tokens=Lengths(3, 3))


def test_with_a_rate_arrivals_are_random_and_have_that_mean() -> None:
    arrivals = [arrival for _, _, arrival in asks(requests=2000, rate=4.0)]
    assert arrivals[0] == 0.0
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] / 1999 == pytest.approx(0.25, rel=0.1)


def serve(stub: StubServer, *more: str) -> list[str]:
    return ["bench", "serving", "--url", stub.url, "--quiet", "-n", "6", "--output-tokens", "4", *more]


def test_a_server_is_measured(capsys: Capture) -> None:
    with StubServer(Manner(gap_s=0.001, cached=2)) as stub:
        assert main(serve(stub, "--prompt-tokens", "7", "--warm-up", "2", "--ttft-slo", "60s", "--seed", "3")) == 0
        bodies = stub.bodies
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"http://127.0.0.1:{stub.port}/v1 (HTTP): 6 requests, 8 at a time"
    assert told[1].startswith("42 prompt tokens (12 from its cache), 24 output tokens in ")
    assert told[-1].endswith("requests/s, 100.0% kept TTFT within 60 s")
    assert len(bodies) == 2 + 6
    assert {body["model"] for body in bodies} == {"stub-model"}
    assert all(len(body["prompt"].split()) == 7 for body in bodies[2:])


def test_the_json_object_has_its_documented_fields(capsys: Capture) -> None:
    with StubServer() as stub:
        assert main(serve(stub, "--json", "--rate", "1000", "--model-name", "mine", "--e2e-slo", "1m")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == SCHEMA
    assert (found["target"]["model"], found["target"]["way"]) == ("mine", "HTTP")
    assert (found["load"]["rate_per_s"], found["load"]["concurrency"], found["load"]["requests"]) == (1000.0, None, 6)
    assert found["slo"] == {"ttft_s": None, "tpot_s": None, "e2e_s": 60.0}
    figures = found["figures"]
    assert (figures["num_requests"], figures["num_errors"], figures["output_tokens"]) == (6, 0, 24)
    assert set(figures["ttft"]) == {"p50_s", "p90_s", "p99_s", "max_s", "num_values"}
    assert figures["good_fraction"] == 1.0
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "benchmark.md").read_text(encoding="utf-8")
    for name in (*found, *found["load"], *figures):
        assert f"`{name}`" in guide, f"{name} is not explained in docs/guides/benchmark.md"


def test_a_server_that_ends_early_or_does_not_count_is_told(capsys: Capture) -> None:
    with StubServer(Manner(most_tokens=2, has_usage=False)) as stub:
        assert main(serve(stub)) == 0
    told = capsys.readouterr().out
    assert "SHORT: 6 answers ended before their number of tokens" in told
    assert "NOT COUNTED: 6 answers came without usage" in told


def test_errors_are_counted_and_no_good_answer_at_all_is_a_failure(capsys: Capture) -> None:
    with StubServer(Manner(breaks_after=1)) as stub:
        assert main(serve(stub, "--warm-up", "0")) == 1
    told = capsys.readouterr().out
    assert "ERRORS: 6 of 6 requests\n  6 x the connection ended in the middle" in told


def test_a_server_that_refuses_the_warm_up_is_no_run(capsys: Capture) -> None:
    with StubServer(Manner(status=404)) as stub:
        assert main(serve(stub, "--model-name", "m")) == 1
    assert "/v1 does not answer: HTTP 404: " in capsys.readouterr().err


def test_prompts_of_a_file_are_sent_in_their_order(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    with StubServer() as stub:
        assert main(serve(stub, "--prompts", str(file), "--warm-up", "0", "--concurrency", "1")) == 0
        assert [body["prompt"] for body in stub.bodies] == ["one", "two"] * 3
    file.write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    with StubServer() as stub:
        assert main(serve(stub, "--prompts", str(file))) == 2
        assert "--prompts has conversations, which go to --endpoint chat; give that" in capsys.readouterr().err
        assert main(serve(stub, "--prompts", str(file), "--endpoint", "chat")) == 0
        assert stub.bodies[-1]["messages"] == [{"role": "user", "content": "hi"}]


def test_a_model_in_this_process_is_measured(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    # A vocabulary of bytes has no words of one token.
    monkeypatch.setattr("plait.cli.load.open.whole_words", lambda encode: whole_words(None))
    command = ["bench", "serving", str(model), "--executor", "reference", "--quiet", "--json", "-n", "3"]
    assert main([*command, "--prompt-tokens", "4", "--output-tokens", "5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["target"] == {"label": "plait tiny", "way": "in process", "model": "tiny", "max_tokens": 256}
    assert (found["figures"]["output_tokens"], found["figures"]["num_uncounted"]) == (15, 0)
    assert main([*command, "--prompt-tokens", "4000"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["figures"]["num_errors"] == 3
    assert "256" in next(iter(found["figures"]["errors"]))


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--url", "nothing://x"], "--url 'nothing://x' is no address of a server"),
        (["--rate", "0"], "--rate is '0'; a number above 0 up to 1e+06 is expected"),
        (["--prompt-tokens", "9:3"], "--prompt-tokens is '9:3'; numbers from 1 to 16777216, the smaller first"),
        (["--output-tokens", "many"], "a number of tokens such as 128, or a range such as 64:256, is expected"),
        (["--ttft-slo", "soon"], "--ttft-slo is 'soon'; a time above 0 such as 0.5s, 500ms or 2m is expected"),
        (["--endpoint", "chat"], "--endpoint chat is about a server; name one with --url"),
    ],
)
def test_what_cannot_be_is_a_usage_error(argv: list[str], told: str, capsys: Capture) -> None:
    assert main(["bench", "serving", "--quiet", *argv]) == 2
    assert told in capsys.readouterr().err
