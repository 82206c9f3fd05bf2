"""The metrics page: figures in Prometheus' text form.

Owns names and labels: vLLM's, so that dashboards made for it work, and ours for what it does not have. Reads figures
that other threads write; a page may be off by the step that is running.
Invariant: every name is there from the first page on, with zero where nothing has happened.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from plait.core.client import EngineClient
from plait.core.request import NO_SLO, FinishReason, ServiceClass, Slo
from plait.metrics.histogram import Histogram
from plait.metrics.serving_figures import ServingFigures
from plait.server.serving import Serving

_TICK_S = 0.1
_DELAYS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_LABELS = ("model_name", "engine")


@dataclass(slots=True, eq=False)
class LoopDelay:
    """How much later than asked the event loop wakes: what every client waits besides the engine."""

    delays: Histogram = field(default_factory=lambda: Histogram(_DELAYS_S))

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self.delays.add(max(0.0, loop.time() - due))


@dataclass(frozen=True, slots=True)
class GroupBlocks:
    """KV blocks of one cache group by what they hold."""

    name: str
    kind: str
    num_layers: int
    tokens_per_block: int
    used: int
    cached: int
    free: int
    idle_bytes: int = 0
    """Of slots of used blocks that hold no token."""
    padding_bytes: int = 0
    """Of blocks that hold something, to make blocks of all groups equal."""
    page_idle_bytes: int = 0
    """Of free blocks on the group's pages."""
    evicted: int = 0
    """Cached blocks given up since the start."""
    allowed_hit_tokens: int = 0
    """Prompt tokens that would have been hits if no other group had given some up."""
    lost_hit_tokens: int = 0
    """Prompt tokens that would have been hits but for this group alone."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where figures come from. `cache_fraction` says how much of the KV memory eviction could not free, `groups` what
    its groups hold; `slos` are the targets of requests that bring none, `now` is the engine's time, `refused` counts
    those who never came to the engine.
    """

    client: EngineClient
    figures: ServingFigures
    loop_delay: LoopDelay
    cache_fraction: Callable[[], float]
    groups: Callable[[], Sequence[GroupBlocks]]
    cache_config: Mapping[str, str]
    slos: Mapping[ServiceClass, Slo]
    now: Callable[[], float]
    refused: Mapping[str, int]
    change_delays: Callable[[], Histogram] | None = None
    """How long workers took to notice a change of shares; None: nobody counts."""


def no_delays() -> Histogram:
    """Of workers that nobody asks."""
    return Histogram(_DELAYS_S)


class Figures(Collector):
    """What a page is made of."""

    def __init__(self, model: str, sources: Sources) -> None:
        self._labels = [model, "0"]
        self._from = sources

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        yield from self._slo_figures()
        yield from self._lanes_and_blocks()
        yield from self._histograms()

    def _gauges(self) -> Iterator[Metric]:
        health = self._from.client.health()
        figures = self._from.figures
        used = self._from.cache_fraction()
        yield self._gauge("vllm:num_requests_running", "Sequences that are being computed.", health.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Sequences that wait for room.", health.num_waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", used)
        yield self._gauge("vllm:gpu_cache_usage_perc", "The same under its older name.", used)
        config = GaugeMetricFamily(
            "vllm:cache_config_info", "How the cache is laid out.", labels=list(self._from.cache_config)
        )
        config.add_metric(list(self._from.cache_config.values()), 1.0)
        yield config
        by_reason = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason", "Sequences that wait, by what is short.", labels=[*_LABELS, "reason"]
        )
        if health.num_waiting and figures.waiting_for is not None:
            by_reason.add_metric([*self._labels, str(figures.waiting_for)], health.num_waiting)
        yield by_reason

    def _counters(self) -> Iterator[Metric]:
        figures = self._from.figures
        yield self._counter("vllm:prompt_tokens", "Prompt tokens of scheduled sequences.", figures.prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Output tokens.", figures.generation_tokens)
        yield self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up.", figures.queried_tokens)
        yield self._counter("vllm:prefix_cache_hits", "Of these, found.", figures.cached_tokens)
        yield self._counter("vllm:num_preemptions", "Preemptions.", figures.preemptions)
        yield from self._drafts()
        yield self._counter("plait:steps", "Steps submitted.", figures.steps)
        yield self._counter("plait:step_seconds", "Time in steps.", figures.busy_s)
        yield self._counter("plait:share_changes", "Changes of the lanes' shares.", figures.share_changes)
        done = CounterMetricFamily(
            "vllm:request_success", "Sequences that ended, by reason.", labels=[*_LABELS, "finished_reason"]
        )
        for reason in FinishReason:
            done.add_metric([*self._labels, reason.value], figures.finished[reason])
        yield done
        refused = CounterMetricFamily(
            "plait:requests_rejected", "Requests refused, by reason.", labels=[*_LABELS, "reason"]
        )
        for code, count in sorted({**figures.refused, **self._from.refused}.items()):
            refused.add_metric([*self._labels, code], count)
        yield refused

    def _lanes_and_blocks(self) -> Iterator[Metric]:
        steps = CounterMetricFamily("plait:lane_steps", "Steps that ended on a lane.", labels=[*_LABELS, "lane"])
        busy = CounterMetricFamily("plait:lane_step_seconds", "Time in steps of a lane.", labels=[*_LABELS, "lane"])
        units = GaugeMetricFamily(
            "plait:lane_share_units", "Workers that a lane has now, of all lanes'.", labels=[*_LABELS, "lane"]
        )
        unit_s = CounterMetricFamily(
            "plait:lane_share_unit_seconds",
            "Workers of a lane times seconds: its rate is the mean share.",
            labels=[*_LABELS, "lane"],
        )
        now_s = self._from.now()
        for name, lane in sorted(self._from.figures.lanes.copy().items()):
            steps.add_metric([*self._labels, str(name)], lane.steps)
            busy.add_metric([*self._labels, str(name)], lane.busy_s)
            units.add_metric([*self._labels, str(name)], lane.units)
            unit_s.add_metric([*self._labels, str(name)], lane.unit_s(now_s))
        blocks = GaugeMetricFamily(
            "plait:kv_blocks", "KV blocks by cache group and state.", labels=[*_LABELS, "group", "state"]
        )
        by_group = [*_LABELS, "group"]
        waste = GaugeMetricFamily(
            "plait:kv_waste_bytes", "Lent KV memory that holds nothing needed.", labels=[*by_group, "cause"]
        )
        evicted = CounterMetricFamily("plait:kv_evicted_blocks", "Cached KV blocks given up.", labels=by_group)
        allowed = CounterMetricFamily(
            "plait:kv_allowed_hit_tokens", "Prompt tokens that this group alone would have let be hit.", labels=by_group
        )
        lost = CounterMetricFamily(
            "plait:kv_lost_hit_tokens", "Prompt tokens that only this group kept from being hit.", labels=by_group
        )
        for group in self._from.groups():
            label = [*self._labels, group.name]
            for state, count in (("used", group.used), ("cached", group.cached), ("free", group.free)):
                blocks.add_metric([*label, state], count)
            causes = (group.idle_bytes, group.padding_bytes, group.page_idle_bytes)
            for cause, size in zip(("empty_slots", "padding", "free_on_lent_pages"), causes, strict=True):
                waste.add_metric([*label, cause], size)
            evicted.add_metric(label, group.evicted)
            allowed.add_metric(label, group.allowed_hit_tokens)
            lost.add_metric(label, group.lost_hit_tokens)
        yield from (steps, busy, units, unit_s, blocks, waste, evicted, allowed, lost)

    def _drafts(self) -> Iterator[Metric]:
        figures = self._from.figures
        yield self._counter(
            "vllm:spec_decode_num_drafts", "Guesses that were verified, of any length.", figures.num_drafts
        )
        yield self._counter("vllm:spec_decode_num_draft_tokens", "Their tokens.", figures.draft_tokens)
        yield self._counter(
            "vllm:spec_decode_num_accepted_tokens",
            "Of these, those that were right: each saved its sequence a step.",
            figures.accepted_tokens,
        )
        by_place = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens that were right, by place in the guess.",
            labels=[*_LABELS, "position"],
        )
        for place, count in enumerate(list(figures.accepted_by_place)):
            by_place.add_metric([*self._labels, str(place)], count)
        yield by_place
        yield self._counter("plait:draft_model_steps", "Steps of a draft model.", figures.draft_model_steps)
        yield self._counter("plait:draft_model_step_seconds", "Time in them.", figures.draft_model_s)

    def _slo_figures(self) -> Iterator[Metric]:
        labels = [*_LABELS, "class", "kind"]
        wanted = GaugeMetricFamily("plait:slo_target_seconds", "Targets that --*-slo set.", labels=labels)
        attained = CounterMetricFamily("plait:slo_attained", "Sequences that met a target.", labels=labels)
        missed = CounterMetricFamily("plait:slo_missed", "Sequences that missed a target.", labels=labels)
        recent = GaugeMetricFamily(
            "plait:slo_attainment_ratio", "Share that met a target in the last five minutes; NaN: none.", labels=labels
        )
        for service_class, kind, one, share in self._from.figures.slos.rows(self._from.now()):
            label = [*self._labels, service_class.value, kind.value]
            target_s = kind.of(self._from.slos.get(service_class, NO_SLO))
            if target_s is not None:
                wanted.add_metric(label, target_s)
            attained.add_metric(label, one.attained)
            missed.add_metric(label, one.missed)
            recent.add_metric(label, math.nan if share is None else share)
        goodput = CounterMetricFamily(
            "plait:goodput_requests", "Sequences that met all their targets.", labels=[*_LABELS, "class"]
        )
        for service_class, count in self._from.figures.slos.goodput.items():
            goodput.add_metric([*self._labels, service_class.value], count)
        yield from (wanted, attained, missed, recent, goodput)

    def _histograms(self) -> Iterator[Metric]:
        figures = self._from.figures
        for name, text, histogram in (
            ("vllm:time_to_first_token_seconds", "Arrival to first token.", figures.first_token),
            ("vllm:inter_token_latency_seconds", "Gap between two tokens.", figures.between_tokens),
            ("vllm:time_per_output_token_seconds", "The same under its older name.", figures.between_tokens),
            ("vllm:e2e_request_latency_seconds", "Arrival to last token.", figures.end_to_end),
            ("vllm:request_queue_time_seconds", "Arrival to first step.", figures.queue),
            ("vllm:request_inference_time_seconds", "First step to last token.", figures.inference),
            ("vllm:request_prefill_time_seconds", "First step to first token.", figures.prefill),
            ("vllm:request_decode_time_seconds", "First to last token.", figures.decode),
            ("vllm:request_prompt_tokens", "Prompt tokens of a sequence.", figures.prompt_length),
            ("vllm:request_generation_tokens", "Output tokens of a sequence.", figures.output_length),
            ("vllm:iteration_tokens_total", "Tokens of a step.", figures.step_tokens),
            ("vllm:request_num_preemptions", "Preemptions of a sequence.", figures.preemptions_each),
            ("plait:event_loop_delay_seconds", "How late the event loop wakes.", self._from.loop_delay.delays),
            (
                "plait:lane_change_delay_seconds",
                "From a change of shares until a worker takes it up.",
                (self._from.change_delays or no_delays)(),
            ),
        ):
            family = HistogramMetricFamily(name, text, labels=list(_LABELS))
            family.add_metric(self._labels, buckets=histogram.cumulative(), sum_value=histogram.total)
            yield family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=list(_LABELS))
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=list(_LABELS))
        family.add_metric(self._labels, value)
        return family


class MetricsPage:
    """GET /metrics, in the form that the scraper asks for."""

    def __init__(self, figures: Figures) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(figures)
        ProcessCollector(registry=self._registry)

    async def __call__(self, serving: Serving, request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), headers={"content-type": kind})
