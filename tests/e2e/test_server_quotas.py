"""Limits of one key, over HTTP: who has used up its own is told so and when to come back, and nobody else notices."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
import openai
import pytest
from tests.e2e.server_process import ServerProcess, serving
from tests.e2e.tiny_model import write_tiny_model

LIMITS = """
free
twice requests/minute=2
narrow requests=1
short tokens=60k
minute tokens/minute=40
offline batches=1
"""
TEXT = "/v1/completions"
BODY = {"prompt": "x" * 10, "max_tokens": 5, "temperature": 0, "ignore_eos": True}
# Long enough to be there when somebody else asks.
LONG = {**BODY, "max_tokens": 7000, "n": 8, "stream": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("quotas")
    (folder / "keys").write_text(LIMITS)
    model = write_tiny_model(folder / "tiny.gguf", context=8192)
    with serving(model, "--api-key-file", str(folder / "keys"), "--batch-dir", str(folder / "batches")) as running:
        yield running


def key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


def refusal(reply: httpx.Response, limit: str) -> int:
    """The seconds after which one may come back."""
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["type"]) == (429, "rate_limit_exceeded", "rate_limit_error")
    assert limit in error["message"]
    after_s = int(reply.headers["retry-after"])
    assert after_s - 1 <= int(reply.headers["retry-after-ms"]) / 1000 <= max(1, after_s)
    return after_s


@contextmanager
def streaming(server: ServerProcess, name: str, body: dict[str, object]) -> Iterator[None]:
    """Inside, an answer is coming; then its client leaves."""
    with server.client(**key(name)) as client, client.stream("POST", TEXT, json=body) as reply:
        assert reply.status_code == 200
        pieces = reply.iter_bytes()
        next(pieces)
        yield


def test_requests_of_a_minute(server: ServerProcess) -> None:
    with server.client(**key("twice")) as mine, server.client(**key("free")) as theirs:
        for path, body in ((TEXT, BODY), ("/v1/embeddings", {"input": "a"})):
            assert mine.post(path, json=body).status_code == 200
        for path, body in ((TEXT, BODY), ("/v1/responses", {"input": "a"}), ("/v1/chat/completions", {"messages": 5})):
            assert 1 <= refusal(mine.post(path, json=body), "requests/minute=2") <= 30
        assert mine.get("/v1/models").status_code == 200, "what costs nothing is not counted"
        assert theirs.post(TEXT, json=BODY).status_code == 200


def test_requests_at_once_are_given_back_however_they_end(server: ServerProcess) -> None:
    with server.client(**key("narrow")) as mine:
        for _ in range(3):
            with streaming(server, "narrow", LONG):
                assert refusal(mine.post(TEXT, json=BODY), "requests=1") == 1
            # The client has left in mid-stream.
            assert server_frees(mine)
        assert mine.post(TEXT, json={**BODY, "max_tokens": -1}).status_code == 400
        assert mine.post(TEXT, content=b"{").status_code == 400
        assert mine.post(TEXT, json=BODY).status_code == 200


def server_frees(client: httpx.Client) -> bool:
    return any(client.post(TEXT, json=BODY).status_code == 200 for _ in range(200))


def test_tokens_at_once(server: ServerProcess) -> None:
    with server.client(**key("short")) as mine:
        with streaming(server, "short", LONG):
            refusal(mine.post(TEXT, json={**BODY, "max_tokens": 5000}), "tokens=60000")
            assert mine.post(TEXT, json=BODY).status_code == 200
        assert server_frees(mine)
        with streaming(server, "short", {**LONG, "n": 16}):
            pass  # alone it may be larger than all


def test_tokens_of_a_minute_count_prompts_and_answers(server: ServerProcess) -> None:
    with server.client(**key("minute")) as mine, server.client(**key("free")) as theirs:
        for _ in range(2):
            assert mine.post(TEXT, json=BODY).status_code == 200
        assert mine.post(TEXT, json={**BODY, "prompt": "y" * 8, "max_tokens": 50}).status_code == 200
        # 40 less 15, 15 and 58: 48 below nothing.
        assert refusal(mine.post(TEXT, json=BODY), "tokens/minute=40") > 60
        told = theirs.get("/metrics").text
        assert theirs.post(TEXT, json=BODY).status_code == 200
    assert 'reason="key_quota"' in told


def test_the_sdk_is_told_that_it_is_a_rate_limit(server: ServerProcess) -> None:
    sdk = openai.OpenAI(base_url=server.url, api_key="twice", max_retries=0)
    with pytest.raises(openai.RateLimitError, match="requests/minute=2"):
        [sdk.completions.create(model="tiny", prompt="a", max_tokens=1) for _ in range(3)]


def test_batches_that_are_not_finished(server: ServerProcess) -> None:
    sdk = openai.OpenAI(base_url=server.url, api_key="offline", max_retries=0)
    body = {**BODY, "max_tokens": 2000}
    rows = [{"custom_id": str(number), "method": "POST", "url": TEXT, "body": body} for number in range(500)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    file = sdk.files.create(file=("in.jsonl", lines.encode()), purpose="batch")
    asked = {"input_file_id": file.id, "endpoint": TEXT, "completion_window": "24h"}
    batch = sdk.batches.create(**asked)  # type: ignore[call-overload]
    with server.client(**key("offline")) as client:
        refusal(client.post("/v1/batches", json=asked), "batches=1")
    sdk.batches.cancel(batch.id)
    until_s = time.monotonic() + 60
    while (status := sdk.batches.retrieve(batch.id).status) == "cancelling":
        assert time.monotonic() < until_s, "the first batch does not end"
    assert status == "cancelled"
    second = sdk.batches.create(**asked)  # type: ignore[call-overload]
    assert sdk.batches.cancel(second.id).status in ("cancelling", "cancelled")
