"""How near each number scheme comes to its own weights in float32: logits, likeliest tokens, perplexity.

The native executor runs every text as the file stores its weights, with caches of f16 and of f32, beside the same
weights dequantised to f32 with a cache of f32; all of them step by step, so that no logits have to be kept.
Logits are compared on the golden prompts, perplexity (teacher forced) on the prompts of a batch file, where a
beginning that several prompts share counts once. Prints a table and, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice, takewhile
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from plait.api.bodies import JsonObject, read_object
from plait.build import LoadedModel, load_model
from plait.config.engine_options import EngineOptions
from plait.config.machine import one_of_each_core, usable_processors
from plait.core.clock import RealClock
from plait.core.errors import PlaitError
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import BlockGrant, Chunk, Join, Leave, OutputKind, Outputs, StepPlan
from plait.exec.native import presence
from plait.model.cache_layout import plan_layout
from plait.text.prompt import encode_chat

ROOT = Path(__file__).parents[1]
GOLDEN_PROMPTS = ROOT / "tests" / "data" / "goldens" / "smollm2.prompts.jsonl"
EXAMPLES = ROOT / "examples" / "first_light.jsonl"
CACHE_BYTES = {"f16": 2, "f32": 4}
BLOCK = 32
ROWS_PER_STEP = 128
"""Whole rows of logits of three executors are in memory at a time."""
QUICK_TOKENS = 40
QUICK_TEXTS = 2

Floats: TypeAlias = npt.NDArray[np.float32]
Logprobs: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens of one prompt; the first `num_known` of them stand at the beginning of an earlier text, too."""

    ids: tuple[int, ...]
    num_known: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """Of one step: logits behind every token that is new, and the log-probabilities of the tokens that follow."""

    logits: Floats
    logprobs: Logprobs
    """One fewer at the end of a text."""


@dataclass(frozen=True, slots=True)
class Nearness:
    """Of one scheme to float32."""

    file: str
    weights: str
    """Formats of the matrices."""
    cache: str
    error: float
    """Largest difference of a logit to the largest logit of its prompt; the worst of the golden prompts."""
    typical: float
    """The same for the root of the mean square."""
    num_rows: int
    num_equal: int
    """Rows of the golden prompts whose likeliest token is the same."""
    num_tokens: int
    perplexity: float
    change: float
    """Of the perplexity; 0.01 is 1 % worse."""
    change_error: float
    """Its standard error: what another text of this length could change."""


class Scorer:
    """One native executor that computes texts one after the other and shows every row."""

    def __init__(self, model: LoadedModel, dtype: str, cache: str, max_tokens: int) -> None:
        # Imports what may not be there; `main` has looked.
        from plait.exec.native.executor import NativeConfig, NativeExecutor
        from plait.exec.native.packing import WeightDtype

        num_blocks = -(-max_tokens // BLOCK)
        token_bytes = sum(int(group.bytes_per_token(CACHE_BYTES[cache])) for group in model.program.cache_groups)
        layout = plan_layout(
            model.program,
            memory_bytes=num_blocks * BLOCK * token_bytes,
            tokens_per_block=BLOCK,
            dtype_bytes=CACHE_BYTES[cache],
        )
        self._blocks = tuple(BlockId(block) for block in range(num_blocks))
        self._seen: list[Floats] = []
        self._clock = RealClock()
        config = NativeConfig(
            tuple(one_of_each_core(usable_processors())),
            max_step_tokens=ROWS_PER_STEP,
            dtype=WeightDtype(dtype),
            observe_logits=lambda _, logits: self._seen.append(logits),
        )
        self._executor = NativeExecutor(config)
        self._executor.load({"step": model.program}, model.weights, layout)
        self._step = 0
        self._roster: list[Join | Leave] = []

    @property
    def fingerprint(self) -> str:
        return self._executor.info.fingerprint

    def rows(self, text: Text) -> Iterator[Rows]:
        seq, length = SeqId(self._step), len(text.ids)
        self._roster.append(Join(seq, 0, SamplingParams(temperature=0.0), 0, 0, length))
        grant = BlockGrant(seq, GroupId(0), 0, self._blocks[: -(-length // BLOCK)])
        for start in range(0, length, ROWS_PER_STEP):
            tokens = text.ids[start : start + ROWS_PER_STEP]
            # The row at slot s scores token s + 1.
            first = min(max(0, text.num_known - 1 - start), len(tokens))
            targets = text.ids[start + first + 1 : start + 1 + len(tokens)]
            outputs = [Outputs(first, len(targets), OutputKind.LOGPROBS, targets)] if targets else []
            if start + len(tokens) == length:
                # Nothing follows the last token; a sampled row shows its logits as well.
                outputs.append(Outputs(len(tokens) - 1, 1, OutputKind.SAMPLE))
            chunk = Chunk(seq, start, len(tokens), tokens, outputs=tuple(outputs))
            yield Rows(*self._run(chunk, () if start else (grant,)))
        self._roster.append(Leave(seq))

    def close(self) -> None:
        self._executor.close()

    def _run(self, chunk: Chunk, grants: tuple[BlockGrant, ...]) -> tuple[Floats, Logprobs]:
        self._executor.submit(StepPlan(StepId(self._step), LaneId(0), tuple(self._roster), grants, (), (chunk,)))
        self._step += 1
        self._roster = []
        self._clock.wait(self._executor)
        (result,) = self._executor.collect()
        (one,) = result.seqs
        if one.error is not None:
            raise SystemExit(f"accuracy: {one.error}")
        return self._seen.pop(), np.array([each.logprob for each in one.prompt_logprobs])


class Gap:
    """What one scheme's rows differ by from float32's, over all texts."""

    def __init__(self) -> None:
        self.error = 0.0
        self.typical = 0.0
        self.num_rows = 0
        self.num_equal = 0
        self._given: list[Logprobs] = []
        self._true: list[Logprobs] = []

    def compare_logits(self, pairs: Sequence[tuple[Rows, Rows]]) -> None:
        """Of one prompt: (float32, scheme), step by step."""
        largest = max(float(np.abs(true.logits).max()) for true, _ in pairs)
        errors = np.concatenate([np.abs(given.logits - true.logits) for true, given in pairs]) / largest
        self.error = max(self.error, float(errors.max()))
        self.typical = max(self.typical, math.sqrt(np.square(errors).mean(dtype=np.float64)))
        self.num_rows += len(errors)
        self.num_equal += sum(
            int((given.logits.argmax(axis=1) == true.logits.argmax(axis=1)).sum()) for true, given in pairs
        )

    def compare_logprobs(self, true: Rows, given: Rows) -> None:
        self._true.append(true.logprobs)
        self._given.append(given.logprobs)

    def nearness(self, file: str, weights: str, cache: str) -> Nearness:
        given = np.concatenate(self._given)
        lost = np.concatenate(self._true) - given
        change = math.exp(float(lost.mean()))
        return Nearness(
            file,
            weights,
            cache,
            self.error,
            self.typical,
            self.num_rows,
            self.num_equal,
            len(given),
            math.exp(-float(given.mean())),
            change - 1,
            change * float(lost.std()) / math.sqrt(len(lost)),
        )


def main() -> int:
    given = _arguments()
    if (reason := presence.missing()) is not None:
        print(f"accuracy: needs the native runtime, which is not here: {reason}", file=sys.stderr)
        return 2
    found: list[Nearness] = []
    fingerprints: dict[str, str] = {}
    print(_row("file", "weights", "cache", "max error", "typical", "argmax", "perplexity", "change"))
    try:
        for file in given.files:
            model = load_model(
                EngineOptions(model=file, quantize=given.quantize), lambda done, total: None, datetime.now
            )
            for one in measure(model, given, fingerprints):
                found.append(one)
                print(_line(one), flush=True)
    except (OSError, ValueError, PlaitError) as error:
        # A file that is not there or is no model, or texts that are none.
        print(f"accuracy: {error}", file=sys.stderr)
        return 2
    schemes = [asdict(one) for one in found]
    texts = Path(given.texts).name
    print(json.dumps({"schemes": schemes, "texts": texts, "quick": given.quick, "fingerprints": fingerprints}))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=["smollm2"], metavar="MODEL", help="GGUF files; default: smollm2")
    parser.add_argument(
        "--quantize",
        default="none",
        choices=("none", "int8", "int4"),
        help="as plait's option; float32 then has the rounded weights, too",
    )
    parser.add_argument("--texts", default=str(EXAMPLES), metavar="FILE", help="batch file whose prompts are scored")
    parser.add_argument("--num-texts", type=int, default=24, metavar="N", help="as many of its first lines; default 24")
    parser.add_argument(
        "--text-tokens", type=int, default=2048, metavar="N", help="as many first tokens of each; default 2048"
    )
    parser.add_argument("--quick", action="store_true", help="the beginnings of two texts: does everything work?")
    given = parser.parse_args()
    if given.quick:
        given.num_texts, given.text_tokens = QUICK_TEXTS, QUICK_TOKENS
    if given.num_texts < 1 or given.text_tokens < 2:
        parser.error("--num-texts must be at least 1, --text-tokens at least 2")
    return given


def measure(model: LoadedModel, given: argparse.Namespace, fingerprints: dict[str, str]) -> Iterator[Nearness]:
    """Every cache type of one file."""
    most = model.config.max_positions
    prompts = [Text(_encode(model, line)[: QUICK_TOKENS if given.quick else most]) for line in _golden_prompts()]
    texts = list(_with_known([_encode(model, body)[: min(given.text_tokens, most)] for body in _bodies(given)]))
    longest = max(len(text.ids) for text in [*prompts, *texts])
    exact = Scorer(model, "f32", "f32", longest)
    schemes = {cache: Scorer(model, "auto", cache, longest) for cache in CACHE_BYTES}
    gaps = {cache: Gap() for cache in schemes}
    for prompt in prompts:
        steps = list(zip(exact.rows(prompt), *(one.rows(prompt) for one in schemes.values()), strict=True))
        for place, gap in enumerate(gaps.values(), 1):
            gap.compare_logits([(step[0], step[place]) for step in steps])
    for text in texts:
        for true, *others in zip(exact.rows(text), *(one.rows(text) for one in schemes.values()), strict=True):
            for gap, other in zip(gaps.values(), others, strict=True):
                gap.compare_logprobs(true, other)
    weights = "+".join(sorted({tensor.format.name for tensor in model.weights.values() if len(tensor.shape) == 2}))
    file = Path(model.weights.source).name
    for cache, scorer in schemes.items():
        fingerprints[f"{file} {cache}"] = scorer.fingerprint
        yield gaps[cache].nearness(file, weights, cache)
    for scorer in (exact, *schemes.values()):
        scorer.close()


def _golden_prompts() -> Iterator[JsonObject]:
    with GOLDEN_PROMPTS.open("rb") as file:
        yield from map(read_object, file)


def _bodies(given: argparse.Namespace) -> Iterator[JsonObject]:
    with open(given.texts, "rb") as file:
        lines = [read_object(line) for line in islice(file, given.num_texts)]
    for line in lines:
        if not isinstance(body := line.get("body"), dict):
            raise ValueError(f"{given.texts} has a line without a body; give a file as `plait batch` takes it")
        yield body


def _encode(model: LoadedModel, body: JsonObject) -> tuple[int, ...]:
    """A request's prompt, or one of the golden prompts, in the model's own tokens."""
    if (messages := body.get("messages")) is not None:
        return tuple(encode_chat(model.tokenizer, model.template, messages))
    text = body.get("prompt", body.get("text"))
    if not isinstance(text, str):
        raise ValueError(f"a prompt is {text!r:.60}; give texts or messages")
    return tuple(model.tokenizer.encode(text, add_special=False))


def _with_known(texts: Sequence[tuple[int, ...]]) -> Iterator[Text]:
    """What a text shares with the beginning of an earlier one has the same log-probabilities there."""
    for place, ids in enumerate(texts):
        known = max((_num_common(ids, earlier) for earlier in texts[:place]), default=0)
        if known < len(ids):
            yield Text(ids, known)


def _num_common(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _line(one: Nearness) -> str:
    equal = f"{one.num_equal / one.num_rows:.2%}"
    change = f"{one.change:+.3%} ± {one.change_error:.3%}"
    errors = f"{one.error:.1e}", f"{one.typical:.1e}"
    return _row(one.file, one.weights, one.cache, *errors, equal, f"{one.perplexity:.3f}", change)


def _row(file: str, weights: str, cache: str, *figures: str) -> str:
    return f"{file:34} {weights:10} {cache:5} {' '.join(f'{figure:>10}' for figure in figures)}"


if __name__ == "__main__":
    sys.exit(main())
