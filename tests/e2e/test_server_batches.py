"""/v1/files and /v1/batches as the OpenAI SDK uses them, through kills, cancels and faulty files."""

from __future__ import annotations

import io
import json
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.e2e.server_process import ServerProcess, serving
from tests.e2e.tiny_model import write_tiny_model

from plait.config.places import calibration_file


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def server(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tiny, "--batch-dir", str(tmp_path_factory.mktemp("batches"))) as running:
        yield running


def test_a_calibration_that_cannot_be_read_keeps_no_server_from_starting(tiny: Path, tmp_path: Path) -> None:
    file = calibration_file(tmp_path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('{"schema": "plait-hardware/999"}')
    with serving(tiny, "--cache-dir", str(tmp_path), "--batch-dir", str(tmp_path / "batches")) as running:
        sdk = sdk_of(running)
        assert ended(sdk, started(sdk, [line("a")])).request_counts.completed == 1
        warnings = [one for one in running.said if str(file) in one]
    assert len(warnings) == 1
    assert "plait calibrate" in warnings[0]


def sdk_of(server: ServerProcess, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key=key, max_retries=0)


def line(custom_id: str, prompt: object = "A text", url: str = "/v1/completions", **body: object) -> dict[str, object]:
    full = {"model": "tiny", "prompt": prompt, "temperature": 0, "ignore_eos": True, "max_tokens": 8, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": full}


def uploaded(sdk: openai.OpenAI, lines: list[dict[str, object]] | bytes) -> str:
    raw = lines if isinstance(lines, bytes) else "".join(json.dumps(one) + "\n" for one in lines).encode()
    return sdk.files.create(file=("in.jsonl", io.BytesIO(raw)), purpose="batch").id


def started(sdk: openai.OpenAI, lines: list[dict[str, object]] | bytes, **fields: Any) -> str:
    file_id = uploaded(sdk, lines)
    return sdk.batches.create(input_file_id=file_id, endpoint="/v1/completions", completion_window="24h", **fields).id


def ended(sdk: openai.OpenAI, batch_id: str, within_s: float = 60.0) -> Any:
    give_up = time.monotonic() + within_s
    while (batch := sdk.batches.retrieve(batch_id)).status not in ("completed", "failed", "cancelled", "expired"):
        assert time.monotonic() < give_up, batch
        time.sleep(0.02)
    return batch


def lines_of(sdk: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    return [] if file_id is None else [json.loads(one) for one in sdk.files.content(file_id).text.splitlines()]


def test_a_batch_from_upload_to_answers(server: ServerProcess) -> None:
    sdk = sdk_of(server)
    lines = [line("a"), line("too long", "x" * 999), line("b", ["one", "two"], n=2, logprobs=1)]
    batch = ended(sdk, started(sdk, lines, metadata={"owner": "me"}))
    assert batch.status == "completed"
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (3, 2, 1)
    assert batch.metadata == {"owner": "me"}
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at < batch.expires_at
    done = {one["custom_id"]: one["response"] for one in lines_of(sdk, batch.output_file_id)}
    assert sorted(done) == ["a", "b"]
    assert len(done["b"]["body"]["choices"]) == 4
    with server.client() as client:
        alone = client.post("/v1/completions", json=line("a")["body"]).json()
    assert done["a"]["body"]["choices"] == alone["choices"]
    (wrong,) = lines_of(sdk, batch.error_file_id)
    assert (wrong["custom_id"], wrong["response"]["status_code"]) == ("too long", 400)
    listed = [one.id for one in sdk.batches.list(limit=1)]
    assert batch.id in listed
    assert sdk.files.retrieve(batch.output_file_id).purpose == "batch_output"


@pytest.mark.parametrize(
    ("lines", "codes"),
    [
        ([line("a"), line("a")], ["duplicate_custom_id"]),
        ([line("a"), line("b", stream=True)], ["unsupported_parameter"]),
        ([line("a", url="/v1/nope")], ["invalid_url"]),
        ([{**line("a"), "method": "GET"}], ["invalid_method"]),
        ([line("a", url="/v1/chat/completions")], ["url_mismatch"]),
        ([line("a", model="gpt-9")], ["model_mismatch"]),
        (b"{\nnot json\n", ["invalid_json_line", "invalid_json_line"]),
        (b"\n\n", ["empty_file"]),
        (
            [line("good"), line("x", stream=True), line("y", url="/no"), line("z", model="q")],
            ["unsupported_parameter", "invalid_url", "model_mismatch"],
        ),
    ],
)
def test_a_faulty_file_fails_as_a_whole_with_every_reason(
    server: ServerProcess, lines: list[dict[str, object]] | bytes, codes: list[str]
) -> None:
    sdk = sdk_of(server)
    batch = ended(sdk, started(sdk, lines))
    assert batch.status == "failed"
    assert [fault.code for fault in batch.errors.data] == codes
    assert all(fault.message for fault in batch.errors.data)


def test_what_was_finished_before_a_cancel_stays(tiny: Path, tmp_path: Path) -> None:
    with serving(tiny, "--batch-dir", str(tmp_path), "--max-num-seqs", "1") as server:
        sdk = sdk_of(server)
        batch_id = started(sdk, [line(str(number), f"prompt {number}", max_tokens=200) for number in range(400)])
        while sdk.batches.retrieve(batch_id).request_counts.completed < 3:
            time.sleep(0.01)
        asked = sdk.batches.cancel(batch_id)
        assert asked.status in ("cancelling", "cancelled")
        batch = ended(sdk, batch_id)
        assert batch.status == "cancelled"
        done, left = lines_of(sdk, batch.output_file_id), lines_of(sdk, batch.error_file_id)
        assert 3 <= len(done) < 400
        assert len(done) + len(left) == 400
        assert {one["error"]["code"] for one in left} == {"batch_cancelled"}
        assert sdk.batches.cancel(batch_id).status == "cancelled"
        assert server.become_idle()


def test_a_killed_server_goes_on_and_runs_nothing_twice(tiny: Path, tmp_path: Path) -> None:
    lines = [line(str(number), f"prompt {number}", max_tokens=100) for number in range(60)]
    with serving(tiny, "--batch-dir", str(tmp_path), "--max-num-seqs", "2") as server:
        sdk = sdk_of(server)
        batch_id = started(sdk, lines)
        while sdk.batches.retrieve(batch_id).request_counts.completed < 5:
            time.sleep(0.01)
        server.signal(signal.SIGKILL)
        server.wait()
    with serving(tiny, "--batch-dir", str(tmp_path), "--max-num-seqs", "2") as server:
        sdk = sdk_of(server)
        batch = ended(sdk, batch_id)
        assert batch.request_counts.completed == 60
        answers = lines_of(sdk, batch.output_file_id)
        assert sorted(int(one["custom_id"]) for one in answers) == list(range(60))
        with server.client() as client:
            alone = client.post("/v1/completions", json=lines[0]["body"]).json()
        first = next(one for one in answers if one["custom_id"] == "0")
        assert first["response"]["body"]["choices"] == alone["choices"]


def test_people_are_answered_before_batches(tiny: Path, tmp_path: Path) -> None:
    with serving(tiny, "--batch-dir", str(tmp_path), "--max-num-seqs", "1") as server:
        sdk = sdk_of(server)
        batch_id = started(sdk, [line(str(number), f"prompt {number}", max_tokens=200) for number in range(300)])
        while sdk.batches.retrieve(batch_id).request_counts.completed < 1:
            time.sleep(0.01)
        for _ in range(3):
            with server.client() as client:
                assert client.post("/v1/completions", json=line("x")["body"]).status_code == 200
        assert sdk.batches.retrieve(batch_id).status == "in_progress"
        sdk.batches.cancel(batch_id)
        ended(sdk, batch_id)


def test_files_are_kept_listed_and_deleted(server: ServerProcess) -> None:
    sdk = sdk_of(server)
    raw = b"any bytes \x00\xff at all"
    file = sdk.files.create(file=("../../dir/a b.jsonl", raw), purpose="batch")
    assert (file.filename, file.bytes) == ("a b.jsonl", len(raw))
    assert sdk.files.content(file.id).content == raw
    assert file.id in [one.id for one in sdk.files.list(purpose="batch")]
    pages = sdk.files.list(limit=1, order="asc")
    assert len({one.id for one in pages}) == len(list(sdk.files.list(limit=100)))
    assert sdk.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        sdk.files.retrieve(file.id)
    with pytest.raises(openai.NotFoundError):
        sdk.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"completion_window": "1y"}, "completion_window"),
        ({"completion_window": "30s"}, "completion_window"),
        ({"completion_window": "8d"}, "completion_window"),
        ({"metadata": {"finish_by": "17:30"}}, "metadata"),
        ({"metadata": {"finish_by": "2020-01-01T00:00Z"}}, "metadata"),
        ({"endpoint": "/v1/embeddings/x"}, "endpoint"),
        ({"input_file_id": 5}, "input_file_id"),
        ({"metadata": {"k" * 99: "v"}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(server: ServerProcess, fields: dict[str, object], param: str) -> None:
    file_id = uploaded(sdk_of(server), [line("a")])
    body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h", **fields}
    with server.client() as client:
        reply = client.post("/v1/batches", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_a_batch_says_whether_it_will_have_ended_when_it_is_wanted(server: ServerProcess) -> None:
    sdk = sdk_of(server)
    file_id = uploaded(sdk, [line(str(number)) for number in range(3)])
    body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": " 2h "}
    with server.client() as client:
        made = client.post("/v1/batches", json={**body, "metadata": {"finish_by": "1h"}}).json()
        assert (made["completion_window"], made["expires_at"] - made["created_at"]) == ("2h", 7200)
        assert made["finish_by"] - made["created_at"] == 3600
        ended(sdk, made["id"])
        assert client.get(f"/v1/batches/{made['id']}").json()["finish_by_outlook"] == "in_time"


def test_uploads_that_are_no_form_too_large_or_cut_short_leave_nothing(tiny: Path, tmp_path: Path) -> None:
    with serving(tiny, "--batch-dir", str(tmp_path), "--max-file-size", "2000") as server, server.client() as client:
        assert client.post("/v1/files", json={}).status_code == 415
        big = {"file": ("a", b"x" * 3000)}
        assert client.post("/v1/files", data={"purpose": "batch"}, files=big).status_code == 413
        assert client.post("/v1/files", data={"purpose": "x"}, files={"file": ("a", b"x")}).status_code == 400
        assert client.post("/v1/files", data={"purpose": "batch"}, files={"other": ("a", b"x")}).status_code == 400
        head = {"content-type": "multipart/form-data; boundary=b"}
        for raw in (b"", b"--b", b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\nabc', b"garbage"):
            assert client.post("/v1/files", content=raw, headers=head).status_code == 400
        assert client.get("/v1/files").json()["data"] == []
        assert list((tmp_path / "files").iterdir()) == []


def test_a_key_sees_its_own_files_and_batches_only(tiny: Path, tmp_path: Path) -> None:
    with serving(tiny, "--batch-dir", str(tmp_path), "--api-key", "one,two") as server:
        mine, theirs = sdk_of(server, "one"), sdk_of(server, "two")
        batch_id = started(mine, [line("a")])
        file_id = ended(mine, batch_id).output_file_id
        assert list(theirs.files.list()) == []
        assert list(theirs.batches.list()) == []
        for look in (
            lambda: theirs.files.content(file_id),
            lambda: theirs.batches.retrieve(batch_id),
            lambda: theirs.batches.cancel(batch_id),
        ):
            with pytest.raises(openai.NotFoundError):
                look()


def test_a_folder_that_another_server_has_is_refused(server: ServerProcess, tiny: Path, tmp_path: Path) -> None:
    with serving(tiny, "--batch-dir", str(tmp_path)), pytest.raises(AssertionError, match="another server has"):
        ServerProcess(tiny, "--batch-dir", str(tmp_path))


def test_a_batch_of_responses(server: ServerProcess) -> None:
    sdk = sdk_of(server)
    asked = {"model": "tiny", "input": "héllo", "max_output_tokens": 9, "temperature": 0}
    lines = [
        {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": asked},
        {"custom_id": "b", "method": "POST", "url": "/v1/responses", "body": {**asked, "max_output_tokens": 99_999}},
    ]
    made = sdk.batches.create(input_file_id=uploaded(sdk, lines), endpoint="/v1/responses", completion_window="24h")
    batch = ended(sdk, made.id)
    (done,) = lines_of(sdk, batch.output_file_id)
    alone = sdk.responses.create(**asked)
    body = done["response"]["body"]
    assert body["output"][0]["content"][0]["text"] == alone.output_text
    assert (body["object"], body["status"]) == ("response", "incomplete")
    assert batch.usage.output_tokens == 9
    (wrong,) = lines_of(sdk, batch.error_file_id)
    assert wrong["response"]["body"]["error"]["param"] == "max_output_tokens"


@pytest.mark.slow
def test_a_disk_that_is_full_is_waited_for_and_nothing_is_lost_or_run_twice(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "batches"
    lines = [line(str(number), f"prompt {number}", max_tokens=100) for number in range(150)]
    with serving(tiny, "--batch-dir", str(folder), "--max-num-seqs", "2") as server:
        sdk = sdk_of(server)
        batch_id = started(sdk, lines)
        while sdk.batches.retrieve(batch_id).request_counts.completed < 20:
            time.sleep(0.01)
        limit_of = resource.RLIMIT_FSIZE
        resource.prlimit(server.pid, limit_of, (40_000, resource.RLIM_INFINITY))
        give_up = time.monotonic() + 60
        while not any("batch waits" in said for said in server.said):
            assert time.monotonic() < give_up, server.said
            time.sleep(0.05)
        stuck = sdk.batches.retrieve(batch_id)
        assert stuck.status == "in_progress"
        assert 20 <= stuck.request_counts.completed < 150
        # Whoever waits for an answer is not concerned; an upload is told what is the matter.
        with server.client() as client:
            assert client.post("/v1/completions", json=lines[0]["body"]).status_code == 200
            reply = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a", b"x" * 100_000)})
            assert reply.status_code == 507
        resource.prlimit(server.pid, limit_of, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        batch = ended(sdk, batch_id, within_s=100)
        assert (batch.status, batch.request_counts.completed) == ("completed", 150)
        answers = lines_of(sdk, batch.output_file_id)
        assert sorted(int(one["custom_id"]) for one in answers) == list(range(150))
        assert not any("Traceback" in said for said in server.said)


def test_a_store_that_is_damaged_is_not_opened_and_not_cleared(tiny: Path, tmp_path: Path) -> None:
    with serving(tiny, "--batch-dir", str(tmp_path)) as server:
        sdk = sdk_of(server)
        kept = {sdk.files.create(file=(f"{n}.jsonl", b"content"), purpose="batch").id for n in range(50)}
        server.signal(signal.SIGTERM)
        server.wait()
    database = tmp_path / "store.sqlite"
    raw = bytearray(database.read_bytes())
    raw[4096:8192] = bytes(4096)
    database.write_bytes(raw)
    with pytest.raises(AssertionError, match=r"store\.sqlite is damaged|malformed"):
        ServerProcess(tiny, "--batch-dir", str(tmp_path))
    assert {one.name for one in (tmp_path / "files").iterdir()} == kept, "what has lost its row is no stray"
