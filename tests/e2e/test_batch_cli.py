"""`plait batch` as a user runs it: command, files, signals, exit codes. The engine is the real one, the model tiny."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.tiny_model import write_tiny_model

from plait.api.bodies import JsonObject, JsonValue
from plait.cli.main import main
from plait.config.places import calibration_file

MANY = 60
"""Lines of a run that is to be caught at work, besides the endless ones."""
ENDLESS = 4
"""So many lines run at the same time, and in the middle of the input are as many that do not end by themselves."""
ENDLESS_TOKENS = 100_000
ROOMY_CONTEXT = 1 << 17
ENDED = ("--max-model-len", "256")
"""With it endless lines are refused, and the others run."""
PLAIT = [sys.executable, "-c", "import sys; from plait.cli.main import main; sys.exit(main())"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


def completion_line(custom_id: str, prompt: JsonValue, **body: JsonValue) -> JsonObject:
    full: JsonObject = {"model": "tiny", "prompt": prompt, "temperature": 0, "ignore_eos": True, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": full}


def many_lines(count: int, max_tokens: int = 24) -> list[JsonObject]:
    shared = "The same long beginning, so that later lines find it in the prefix index. "
    return [completion_line(f"id-{n}", f"{shared}{n:04}", max_tokens=max_tokens) for n in range(count)]


def lines_to_be_caught_at() -> list[JsonObject]:
    """Whatever the machine does meanwhile, a run of these is not over when somebody comes to end it."""
    lines = many_lines(MANY)
    endless = [completion_line(f"endless-{n}", f"on and on {n}", max_tokens=ENDLESS_TOKENS) for n in range(ENDLESS)]
    return [*lines[: MANY // 2], *endless, *lines[MANY // 2 :]]


def write_lines(path: Path, lines: list[JsonObject]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def command(folder: Path, model: Path, *extra: str) -> list[str]:
    names = ["-i", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl"), "-m", str(model)]
    return [*PLAIT, "batch", *names, "--json", "--quiet", *extra]


def batch(folder: Path, model: Path, *extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, model, *extra), capture_output=True, text=True, timeout=100)


@contextmanager
def running_batch(folder: Path, model: Path, *extra: str) -> Iterator[subprocess.Popen[str]]:
    """A run of `lines_to_be_caught_at` that has at least one line on the disk, and half of them to go."""
    write_lines(folder / "in.jsonl", lines_to_be_caught_at())
    partial = folder / "out.jsonl.partial"
    arguments = command(folder, model, "--max-in-flight", str(ENDLESS), *extra)
    with subprocess.Popen(arguments, stdout=-1, stderr=-1, text=True) as process:
        try:
            give_up = time.monotonic() + 60
            while not (partial.exists() and b"\n" in partial.read_bytes()):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < give_up
                time.sleep(0.005)
            yield process
        finally:
            process.kill()


def answers(folder: Path) -> dict[str, JsonValue]:
    """What each line was answered, without what tells one run from another."""
    found: dict[str, JsonValue] = {}
    for line in (folder / "out.jsonl").read_text().splitlines():
        output = json.loads(line)
        assert output["custom_id"] not in found
        body = output["response"]["body"]
        found[output["custom_id"]] = [choice["text"] for choice in body["choices"]] if "choices" in body else body
    return found


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with room for endless lines."""
    return write_tiny_model(tmp_path_factory.mktemp("roomy") / "tiny.gguf", context=ROOMY_CONTEXT)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> dict[str, JsonValue]:
    """The answers to `many_lines(MANY)` of a run that nothing disturbed, one line at a time."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_lines(folder / "in.jsonl", many_lines(MANY))
    assert batch(folder, tiny, "--max-in-flight", "1").returncode == 0
    found = answers(folder)
    assert len({str(answer) for answer in found.values()}) > 30
    return found


def test_a_file_is_answered_and_summed_up(tmp_path: Path, tiny: Path) -> None:
    chat: JsonObject = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "logprobs": True}
    lines: list[JsonObject] = [
        {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": chat},
        completion_line("list", ["one", "two"], n=2, max_tokens=4, logprobs=2, return_token_ids=True),
        completion_line("bad", "x", max_tokens=0),
        completion_line("long", "x" * 300),
    ]
    write_lines(tmp_path / "in.jsonl", lines)
    done = batch(tmp_path, tiny)
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert summary["lines"] == {"total": 4, "completed": 2, "failed": 2, "resumed": 0, "folded": 0}
    outputs = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [output["response"]["status_code"] for output in outputs] == [200, 200, 400, 400]
    chat_body, list_body = outputs[0]["response"]["body"], outputs[1]["response"]["body"]
    assert chat_body["model"] == "tiny"
    assert chat_body["system_fingerprint"] == summary["numerics_fingerprint"]
    assert len(chat_body["choices"][0]["logprobs"]["content"]) == chat_body["usage"]["completion_tokens"]
    assert [choice["index"] for choice in list_body["choices"]] == [0, 1, 2, 3]
    assert list_body["usage"]["completion_tokens"] == 16
    for choice in list_body["choices"]:
        assert {len(values) for values in choice["logprobs"].values()} == {4}
        assert len(choice["token_ids"]) == 4
    assert outputs[3]["response"]["body"]["error"]["code"] == "context_length_exceeded"


def test_many_at_once_answer_as_each_alone_and_find_the_common_beginning(
    tmp_path: Path, tiny: Path, undisturbed: dict[str, JsonValue]
) -> None:
    write_lines(tmp_path / "in.jsonl", many_lines(MANY))
    done = batch(tmp_path, tiny, "--max-in-flight", str(MANY))
    assert done.returncode == 0
    assert answers(tmp_path) == undisturbed
    assert json.loads(done.stdout)["run"]["prefix_hit_fraction"] > 0.5


def test_kill_minus_nine_and_the_same_command_again(
    tmp_path: Path, roomy: Path, undisturbed: dict[str, JsonValue]
) -> None:
    with running_batch(tmp_path, roomy) as process:
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "out.jsonl").exists()
    again = batch(tmp_path, roomy, *ENDED)
    assert again.returncode == 0
    lines = json.loads(again.stdout)["lines"]
    assert (lines["completed"], lines["failed"]) == (MANY, ENDLESS)
    assert 0 < lines["resumed"] <= MANY // 2
    assert without_the_endless(answers(tmp_path)) == undisturbed
    once_more = batch(tmp_path, roomy, *ENDED)
    assert (once_more.returncode, json.loads(once_more.stdout)["lines"]["resumed"]) == (0, MANY + ENDLESS)


def test_an_interrupt_stops_in_good_order_without_a_trace(
    tmp_path: Path, roomy: Path, undisturbed: dict[str, JsonValue]
) -> None:
    with running_batch(tmp_path, roomy) as process:
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    summary = json.loads(printed)
    assert summary["interrupted_by"] == "SIGINT"
    assert 0 < summary["lines"]["completed"] <= MANY // 2
    assert batch(tmp_path, roomy, *ENDED).returncode == 0
    assert without_the_endless(answers(tmp_path)) == undisturbed


def without_the_endless(found: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {custom_id: answer for custom_id, answer in found.items() if not custom_id.startswith("endless")}


def test_standard_input_is_an_input(tmp_path: Path, tiny: Path) -> None:
    line = json.dumps(completion_line("a", "x", max_tokens=2))
    arguments = [*PLAIT, "batch", "-i", "-", "-o", str(tmp_path / "out.jsonl"), "-m", str(tiny), "--quiet"]
    done = subprocess.run(arguments, input=line, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(answers(tmp_path)) == 1


def test_trouble_is_one_line_and_an_exit_code(tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def trouble(*extra: str) -> tuple[int, str]:
        code = main(command(tmp_path, tiny, *extra)[len(PLAIT) :])
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("plait: ")
        assert printed.err.count("\n") == 1
        return code, printed.err

    assert trouble()[0] == 2
    write_lines(tmp_path / "in.jsonl", [completion_line("a", "x")])
    code, message = trouble("-o", "/proc/out.jsonl")
    assert (code, "cannot be created or opened" in message) == (1, True)
    (tmp_path / "out.jsonl").write_text("precious")
    code, message = trouble()
    assert (code, "--restart" in message) == (2, True)
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(tiny.read_bytes()[:2000])
    (tmp_path / "out.jsonl").unlink()
    assert trouble("-m", str(damaged))[0] == 1
    assert trouble("--frobnicate")[0] == 2


def test_strict_fails_early_for_a_bad_line(tmp_path: Path, tiny: Path) -> None:
    write_lines(tmp_path / "in.jsonl", [completion_line("a", "x"), completion_line("a", "y")])
    done = batch(tmp_path, tiny, "--strict")
    assert done.returncode == 2
    assert "line 2: custom_id 'a' is already used on line 1" in done.stderr
    assert os.listdir(tmp_path) == ["in.jsonl"]


def test_an_input_named_like_a_file_of_the_job_is_kept(
    tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for suffix in (".new", ".partial", ".ledger", ".ledger-wal", ".ledger-shm", ".ledger-journal"):
        source = write_lines(tmp_path / f"out.jsonl{suffix}", [completion_line("a", "x")])
        before = source.read_bytes()
        assert main(command(tmp_path, tiny, "-i", str(source))[len(PLAIT) :]) == 2
        assert "is the input itself" in capsys.readouterr().err
        assert source.read_bytes() == before
        source.unlink()


def test_other_weights_of_the_same_name_do_not_go_on_with_a_job(tmp_path: Path, tiny: Path) -> None:
    write_lines(tmp_path / "in.jsonl", [completion_line("a", "x", max_tokens=2)])
    assert batch(tmp_path, tiny).returncode == 0
    other = tmp_path / "tuned" / tiny.name
    other.parent.mkdir()
    weights = bytearray(tiny.read_bytes())
    weights[-4] ^= 1
    other.write_bytes(weights)
    done = batch(tmp_path, other)
    assert (done.returncode, "other weights that are called 'tiny' too" in done.stderr) == (2, True)
    assert batch(tmp_path, other, "--restart").returncode == 0


def test_a_name_that_is_no_utf8_and_an_input_that_is_closed(tmp_path: Path, tiny: Path) -> None:
    write_lines(tmp_path / "in.jsonl", [completion_line("a", "x", max_tokens=2)])
    done = batch(tmp_path, tiny, "-o", os.fsdecode(bytes(tmp_path) + b"/\xff.jsonl"))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["output"] == f"{tmp_path}/\\xff.jsonl"
    closed = ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *command(tmp_path, tiny, "-i", "-")]
    done = subprocess.run(closed, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "standard input is closed" in done.stderr


def test_a_calibration_that_cannot_be_read_is_a_warning_for_whoever_orders(tiny: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", [completion_line("a", "x", max_tokens=2)])
    cache = tmp_path / "cache"
    calibration_file(cache).parent.mkdir(parents=True)
    calibration_file(cache).write_text('{"schema": "plait-hardware/999"}')
    for extra in (["--order", "auto", "--restart"], ["--order", "blend", "--restart"], ["--plan-only"]):
        done = batch(tmp_path, tiny, "--cache-dir", str(cache), *extra)
        assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
        assert done.stderr.startswith("warning: ")
        assert str(calibration_file(cache)) in done.stderr
    assert batch(tmp_path, tiny, "--cache-dir", str(cache), "--scheduler", "bullet", "--restart").returncode == 2


def test_a_plan_says_what_each_order_takes_and_runs_nothing(tiny: Path, tmp_path: Path) -> None:
    lines = [completion_line(f"id-{n}", f"{f'Subject {n % 7}. ' * 8}{n}", max_tokens=2 + n % 3) for n in range(70)]
    write_lines(tmp_path / "in.jsonl", [*lines, {"custom_id": "faulty"}])
    memory = ["--kv-cache-memory", "72KiB"]
    planned = batch(tmp_path, tiny, "--plan-only", *memory)
    assert planned.returncode == 0, planned.stderr
    refused = batch(tmp_path, tiny, "--plan-only", "--strict")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--strict is for a run, and --plan-only runs nothing" in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]
    plan = json.loads(planned.stdout)
    assert (plan["lines"], plan["faulty_lines"], plan["lines_of_known_length"]) == (71, 1, 70)
    assert plan["output_tokens_at_most"] == sum(2 + n % 3 for n in range(70))
    assert sum(plan["density_histogram"]) == 70
    assert set(plan["orders"]) == {"input", "random", "dfs", "bfs", "density", "blend"}
    for run in plan["orders"].values():
        assert run["seconds"] > 0
        assert sum(run["limits"].values()) == pytest.approx(1.0)
    assert plan["orders"]["dfs"]["prefix_hit_fraction"] > plan["orders"]["input"]["prefix_hit_fraction"] + 0.1
    assert plan["bound_seconds"] <= min(run["seconds"] for run in plan["orders"].values())
    outputs = []
    for order in ("input", "auto"):
        arguments = command(tmp_path, tiny, "--restart", "--order", order, *memory)
        arguments.remove("--quiet")
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        told = [line for line in done.stderr.splitlines() if "the forecast says input" in line]
        assert len(told) == (order == "auto")
        answers = [json.loads(line)["response"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        outputs.append([answer and answer["body"]["choices"] for answer in answers])
    assert outputs[0] == outputs[1]


def test_shards_are_the_whole_together_and_each_knows_which_it_is(tiny: Path, tmp_path: Path) -> None:
    """Also with twins, which stay together, and lines that cannot be served."""
    lines = [
        completion_line(f"id-{n}", f"{f'Subject {n % 60 % 7}. ' * 8}{n % 60}", max_tokens=2 + n % 3) for n in range(70)
    ]
    lines += [completion_line(f"long-{n}", f"Tell {n}", max_tokens=40) for n in range(3)]
    lines.insert(5, {"custom_id": "faulty"})
    write_lines(tmp_path / "in.jsonl", lines)
    assert batch(tmp_path, tiny).returncode == 0
    whole = {line["custom_id"]: line for line in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())}
    plan = json.loads(batch(tmp_path, tiny, "--plan-only", "--shard", "1/3").stdout)
    assert [shard["shard"] for shard in plan["shards"]] == ["1/3", "2/3", "3/3"]
    assert (plan["lines"], plan["faulty_lines"], plan["folded_lines"]) == (74, 1, 10)
    found: dict[str, JsonObject] = {}
    for number in (1, 2, 3):
        folder = tmp_path / f"machine-{number}"
        folder.mkdir()
        write_lines(folder / "in.jsonl", lines)
        order = ("input", "blend", "auto")[number - 1]
        # What machines differ in does not move a line.
        memory = f"{number}MiB"
        done = batch(folder, tiny, "--shard", f"{number}/3", "--order", order, "--kv-cache-memory", memory)
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        assert (summary["shard"], summary["lines"]["total"]) == (f"{number}/3", plan["shards"][number - 1]["lines"])
        mine = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
        assert summary["lines"]["total"] == len(mine)
        assert not {line["custom_id"] for line in mine} & found.keys()
        found |= {line["custom_id"]: line for line in mine}
    assert {name: text_of(line) for name, line in found.items()} == {
        name: text_of(line) for name, line in whole.items()
    }
    folder = tmp_path / "machine-2"
    for shard, reason in (
        ("1/3", "was begun as shard 2/3, now it is shard 1/3"),
        ("2/4", "shard 2/3, now it is shard 2/4"),
    ):
        again = batch(folder, tiny, "--shard", shard)
        assert (again.returncode, again.stderr.count("\n")) == (2, 1)
        assert reason in again.stderr
    assert "now it is the whole input" in batch(folder, tiny).stderr
    assert batch(folder, tiny, "--shard", "2/3").returncode == 0


def text_of(line: JsonObject) -> JsonValue:
    match line:
        case {"response": {"body": {"choices": list(choices)}}}:
            return [choice["text"] for choice in choices if isinstance(choice, dict)]
    return line["error"]


@pytest.mark.parametrize(
    ("shard", "reason"),
    [
        ("0/4", "of 4 shards there is no number 0; they are counted from 1, such as 1/4"),
        ("5/4", "of 4 shards there is no number 5"),
        ("1", "a shard and how many there are, such as 1/4, are expected"),
        ("1/0", "such as 1/4, are expected"),
        ("1/1000", "in.jsonl has 11 lines, too few for 1000 shards; give --shard i/11 at most"),
    ],
)
def test_a_shard_that_cannot_be_is_one_line_before_a_model_is_looked_for(
    tmp_path: Path, shard: str, reason: str
) -> None:
    write_lines(tmp_path / "in.jsonl", [*many_lines(10), {}])
    refused = batch(tmp_path, tmp_path / "no such model", "--shard", shard)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert reason in refused.stderr
    assert not (tmp_path / "out.jsonl").exists()


def test_lines_that_nobody_can_serve_make_no_shard(tiny: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", [*many_lines(10), {}])
    refused = batch(tmp_path, tiny, "--shard", "1/11")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "has 10 different requests that can be served, too few for 11 shards" in refused.stderr


def test_when_it_should_be_done_is_judged_at_the_end(tmp_path: Path, tiny: Path) -> None:
    write_lines(tmp_path / "in.jsonl", many_lines(4))
    found = json.loads(batch(tmp_path, tiny, "--finish-by", "2h").stdout)["finish_by"]
    assert 7000 < found["early_s"] <= 7200
    late = json.loads(batch(tmp_path, tiny, "--finish-by", "1s", "--restart").stdout)["finish_by"]
    assert late["moment"] <= found["moment"]
    refused = batch(tmp_path, tiny, "--finish-by", "soon")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--finish-by is 'soon'; a duration such as" in refused.stderr
