"""/v1/embeddings as the OpenAI SDK uses it, and as lines of batches."""

from __future__ import annotations

import base64
import io
import json
import math
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.e2e.server_process import ServerProcess, serving
from tests.e2e.tiny_model import CONTEXT, HIDDEN, write_tiny_model

from plait import LLM


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def server(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tiny, "--batch-dir", str(tmp_path_factory.mktemp("batches"))) as running:
        yield running


@pytest.fixture
def sdk(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client
    assert server.become_idle()


def posted(server: ServerProcess, status: int = 200, **body: Any) -> dict[str, Any]:
    with server.client() as client:
        reply = client.post("/v1/embeddings", json={"model": "tiny", **body})
    assert reply.status_code == status, reply.text
    told: dict[str, Any] = reply.json()
    return told


def vectors(server: ServerProcess, **body: Any) -> list[list[float]]:
    return [one["embedding"] for one in posted(server, **body)["data"]]


TEXTS = ["a text", "another, longer text", "é"]


def test_the_sdk_gets_what_the_python_api_computes(sdk: openai.OpenAI, tiny: Path) -> None:
    told = sdk.embeddings.create(model="tiny", input=TEXTS)
    llm = LLM(str(tiny), kv_cache_memory="8MiB")
    wanted = [output.outputs.embedding for output in llm.embed(TEXTS, use_tqdm=False)]
    assert [one.index for one in told.data] == [0, 1, 2]
    for one, vector in zip(told.data, wanted, strict=True):
        # The SDK asks for base64, which holds 32-bit floats.
        assert one.embedding == [struct.unpack("<f", struct.pack("<f", number))[0] for number in vector]
        assert len(one.embedding) == HIDDEN
        assert math.isclose(math.hypot(*one.embedding), 1.0, rel_tol=1e-5)
    assert told.usage.prompt_tokens == told.usage.total_tokens == sum(len(text.encode()) for text in TEXTS)


def test_texts_and_tokens_one_and_many_are_the_same(server: ServerProcess) -> None:
    with server.client() as client:
        tokens = [client.post("/tokenize", json={"prompt": text}).json()["tokens"] for text in TEXTS]
    several = vectors(server, input=TEXTS)
    assert vectors(server, input=tokens) == several
    assert [vectors(server, input=text)[0] for text in TEXTS] == several
    assert vectors(server, input=tokens[1]) == [several[1]]
    assert vectors(server, input=TEXTS, pooling="mean") != several


def test_base64_is_the_same_numbers_in_32_bits(server: ServerProcess) -> None:
    plain, packed = vectors(server, input="x"), posted(server, input="x", encoding_format="base64")
    raw = base64.b64decode(packed["data"][0]["embedding"])
    assert list(struct.unpack(f"<{HIDDEN}f", raw)) == pytest.approx(plain[0], rel=1e-6)


def test_a_part_of_a_vector_has_length_one_again_and_a_raw_one_has_its_own(server: ServerProcess) -> None:
    (whole,), (part,) = vectors(server, input="x"), vectors(server, input="x", dimensions=8)
    assert len(part) == 8
    assert math.isclose(math.hypot(*part), 1.0, rel_tol=1e-6)
    assert part == pytest.approx([number / math.hypot(*whole[:8]) for number in whole[:8]])
    (raw,) = vectors(server, input="x", normalize=False)
    assert [number / math.hypot(*raw) for number in raw] == pytest.approx(whole)


def test_what_cannot_be_embedded_is_refused_by_name(server: ServerProcess) -> None:
    for body, param in (
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input.1"),
        ({"input": ["a", [1, "b"]]}, "input.1.1"),
        ({"input": [5, 100_000]}, "input"),
        ({"input": "x", "dimensions": HIDDEN + 1}, "dimensions"),
        ({"input": "x", "dimensions": 0}, "dimensions"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "x", "pooling": "max"}, "pooling"),
        ({"input": ["a", "x" * (CONTEXT + 1)]}, "input.1"),
    ):
        assert posted(server, 400, **body)["error"]["param"] == param, body
    assert posted(server, 400, input="x" * (CONTEXT + 1))["error"]["code"] == "context_length_exceeded"
    assert posted(server, 404, input="x", model="other")["error"]["code"] == "model_not_found"
    assert posted(server, input="x" * CONTEXT)["usage"]["prompt_tokens"] == CONTEXT
    assert posted(server, input="x" * 999, truncate_prompt_tokens=7)["usage"]["prompt_tokens"] == 7


def test_more_inputs_than_the_engine_has_rows_are_all_embedded(server: ServerProcess) -> None:
    texts = [f"text {number}" for number in range(400)]
    told = vectors(server, input=texts)
    assert told[17] == vectors(server, input="text 17")[0]
    assert len({tuple(vector) for vector in told}) == 400


def test_a_batch_of_embeddings(sdk: openai.OpenAI) -> None:
    lines = [
        {"custom_id": text, "method": "POST", "url": "/v1/embeddings", "body": {"model": "tiny", "input": text}}
        for text in TEXTS
    ]
    raw = "".join(json.dumps(one) + "\n" for one in lines).encode()
    file_id = sdk.files.create(file=("in.jsonl", io.BytesIO(raw)), purpose="batch").id
    batch = sdk.batches.create(input_file_id=file_id, endpoint="/v1/embeddings", completion_window="24h")
    give_up = time.monotonic() + 60
    while (batch := sdk.batches.retrieve(batch.id)).status != "completed":
        assert time.monotonic() < give_up, batch
        time.sleep(0.02)
    assert batch.output_file_id is not None
    found = [json.loads(one) for one in sdk.files.content(batch.output_file_id).text.splitlines()]
    assert sorted(one["custom_id"] for one in found) == sorted(TEXTS)
    for one in found:
        body = one["response"]["body"]
        alone = sdk.embeddings.create(model="tiny", input=one["custom_id"], encoding_format="float")
        assert body["data"][0]["embedding"] == alone.data[0].embedding
