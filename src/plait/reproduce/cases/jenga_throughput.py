"""Jenga's throughput (figure 14): eight models on H100s, six on L4s, the same engine with one memory after another.

Owns the published numbers, the devices' budgets and the claims. Models and loads are `jenga_models`'s. Only ratios are
compared: absolute requests per second hang on engines of 2025, on encoders and on kernels, none of which is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from plait.core.errors import InvariantError, UsageError
from plait.cost.hardware import find_hardware
from plait.kv.cache import KVCache
from plait.kv.hit import ImageSpan
from plait.kv.layouts.serving import cut
from plait.kv.rules import ALL_RULES
from plait.model.cache_type import CacheType
from plait.model.cost import Formats
from plait.reproduce.band import Band, Between
from plait.reproduce.case import Answers, Case
from plait.reproduce.cases.jenga_models import (
    Load,
    Modelled,
    articles,
    character,
    gemma_12b,
    images,
    jamba,
    llama,
    ministral,
    mllama,
    pyramid,
    questioned,
    questions,
    scout,
)
from plait.reproduce.figure import JENGA, Evidence, Figure, NotRun, Reference
from plait.sim.driver import simulate
from plait.sim.replica import ReplicaSpec, SimulatedMemory, watched_replica

OURS, UNIFORM, MAX_PAGE, STATIC, VLLM = "paged", "uniform", "max-page", "static", "vllm"
H100, L4 = "h100-80g", "l4-24g"
BOTH = (H100, L4)
SHORT_NAMES = {H100: "H100", L4: "L4"}
RESERVE_BYTES = 1e9
"""For activations."""
CHUNK, BLOCK, ROWS = 2048, 16, 256
TIE = 0.02
"""What equal settings may differ by: the end of a run of few requests."""


@dataclass(frozen=True, slots=True)
class Row:
    """One model of the figure on one device. `printed`: requests per second, by layout."""

    name: str
    device: str
    model: Callable[[], Modelled]
    load: Callable[[], Load]
    long: Callable[[], Load]
    """With answers of 600 tokens: memory decides how many run at once, and that how fast they are."""
    printed: Mapping[str, str]
    part: float = 0.9
    """Of the device's memory that an engine takes."""
    rows: int = ROWS
    shares_prefixes: bool = False
    without_hits: tuple[str, ...] = ()
    """Layouts under which the paper's engine takes up no prefix."""
    ties: tuple[str, ...] = ()
    """Layouts that are no worse, says the paper."""

    @property
    def cache_bytes(self) -> int:
        device = find_hardware(self.device)
        model = self.model()
        weights = model.typed.num_parameters * model.weight_bytes
        return int(self.part * device.memory_bytes - weights - RESERVE_BYTES)


def _printed(uniform: str, max_page: str, static: str, ours: str) -> dict[str, str]:
    return {UNIFORM: uniform, MAX_PAGE: max_page, STATIC: static, OURS: ours}


def rows() -> tuple[Row, ...]:
    """How many L4s there were is not printed, so it follows from what ran there, and how fast. Ministral: one, with
    8-bit weights, since two hold what the paper's vLLM had no memory for. Mllama: the same; its rates are a quarter of
    an H100's, as one L4's are with 8-bit numbers. Models of 70B: four, for their weights. Gemma: four, its weights as
    published: the fewest on which a memory without kinds, which ran, holds 90,000 tokens (35 GB); its rates are half of
    an H100's, as four L4s are half of one.
    """
    return (*_mixed_on_h100(), *_others_on_h100(), *_mixed_on_l4(), *_others_on_l4())


def _mixed_on_h100() -> tuple[Row, ...]:
    seen, seen_long = partial(images, 120, 200), partial(images, 60, 600)
    asked, asked_long = partial(questioned, 10, 43_600, 90_000, 150), partial(articles, 16, 43_600, 90_000, 600)
    short, short_long = partial(questioned, 8, 53_600, 80_000, 150), partial(articles, 16, 53_600, 80_000, 600)
    return (
        Row(
            "Llama-3.2-Vision",
            H100,
            partial(mllama, 2.0),
            seen,
            seen_long,
            _printed("1.56", "1.75", "1.60", "2.67"),
            rows=52,
        ),
        Row(
            "Gemma-3-12B",
            H100,
            partial(gemma_12b, 2.0),
            asked,
            asked_long,
            _printed("0.18", "0.19", "0.20", "0.25"),
            shares_prefixes=True,
        ),
        Row(
            "Ministral-8B",
            H100,
            partial(ministral, 2.0),
            short,
            short_long,
            _printed("0.2025", "0.1977", "", "0.3042"),
            shares_prefixes=True,
        ),
    )


def _others_on_h100() -> tuple[Row, ...]:
    many, many_long = partial(questioned, 40, 43_600, 90_000, 150), partial(articles, 40, 43_600, 90_000, 600)
    exam, exam_long = partial(questions, 100, 200), partial(questions, 60, 600)
    return (
        Row(
            "Llama-4-Scout",
            H100,
            partial(scout, 8),
            many,
            many_long,
            _printed("0.67", "0.76", "0.81", "1.16"),
            shares_prefixes=True,
        ),
        Row(
            "Jamba-1.5-Mini",
            H100,
            partial(jamba, 4),
            partial(questions, 300, 20),
            exam_long,
            _printed("7.47", "9.52", "7.47", "10.38"),
            shares_prefixes=True,
            without_hits=(UNIFORM,),
        ),
        Row(
            "character 70B",
            H100,
            partial(character, 1),
            exam,
            exam_long,
            _printed("1.20", "1.30", "1.73", "1.95"),
            part=0.95,
            shares_prefixes=True,
        ),
        Row(
            "PyramidKV 70B",
            H100,
            partial(pyramid, 1),
            exam,
            exam_long,
            _printed("0.14", "0.21", "0.14", "0.21"),
            part=0.95,
            ties=(MAX_PAGE,),
        ),
        Row(
            "Llama-3.1-8B",
            H100,
            partial(llama, 2.0),
            exam,
            exam_long,
            _printed("9.23", "9.24", "9.23", "9.21"),
            shares_prefixes=True,
            ties=(UNIFORM, MAX_PAGE, STATIC),
        ),
    )


def _mixed_on_l4() -> tuple[Row, ...]:
    seen, seen_long = partial(images, 120, 200), partial(images, 60, 600)
    asked, asked_long = partial(questioned, 10, 43_600, 90_000, 150), partial(articles, 16, 43_600, 90_000, 600)
    short, short_long = partial(questioned, 8, 53_600, 80_000, 150), partial(articles, 16, 53_600, 80_000, 600)
    return (
        Row(
            "Llama-3.2-Vision",
            L4,
            partial(mllama, 1.0),
            seen,
            seen_long,
            _printed("0.32", "0.46", "0.33", "0.69"),
            rows=52,
        ),
        Row(
            "Gemma-3-12B",
            L4,
            partial(gemma_12b, 2.0, 4),
            asked,
            asked_long,
            _printed("0.09", "0.09", "0.10", "0.14"),
            shares_prefixes=True,
        ),
        Row(
            "Ministral-8B",
            L4,
            partial(ministral, 1.0),
            short,
            short_long,
            _printed("", "", "0.0136", "0.08"),
            shares_prefixes=True,
        ),
    )


def _others_on_l4() -> tuple[Row, ...]:
    exam, exam_long = partial(questions, 100, 200), partial(questions, 60, 600)
    return (
        Row(
            "character 70B",
            L4,
            partial(character, 4),
            exam,
            exam_long,
            _printed("0.42", "0.57", "0.33", "0.87"),
            shares_prefixes=True,
        ),
        Row(
            "PyramidKV 70B",
            L4,
            partial(pyramid, 4),
            exam,
            exam_long,
            _printed("0.21", "0.37", "0.21", "0.37"),
            ties=(MAX_PAGE,),
        ),
        Row(
            "Llama-3.1-8B",
            L4,
            partial(llama, 2.0),
            exam,
            exam_long,
            _printed("0.66", "0.66", "0.66", "0.66"),
            shares_prefixes=True,
            ties=(UNIFORM, MAX_PAGE, STATIC),
        ),
    )


def requests_per_s(row: Row, layout: str, load: Load) -> float | NotRun:
    """One run of the engine with one memory."""
    try:
        spec = _spec(row, layout)
    except UsageError as error:
        return NotRun(str(error))
    memories: list[KVCache] = []
    report = simulate(load, watched_replica(spec, memories.append))
    if report.num_failed or (report.num_refused and _holds(memories[0], load)):
        raise InvariantError(f"{report.num_failed} requests of an experiment failed, {report.num_refused} were refused")
    if report.num_refused:
        return NotRun(f"{row.cache_bytes / 1e9:.1f} GB do not hold one sequence in this layout")
    return report.requests_per_s


def _holds(kv: KVCache, load: Load) -> bool:
    """Whether memory has room for every request alone: then something else was wrong with one that was refused."""
    requests = [arrival.request for arrival in load]
    return all(
        kv.can_hold(
            len(one.prompt) + (one.sampling.max_tokens or 0),
            [
                ImageSpan(image.content_hash, image.num_rows or image.num_tokens, image.num_tokens)
                for image in one.images
            ],
        )
        for one in requests
    )


def _spec(row: Row, layout: str) -> ReplicaSpec:
    model = row.model()
    is_plain = layout == UNIFORM or (layout == VLLM and bool(model.keeps))
    program = model.uniform if is_plain else model.typed
    cutting = cut(program, layout, BLOCK, CacheType.F16)
    memory = SimulatedMemory(
        cutting.plan(row.cache_bytes), cutting.rules(ALL_RULES), {} if is_plain else dict(model.keeps)
    )
    return ReplicaSpec(
        cutting.program,
        Formats(default_weight_bytes=model.weight_bytes, default_cache_bytes=2.0, activation_bytes=2.0),
        find_hardware(row.device),
        cache_bytes=row.cache_bytes,
        tokens_per_block=cutting.tokens_per_block,
        max_step_tokens=CHUNK,
        max_rows=row.rows,
        max_model_tokens=131_072,
        enable_prefix=row.shares_prefixes and layout not in row.without_hits,
        check_plans=False,
        memory=memory,
    )


@dataclass(frozen=True, slots=True)
class Mean:
    """A geometric mean over rows, as the paper's over those that have both values in print."""

    name: str
    devices: tuple[str, ...]
    layout: str
    published: str
    band: Band
    long: bool = False
    every_row: bool = False
    """Over those too that have no value in print."""
    note: str = ""

    def has(self, row: Row) -> bool:
        is_printed = bool(row.printed.get(self.layout)) or self.layout == VLLM
        return row.device in self.devices and (self.every_row or is_printed)


CHOSEN = (
    "lengths, shares and budgets are chosen here where the paper does not print them: 43,600 to 90,000 tokens a "
    "document of arXiv-QA (Ministral 53,600 to 80,000) with four questions each in random order, as the authors' "
    "released commands ask, 704 to 2,112 common and 100 to 300 own ones of MMLU-pro, 90 % of the device (95 % where a "
    "model of 70B is on one), steps of 2,048 tokens"
)
SMALL_GAIN = (
    "the simulated engine decodes beside chunks of prompts, and reading 67,000 tokens of context takes longer than the "
    "weights, so that more sequences at once gain little; the paper's engine had other costs per step"
)
NO_HITS = "as the paper's engine, the uniform memory takes up no prefix of a model with states; with hits it is a tie"
OF_BOTH = "published: worked out of the printed rates, 13 rows that have both"
EVERY_ROW = "with Ministral on an L4, where the paper's vLLM did not start"
LONG = "the same prompts with answers of 600 tokens: our own load, to see what memory is worth when it decides"
MEANS = (
    Mean("over uniform", (H100,), UNIFORM, "1.46", Between(low=1.4), note=SMALL_GAIN),
    Mean("over uniform", (L4,), UNIFORM, "1.65", Between(low=1.4), note=SMALL_GAIN),
    Mean("over uniform", BOTH, UNIFORM, "1.53", Between(low=1.4), note=OF_BOTH),
    Mean("over uniform, every row", BOTH, UNIFORM, "more", Between(low=1.4), every_row=True, note=EVERY_ROW),
    Mean("over max-page", (H100,), MAX_PAGE, "1.29", Between(low=1.0)),
    Mean("over max-page", (L4,), MAX_PAGE, "1.29", Between(low=1.0)),
    Mean("over static", (H100,), STATIC, "1.32", Between(low=1.0)),
    Mean("over static", (L4,), STATIC, "2.08", Between(low=1.0)),
    Mean("over vllm", (H100,), VLLM, "no worse", Between(low=1 - TIE)),
    Mean("over vllm", (L4,), VLLM, "no worse", Between(low=1 - TIE)),
    Mean("over uniform, long answers", (H100,), UNIFORM, "1.46", Between(low=1.4), long=True, note=LONG),
    Mean("over vllm, long answers", (H100,), VLLM, "no worse", Between(low=1 - TIE), long=True, note=LONG),
)


def _name(row: Row, layout: str) -> str:
    return f"{row.name}, {SHORT_NAMES[row.device]}, over {layout}"


def _mean_name(mean: Mean) -> str:
    return f"geometric mean, {_devices(mean)}, {mean.name}"


def _devices(mean: Mean) -> str:
    return " and ".join(SHORT_NAMES[device] for device in mean.devices)


def _figures(all_rows: tuple[Row, ...]) -> tuple[Figure, ...]:
    found = []
    for row in all_rows:
        for layout in (UNIFORM, MAX_PAGE, STATIC, VLLM):
            printed = row.printed.get(layout, "")
            band: Band = Between(1 - TIE, 1 + TIE) if layout in row.ties else Between(low=1 - TIE)
            ratio = f"{float(row.printed[OURS]) / float(printed):.2f}" if printed else "no worse"
            what = f"figure 14, {row.name} on {SHORT_NAMES[row.device]}, {layout}"
            found.append(
                Figure(
                    _name(row, layout), Reference(JENGA, "7", what), ratio, band, "x", Evidence.SIMULATED, note=CHOSEN
                )
            )
    for mean in MEANS:
        reference = Reference(JENGA, "7", f"figure 14, mean {mean.name} on {_devices(mean)}")
        name = _mean_name(mean)
        found.append(
            Figure(name, reference, mean.published, mean.band, "x", Evidence.SIMULATED, note=mean.note or CHOSEN)
        )
    return tuple(found)


def work_out(all_rows: tuple[Row, ...]) -> Answers:
    found: dict[str, float | NotRun] = {}
    ratios: list[tuple[Row, str, bool, float]] = []
    for row in all_rows:
        for is_long in (False, True) if row.device == H100 else (False,):
            layouts = (UNIFORM, VLLM) if is_long else (UNIFORM, MAX_PAGE, STATIC, VLLM)
            load = row.long() if is_long else row.load()
            ours = requests_per_s(row, OURS, load)
            for layout in layouts:
                ratio = _over(ours, requests_per_s(row, layout, load))
                if isinstance(ratio, float):
                    ratios.append((row, layout, is_long, ratio))
                if not is_long:
                    found[_name(row, layout)] = ratio
    for mean in MEANS:
        of = (mean.layout, mean.long)
        values = [ratio for row, *what, ratio in ratios if tuple(what) == of and mean.has(row)]
        found[_mean_name(mean)] = math.prod(values) ** (1 / len(values)) if values else NotRun("no row has both")
    return found


def _over(ours: float | NotRun, other: float | NotRun) -> float | NotRun:
    if isinstance(other, NotRun):
        return other
    return ours if isinstance(ours, NotRun) else ours / other


CASE = Case(
    "jenga-throughput",
    "requests per second of eight models, one memory beside another",
    JENGA,
    _figures(rows()),
    lambda: work_out(rows()),
)
