"""Quality: `plait bench quality`, what a configuration's numbers cost, and whether that is within a limit.

Owns the text, the comparison, its statistics, the table and the verdict. The configuration, as it would be served, goes
through a text beside the file's weights dequantised to float32, a cache of float32 and rows of float32.
Invariant: both see the same tokens behind the same tokens, so what differs is the numbers alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from importlib import resources
from pathlib import Path

from tqdm import tqdm

from plait.build import LoadedModel, load_executor, load_model
from plait.cli.streams import say, show, show_json
from plait.cli.terminal import download_progress
from plait.config.bench_options import QualityOptions
from plait.config.engine_options import EngineOptions
from plait.config.option import OptionSources
from plait.core.clock import RealClock
from plait.core.errors import PlaitError, UsageError
from plait.exec.likeness import Likeness, likeness
from plait.exec.loading import LoadableExecutor
from plait.exec.native import presence
from plait.exec.scoring import LogitsTap, Scorer, cut_windows, rows_per_step
from plait.text.tokenizer import Tokenizer

WINDOW = 512
"""Tokens. Two key tiles, so that attention merges; more would be slow without telling more."""
QUICK_TOKENS = 1024
MAX_TEXT_BYTES = 16 << 20
"""Hundreds of times what is scored; what never ends, as a device, is found out by it."""
CLEAR = 2.0
"""Standard errors. What is nearer to the limit may be on its other side for another text."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Of one configuration. Log-probabilities are natural, fractions from 0 to 1."""

    file: str
    weights: str
    """Schemes of the matrices, as `rows` and `cache` joined with +."""
    rows: str
    """What stands in front of a matrix: f32 or int8."""
    cache: str
    num_tokens: int
    """That were scored."""
    perplexity: float
    true_perplexity: float
    """In float32."""
    change: float
    """Of the perplexity by float32's; 0.01 is 1 % worse."""
    change_error: float | None
    """Standard error over windows: what another text of this kind could change. None: one window has none."""
    agreement: float
    """Part of the rows whose likeliest token is the same."""
    mean_distance: float
    """Between the log-probabilities of the text's tokens."""
    largest_distance: float
    divergence: float
    """Mean Kullback-Leibler divergence, in nats."""
    logit_error: float
    """Root of the mean square, by the largest logit."""
    largest_logit_error: float
    """The same for the worst of all logits."""
    fingerprint: str

    def is_within(self, limit: float) -> bool:
        return self.change <= limit

    def sentence(self, limit: float | None) -> str:
        """What the gate says; without a limit there is none."""
        said = f"perplexity changes by {self.change_text()} against the same weights in float32"
        if limit is None:
            return f"{said}; a quick look is too little text for a verdict"
        verdict = "within the limit" if self.is_within(limit) else "OUTSIDE the limit"
        said += f"; at most {limit:+.2%} is allowed: {verdict}"
        if self.change_error is None or abs(self.change - limit) < CLEAR * self.change_error:
            return f"{said}; too near to be sure, score more text"
        return said

    def change_text(self) -> str:
        error = "?" if self.change_error is None else f"{self.change_error:.3%}"
        return f"{self.change:+.3%} ± {error}"


def run_quality(sources: OptionSources) -> int:
    options, engine_options = sources.read(QualityOptions), sources.read(EngineOptions)
    if (reason := presence.missing()) is not None:
        raise PlaitError(
            f"plait bench quality compares the native runtime's numbers, and it is not here ({reason}); install Plait "
            "where a C++ compiler is"
        )
    if engine_options.profile is not None:
        raise UsageError(
            f"--profile is {engine_options.profile} but plait bench quality runs no engine to profile; leave it out"
        )
    text = read_text(options.text)
    with download_progress(engine_options.model, quiet=options.quiet) as progress:
        model = load_model(engine_options, progress, datetime.now)
        # What rounding at load costs is part of what the configuration costs.
        plain = replace(engine_options, quantize="none")
        of_file = model if plain == engine_options else load_model(plain, progress, datetime.now)
    tokens = model.tokenizer.encode(text, add_special=False)
    asked = min(options.tokens, QUICK_TOKENS) if options.quick else options.tokens
    if len(tokens) < 2:
        raise UsageError(f"--text {options.text} has {len(tokens)} tokens of this model; give a text of two or more")
    if len(tokens) < asked and not options.quiet:
        say(f"the text has {len(tokens):,} tokens, not {asked:,}; all of them are scored")
    (quality,) = measure_quality(of_file, model, [engine_options], tokens[:asked], quiet=options.quiet)
    limit = None if options.quick else options.limit_percent / 100
    is_within = limit is None or quality.is_within(limit)
    if options.json:
        name = "built-in" if options.text is None else options.text.name
        window = min(WINDOW, model.config.max_positions)
        verdict = {"limit": limit, "within": None if limit is None else is_within}
        show_json({**asdict(quality), "text": name, "window_tokens": window, **verdict})
    else:
        for line in (heading(), row(quality), quality.sentence(limit)):
            show(line)
    return 0 if is_within else 1


def read_text(path: Path | None) -> str:
    if path is None:
        return resources.files("plait").joinpath("resources/quality_text.txt").read_text(encoding="utf-8")
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_TEXT_BYTES + 1)
        if len(raw) > MAX_TEXT_BYTES:
            raise UsageError(f"--text {path} is larger than {MAX_TEXT_BYTES} bytes; give a part of it")
        return raw.decode("utf-8")
    except OSError as error:
        raise UsageError(f"--text {path} cannot be read: {error.strerror}; give an existing file") from None
    except ValueError as error:
        raise UsageError(f"--text {path} is not UTF-8 ({error}); give a text file") from None


def measure_quality(
    true: LoadedModel,
    model: LoadedModel,
    configurations: Sequence[EngineOptions],
    tokens: Sequence[int],
    *,
    quiet: bool,
) -> list[Quality]:
    """Each configuration of `model` beside `true` in float32, which is computed once for all of them; window by window,
    step by step.
    """
    length = min(WINDOW, model.config.max_positions)
    windows = cut_windows(tokens, length, beginning(model.tokenizer))
    with ExitStack() as stack:
        exact = stack.enter_context(_Subject(true, _in_float32(configurations[0]), length))
        given = [stack.enter_context(_Subject(model, options, length)) for options in configurations]
        bar = stack.enter_context(tqdm(total=len(tokens) - 1, unit="token", desc="scoring", disable=quiet))
        found: list[list[Likeness]] = [[] for _ in given]
        for window in windows:
            parts = [Likeness() for _ in given]
            for right, *others in zip(*(one.scorer.rows(window) for one in (exact, *given)), strict=True):
                parts = [part + likeness(right, rows) for part, rows in zip(parts, others, strict=True)]
                bar.update(len(right.logprobs))
            for kept, part in zip(found, parts, strict=True):
                kept.append(part)
        return [summarize(model, one.executor, parts) for one, parts in zip(given, found, strict=True)]


class _Subject:
    """An executor of its own for one configuration, until the context ends."""

    def __init__(self, model: LoadedModel, options: EngineOptions, length: int) -> None:
        tap, clock = LogitsTap(), RealClock()
        alone = replace(
            options,
            max_model_len=length,
            max_num_batched_tokens=rows_per_step(model.program.vocab_size),
            # Room for two: each cache group begins a page, and one sequence could just not fit.
            max_num_seqs=2,
            kv_cache_memory=None,
        )
        ready = load_executor(alone, model, clock, tap)
        self.executor: LoadableExecutor = ready.executor
        self.scorer = Scorer(ready.executor, ready.layout, tap, clock)

    def __enter__(self) -> _Subject:
        return self

    def __exit__(self, *_: object) -> None:
        self.executor.close()


def _in_float32(options: EngineOptions) -> EngineOptions:
    """Whatever else is said about numbers stays at its default."""
    return EngineOptions(
        model=options.model,
        executor="native",
        threads=options.threads,
        instruction_set=options.instruction_set,
        block_size=options.block_size,
        dtype="f32",
        kv_cache_dtype="f32",
    )


def beginning(tokenizer: Tokenizer) -> tuple[int, ...]:
    """What the model wants to stand before every text, if anything."""
    framed = tokenizer.encode("", add_special=True)
    return tuple(framed[:1]) if framed[:1] == [tokenizer.bos_id] else ()


def summarize(model: LoadedModel, executor: LoadableExecutor, windows: Sequence[Likeness]) -> Quality:
    total = sum(windows, Likeness())
    change, change_error = paired_change(windows)
    numbers = executor.numbers
    return Quality(
        file=Path(model.weights.source).name,
        weights="+".join(numbers.weights),
        rows="+".join(numbers.rows),
        cache="+".join(numbers.cache),
        num_tokens=total.num_tokens,
        perplexity=math.exp(total.given_loss / total.num_tokens),
        true_perplexity=math.exp(total.true_loss / total.num_tokens),
        change=change,
        change_error=change_error,
        agreement=total.num_equal / total.num_tokens,
        mean_distance=total.distance / total.num_tokens,
        largest_distance=total.largest_distance,
        divergence=total.divergence / total.num_tokens,
        logit_error=math.sqrt(total.squared_error / total.num_logits) / total.largest_logit,
        largest_logit_error=total.largest_error / total.largest_logit,
        fingerprint=executor.info.fingerprint,
    )


def paired_change(windows: Sequence[Likeness]) -> tuple[float, float | None]:
    """How much larger the perplexity is, less 1, and the standard error of that.

    The tokens of a window depend on each other, windows hardly do; each has two losses over the same tokens, so the
    mean difference per token is a ratio of sums over windows, and its error that of a ratio.
    """
    num_tokens = sum(one.num_tokens for one in windows)
    lost = [one.given_loss - one.true_loss for one in windows]
    mean = sum(lost) / num_tokens
    ratio = math.exp(mean)
    count = len(windows)
    if count < 2:
        return ratio - 1, None
    rest = sum((each - mean * one.num_tokens) ** 2 for each, one in zip(lost, windows, strict=True))
    return ratio - 1, ratio * math.sqrt(count / (count - 1) * rest) / num_tokens


def heading(*more: str) -> str:
    titles = ("file", "weights", "rows", "cache", "perplexity", "change", "same token", "mean", "largest", "KL")
    return _columns(*titles, *more)


def row(one: Quality, *more: str) -> str:
    return _columns(
        one.file,
        one.weights,
        one.rows,
        one.cache,
        f"{one.perplexity:.3f}",
        one.change_text(),
        f"{one.agreement:.2%}",
        f"{one.mean_distance:.4f}",
        f"{one.largest_distance:.2f}",
        f"{one.divergence:.5f}",
        *more,
    )


def _columns(file: str, weights: str, rows: str, cache: str, perplexity: str, change: str, *figures: str) -> str:
    rest = " ".join(f"{figure:>10}" for figure in figures)
    return f"{file:34} {weights:14} {rows:8} {cache:5} {perplexity:>10} {change:>18} {rest}"
