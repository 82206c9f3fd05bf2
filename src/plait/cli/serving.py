"""Serving: `plait bench serving`, requests at a rate or so many at a time, and how they were answered.

Owns what is sent, the table and the JSON object, whose fields docs/guides/benchmark.md defines. Sending is `load`'s.
Invariant: with one seed lengths, prompts and moments of sending are the same in every run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from tqdm import tqdm

from plait.cli.load.asks import Answer, Ask
from plait.cli.load.drive import at_times, in_turn, run
from plait.cli.load.figures import Figures, Percentiles, Targets, figures_of
from plait.cli.load.open import Opened, Reach, open_server, opened_engine
from plait.cli.load.words import prompt
from plait.cli.printable import printable
from plait.cli.streams import show, show_json
from plait.cli.verify import read_prompts
from plait.config.engine_options import EngineOptions
from plait.config.load_options import Lengths, ServingOptions
from plait.config.option import OptionSources
from plait.core.errors import PlaitError, UsageError

SCHEMA = "plait.bench.serving/1"
USUAL_CONCURRENCY = 8
WARM_TOKENS = 8


def run_serving(sources: OptionSources) -> int:
    options, engine_options = sources.read(ServingOptions), sources.read(EngineOptions)
    _check(options)
    with ExitStack() as stack:
        local = None
        if options.url is None:
            local = stack.enter_context(opened_engine(engine_options, quiet=options.quiet))
        opened, answers = run(_run(options, engine_options.seed, local))
    targets = Targets(options.ttft_slo, options.tpot_slo, options.e2e_slo)
    figures = figures_of(answers, targets)
    if options.json:
        show_json(json_object(options, engine_options.seed, opened, figures, targets))
    else:
        for line in lines(options, opened, figures, targets):
            show(line)
    return 1 if figures.num_errors == figures.num_requests else 0


def _check(options: ServingOptions) -> None:
    if options.url is None and options.endpoint != "completions" and options.prompts is None:
        raise UsageError("--endpoint chat is about a server; name one with --url, or leave it out")


async def _run(options: ServingOptions, seed: int, local: Opened | None) -> tuple[Opened, list[Answer]]:
    reach = Reach(options.model_name, options.endpoint, options.api_key, options.patience)
    opened = local if local is not None else await open_server(options.url or "", reach)
    asks = make_asks(options, opened.words, random.Random(seed))
    if any(ask.messages for ask in asks) and opened.way == "HTTP" and options.endpoint != "chat":
        raise UsageError("--prompts has conversations, which go to --endpoint chat; give that")
    await _warm_up(opened, asks[: options.warm_up])
    with tqdm(total=len(asks), unit="request", disable=options.quiet) as bar:

        def told(answer: Answer) -> None:
            bar.update()

        if options.rate is None:
            return opened, await in_turn(opened.target, asks, options.concurrency or USUAL_CONCURRENCY, told)
        return opened, await at_times(opened.target, asks, options.concurrency, told)


def make_asks(options: ServingOptions, words: list[str], rng: random.Random) -> list[Ask]:
    """With a rate, Poisson arrivals; prompts of a file in their order, again and again."""
    given = [] if options.prompts is None else read_prompts(options.prompts)
    asks: list[Ask] = []
    now_s = 0.0
    for place in range(options.requests):
        output_tokens = _draw(rng, options.output_tokens)
        if given:
            one = given[place % len(given)]
            asks.append(Ask(one.text or "", output_tokens, now_s, one.messages))
        else:
            asks.append(Ask(prompt(rng, words, _draw(rng, options.prompt_tokens)), output_tokens, now_s))
        now_s += rng.expovariate(options.rate) if options.rate is not None else 0.0
    return asks


def _draw(rng: random.Random, lengths: Lengths) -> int:
    return rng.randint(lengths.least, lengths.most)


async def _warm_up(opened: Opened, asks: Sequence[Ask]) -> None:
    """Other words than those that count, and few tokens. `PlaitError` if nothing is answered."""
    rng = random.Random("warm up")
    small = [Ask(prompt(rng, opened.words, 16), WARM_TOKENS) for _ in asks]
    answers = await in_turn(opened.target, small, len(small))
    if answers and all(one.error for one in answers):
        raise PlaitError(f"{opened.label} does not answer: {printable(answers[0].error)}")


def json_object(
    options: ServingOptions, seed: int, opened: Opened, figures: Figures, targets: Targets
) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "target": opened.json_object(),
        "load": {
            "requests": options.requests,
            "rate_per_s": options.rate,
            "concurrency": _concurrency(options),
            "prompt_tokens": [options.prompt_tokens.least, options.prompt_tokens.most],
            "output_tokens": [options.output_tokens.least, options.output_tokens.most],
            "prompts": None if options.prompts is None else options.prompts.name,
            "warm_up": options.warm_up,
            "seed": seed,
        },
        "slo": {"ttft_s": targets.ttft_s, "tpot_s": targets.tpot_s, "e2e_s": targets.e2e_s},
        "figures": figures.json_object(),
    }


def _concurrency(options: ServingOptions) -> int | None:
    return options.concurrency or (USUAL_CONCURRENCY if options.rate is None else None)


def lines(options: ServingOptions, opened: Opened, figures: Figures, targets: Targets) -> Iterator[str]:
    """The table for people."""
    pace = f"{_concurrency(options)} at a time" if options.rate is None else f"{options.rate:g} a second"
    if options.rate is not None and options.concurrency is not None:
        pace += f", at most {options.concurrency} at a time"
    yield f"{printable(opened.label)} ({opened.way}): {figures.num_requests:,} requests, {pace}"
    cached = "" if figures.cached_tokens is None else f" ({figures.cached_tokens:,} from its cache)"
    yield (
        f"{figures.prompt_tokens:,} prompt tokens{cached}, {figures.output_tokens:,} output tokens in "
        f"{figures.seconds:.2f} s: {figures.requests_per_s:.2f} requests/s, {figures.prompt_tokens_per_s:,.0f} and "
        f"{figures.output_tokens_per_s:,.0f} tokens/s"
    )
    yield f"{'ms':<34}{'p50':>10}{'p90':>10}{'p99':>10}{'most':>10}"
    for name, found in (
        ("TTFT, until the first token", figures.ttft),
        ("ITL, gap between pieces", figures.itl),
        ("TPOT, mean of a later token", figures.tpot),
        ("E2E, until the last token", figures.e2e),
    ):
        yield _row(name, found)
    if figures.good_fraction is not None and figures.goodput_per_s is not None:
        kept = " and ".join(
            f"{name} within {value:g} s"
            for name, value in (("TTFT", targets.ttft_s), ("TPOT", targets.tpot_s), ("E2E", targets.e2e_s))
            if value is not None
        )
        yield f"goodput: {figures.goodput_per_s:.2f} requests/s, {figures.good_fraction:.1%} kept {kept}"
    yield from trouble_lines(figures)


def trouble_lines(figures: Figures) -> Iterator[str]:
    """What must be known before the figures are believed."""
    if figures.num_errors:
        yield f"ERRORS: {figures.num_errors:,} of {figures.num_requests:,} requests"
        yield from (f"  {count:,} x {printable(error)}" for error, count in figures.errors.items())
    if figures.num_short:
        yield (
            f"SHORT: {figures.num_short:,} answers ended before their number of tokens; the server does not follow "
            "ignore_eos and min_tokens, so whole answers are less work than they should be"
        )
    if figures.num_uncounted:
        yield (
            f"NOT COUNTED: {figures.num_uncounted:,} answers came without usage; pieces are counted as tokens, and "
            "prompt tokens are unknown"
        )


def _row(name: str, found: Percentiles | None) -> str:
    if found is None:
        return f"{name:<34}{'-':>10}{'-':>10}{'-':>10}{'-':>10}"
    values = (found.p50_s, found.p90_s, found.p99_s, found.max_s)
    return f"{name:<34}" + "".join(f"{value * 1e3:>10,.1f}" for value in values)
