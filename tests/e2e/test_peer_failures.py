"""What has broken servers of this kind before, asked of ours. Every test ends with the server as it was before."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.server_process import ServerProcess, serving
from tests.e2e.tiny_model import write_tiny_model
from tests.unit.api.byte_text import BEGIN, END

CONTEXT = 1024
BLOCK = 16
GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
PROBE = {"prompt": "are you there", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", context=CONTEXT)


@pytest.fixture(scope="module")
def running(tiny: Path) -> Iterator[tuple[ServerProcess, str]]:
    with serving(tiny) as server:
        yield server, text_of(asked(server, TEXT, PROBE))


@pytest.fixture
def server(running: tuple[ServerProcess, str]) -> Iterator[ServerProcess]:
    """Ends with what must be true of a server that nobody uses."""
    server, usual = running
    yield server
    assert server.become_idle()
    assert text_of(asked(server, TEXT, PROBE)) == usual
    with server.client() as client:
        assert client.get("/health").status_code == 200
        page = client.get("/metrics").text
    values = {one.name: one.value for family in text_string_to_metric_families(page) for one in family.samples}
    assert [values[name] for name in GAUGES] == [0, 0, 0]


def reply_to(server: ServerProcess, path: str, body: object) -> tuple[int, dict[str, Any]]:
    with server.client() as client:
        reply = client.post(path, json=body)
    return reply.status_code, reply.json()


def asked(server: ServerProcess, path: str, body: object) -> dict[str, Any]:
    status, told = reply_to(server, path, body)
    assert status == 200, told
    return told


def refused(server: ServerProcess, path: str, body: object) -> dict[str, Any]:
    status, told = reply_to(server, path, body)
    assert status == 400, told
    assert sorted(told["error"]) == ["code", "message", "param", "type"]
    return dict(told["error"])


def text_of(told: dict[str, Any]) -> str:
    choice = told["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def streamed(server: ServerProcess, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects of a stream that ends in one end mark."""
    with server.client() as client, client.stream("POST", path, json={**body, "stream": True}) as reply:
        assert reply.status_code == 200
        events = "".join(reply.iter_text()).removesuffix("\n\n").split("\n\n")
    assert events[-1] == "data: [DONE]"
    assert events.count("data: [DONE]") == 1
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


def told_by(chunks: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices)


def test_a_prompt_larger_than_the_memory_is_refused_at_once_and_small_ones_run(tiny: Path) -> None:
    with serving(tiny, "--kv-cache-memory", "64KiB") as server:
        bodies = [{"prompt": [5] * 1000, "max_tokens": 8}] * 3 + [{"prompt": "hi", "max_tokens": 8}]
        began = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            replies = list(pool.map(lambda body: reply_to(server, TEXT, body), bodies))
        assert time.monotonic() - began < 20
        assert [status for status, _ in replies] == [400, 400, 400, 200]
        assert "1000" in replies[0][1]["error"]["message"]
        assert server.become_idle()


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 300])
def test_a_prompt_that_was_seen_before_is_answered_as_the_first_time(server: ServerProcess, length: int) -> None:
    prompt = [65 + (length * place) % 26 for place in range(length)]
    body = {"prompt": prompt, "max_tokens": 32, "temperature": 0, "logprobs": 1, "ignore_eos": True}
    first, *others = [asked(server, TEXT, body) for _ in range(3)]
    for other in others:
        assert other["choices"] == first["choices"]
        found = other["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert 0 <= found < length
        assert found > 0 or length <= BLOCK


def test_conversations_that_begin_alike_are_never_taken_for_each_other(tiny: Path) -> None:
    def turns(number: int) -> list[dict[str, str]]:
        return [
            {"role": "system", "content": "You are the same for everyone, and this is long."},
            {"role": "user", "content": f"my word is {number * 7919}"},
            {"role": "assistant", "content": "kept"},
            {"role": "user", "content": "say it"},
        ]

    def ask(number: int, length: int) -> str:
        body = {"messages": turns(number)[:length], "max_tokens": 20, "temperature": 0, "ignore_eos": True}
        return text_of(asked(server, CHAT, body))

    # One at a time without a cache, then together in memory for a few of them.
    with serving(tiny, "--no-enable-prefix-caching") as server:
        alone = {(number, length): ask(number, length) for number in range(8) for length in (2, 4)}
    with serving(tiny, "--kv-cache-memory", "256KiB") as server:
        order = sorted(alone, key=lambda one: (one[0] * 5 + one[1] * 3) % 7)
        for _ in range(2):
            with ThreadPoolExecutor(4) as pool:
                answers = list(pool.map(lambda one: ask(*one), order))
            assert answers == [alone[one] for one in order]


@pytest.mark.parametrize("path", [TEXT, CHAT])
@pytest.mark.parametrize("shape", [{}, {"n": 3}, {"max_tokens": 1}, {"stop": "a"}, {"n": 2, "stop": ["e", "ee"]}])
def test_a_stream_says_the_same_as_one_piece_and_ends_once(
    server: ServerProcess, path: str, shape: dict[str, Any]
) -> None:
    body = {"temperature": 1.0, "seed": 3, "max_tokens": 40, "ignore_eos": True, **shape}
    body |= {"prompt": "x"} if path == TEXT else {"messages": [{"role": "user", "content": "x"}]}
    whole = asked(server, path, body)["choices"]
    chunks = streamed(server, path, body)
    for choice in whole:
        text = choice["text"] if path == TEXT else choice["message"]["content"]
        assert told_by(chunks, choice["index"]) == text
    ends = [choice for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(choice["index"] for choice in ends) == list(range(len(whole)))


def test_characters_of_several_tokens_are_never_broken_by_a_stream(server: ServerProcess) -> None:
    wanted = "🌶️👨‍👩‍👧 café 日本語  two  spaces"
    body = {"prompt": "say", "guided_choice": [wanted], "max_tokens": 200, "temperature": 0, "return_token_ids": True}
    choice = asked(server, TEXT, body)["choices"][0]
    chunks = streamed(server, TEXT, body)
    assert choice["text"] == wanted == told_by(chunks)
    tokens = [token for token in choice["token_ids"] if token != END]
    assert asked(server, "/detokenize", {"tokens": tokens})["prompt"] == wanted
    assert all("\ufffd" not in one["text"] for chunk in chunks for one in chunk["choices"])
    cut = told_by(streamed(server, TEXT, {**body, "max_tokens": 2}))
    assert cut == asked(server, TEXT, {**body, "max_tokens": 2})["choices"][0]["text"]
    assert "\ufffd" not in cut[:-1]


def test_a_beginning_of_a_stop_that_never_came_is_told_at_the_end(server: ServerProcess) -> None:
    body = {"prompt": "A B C", "max_tokens": 30, "temperature": 0, "ignore_eos": True}
    text = text_of(asked(server, TEXT, body))
    for stop in (text[-1] + "\x00never", [text[-2:] + "\x00", text[-2:] + "\x00\x00"]):
        assert told_by(streamed(server, TEXT, {**body, "stop": stop})) == text


def test_log_probabilities_without_alternatives_are_those_of_every_token(server: ServerProcess) -> None:
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    for more in ({"logprobs": True}, {"logprobs": True, "top_logprobs": 0}):
        told = asked(server, CHAT, {**chat, **more})
        entries = told["choices"][0]["logprobs"]["content"]
        assert len(entries) == told["usage"]["completion_tokens"]
        assert all(entry["top_logprobs"] == [] for entry in entries)
    for more in ({"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 21}):
        assert refused(server, CHAT, {**chat, **more})["param"] == "top_logprobs"
    body = {"prompt": "x", "max_tokens": 5, "temperature": 0, "ignore_eos": True, "logprobs": 0}
    assert len(asked(server, TEXT, body)["choices"][0]["logprobs"]["token_logprobs"]) == 5


@pytest.mark.parametrize(
    "grammar",
    [
        {"guided_regex": "("},
        {"guided_regex": "[a-"},
        {"guided_regex": "(a{1,999}){1,999}{1,999}"},
        {"guided_regex": "a{99999}"},
        {"guided_regex": "(a|a)*" * 2000 + "b"},
        {"guided_grammar": "root ::= "},
        {"guided_grammar": "root ::= " + "(" * 5000},
        {"guided_json": {"$ref": "http://127.0.0.1:1/schema.json"}},
        {"guided_json": {"$ref": "file:///etc/passwd"}},
        {"guided_json": {"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}}},
        {"guided_json": {"type": "string", "pattern": "(" * 500 + "a" + "+)" * 500}},
        {"guided_json": {"type": "string", "minLength": 10**9}},
        {"guided_json": {"anyOf": [{"type": "array", "minItems": 500, "maxItems": 1000}] * 200}},
        {"guided_choice": []},
    ],
)
def test_a_form_that_is_wrong_or_vast_hurts_nobody_else(server: ServerProcess, grammar: dict[str, Any]) -> None:
    long = {**PROBE, "max_tokens": 100}
    alone = told_by(streamed(server, TEXT, long))
    with ThreadPoolExecutor(2) as pool:
        beside = pool.submit(streamed, server, TEXT, long)
        status, told = reply_to(server, TEXT, {"prompt": "x", "max_tokens": 10, "temperature": 0, **grammar})
        assert told_by(beside.result()) == alone
    assert status in (200, 400), told
    if "$ref" in str(grammar) and "/" in str(grammar.get("guided_json", {}).get("$ref")).partition("#")[0]:
        # Nothing is fetched for a schema, neither from the net nor from the disk.
        assert status == 400


def test_prompts_that_are_empty_are_refused_alone_and_in_a_list(server: ServerProcess) -> None:
    # This model adds no token of its own at the beginning, so that nothing is left to begin with.
    for prompt in ("", [""], [], [[]], ["a", ""]):
        assert refused(server, TEXT, {"prompt": prompt})["param"].startswith("prompt")
    assert refused(server, CHAT, {"messages": []})["param"] == "messages"
    for content in ("", []):
        status, _ = reply_to(server, CHAT, {"messages": [{"role": "user", "content": content}], "max_tokens": 2})
        assert status in (200, 400)
    assert refused(server, CHAT, {"messages": [{"role": "user", "content": None}]})["param"].startswith("messages.0")


def test_without_a_limit_an_answer_ends_where_the_context_does(server: ServerProcess) -> None:
    chat = {"messages": [{"role": "user", "content": "x" * 900}], "temperature": 0, "ignore_eos": True}
    for more in ({}, {"max_tokens": None}):
        told = asked(server, CHAT, {**chat, **more})
        assert told["choices"][0]["finish_reason"] == "length"
        assert told["usage"]["total_tokens"] == CONTEXT
    for wrong in (-1, 0, 1.5, "8", 10**9, 10**40):
        assert refused(server, CHAT, {**chat, "max_tokens": wrong})["param"] == "max_tokens"


def test_what_does_not_fit_the_context_is_refused_and_never_cut_unasked(server: ServerProcess) -> None:
    system, user = {"role": "system", "content": "s" * 1100}, {"role": "user", "content": "hi"}
    for messages in ([system, user], [{"role": "user", "content": "u" * 1100}], [user, {**system, "role": "user"}]):
        told = refused(server, CHAT, {"messages": messages, "max_tokens": 1})
        assert told["code"] == "context_length_exceeded"
    for length, max_tokens, fits in ((1000, 50, False), (1023, 1, True), (1024, 1, False)):
        body = {"prompt": [65] * length, "max_tokens": max_tokens, "ignore_eos": True}
        if fits:
            assert asked(server, TEXT, body)["usage"]["total_tokens"] == CONTEXT
        else:
            assert refused(server, TEXT, body)["code"] == "context_length_exceeded"
    body = {"prompt": [65] * 2000, "max_tokens": 4, "ignore_eos": True, "truncate_prompt_tokens": 100}
    assert asked(server, TEXT, body)["usage"]["prompt_tokens"] == 100


def test_a_conversation_has_its_beginning_once(server: ServerProcess) -> None:
    messages = [{"role": "user", "content": "hello"}]
    tokens = asked(server, "/tokenize", {"messages": messages})["tokens"]
    assert tokens.count(BEGIN) <= 1
    told = asked(server, CHAT, {"messages": messages, "max_tokens": 1})
    assert told["usage"]["prompt_tokens"] == len(tokens)


def test_temperatures_near_nothing_choose_the_most_likely(server: ServerProcess) -> None:
    body = {"prompt": "x", "max_tokens": 12, "seed": 1, "ignore_eos": True}
    greedy = text_of(asked(server, TEXT, {**body, "temperature": 0}))
    for temperature in (1e-3, 1e-5, 1e-8, 1e-12, 1e-45):
        assert text_of(asked(server, TEXT, {**body, "temperature": temperature})) == greedy
    for top_p in (1e-9, 1):
        assert asked(server, TEXT, {**body, "temperature": 2, "top_p": top_p})["usage"]["completion_tokens"] == 12
    assert text_of(asked(server, TEXT, {**body, "temperature": 2, "top_p": 1e-9})) == greedy
    for wrong in (-1, -1e-9):
        assert refused(server, TEXT, {**body, "temperature": wrong})["param"] == "temperature"


def test_the_end_of_an_answer_is_not_part_of_it_and_can_be_ignored(server: ServerProcess) -> None:
    body = {"prompt": "x", "max_tokens": 6, "temperature": 0, "logit_bias": {str(END): 100}}
    told = asked(server, TEXT, body)
    assert (told["choices"][0]["finish_reason"], told["choices"][0]["text"]) == ("stop", "")
    told = asked(server, TEXT, {**body, "ignore_eos": True})
    assert told["choices"][0]["finish_reason"] == "length"
    assert told["usage"]["completion_tokens"] == 6


def sent(server: ServerProcess, path: str, body: dict[str, Any], *, more: bytes = b"") -> socket.socket:
    """A connection on which a body was sent, and perhaps something behind it."""
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n\r\n".encode()
    connection = socket.create_connection(server.address)
    connection.sendall(head + raw + more)
    return connection


def test_fifty_clients_that_leave_in_every_way_leave_nothing(server: ServerProcess) -> None:
    for number in range(50):
        body = {"prompt": f"p{number}", "max_tokens": 900, "ignore_eos": True, "stream": number % 3 > 0}
        more = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" if number % 5 == 0 else b""
        connection = sent(server, TEXT, body, more=more)
        if number % 3 == 1:
            assert connection.recv(100)
        if number % 2:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


def test_a_reader_that_stops_reading_holds_up_nobody(server: ServerProcess) -> None:
    body = {"prompt": "x", "max_tokens": 900, "n": 8, "ignore_eos": True, "stream": True, "logprobs": 5}
    idle = sent(server, TEXT, body)
    for _ in range(3):
        assert asked(server, TEXT, PROBE)["usage"]["completion_tokens"] == 4
    idle.close()


def test_names_and_paths_of_clients_stay_within_their_lines(server: ServerProcess) -> None:
    with server.client() as client:
        for path in ("/a%0a12:00:00 info request status=200", "/v1/files/../../etc/passwd", "/v1/files/%2e%2e%2fx"):
            assert client.get(path).status_code in (404, 405)
        reply = client.get("/v1/models/a%0d%0aset-cookie: x", headers={"x-request-id": "a b=c"})
        assert reply.status_code == 404
        assert "set-cookie" not in reply.headers
        assert reply.headers["x-request-id"] == "a b=c"
    assert not [line for line in server.said if line.startswith("12:00:00 info request status=200")]
    status, told = reply_to(server, "/v1/responses", {"input": [{"role": "messages.99", "content": "x"}]})
    assert status == 400, told
