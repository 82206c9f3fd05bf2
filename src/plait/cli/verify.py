"""Verify: are answers the same alone and under load? In the user's own hands.

Owns the experiment: every prompt alone with the prefix cache unused, then all of them at once, several times, in
random order with the cache in use; half greedy, half seeded. Says which promise was checked, and exits with 1 if it
was broken.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from importlib import resources
from pathlib import Path

import orjson
from tqdm import tqdm

from plait.api.bodies import JsonObject, JsonValue
from plait.api.messages import parse_messages
from plait.build import LocalEngine, check_scheduler, load_model, start_engine
from plait.cli.streams import say, show, show_json
from plait.cli.terminal import LOGPROB_TOLERANCE, download_progress, start_report, with_profile
from plait.config.engine_options import EngineOptions
from plait.config.option import OptionSources
from plait.config.verify_options import VerifyOptions
from plait.core.errors import RequestError, UsageError
from plait.core.executor import ExecutorInfo
from plait.core.ids import RequestId
from plait.core.request import Request
from plait.core.sampling import SamplingParams
from plait.metrics.totals import Totals


@dataclass(frozen=True, slots=True)
class Prompt:
    """One of `messages` (chat) and `text` (raw) is there."""

    name: str
    messages: tuple[JsonObject, ...] = ()
    text: str | None = None
    source: str = field(default="", compare=False)
    """The file and the line that it is from, for errors."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the engine, as it is compared."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`num_identical` counts answers equal in tokens, `num_bit_equal` those whose log-probabilities are equal too."""

    num_answers: int
    num_identical: int
    num_bit_equal: int
    max_logprob_difference: float
    promises_bits: bool
    fingerprint: str
    num_prompts: int
    num_mixes: int
    different: tuple[str, ...]

    @property
    def kept(self) -> bool:
        if self.num_identical < self.num_answers:
            return False
        if self.promises_bits:
            return self.num_bit_equal == self.num_answers
        return self.max_logprob_difference <= LOGPROB_TOLERANCE

    def json_object(self) -> dict[str, object]:
        """For programs. A difference that no number tells is null, because JSON has no infinity."""
        known = self.max_logprob_difference if math.isfinite(self.max_logprob_difference) else None
        return {**asdict(self), "max_logprob_difference": known, "kept": self.kept}

    def sentence(self) -> str:
        """The result and the promise it belongs to."""
        bits = "bit for bit" if self.num_bit_equal == self.num_answers else f"{self.num_bit_equal} bit for bit"
        close = f"equal tokens and log-probabilities within {LOGPROB_TOLERANCE:g}"
        promise = "equal bits" if self.promises_bits else close
        return (
            f"{self.num_identical}/{self.num_answers} answers identical ({bits}; largest difference of a "
            f"log-probability {self.max_logprob_difference:.1e}); checked promise: {promise}: "
            f"{'kept' if self.kept else 'BROKEN'}"
        )


def run_verify(sources: OptionSources) -> int:
    options, verify = sources.read(EngineOptions), sources.read(VerifyOptions)
    check_scheduler(options)
    prompts = read_prompts(verify.prompts)[: verify.num_prompts]
    with download_progress(options.model, quiet=verify.quiet) as progress:
        model = load_model(options, progress, datetime.now)
    engine = start_engine(options, model, Totals(), say)
    try:
        if not verify.quiet:
            for line in start_report(engine):
                say(line)
        verdict = asyncio.run(_check(engine, prompts, verify, options.seed))
    finally:
        engine.close()
    if verify.json:
        show_json(with_profile(verdict.json_object(), engine.profile_figures()))
    else:
        show(verdict.sentence())
        for name in verdict.different:
            show(f"different: {name}")
    return 0 if verdict.kept else 1


async def _check(engine: LocalEngine, prompts: Sequence[Prompt], verify: VerifyOptions, seed: int) -> Verdict:
    requests = [_request(engine, prompt, place, verify.max_tokens) for place, prompt in enumerate(prompts)]
    total = len(requests) * (1 + verify.mixes)
    with tqdm(total=total, unit="answer", desc="alone", disable=verify.quiet) as bar:
        alone = [
            await _answer(engine, request, f"alone-{place}", False, bar.update)
            for place, request in enumerate(requests)
        ]
        mixed: list[list[Answer]] = []
        for mix in range(verify.mixes):
            bar.set_description(f"mix {mix + 1} of {verify.mixes}")
            order = list(range(len(requests)))
            random.Random(seed + mix).shuffle(order)
            answers = await asyncio.gather(
                *(_answer(engine, requests[place], f"mix-{mix}-{place}", True, bar.update) for place in order)
            )
            mixed.append([answers[order.index(place)] for place in range(len(requests))])
    return judge(engine.executor, requests, alone, mixed)


def _request(engine: LocalEngine, prompt: Prompt, place: int, max_tokens: int) -> Request:
    """Even places are greedy, odd ones drawn with a seed: both are promised."""
    try:
        if prompt.text is not None:
            tokens = engine.text.encode_text(prompt.text, add_special=True)
        else:
            tokens = engine.text.encode_chat(prompt.messages, add_generation_prompt=True, variables={})
    except RequestError as error:
        raise UsageError(f"{prompt.source}: {error}") from None
    drawn = place % 2 == 1
    sampling = SamplingParams(
        temperature=0.8 if drawn else 0.0,
        top_p=0.95 if drawn else 1.0,
        seed=place,
        max_tokens=max_tokens,
        logprobs=0,
    )
    return Request(RequestId(prompt.name), tuple(tokens), sampling)


async def _answer(
    engine: LocalEngine, request: Request, name: str, cache_prefix: bool, done: Callable[[], object]
) -> Answer:
    tokens: list[int] = []
    logprobs: list[float] = []
    named = replace(request, id=RequestId(name), cache_prefix=cache_prefix)
    try:
        async for delta in engine.client.submit(named):
            tokens += delta.tokens
            logprobs += [one.logprob for one in delta.logprobs]
            if delta.error is not None:
                raise RequestError(delta.error)
    except RequestError as error:
        raise RequestError(f"prompt {request.id}: {error}") from None
    done()
    return Answer(tuple(tokens), tuple(logprobs))


def judge(
    executor: ExecutorInfo, requests: Sequence[Request], alone: Sequence[Answer], mixed: Sequence[Sequence[Answer]]
) -> Verdict:
    """Compare the answers of every mix, in the order of `requests`, with those that were given alone."""
    identical = bit_equal = 0
    difference = 0.0
    different: dict[str, None] = {}
    for answers in mixed:
        for request, first, other in zip(requests, alone, answers, strict=True):
            if first.tokens != other.tokens:
                different[request.id] = None
                continue
            identical += 1
            bit_equal += first == other
            pairs = zip(first.logprobs, other.logprobs, strict=True)
            difference = max([difference, *(_distance(one, another) for one, another in pairs)])
    return Verdict(
        num_answers=len(mixed) * len(requests),
        num_identical=identical,
        num_bit_equal=bit_equal,
        max_logprob_difference=difference,
        promises_bits=executor.bit_exact,
        fingerprint=executor.fingerprint,
        num_prompts=len(requests),
        num_mixes=len(mixed),
        different=tuple(different),
    )


def _distance(one: float, another: float) -> float:
    """Infinite if only one of them is a number, which no tolerance may forgive."""
    if one == another:
        return 0.0
    distance = abs(one - another)
    return math.inf if math.isnan(distance) else distance


def read_prompts(path: Path | None) -> list[Prompt]:
    """The built-in prompts, or those of a file: lines with `messages` or `prompt`, or OpenAI Batch lines."""
    if path is None:
        raw = resources.files("plait").joinpath("resources/verify_prompts.jsonl").read_bytes()
    else:
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise UsageError(
                f"--prompts {path} cannot be read: {error.strerror}; give an existing JSONL file"
            ) from None
    lines = [(number, line) for number, line in enumerate(raw.splitlines(), start=1) if line.strip()]
    if not lines:
        raise UsageError(f"--prompts {path} is empty; give lines with messages or prompt")
    file = "the built-in prompts" if path is None else f"--prompts {path}"
    return [_prompt(line, f"{file}, line {number}", number) for number, line in lines]


def _prompt(line: bytes, source: str, number: int) -> Prompt:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"{source} is not JSON: {error}; give one object a line") from None
    body = record.get("body", record) if isinstance(record, dict) else None
    if isinstance(body, dict):
        name = str(record.get("id") or record.get("custom_id") or f"line {number}")
        if isinstance(body.get("messages"), list):
            return Prompt(name, messages=_messages(body["messages"], source), source=source)
        if isinstance(body.get("prompt"), str):
            return Prompt(name, text=body["prompt"], source=source)
    raise UsageError(f"{source} has neither messages nor a prompt string; give one of them")


def _messages(messages: JsonValue, source: str) -> tuple[JsonObject, ...]:
    try:
        return parse_messages(messages)
    except RequestError as error:
        raise UsageError(f"{source}: {error}") from None
