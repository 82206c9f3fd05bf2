"""Tracing: one OpenTelemetry span for every request that does work.

Owns the spans, under the GenAI names of OpenTelemetry's conventions and those of vLLM where it has others. Holds no
text of prompts or answers. The only place that imports OpenTelemetry, and only when somebody asked for traces: without
that it need not be installed and costs nothing.
Invariant: whatever becomes of a request, its span is ended once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from plait.api.calls import Call, Endpoint
from plait.core.client import Delta
from plait.core.errors import EngineStopped, RequestError, UsageError
from plait.core.request import FinishReason
from plait.server.incoming import ClientGone

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

LAST_S = 2.0
"""So long the last spans have to reach their collector when the server ends."""

_OPERATIONS = {
    Endpoint.CHAT: "chat",
    Endpoint.COMPLETIONS: "text_completion",
    Endpoint.EMBEDDINGS: "embeddings",
    Endpoint.RESPONSES: "chat",
}
_CARRIED = ("traceparent", "tracestate")
_NOT_INSTALLED = (
    "--otlp-traces-endpoint needs OpenTelemetry, which is not installed ({error}); "
    "install it with: pip install 'plait[otel]'"
)


class Trace:
    """The span of one request."""

    def __init__(self, span: Span, operation: str, now: Callable[[], float]) -> None:
        self._span = span
        self._operation = operation
        self._now = now
        self._begun_s = now()
        self._first_s: float | None = None
        self._prompts: dict[int, tuple[int, int]] = {}
        """Place of a prompt -> its tokens, and how many of them were cached."""
        self._num_output = 0
        self._ends: list[str] = []
        self._num_choices = 0

    def asked(self, call: Call) -> None:
        self._num_choices = call.num_choices
        self._span.update_name(f"{self._operation} {call.model}")
        sampling = call.generation.sampling
        told: dict[str, str | int | float | None] = {
            "gen_ai.request.model": call.model,
            "gen_ai.response.model": call.model,
            "gen_ai.response.id": call.id,
            "gen_ai.request.id": call.id,
            "gen_ai.request.n": call.generation.n,
            "gen_ai.request.choice.count": call.generation.n,
            "gen_ai.request.stream": call.generation.stream,
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": sampling.top_k or None,
            "gen_ai.request.seed": sampling.seed,
            "gen_ai.request.frequency_penalty": sampling.frequency_penalty or None,
            "gen_ai.request.presence_penalty": sampling.presence_penalty or None,
            "gen_ai.usage.num_sequences": call.num_choices,
        }
        for name, value in told.items():
            if value is not None:
                self._span.set_attribute(name, value)

    def came(self, place: int, delta: Delta) -> None:
        """Something of the answer to the prompt at this place."""
        if self._first_s is None and (delta.tokens or delta.finish_reason is not None):
            self._first_s = self._now()
        self._prompts[place] = (delta.num_prompt, delta.num_cached)
        self._num_output += len(delta.tokens)
        if delta.finish_reason is not None:
            self._ends.append(delta.finish_reason.value)

    def failed(self, kind: str) -> None:
        # Imported already: there is a span.
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("error.type", kind)
        self._span.set_status(StatusCode.ERROR)

    def end(self, kind: str | None) -> None:
        """`kind`: what went wrong; None: nothing was raised."""
        if self._prompts:
            num_prompt = sum(prompt for prompt, _ in self._prompts.values())
            for name in ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"):
                self._span.set_attribute(name, num_prompt)
            for name in ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"):
                self._span.set_attribute(name, self._num_output)
            cached = sum(cached for _, cached in self._prompts.values())
            self._span.set_attribute("gen_ai.usage.cache_read.input_tokens", cached)
            self._span.set_attribute("gen_ai.response.finish_reasons", self._ends)
        if self._first_s is not None:
            self._span.set_attribute("gen_ai.latency.time_to_first_token", self._first_s - self._begun_s)
        self._span.set_attribute("gen_ai.latency.e2e", self._now() - self._begun_s)
        bad = [one for one in self._ends if one in (FinishReason.ERROR, FinishReason.ABORT)]
        if kind is None and bad:
            kind = bad[0]
        if kind is None and len(self._ends) < self._num_choices:
            kind = "client_left"
        if kind is not None:
            self.failed(kind)
        self._span.end()


class Tracing:
    """Spans on their way to a collector. `close` sends the last ones."""

    def __init__(self, provider: TracerProvider, now: Callable[[], float]) -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("plait")
        self._kind = SpanKind.SERVER
        self._context = TraceContextTextMapPropagator()
        self._now = now

    @contextmanager
    def request(self, endpoint: Endpoint, headers: Mapping[str, str]) -> Iterator[Trace]:
        """A span, part of the trace that the request's headers name."""
        operation = _OPERATIONS[endpoint]
        carried = {name: headers[name] for name in _CARRIED if name in headers}
        span = self._tracer.start_span(
            operation,
            self._context.extract(carried),
            self._kind,
            {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "plait",
                "http.request.method": "POST",
                "http.route": endpoint.value,
            },
        )
        trace = Trace(span, operation, self._now)
        kind: str | None = "internal_error"
        try:
            yield trace
            kind = None
        except RequestError as error:
            kind = error.code or error.kind
            raise
        except EngineStopped:
            kind = "engine_stopped"
            raise
        except ClientGone:
            kind = "client_left"
            raise
        finally:
            trace.end(kind)

    def close(self) -> None:
        # A collector that does not answer is tried again for longer than anybody waits for a server's end.
        closing = threading.Thread(target=self._provider.shutdown, name="plait-traces", daemon=True)
        closing.start()
        closing.join(LAST_S)


def open_tracing(
    endpoint: str, version: str, now: Callable[[], float], exporter: SpanExporter | None = None
) -> Tracing:
    """Spans to a collector that takes OTLP over HTTP at this address, or to `exporter`. `UsageError` where
    OpenTelemetry is not installed, or the address is none.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise UsageError(
            f"--otlp-traces-endpoint is {endpoint!r}; give the whole address of a collector that takes OTLP over HTTP, "
            "such as http://127.0.0.1:4318/v1/traces"
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise UsageError(_NOT_INSTALLED.format(error=error)) from None
    resource = Resource.create({"service.name": "plait", "service.version": version})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter(endpoint=endpoint)))
    return Tracing(provider, now)
