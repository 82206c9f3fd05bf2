"""`plait verify`: prompts from files, the judgement over answers, and the whole command on a tiny model."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.e2e.tiny_model import write_tiny_model
from tests.unit.engine.kit import INFO, ask

from plait.cli.main import main
from plait.cli.verify import Answer, Prompt, Verdict, judge, read_prompts
from plait.core.errors import UsageError
from plait.core.executor import ExecutorInfo
from plait.exec.native import presence

Capture = pytest.CaptureFixture[str]
EXACT = replace(INFO, bit_exact=True)
CLOSE = replace(INFO, bit_exact=False)
EXECUTORS = ("reference", *(() if presence.missing() else ("native",)))
SAID = Answer((1, 2, 3), (-0.5, -1.0, -1.5))


# Prompts


def prompts_of(tmp_path: Path, content: str | bytes) -> list[Prompt]:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_prompts(file)


def test_the_built_in_prompts_are_many_and_named() -> None:
    prompts = read_prompts(None)
    assert len(prompts) >= 64
    assert len({prompt.name for prompt in prompts}) == len(prompts)


def test_lines_with_messages_or_a_prompt_or_a_batch_body_are_understood(tmp_path: Path) -> None:
    lines = [
        '{"prompt": "raw text", "id": "first"}',
        "",
        '{"messages": [{"role": "user", "content": "hi"}]}',
        '{"custom_id": "third", "method": "POST", "url": "/v1/completions", "body": {"prompt": "raw"}}',
    ]
    assert prompts_of(tmp_path, "\n".join(lines)) == [
        Prompt("first", text="raw text"),
        Prompt("line 3", messages=({"role": "user", "content": "hi"},)),
        Prompt("third", text="raw"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty; give lines with messages or prompt"),
        ("\n  \n", "is empty"),
        ('{"prompt": "a"}\n{"prompt"\n', "line 2 is not JSON: "),
        (b'{"prompt": "\xff"}', "line 1 is not JSON: "),
        ("[" * 100_000, "line 1 is not JSON: "),
        ("[1, 2]", "line 1 has neither messages nor a prompt string; give one of them"),
        ('{"text": "a"}', "line 1 has neither messages nor a prompt string"),
        ('{"prompt": ["a", "b"]}', "line 1 has neither"),
        ('{"messages": "hi"}', "line 1 has neither"),
        ('{"body": "hi"}', "line 1 has neither"),
        ('{"messages": []}', "line 1: messages is empty"),
        ('{"prompt": "a"}\n{"messages": ["hi"]}', 'line 2: messages.0 is "hi" (a string)'),
        ('{"messages": [{"role": "assistant", "tool_calls": 5}]}', "line 1: messages.0.tool_calls is 5"),
    ],
)
def test_a_file_that_cannot_be_used_names_the_line(content: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        prompts_of(tmp_path, content)
    assert str(caught.value).startswith(f"--prompts {tmp_path}/prompts.jsonl")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file or directory; give an existing JSONL file"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="Is a directory"):
        read_prompts(tmp_path)


# Judgement


def verdict_of(
    *mixes: Sequence[Answer], executor: ExecutorInfo = EXACT, alone: Sequence[Answer] = (SAID, SAID)
) -> Verdict:
    requests = [ask(f"prompt {place}") for place in range(len(alone))]
    return judge(executor, requests, alone, mixes)


def off_by(distance: float) -> Answer:
    return replace(SAID, logprobs=(-0.5, -1.0 + distance, -1.5))


def test_equal_answers_keep_every_promise() -> None:
    for executor in (EXACT, CLOSE):
        verdict = verdict_of([SAID, SAID], [SAID, SAID], executor=executor)
        assert verdict.kept
        assert (verdict.num_answers, verdict.num_identical, verdict.num_bit_equal) == (4, 4, 4)
        assert (verdict.num_prompts, verdict.num_mixes, verdict.different) == (2, 2, ())
        assert "4/4 answers identical (bit for bit; largest difference" in verdict.sentence()
        assert verdict.sentence().endswith(": kept")


def test_other_tokens_break_every_promise_and_name_the_prompt_once() -> None:
    other = Answer((1, 2, 4), SAID.logprobs)
    for executor in (EXACT, CLOSE):
        verdict = verdict_of([SAID, other], [SAID, other], executor=executor)
        assert not verdict.kept
        assert (verdict.num_identical, verdict.different) == (2, ("prompt 1",))
        assert verdict.sentence().startswith("2/4 answers identical (2 bit for bit")
        assert verdict.sentence().endswith(": BROKEN")


def test_an_answer_that_is_shorter_is_another_answer() -> None:
    assert not verdict_of([SAID, Answer((1, 2), (-0.5, -1.0))]).kept


def test_a_bit_more_or_less_breaks_the_promise_of_bits_only() -> None:
    exact = verdict_of([SAID, off_by(1e-9)])
    assert (exact.kept, exact.num_identical, exact.num_bit_equal) == (False, 2, 1)
    assert "checked promise: equal bits: BROKEN" in exact.sentence()
    close = verdict_of([SAID, off_by(1e-9)], executor=CLOSE)
    assert close.kept
    assert close.max_logprob_difference == pytest.approx(1e-9)
    assert "equal tokens and log-probabilities within 0.0001: kept" in close.sentence()


@pytest.mark.parametrize(
    ("distance", "kept"), [(0.99e-4, True), (1.01e-4, False), (-1.01e-4, False), (math.nan, False)]
)
def test_the_tolerance_has_an_edge(distance: float, kept: bool) -> None:
    assert verdict_of([off_by(distance), SAID], executor=CLOSE).kept is kept


def test_equal_infinities_are_equal() -> None:
    never = Answer((1,), (-math.inf,))
    assert verdict_of([never], alone=[never], executor=CLOSE).max_logprob_difference == 0.0


# The whole command


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    shared = "The same long beginning of every prompt, so that the prefix index has work. "
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"id": f"p{n}", "prompt": f"{shared}{n}"}) + "\n" for n in range(6)))
    return file


def verify(tiny: Path, prompts: Path, *extra: str) -> int:
    return main(["verify", str(tiny), "--prompts", str(prompts), "--max-tokens", "6", "--quiet", *extra])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_answers_of_a_real_engine_do_not_depend_on_the_load(
    executor: str, tiny: Path, prompts: Path, capsys: Capture
) -> None:
    sizes = ("--mixes", "3", "--max-num-batched-tokens", "16", "--max-num-seqs", "3")
    assert verify(tiny, prompts, "--json", *sizes, "--executor", executor) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["num_answers"], verdict["num_identical"], verdict["kept"]) == (18, 18, True)
    assert verdict["promises_bits"] is (executor == "native")
    assert verdict["fingerprint"].startswith(f"{executor}-")


def test_the_number_of_prompts_is_limited_by_what_was_asked(tiny: Path, prompts: Path, capsys: Capture) -> None:
    assert verify(tiny, prompts, "-n", "2", "--mixes", "1") == 0
    assert capsys.readouterr().out.startswith("2/2 answers identical")


def test_the_report_says_what_runs_where(tiny: Path, prompts: Path, capsys: Capture) -> None:
    assert main(["verify", str(tiny), "--prompts", str(prompts), "--max-tokens", "2", "-n", "1"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 1
    words = [line.split()[0] for line in printed.err.splitlines() if line[:1].strip()]
    assert words[:4] == ["model", "memory", "executor", "numerics"]
    assert "64.0 sequences of full length" in printed.err


def test_a_prompt_that_does_not_fit_is_named(tiny: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"id": "too long", "prompt": "x" * 300}))
    assert verify(tiny, file) == 1
    assert capsys.readouterr().err.startswith(
        "plait: prompt too long: the prompt has 300 tokens but this model holds 256"
    )


def test_a_message_that_the_model_cannot_read_names_the_line(tiny: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "roles.jsonl"
    file.write_text('{"prompt": "a"}\n\n{"messages": [{"role": "wizard", "content": "x"}]}\n')
    assert verify(tiny, file) == 2
    assert capsys.readouterr().err.startswith(
        f"plait: --prompts {file}, line 3: messages.0.role is 'wizard'; use one of"
    )


def test_a_model_that_is_none_is_one_line(tmp_path: Path, prompts: Path, capsys: Capture) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 20)
    assert verify(broken, prompts) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_an_interrupt_ends_it_in_one_line(tiny: Path, prompts: Path) -> None:
    code = "import sys; from plait.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "verify", str(tiny), "--prompts", str(prompts), "--mixes", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = ""
        while not line.startswith("numerics"):
            line = process.stderr.readline()
            assert line, "it ended by itself"
        process.stderr.read(1)  # the bar has begun, and so has the work
        process.send_signal(signal.SIGINT)
        printed, words = process.communicate(timeout=60)
    assert process.returncode == 130
    assert printed == ""
    assert "Traceback" not in words
    assert words.splitlines()[-1] == "plait: interrupted"
