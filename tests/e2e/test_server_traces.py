"""Traces of a running server, at a collector that is asked what it got. Where OpenTelemetry is installed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest
from tests.e2e.server_process import serving
from tests.e2e.tiny_model import write_tiny_model

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP and keeps it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        super().__init__(("127.0.0.1", 0), _Take)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/traces"

    def spans(self) -> list[Any]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [
            span
            for one in requests
            for group in one.resource_spans
            for part in group.scope_spans
            for span in part.spans
        ]


class _Take(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        collector = self.server
        assert isinstance(collector, Collector)
        collector.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "tiny.gguf")


def test_every_request_that_does_work_is_a_span_at_the_collector(collector: Collector, tiny: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with serving(tiny, "--otlp-traces-endpoint", collector.address) as server:
        with server.client() as client:
            body = {"prompt": "abc", "max_tokens": 5, "ignore_eos": True}
            assert client.post("/v1/completions", json=body, headers={"traceparent": PARENT}).status_code == 200
            with client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as reply:
                reply.read()
            assert client.post("/v1/responses", json={"input": "a", "max_output_tokens": 2}).status_code == 200
            assert client.post("/v1/embeddings", json={"input": ["a", "b"]}).status_code == 200
            assert client.post("/v1/completions", json={"prompt": "x" * 999}).status_code == 400
            assert client.get("/health").status_code == 200
        server.signal(SIGTERM)
        assert server.wait() == 0
    spans = {span.name: {one.key: one.value for one in span.attributes} for span in collector.spans()}
    assert sorted(span.name for span in collector.spans()) == [
        *("chat tiny", "chat tiny", "embeddings tiny", "text_completion", "text_completion tiny"),
    ]
    done = spans["text_completion tiny"]
    assert done["gen_ai.usage.output_tokens"].int_value == 5
    assert done["gen_ai.usage.input_tokens"].int_value == 3
    assert 0 < done["gen_ai.latency.time_to_first_token"].double_value <= done["gen_ai.latency.e2e"].double_value
    assert spans["text_completion"]["error.type"].string_value == "context_length_exceeded"
    assert spans["embeddings tiny"]["gen_ai.usage.input_tokens"].int_value == 2
    (child,) = [span for span in collector.spans() if span.name == "text_completion tiny"]
    assert child.trace_id.hex() == PARENT.split("-")[1]
    assert b"xxxxx" not in b"".join(collector.bodies), "no prompt leaves the server"


CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "ignore_eos": True}


def test_a_collector_that_is_not_there_hurts_nobody(tiny: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with serving(tiny, "--otlp-traces-endpoint", "http://127.0.0.1:9/v1/traces") as server:
        with server.client() as client:
            assert client.post("/v1/chat/completions", json=CHAT).status_code == 200
        server.signal(SIGTERM)
        assert server.wait() == 0
