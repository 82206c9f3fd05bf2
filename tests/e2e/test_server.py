"""`plait serve` as clients see it: the OpenAI SDK, plain HTTP, clients that leave, and what is refused."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx2 as httpx
import openai
import pytest
from tests.e2e.server_process import PLAIT, ServerProcess, serving
from tests.e2e.tiny_model import CONTEXT, NUM_TOKENS, write_tiny_model
from tests.unit.api.byte_text import END, TEMPLATE
from tests.unit.cost.invented import ABOUT

from plait.api.bodies import JsonObject
from plait.cost.hardware import find_hardware, write_hardware

ROOMY = 32_768
"""Tokens of a model's context that nobody fills before a test is over."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", context=ROOMY)


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[ServerProcess]:
    with serving(tiny) as running:
        yield running


@pytest.fixture
def sdk(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client
    assert server.become_idle()


def completion(server: ServerProcess, **fields: object) -> JsonObject:
    body = {"prompt": "A text", "max_tokens": 20, "temperature": 0, "ignore_eos": True, **fields}
    with server.client() as client:
        reply = client.post("/v1/completions", json=body)
    told: JsonObject = reply.json()
    assert reply.status_code == 200, told
    return told


def events(server: ServerProcess, path: str, body: JsonObject) -> list[str]:
    """What stands behind `data: ` in each event."""
    with server.client() as client, client.stream("POST", path, json={**body, "stream": True}) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        text = "".join(reply.iter_text())
    assert text.endswith("\n\n")
    return [event.removeprefix("data: ") for event in text.removesuffix("\n\n").split("\n\n")]


def refusal(server: ServerProcess, path: str, body: object, status: int = 400) -> JsonObject:
    with server.client() as client:
        reply = client.post(path, json=body)
    assert reply.status_code == status, reply.text
    told = reply.json()["error"]
    assert sorted(told) == ["code", "message", "param", "type"]
    return told  # type: ignore[no-any-return]


CHAT: JsonObject = {"messages": [{"role": "user", "content": "Say something"}], "temperature": 0}


def test_a_chat_is_the_same_in_one_piece_and_as_a_stream(sdk: openai.OpenAI) -> None:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "héllo"}], "temperature": 0, "max_tokens": 40}
    whole = sdk.chat.completions.create(**asked)  # type: ignore[call-overload]
    stream = sdk.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})  # type: ignore[call-overload]
    chunks = list(stream)
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert "".join(texts) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1] if chunk.choices[0].finish_reason] == ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_several_prompts_and_choices_with_logprobs_are_the_same_as_a_stream(server: ServerProcess) -> None:
    body: JsonObject = {
        "prompt": ["first", "second one"],
        "n": 2,
        "max_tokens": 12,
        "temperature": 0.8,
        "seed": 7,
        "logprobs": 2,
        "ignore_eos": True,
    }
    whole = completion(server, **body)
    told = events(server, "/v1/completions", body)
    assert told.count("[DONE]") == 1
    assert told[-1] == "[DONE]"
    joined = {place: {"text": "", "tokens": [], "token_logprobs": [], "text_offset": []} for place in range(4)}
    for event in told[:-1]:
        (choice,) = json.loads(event)["choices"]
        mine = joined[choice["index"]]
        mine["text"] += choice["text"]
        for key in ("tokens", "token_logprobs", "text_offset"):
            mine[key] += (choice["logprobs"] or {}).get(key, [])
    for choice in whole["choices"]:  # type: ignore[union-attr]
        assert isinstance(choice, dict)
        expected = {"text": choice["text"]} | {
            key: choice["logprobs"][key] for key in ("tokens", "token_logprobs", "text_offset")
        }  # type: ignore[index, call-overload]
        assert joined[choice["index"]] == expected  # type: ignore[index]


@pytest.mark.parametrize(
    ("options", "with_usage"),
    [
        (None, "never"),
        ({}, "never"),
        ({"include_usage": False}, "never"),
        ({"include_usage": True}, "last"),
        ({"include_usage": True, "continuous_usage_stats": True}, "always"),
    ],
)
def test_usage_comes_only_when_it_was_asked_for(server: ServerProcess, options: object, with_usage: str) -> None:
    told = events(
        server, "/v1/chat/completions", {**CHAT, "max_tokens": 5, "ignore_eos": True, "stream_options": options}
    )  # type: ignore[dict-item]
    chunks = [json.loads(event) for event in told[:-1]]
    used = [chunk.get("usage") for chunk in chunks]
    if with_usage == "never":
        assert not any(used)
        assert chunks[-1]["choices"]
        return
    assert chunks[-1]["choices"] == []
    assert used[-1]["completion_tokens"] == 5
    counts = [usage["completion_tokens"] for usage in used if usage]
    assert counts == sorted(counts)
    assert len(counts) == (1 if with_usage == "last" else len(chunks))


def test_a_stop_string_never_leaks_into_a_stream(server: ServerProcess) -> None:
    text = str(completion(server, max_tokens=40)["choices"][0]["text"])  # type: ignore[index, call-overload]
    for start in range(1, min(len(text) - 6, 20)):
        stop = text[start : start + 6]
        told = events(
            server,
            "/v1/completions",
            {"prompt": "A text", "max_tokens": 40, "temperature": 0, "ignore_eos": True, "stop": stop},
        )
        joined = "".join(json.loads(event)["choices"][0]["text"] for event in told[:-1])
        assert joined == text[: text.index(stop)]


def test_answers_do_not_depend_on_who_else_asks(server: ServerProcess) -> None:
    prompts = [f"prompt number {number}" for number in range(24)]

    def ask(prompt: str) -> str:
        return str(completion(server, prompt=prompt, max_tokens=24)["choices"][0]["text"])  # type: ignore[index, call-overload]

    alone = [ask(prompt) for prompt in prompts]
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, prompts)) == alone
    assert server.become_idle()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_its_work(tiny: Path, stream: bool) -> None:
    with serving(tiny, "--max-num-seqs", "2") as server:
        body = {"prompt": "x", "max_tokens": 200, "n": 60, "ignore_eos": True, "stream": stream}
        payload = json.dumps(body).encode()
        host, _, port = server.root.removeprefix("http://").partition(":")
        for _ in range(3):
            with socket.create_connection((host, int(port))) as connection:
                head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(payload)}\r\n\r\n"
                connection.sendall(head.encode() + payload)
                if stream:
                    assert connection.recv(64)
                else:
                    time.sleep(0.05)
        assert server.become_idle()
        assert completion(server)["usage"]


@contextmanager
def occupied(server: ServerProcess) -> Iterator[None]:
    """Inside, one sequence is computed without end; then its client leaves."""
    body = {"prompt": "x", "max_tokens": ROOMY - 1, "ignore_eos": True, "stream": True}
    with server.client() as client, client.stream("POST", "/v1/completions", json=body) as reply:
        next(pieces := reply.iter_bytes())
        yield
        assert next(pieces), "it is still being computed"


def test_more_than_is_taken_on_is_refused_at_once_and_the_rest_is_served(roomy: Path) -> None:
    with serving(roomy, "--max-num-seqs", "1", "--max-num-queued-reqs", "3") as server:
        body = {"prompt": "x", "max_tokens": 50, "temperature": 0, "ignore_eos": True}

        def ask(_: int) -> tuple[int, str | None]:
            with server.client() as client:
                reply = client.post("/v1/completions", json=body)
            return reply.status_code, reply.headers.get("retry-after")

        with ThreadPoolExecutor(12) as pool:
            with occupied(server):
                asked = [pool.submit(ask, number) for number in range(12)]
                refused = next(one.result() for one in as_completed(asked))
                assert refused[0] == 429
            replies = [one.result() for one in asked]
        statuses = [status for status, _ in replies]
        assert set(statuses) == {200, 429}
        assert statuses.count(200) >= 3
        assert all(after is not None for status, after in replies if status == 429)
        assert server.become_idle()


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(server: ServerProcess) -> None:
    tokens = [65] * (CONTEXT - 1)
    assert completion(server, prompt=tokens, max_tokens=1)["usage"]["total_tokens"] == CONTEXT  # type: ignore[index, call-overload]
    for prompt, asked in ((tokens, 2), ([65] * CONTEXT, 1), ([65] * 5000, 8)):
        told = refusal(server, "/v1/completions", {"prompt": prompt, "max_tokens": asked})
        assert told["code"] == "context_length_exceeded"
        assert str(len(prompt)) in str(told["message"])
        assert str(CONTEXT) in str(told["message"])


@pytest.mark.parametrize("raw", [b"[]", b'"x"', b"null", b"1", b"{", b"", b"[" * 1_000_000, b"\xff\xfe{}", b"{\x00}"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_a_body_that_is_no_object_is_refused(server: ServerProcess, raw: bytes, path: str) -> None:
    with server.client() as client:
        reply = client.post(path, content=raw)
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"


def test_bodies_above_the_limit_are_refused_said_or_not(tiny: Path) -> None:
    with serving(tiny, "--max-body-size", "1000") as server, server.client() as client:
        body = b'{"prompt": "' + b"x" * 2000 + b'"}'
        assert client.post("/v1/completions", content=body).status_code == 413
        assert client.post("/v1/completions", content=iter([body[:900], body[900:]])).status_code == 413
        assert client.post("/v1/completions", content=b'{"prompt": "x", "max_tokens": 1}').status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "x", "max_tokens": 1.5}, "max_tokens"),
        ({"prompt": "x", "temperature": -1}, "temperature"),
        ({"prompt": "x", "stop": [""]}, "stop"),
        ({"prompt": ["a", [99999]]}, "prompt.1"),
        ({"prompt": []}, "prompt"),
        ({"prompt": "x", "n": 0}, "n"),
    ],
)
def test_a_wrong_field_is_named(server: ServerProcess, body: JsonObject, param: str) -> None:
    assert refusal(server, "/v1/completions", body)["param"] == param


def test_models_are_listed_and_others_are_not_found(server: ServerProcess, sdk: openai.OpenAI) -> None:
    (model,) = sdk.models.list().data
    assert model.id == "tiny"
    assert sdk.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("no/such")
    told = refusal(server, "/v1/chat/completions", {**CHAT, "model": "gpt-9"}, 404)
    assert (told["code"], told["param"]) == ("model_not_found", "model")
    with server.client() as client:
        doubled = client.post("/v1/v1/completions", json={})
        assert doubled.status_code == 404
        assert "drop one" in doubled.json()["error"]["message"]
        wrong = client.get("/v1/completions")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"


def test_a_refused_method_is_told_of_all_that_a_path_takes(server: ServerProcess) -> None:
    with server.client() as client:
        for path, methods in (
            ("/v1/files", "GET, HEAD, POST"),
            ("/v1/batches", "GET, HEAD, POST"),
            ("/health", "GET, HEAD"),
        ):
            reply = client.request("PATCH", path)
            assert reply.status_code == 405
            assert sorted(reply.headers["allow"].split(", ")) == methods.split(", ")
            assert reply.json()["error"]["code"] == "method_not_allowed"


def test_a_whole_number_may_be_written_with_a_point(server: ServerProcess) -> None:
    assert completion(server, max_tokens=7.0, seed=5.0, logit_bias={"5": 1.0})["usage"]["completion_tokens"] == 7  # type: ignore[index,call-overload]
    assert completion(server, prompt=[65.0, 66], max_tokens=3)["usage"]["prompt_tokens"] == 2  # type: ignore[index,call-overload]
    assert refusal(server, "/v1/completions", {"prompt": "a", "max_tokens": 7.5})["param"] == "max_tokens"
    below = b'{"prompt": "a", "seed": -9223372036854775809}'
    with server.client() as client:
        assert client.post("/v1/completions", content=below).json()["error"]["param"] == "seed"
    assert refusal(server, "/v1/completions", {"prompt": [65.5, 66]})["param"] == "prompt.0"


def test_tokens_go_there_and_back(server: ServerProcess) -> None:
    with server.client() as client:
        made = client.post("/tokenize", json={"prompt": "two  words é", "return_token_strs": True}).json()
        assert made["count"] == len(made["tokens"]) == len(made["token_strs"])
        assert client.post("/detokenize", json={"tokens": made["tokens"]}).json() == {"prompt": "two  words é"}
        chat = client.post("/tokenize", json={"messages": CHAT["messages"]}).json()
        whole = client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 1, "return_token_ids": True}).json()
    assert whole["prompt_token_ids"] == chat["tokens"]
    assert refusal(server, "/detokenize", {"tokens": [10**9]})["param"] == "tokens"
    assert refusal(server, "/detokenize", {"model": None})["param"] == "tokens"


def test_a_client_can_tokenize_through_the_server_alone(server: ServerProcess) -> None:
    with server.client() as client:
        info = client.get("/tokenizer_info").json()
        ends = client.post("/tokenize", json={"prompt": info["eos_token"], "add_special_tokens": False}).json()
    assert ends["tokens"] == [END]
    assert info["bos_token"] is not None
    assert (info["vocab_size"], info["model_max_length"], info["chat_template"]) == (NUM_TOKENS, CONTEXT, TEMPLATE)


def test_request_ids_come_back_and_two_equal_ones_do_not_collide(server: ServerProcess) -> None:
    def ask(_: int) -> tuple[int, str]:
        with server.client(**{"x-request-id": "mine"}) as client:
            reply = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 30, "ignore_eos": True})
        return reply.status_code, reply.headers["x-request-id"]

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(8))) == {(200, "mine")}
    with server.client(**{"x-request-id": "x" * 500}) as client:
        assert client.get("/health").headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize("root", ["/under/this", "under/this/"])
def test_a_root_path_is_one_with_the_paths_whether_the_proxy_takes_it_off_or_not(tiny: Path, root: str) -> None:
    with serving(tiny, "--root-path", root, "--api-key", "secret") as server, server.client() as client:
        assert server.root.endswith("/under/this")
        key = {"authorization": "Bearer secret"}
        for before in ("", "/under/this"):
            base = server.root.removesuffix("/under/this") + before
            assert client.get(f"{base}/health").status_code == 200
            assert client.get(f"{base}/v1/models").status_code == 401
            assert client.get(f"{base}/v1/models", headers=key).status_code == 200
            body = {"prompt": "x", "max_tokens": 2}
            assert client.post(f"{base}/v1/completions", json=body, headers=key).status_code == 200
        assert client.get(f"{server.root}er/v1/models", headers=key).status_code == 404


@pytest.mark.parametrize(
    "field",
    [
        {"response_format": "?"},
        {"structured_outputs": {"json": "?"}},
        {"guided_json": "?"},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": "?"}}], "tool_choice": "required"},
        {"tools": [{"type": "web_search", "filters": "?"}]},
        {"metadata": {"a": "?"}},
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize("levels", [120, 300, 2000])
def test_deep_values_are_refused_or_ignored_and_never_fail(
    server: ServerProcess, path: str, field: JsonObject, levels: int
) -> None:
    deep = '{"type":"object","properties":{"a":' * (levels // 2) + "{}" + "}}" * (levels // 2)
    asked = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x", "max_tokens": 1, **field}
    if path == "/v1/responses":
        # A prompt here is one that a server would keep.
        del asked["prompt"]
    with server.client() as client:
        reply = client.post(path, content=json.dumps(asked).replace('"?"', deep))
    assert reply.status_code in (200, 400), reply.text
    if levels > 200:
        assert reply.json()["error"]["code"] in ("too_deep", "invalid_json")


def test_with_keys_nothing_but_health_is_open(tiny: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# ours\nsecret-one\nsecret-two\n")
    with serving(tiny, "--api-key-file", str(keys), "--api-key", "third") as server:
        with server.client() as client:
            for path in ("/health", "/ready", "/live", "/ping"):
                assert client.get(path).status_code == 200
            for method, path in (
                ("GET", "/v1/models"),
                ("POST", "/v1/completions"),
                ("POST", "/v1/chat/completions"),
                ("POST", "//v1/completions"),
                ("POST", "/completions"),
                ("POST", "/tokenize"),
                ("GET", "/load"),
                ("GET", "/no/such"),
            ):
                reply = client.request(method, path, json={} if method == "POST" else None)
                assert reply.status_code == 401, path
                assert reply.json()["error"]["code"] == "invalid_api_key"
        prompt = "the same long prompt for everyone, longer than a block of the cache: " * 2
        cached = []
        for header in ("secret-one", "secret-one", "secret-two", "third"):
            with server.client(authorization=f"Bearer {header}") as client:
                told = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}).json()
            cached.append(told["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
        assert cached == [False, True, False, False]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/responses"])
def test_nobody_learns_what_another_key_asked_from_the_prefix_cache(tiny: Path, path: str) -> None:
    text = "x" * 100
    bodies: dict[str, JsonObject] = {
        "/v1/completions": {"prompt": text, "max_tokens": 1},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": text}], "max_tokens": 1},
        "/v1/embeddings": {"input": text},
        "/v1/responses": {"input": text, "max_output_tokens": 1},
    }
    with serving(tiny, "--api-key", "one,two") as server, server.client() as client:

        def cached(key: str, salt: str | None = None) -> int:
            body = {**bodies[path], "cache_salt": salt}
            usage = client.post(path, json=body, headers={"authorization": f"Bearer {key}"}).json()["usage"]
            details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
            return int(details["cached_tokens"])

        assert cached("one") == 0
        assert cached("one") > 0
        assert cached("two") == 0, "another key's prompt was found"
        if path != "/v1/responses":
            assert cached("one", "salt") == 0


def test_an_empty_key_file_does_not_open_the_server(tiny: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("\n# none\n")
    done = subprocess.run(
        [*PLAIT, "serve", str(tiny), "--api-key-file", str(keys)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "holds no keys" in done.stderr


def test_browsers_of_allowed_origins_may_call_and_need_no_key_to_ask(tiny: Path) -> None:
    with (
        serving(tiny, "--allowed-origins", "http://one.example", "--api-key", "k") as server,
        server.client() as client,
    ):
        asks = {"origin": "http://one.example", "access-control-request-method": "POST"}
        allowed = client.options("/v1/chat/completions", headers=asks)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "http://one.example"
        other = client.options("/v1/chat/completions", headers={**asks, "origin": "http://two.example"})
        assert other.status_code == 400


def test_a_signal_lets_answers_finish_and_refuses_new_ones(roomy: Path) -> None:
    with serving(roomy, "--max-num-seqs", "2") as server, ThreadPoolExecutor(1) as pool, server.client() as client:
        with occupied(server):
            long = pool.submit(completion, server, max_tokens=200, n=8)
            while not long.done() and client.get("/load").json()["server_load"] < 2:
                time.sleep(0.005)
            server.signal(signal.SIGTERM)
            refused = client.post("/v1/completions", json={"prompt": "x"})
            while refused.status_code == 200:
                refused = client.post("/v1/completions", json={"prompt": "x"})
            assert refused.status_code == 503
            assert "retry-after" in refused.headers
            assert client.get("/ready").status_code == 503
            assert client.get("/live").status_code == 200
            assert len(long.result()["choices"]) == 8  # type: ignore[arg-type]
        assert server.wait() == 0


def test_what_is_not_finished_in_time_ends_in_an_error_and_a_second_signal_ends_all(tiny: Path) -> None:
    for options, signals in ((("--shutdown-timeout", "0"), 1), ((), 2)):
        with serving(tiny, *options, "--max-num-seqs", "1") as server, server.client() as client:
            body = {"prompt": "x", "max_tokens": 200, "n": 100, "ignore_eos": True, "stream": True}
            with client.stream("POST", "/v1/completions", json=body) as reply:
                pieces = reply.iter_text()
                next(pieces)
                for _ in range(signals):
                    server.signal(signal.SIGINT)
                    time.sleep(0.1)
                try:
                    rest = "".join(pieces)
                except httpx.HTTPError as trouble:
                    rest = str(trouble)
                assert "[DONE]" not in rest
            assert server.wait() == 0


def test_a_port_in_use_is_said_before_the_model_is_loaded(tiny: Path, server: ServerProcess) -> None:
    port = server.root.rpartition(":")[2]
    done = subprocess.run([*PLAIT, "serve", str(tiny), "--port", port], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another" in done.stderr
    assert "model " not in done.stderr


def test_a_unix_socket_that_a_dead_server_left_is_taken_over(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    process = subprocess.Popen([*PLAIT, "serve", str(tiny), "--uds", str(path), "--kv-cache-memory", "8MiB"])
    try:
        give_up = time.monotonic() + 60
        reply = b""
        while b"200" not in reply and time.monotonic() < give_up:
            with socket.socket(socket.AF_UNIX) as client:
                try:
                    client.connect(str(path))
                except OSError:
                    time.sleep(0.05)
                    continue
                client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                reply = client.recv(1000)
        assert b"200" in reply
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert not path.exists()
    finally:
        process.kill()
        process.wait()


def test_who_would_have_the_first_token_too_late_is_sent_away_with_the_wait(roomy: Path, tmp_path: Path) -> None:
    """One sequence may run, and somebody has the place; only whoever wants the first token soon is sent away."""
    (tmp_path / "hardware").mkdir()
    spec = replace(find_hardware("zen3-2core"), calibration=replace(ABOUT, counted=None))
    write_hardware(spec, tmp_path / "hardware" / "this-machine.json", "invented")
    options = ("--executor", "reference", "--scheduler", "plait", "--cache-dir", str(tmp_path), "--max-num-seqs", "1")
    hasty = {"prompt": "x", "max_tokens": 1, "slo": {"ttft_s": 0.05}}
    with serving(roomy, *options) as server:
        assert any(
            "every step is fused, because the reference executor computes with one" in line for line in server.said
        )
        with server.client() as client, occupied(server):
            # Nobody has ended yet, so a place is taken to be free after as long as it has been taken.
            time.sleep(0.2)
            reply = client.post("/v1/completions", json={**hasty, "stream": True})
            assert reply.status_code == 429, reply.text
            error = reply.json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "overloaded")
            assert "is wanted within 0.05 s" in error["message"]
            assert int(reply.headers["retry-after-ms"]) >= 1
            figures = client.get(f"{server.root}/metrics").text
        assert 'plait:requests_rejected_total{engine="0",model_name="tiny",reason="overloaded"}' in figures
        assert completion(server)["usage"], "whoever has no such target is served"
        assert server.become_idle()
