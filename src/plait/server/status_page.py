"""Status: what an operator looks at when the server is slow or silent.

Owns the figures behind `/status` and the page that shows them. The page holds none itself, so it needs no key; it asks
for one and sends it with every look at the figures. It needs nothing from elsewhere and no build.
Invariant: what the page shows is written as text, never as markup.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from plait.api.bodies import JsonObject, JsonValue
from plait.core.request import NO_SLO, ServiceClass, Slo
from plait.metrics.histogram import Histogram
from plait.metrics.serving_figures import LaneFigures, ServingFigures
from plait.server.metrics_page import LoopDelay, no_delays
from plait.server.replies import Json
from plait.server.serving import Serving

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


class StatusFigures:
    """GET /status.json. `memory` gives the KV memory by group; figures of a running step may be half told.
    `slos` are the targets of requests that bring none, `now` the engine's time.
    """

    def __init__(
        self,
        version: str,
        figures: ServingFigures,
        loop_delay: LoopDelay,
        memory: Callable[[], JsonObject],
        batches: Callable[[], JsonObject],
        slos: Mapping[ServiceClass, Slo],
        now: Callable[[], float],
        change_delays: Callable[[], Histogram] | None = None,
    ) -> None:
        self._version = version
        self._figures = figures
        self._loop_delay = loop_delay
        self._memory = memory
        self._batches = batches
        self._slos = slos
        self._now = now
        self._start_s = now()
        self._change_delays = change_delays or no_delays

    async def __call__(self, serving: Serving, request: Request) -> Response:
        figures, health = self._figures, serving.client.health()
        # What the last step left waiting: it may be gone since.
        waiting_for = figures.waiting_for if health.num_waiting else None
        names: list[JsonValue] = list(serving.names)
        state = "draining" if serving.is_draining else "serving" if health.ok else "stopped"
        return Json(
            {
                "version": self._version,
                "models": names,
                "state": state,
                "reason": health.reason,
                "uptime_s": round(self._now() - self._start_s, 1),
                "requests": {
                    "running": health.num_running,
                    "waiting": health.num_waiting,
                    "waiting_for": None if waiting_for is None else str(waiting_for),
                    "open": serving.num_open,
                    "max_open": serving.limits.max_open,
                    "finished": {reason.value: count for reason, count in figures.finished.items()},
                    "refused": {**figures.refused, **serving.watching.refused},
                    "preempted": figures.preemptions,
                },
                "tokens": {
                    "prompt": figures.prompt_tokens,
                    "cached": figures.cached_tokens,
                    "generated": figures.generation_tokens,
                },
                "steps": {"count": figures.steps, "busy_s": round(figures.busy_s, 3)},
                "drafts": {**figures.drafts.json_object()},
                "latency_s": {
                    "first_token": _spread(figures.first_token),
                    "between_tokens": _spread(figures.between_tokens),
                    "whole_answer": _spread(figures.end_to_end),
                    "queue": _spread(figures.queue),
                    "event_loop": _spread(self._loop_delay.delays),
                    "lane_change": _spread(self._change_delays()),
                },
                "lanes": [_lane_row(name, lane, self._now()) for name, lane in sorted(figures.lanes.copy().items())],
                "share_units": figures.share_units,
                "slo": self._slo_rows(),
                "memory": self._memory(),
                "batches": await asyncio.to_thread(self._batches),
            }
        )

    def _slo_rows(self) -> list[JsonValue]:
        """Those that somebody set, or that a request brought."""
        rows: list[JsonValue] = []
        for service_class, kind, one, share in self._figures.slos.rows(self._now()):
            target_s = kind.of(self._slos.get(service_class, NO_SLO))
            if target_s is None and not one.attained + one.missed:
                continue
            rows.append(
                {
                    "class": service_class.value,
                    "kind": kind.value,
                    "target_s": target_s,
                    "attained": one.attained,
                    "missed": one.missed,
                    "recent": share,
                }
            )
        return rows


class DebugMemory:
    """GET /debug/memory. `memory` says where the KV memory went; figures of a running step may be half told."""

    def __init__(self, memory: Callable[[], JsonObject]) -> None:
        self._memory = memory

    async def __call__(self, serving: Serving, request: Request) -> Response:
        return Json(self._memory())


class StatusPage:
    """GET /status."""

    def __init__(self) -> None:
        self._page = files("plait.server").joinpath("status.html").read_text("utf-8")

    async def __call__(self, serving: Serving, request: Request) -> Response:
        headers = {"content-security-policy": _POLICY, "x-content-type-options": "nosniff"}
        return Response(self._page, media_type="text/html; charset=utf-8", headers=headers)


def _lane_row(name: int, lane: LaneFigures, now_s: float) -> JsonObject:
    return {
        "lane": name,
        "steps": lane.steps,
        "busy_s": round(lane.busy_s, 3),
        "workers": lane.workers,
        "units": lane.units,
        "unit_s": round(lane.unit_s(now_s), 3),
        "suspended": lane.is_suspended,
    }


def _spread(histogram: Histogram) -> JsonObject:
    """Since the start. Percentiles are upper bounds of buckets; null: behind the last, or nothing came."""
    return {"count": histogram.count, "p50": histogram.at_most(0.5), "p99": histogram.at_most(0.99)}
