"""Benchmarks: what results of a benchmark say about steps, when nothing else was measured.

Owns the reading of vLLM's `bench serve`, `bench latency` and `bench throughput` results and of our own `bench serving`,
and what their moments mean: so many steps of such shapes took so long. Knows no device.
Invariant: a result without lengths or concurrency is refused with what is missing; nothing is guessed.

    serving      sequences that decode = tokens a second x seconds a token (Little); a step of them takes the median gap
                 at a concurrency of 1, a prompt takes the median time to the first token
    latency      batch prompts at once, then output - 1 decode steps: their sum is the mean latency
    throughput   all prompts one by one, then requests / concurrency rounds of output steps: their sum is the elapsed
                 time
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plait.core.errors import UsageError
from plait.core.step import ChunkShape, StepShape
from plait.cost.fields import Fields
from plait.cost.least_squares import non_negative_least_squares
from plait.cost.roofline import RooflineModel
from plait.cost.solo import Sample, decode_shape, prefill_shape

OWN_SCHEMA = "plait.bench.serving/1"
_LONE = 1.5
"""Sequences on average, up to which a request hardly ever meets another."""
_LEAST_S, _MOST_S = 1e-6, 1e7
_MOST_LENGTH, _MOST_ROWS = 1 << 22, 1 << 16


@dataclass(frozen=True, slots=True)
class Moment:
    """So many prefill steps and decode steps of these shapes took so many seconds together."""

    source: str
    seconds: float
    prefill: StepShape | None = None
    num_prefills: float = 0.0
    decode: StepShape | None = None
    num_decodes: float = 0.0


def read_moments(path: Path) -> list[Moment]:
    """Of a result file, or of every .json file in a folder. `UsageError` names the file and what it lacks."""
    try:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    if not files:
        raise UsageError(f"{path} holds no .json file; give the results of a benchmark")
    found = [moment for file in files for moment in _moments(Fields.read(file, str(file)))]
    for moment in found:
        if not _LEAST_S <= moment.seconds <= _MOST_S:
            raise UsageError(
                f"{moment.source}: a step or run took {moment.seconds:.3g} s; times lie between "
                f"{_LEAST_S:g} and {_MOST_S:g} s"
            )
    if not found:
        raise UsageError(
            f"{path} tells neither how long a step takes nor a prompt; give a run at a concurrency of 1 too"
        )
    return found


def samples_of(moments: Sequence[Moment], roofline: RooflineModel, share: int) -> list[Sample]:
    """Steps and their seconds on the whole device. Where a moment has both phases, its seconds are divided by what all
    moments together say of them.
    """
    roofs = [_roofs(moment, roofline, share) for moment in moments]
    weights = [1.0 / moment.seconds for moment in moments]
    alphas = non_negative_least_squares(
        [[prefill * weight, decode * weight] for (prefill, decode), weight in zip(roofs, weights, strict=True)],
        [1.0] * len(moments),
    )
    both = sum(moment.seconds for moment in moments) / sum(map(sum, roofs))
    prefill_alpha, decode_alpha = (alpha or both for alpha in alphas)
    found = []
    for moment, (prefill_s, decode_s) in zip(moments, roofs, strict=True):
        off = moment.seconds / (prefill_alpha * prefill_s + decode_alpha * decode_s)
        if moment.prefill is not None:
            found.append(Sample(moment.prefill, share, off * prefill_alpha * prefill_s / moment.num_prefills))
        if moment.decode is not None:
            found.append(Sample(moment.decode, share, off * decode_alpha * decode_s / moment.num_decodes))
    return found


def _roofs(moment: Moment, roofline: RooflineModel, share: int) -> tuple[float, float]:
    prefill = 0.0 if moment.prefill is None else roofline.roof(moment.prefill, share).seconds
    decode = 0.0 if moment.decode is None else roofline.roof(moment.decode, share).seconds
    return prefill * moment.num_prefills, decode * moment.num_decodes


def _moments(fields: Fields) -> list[Moment]:
    if fields.has("schema"):
        fields.text("schema", (OWN_SCHEMA,))
        return _of_ours(fields)
    if fields.has("avg_latency"):
        return _of_latency(fields)
    if fields.has("elapsed_time"):
        return _of_throughput(fields)
    if fields.has("total_input_tokens"):
        return _of_serving(fields)
    raise UsageError(
        f"{fields.source} is no result that is known: vLLM's serving results have total_input_tokens, its latency "
        f"results avg_latency, its throughput results elapsed_time, and ours the schema {OWN_SCHEMA}"
    )


def _of_serving(fields: Fields) -> list[Moment]:
    completed = fields.whole("completed", least=1)
    inputs = fields.number("total_input_tokens", least=1) / completed
    outputs = fields.number("total_output_tokens", least=1) / completed
    tpot_s = fields.number("median_tpot_ms") / 1e3
    gap_s = fields.number("median_itl_ms") / 1e3 if fields.has("median_itl_ms") else tpot_s
    rows = fields.number("output_throughput", above=True) * fields.number("mean_tpot_ms") / 1e3
    lone = fields.has("max_concurrency") and fields.whole("max_concurrency", least=1) == 1
    ttft_s = fields.number("median_ttft_ms", above=True) / 1e3
    return _served(fields.source, inputs, outputs, rows, gap_s, ttft_s if lone or rows <= _LONE else None)


def _of_ours(fields: Fields) -> list[Moment]:
    figures, load = fields.part("figures"), fields.part("load")
    answered = figures.whole("num_requests", least=1) - figures.whole("num_errors", least=0)
    if answered < 1:
        raise figures.fault("num_errors", "nothing was answered; run the benchmark again")
    inputs = figures.number("prompt_tokens", least=1) / answered
    outputs = figures.number("output_tokens", least=1) / answered
    if not figures.has("itl") or not figures.has("ttft"):
        raise figures.fault("itl", "it must be there; ask for answers of several tokens")
    gap_s = figures.part("itl").number("p50", above=True)
    rows = figures.number("output_tokens_per_s", above=True) * gap_s
    lone = load.has("concurrency") and load.whole("concurrency", least=1) == 1
    ttft_s = figures.part("ttft").number("p50", above=True)
    return _served(fields.source, inputs, outputs, rows, gap_s, ttft_s if lone or rows <= _LONE else None)


def _served(
    source: str, inputs: float, outputs: float, rows: float, gap_s: float, ttft_s: float | None
) -> list[Moment]:
    for what, value, most in (
        ("tokens of a prompt", inputs, _MOST_LENGTH),
        ("tokens of an answer", outputs, _MOST_LENGTH),
        ("sequences at once (tokens a second by seconds a token)", rows, _MOST_ROWS),
    ):
        if value > most:
            raise UsageError(f"{source}: {value:.4g} {what}; there can be {most:,}")
    found = []
    if outputs > 1 and gap_s > 0:
        shape = decode_shape(max(1, round(rows)), round(inputs + outputs / 2))
        found.append(Moment(source, gap_s, decode=shape, num_decodes=1.0))
    if ttft_s is not None:
        found.append(Moment(source, ttft_s, prefill=prefill_shape(max(2, round(inputs))), num_prefills=1.0))
    return found


def _of_latency(fields: Fields) -> list[Moment]:
    inputs, outputs = _lengths(fields)
    batch = fields.whole("batch_size", least=1, most=_MOST_ROWS)
    prompts = StepShape((ChunkShape(0, inputs, 1),) * batch)
    decode = decode_shape(batch, inputs + outputs // 2) if outputs > 1 else None
    seconds = fields.number("avg_latency", above=True)
    return [Moment(fields.source, seconds, prompts, 1.0, decode, float(outputs - 1))]


def _of_throughput(fields: Fields) -> list[Moment]:
    inputs, outputs = _lengths(fields)
    requests = fields.whole("num_requests", least=1)
    at_once = min(requests, fields.whole("concurrency", least=1, most=_MOST_ROWS))
    decode = decode_shape(at_once, inputs + outputs // 2) if outputs > 1 else None
    rounds = requests / at_once * (outputs - 1)
    seconds = fields.number("elapsed_time", above=True)
    return [Moment(fields.source, seconds, prefill_shape(inputs), float(requests), decode, rounds)]


def _lengths(fields: Fields) -> tuple[int, int]:
    """vLLM leaves them out of these results: whoever ran it adds them."""
    for name in ("input_len", "output_len"):
        if not fields.has(name):
            raise fields.fault(name, "add it to the file, as it was given to the benchmark")
    return fields.whole("input_len", least=2, most=_MOST_LENGTH), fields.whole("output_len", least=1, most=_MOST_LENGTH)
