"""Benchmarks: the result of a load generator, `vllm bench serve --save-result --save-detailed` or SGLang's
`bench_serving --output-file F --output-details`.

Owns the reading of its columns: `input_lens`, `output_lens`, `errors`, and `start_times` where they were kept; without
those the arrivals are drawn anew at the result's `request_rate`, which is what the generator did.
Invariant: a request that failed is left out and counted.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path

from plait.core.errors import UsageError
from plait.sim.traces.documents import read_document
from plait.sim.traces.fields import json_object, seconds, tokens
from plait.sim.traces.lines import Place, numbered
from plait.sim.traces.request import TraceRequest

MOST_PER_S = 1e9


def is_benchmark(head: str) -> bool:
    return (head.lstrip().startswith("{") and '"input_lens"' in head) or '"total_input_tokens"' in head


def read_benchmark(path: Path, seed: int, notes: list[str]) -> Iterator[TraceRequest]:
    """Requests in order of arrival, from second 0 on."""
    place, values = _last_result(path, notes)
    prompts, outputs = _column(values, "input_lens", place), _column(values, "output_lens", place)
    if prompts is None or outputs is None:
        missing = "input_lens" if prompts is None else "output_lens"
        raise UsageError(
            f"{place}: {missing} is missing; save the result with --save-detailed (SGLang: --output-details)"
        )
    errors = _column(values, "errors", place) or [""] * len(prompts)
    starts = _column(values, "start_times", place)
    for name, column in (("output_lens", outputs), ("errors", errors), ("start_times", starts or prompts)):
        if len(column) != len(prompts):
            raise place.error(name, f"{len(column)} values", f"it must have {len(prompts)}, as input_lens has")
    times = (
        _drawn(values.get("request_rate"), len(prompts), seed, notes) if starts is None else _relative(starts, place)
    )
    kept = []
    for at, (prompt, output, failed) in enumerate(zip(prompts, outputs, errors, strict=True)):
        if failed or not output:
            continue
        one = {f"input_lens[{at}]": prompt, f"output_lens[{at}]": output}
        first, second = one
        kept.append(TraceRequest(times[at], tokens(one, first, place), tokens(one, second, place)))
    if len(kept) < len(prompts):
        notes.append(f"{len(prompts) - len(kept)} requests were left out: they failed")
    if not kept:
        raise UsageError(f"{place}: no request succeeded; there is nothing to replay")
    yield from sorted(kept, key=lambda request: request.at_s or 0.0)


def _last_result(path: Path, notes: list[str]) -> tuple[Place, dict[str, object]]:
    """SGLang appends a line for each run; vLLM writes one object, perhaps over many lines."""
    lines = numbered(path)
    place, text = next(lines, (Place(path, 1), ""))
    if not text.endswith("}"):
        return Place(path, 1), read_document(path)
    count = 1
    for place, text in lines:  # noqa: B007 - the last one is wanted
        count += 1
    if count > 1:
        notes.append(f"{count} results are in the file; the last one is taken")
    return place, json_object(text, place)


def _column(values: Mapping[str, object], name: str, place: Place) -> list[object] | None:
    found = values.get(name)
    if found is not None and not isinstance(found, list):
        raise place.error(name, found, "it must be a list with one value for each request")
    return found


def _relative(starts: list[object], place: Place) -> list[float]:
    found = [seconds({"start_times": one}, "start_times", place) for one in starts]
    first = min(found, default=0.0)
    return [one - first for one in found]


def _drawn(rate: object, count: int, seed: int, notes: list[str]) -> list[float]:
    per_s = rate if isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < MOST_PER_S else None
    if per_s is None:
        notes.append("the result has no start times and no rate: all requests come at once")
        return [0.0] * count
    notes.append(f"the result has no start times: arrivals are drawn at its rate of {per_s:g} requests a second")
    rng, at_s, found = random.Random(seed), 0.0, []
    for _ in range(count):
        found.append(at_s)
        at_s += rng.expovariate(per_s)
    return found
