"""Traces: what a span of a request says, kept in memory instead of being sent."""

from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.unit.api.byte_text import MODEL, byte_text

from plait.api.calls import Call, Endpoint
from plait.api.endpoints import call_of, parse_body
from plait.core.client import Delta
from plait.core.clock import SimClock
from plait.core.errors import RequestError, UsageError
from plait.core.request import FinishReason
from plait.server.incoming import ClientGone
from plait.server.tracing import Tracing, open_tracing

ADDRESS = "http://127.0.0.1:9/v1/traces"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traced:
    """A tracer, its clock and what it exported."""

    def __init__(self) -> None:
        memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
        pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
        self.clock = SimClock(50.0)
        self.exporter = memory.InMemorySpanExporter()
        self.tracing: Tracing = open_tracing(ADDRESS, "1.2", self.clock.now, self.exporter)

    def later(self, seconds: float) -> None:
        self.clock.wait(until=self.clock.now() + seconds)

    def span(self) -> Any:
        """The only one."""
        self.tracing.close()
        (span,) = self.exporter.get_finished_spans()
        return span


@pytest.fixture
def traced() -> Iterator[Traced]:
    made = Traced()
    yield made
    made.tracing.close()


def call(body: Mapping[str, Any]) -> Call:
    full = {"model": MODEL.name, **body}
    return call_of(parse_body(Endpoint.COMPLETIONS, full), "cmpl-1", byte_text(), MODEL)


def delta(tokens: int, end: FinishReason | None = None, choice: int = 0, cached: int = 0) -> Delta:
    return Delta(choice, "", tuple(range(tokens)), (), end, num_prompt=3, num_cached=cached)


def test_a_span_says_what_was_asked_what_came_and_how_long_it_took(traced: Traced) -> None:
    asked = call({"prompt": ["abc", "xyz"], "max_tokens": 9, "temperature": 0.5, "seed": 7, "n": 1})
    with traced.tracing.request(Endpoint.COMPLETIONS, {"traceparent": PARENT, "authorization": "secret"}) as trace:
        trace.asked(asked)
        traced.later(2)
        trace.came(0, delta(1, cached=2))
        traced.later(1)
        trace.came(0, delta(3, FinishReason.STOP, cached=2))
        trace.came(1, delta(9, FinishReason.LENGTH))
    span = traced.span()
    assert span.name == f"text_completion {MODEL.name}"
    assert span.kind.name == "SERVER"
    assert f"{span.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "plait",
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "gen_ai.request.model": MODEL.name,
        "gen_ai.response.model": MODEL.name,
        "gen_ai.response.id": "cmpl-1",
        "gen_ai.request.id": "cmpl-1",
        "gen_ai.request.n": 1,
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.stream": False,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.seed": 7,
        "gen_ai.usage.num_sequences": 2,
        "gen_ai.usage.input_tokens": 6,
        "gen_ai.usage.prompt_tokens": 6,
        "gen_ai.usage.output_tokens": 13,
        "gen_ai.usage.completion_tokens": 13,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.response.finish_reasons": ("stop", "length"),
        "gen_ai.latency.time_to_first_token": 2.0,
        "gen_ai.latency.e2e": 3.0,
    }
    assert span.status.status_code.name == "UNSET"
    assert span.resource.attributes["service.name"] == "plait"


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        (RequestError("too long", code="context_length_exceeded"), "context_length_exceeded"),
        (RequestError("no"), "invalid_request_error"),
        (ClientGone(), "client_left"),
        (ZeroDivisionError(), "internal_error"),
    ],
)
def test_a_request_that_fails_has_a_span_that_says_how(traced: Traced, trouble: Exception, kind: str) -> None:
    with pytest.raises(type(trouble)), traced.tracing.request(Endpoint.CHAT, {}):
        raise trouble
    span = traced.span()
    assert (span.name, span.attributes["error.type"], span.status.status_code.name) == ("chat", kind, "ERROR")
    assert span.parent is None
    assert "gen_ai.latency.time_to_first_token" not in span.attributes


@pytest.mark.parametrize(
    ("end", "kind"), [(FinishReason.ERROR, "error"), (FinishReason.ABORT, "abort"), (None, "client_left")]
)
def test_a_stream_that_ends_badly_says_so_though_nothing_was_raised(
    traced: Traced, end: FinishReason | None, kind: str
) -> None:
    with traced.tracing.request(Endpoint.COMPLETIONS, {}) as trace:
        trace.asked(call({"prompt": "abc"}))
        trace.came(0, delta(2, end))
    span = traced.span()
    assert (span.attributes["error.type"], span.attributes["gen_ai.usage.output_tokens"]) == (kind, 2)


@pytest.mark.parametrize("parent", ["", "00-xyz", "ff-" + "0" * 32 + "-" + "0" * 16 + "-01", "\xff" * 300])
def test_a_parent_that_is_none_begins_a_trace_of_its_own(traced: Traced, parent: str) -> None:
    with traced.tracing.request(Endpoint.CHAT, {"traceparent": parent}):
        pass
    assert traced.span().parent is None


def test_a_parent_that_is_not_sampled_has_no_span(traced: Traced) -> None:
    with traced.tracing.request(Endpoint.CHAT, {"traceparent": PARENT[:-1] + "0"}) as trace:
        trace.asked(call({"prompt": "abc"}))
    traced.tracing.close()
    assert traced.exporter.get_finished_spans() == ()


def test_what_is_no_address_is_refused_and_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("localhost:4317", "grpc://x", ""):
        with pytest.raises(UsageError, match="OTLP over HTTP"):
            open_tracing(wrong, "1", lambda: 0.0)
    real = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"pip install 'plait\[otel\]'"):
        open_tracing(ADDRESS, "1", lambda: 0.0)


def test_a_server_without_traces_never_imports_them() -> None:
    code = "import sys, plait.cli.serve; print([one for one in sys.modules if one.startswith('opentelemetry')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "[]\n"
