"""Every executor with numbers, on the real model, against what the model's original implementation computed.

The goldens come from `scripts/make_goldens.py`: logits behind every token of some prompts, and how each goes on.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.unit.weights.plain_rounding import plainly_rounded

from plait.core.clock import RealClock
from plait.core.ids import BlockId, GroupId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import FROM_DEVICE, BlockGrant, Chunk, Join, OutputKind, Outputs, StepPlan, StepResult
from plait.exec.loading import LoadableExecutor
from plait.exec.native import presence
from plait.exec.reference.executor import ReferenceConfig, ReferenceExecutor
from plait.model.cache_layout import plan_layout, token_bytes
from plait.model.cache_type import CacheType
from plait.model.config import config_from_gguf
from plait.model.families import build_program
from plait.model.program import expected_weights
from plait.weights import formats
from plait.weights.formats import WeightFormat
from plait.weights.gguf import read_gguf
from plait.weights.names import load_gguf_weights
from plait.weights.table import WeightTable
from plait.weights.tensor import Tensor

Floats = npt.NDArray[np.float32]

ROOT = Path(__file__).parents[2]
GOLDENS = ROOT / "tests" / "data" / "goldens" / "smollm2.npz"
ALLOWED_ERROR = 1e-4
"""Of the largest logit of the prompt."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What docs/adr/0006-number-schemes.md states: a single logit, and the root of their mean square, differ by at most
    these parts of the largest logit, and at least so many rows have the same likeliest token.
    """

    single: float
    typical: float
    equal: float


EIGHT_BITS = Bound(0.2, 0.03, 0.9)
"""Rows of 8 bits, and a cache of halves."""
FEW_BITS = Bound(0.2, 0.04, 0.9)
"""The same for weights of two and three bits, whose plain rounding leaves little of the model."""
HALF_CACHE = Bound(0.005, 0.0005, 0.99)
"""Weights and rows in floats, and a cache of halves."""
CLEAR = 10
"""A margin between first and second is clear when it is this many times the largest error."""
ROWS_PER_CHUNK = 96
"""Not a multiple of a block or a key tile, so that chunks begin and end anywhere."""
BLOCK = 32


@dataclass(frozen=True, slots=True)
class Golden:
    """One prompt: its tokens and what `transformers` gave, row by row."""

    ids: tuple[int, ...]
    argmax: npt.NDArray[np.int32]
    margin: Floats
    max_abs: float
    logsumexp: npt.NDArray[np.float64]
    positions: npt.NDArray[np.int32]
    logits: Floats
    """At `positions`, for the sampled part of the vocabulary."""
    full: Mapping[int, Floats]
    """Whole rows by position."""
    greedy_ids: tuple[int, ...]
    greedy_margin: Floats


@dataclass(frozen=True, slots=True)
class Given:
    """What the executor gave for one prompt."""

    argmax: npt.NDArray[np.int64]
    logsumexp: npt.NDArray[np.float64]
    logits: Floats
    full: Mapping[int, Floats]
    greedy_ids: tuple[int, ...]

    def errors(self, golden: Golden) -> Floats:
        """Of every logit that the golden has."""
        whole = [self.full[at] - row for at, row in golden.full.items()]
        return np.abs(np.concatenate([(self.logits - golden.logits).ravel(), *whole]))

    def error(self, golden: Golden) -> float:
        """The largest difference of a logit."""
        return float(self.errors(golden).max())


def read_goldens() -> tuple[dict[str, Golden], npt.NDArray[np.int32]]:
    """Prompts by name, and the sampled part of the vocabulary."""
    with np.load(GOLDENS) as file:
        full = list(zip(file["full/names"], file["full/positions"], file["full/logits"], strict=True))
        return {
            str(name): Golden(
                ids=tuple(int(token) for token in file[f"{name}/ids"]),
                argmax=file[f"{name}/argmax"],
                margin=file[f"{name}/margin"],
                max_abs=float(file[f"{name}/max_abs"].max()),
                logsumexp=file[f"{name}/logsumexp"],
                positions=file[f"{name}/positions"],
                logits=file[f"{name}/logits"],
                full={int(position): row for of, position, row in full if of == name},
                greedy_ids=tuple(int(token) for token in file[f"{name}/greedy_ids"]),
                greedy_margin=file[f"{name}/greedy_margin"],
            )
            for name in file["names"]
        }, file["vocab_sample"]


Observer = Callable[[StepPlan, Floats], None]
MakeExecutor = Callable[[Observer], LoadableExecutor]


def reference(observe: Observer) -> LoadableExecutor:
    return ReferenceExecutor(ReferenceConfig(poison=True, observe_logits=observe), time.monotonic)


def native(observe: Observer) -> LoadableExecutor:
    """In the numbers of the original: weights dequantised, and a cache of float32."""
    from plait.exec.native.executor import NativeConfig, NativeExecutor
    from plait.exec.native.packing import WeightDtype

    return NativeExecutor(NativeConfig((-1, -1), dtype=WeightDtype.F32, poison=True, observe_logits=observe))


def native_as_stored(observe: Observer) -> LoadableExecutor:
    """In the file's formats: rows are rounded to 8 bits."""
    from plait.exec.native.executor import NativeConfig, NativeExecutor

    return NativeExecutor(NativeConfig((-1, -1), poison=True, observe_logits=observe))


def rounded(weights: WeightTable, form: WeightFormat) -> WeightTable:
    """Every matrix in another format, as far as its rows are whole blocks."""
    from tests.unit.exec.test_native_executor import ROUNDED, stored

    tensors = dict(weights)
    for name, tensor in weights.items():
        if form is formats.INT8 and len(tensor.shape) == 2:
            tensors[name] = replace(tensor, format=form, rounded_from=tensor.format)
        elif len(tensor.shape) == 2 and tensor.shape[1] % form.block_weights == 0:
            rows = (stored if form in ROUNDED else plainly_rounded)(tensor.dequantize(), form)
            tensors[name] = Tensor(name, tensor.shape, form, rows)
    return WeightTable(tensors, weights.source, "not needed")


class GoldenRun:
    """Every prompt through one executor: first all rows in chunks, then all continuations in one batch."""

    def __init__(
        self,
        model_path: Path,
        goldens: Mapping[str, Golden],
        make: MakeExecutor,
        cache_type: CacheType = CacheType.F32,
        form: WeightFormat | None = None,
    ) -> None:
        """`form`: round the matrices to it first."""
        file = read_gguf(model_path)
        program = build_program(config_from_gguf(file.metadata, file.tensors.keys()))
        num_tokens = sum(len(golden.ids) + len(golden.greedy_ids) + BLOCK for golden in goldens.values())
        memory_bytes = num_tokens * token_bytes(program, cache_type)
        layout = plan_layout(program, memory_bytes=memory_bytes, tokens_per_block=BLOCK, cache_type=cache_type)
        self._seen: list[Floats] = []
        self._clock = RealClock()
        self._executor = make(lambda _, logits: self._seen.append(logits.copy()))
        weights = load_gguf_weights(file, expected_weights(program), "not needed")
        if form is not None:
            weights = rounded(weights, form)
        self._executor.load({"step": program}, weights, layout)
        self._next_step = 0
        self._free = iter(range(layout.groups[0].num_blocks))

    def close(self) -> None:
        self._executor.close()

    def rows(self, seq: int, golden: Golden) -> Iterator[tuple[int, Floats]]:
        """Logits behind every token of the prompt: first position and rows of each chunk."""
        length = len(golden.ids)
        join = Join(SeqId(seq), seq, SamplingParams(temperature=0.0), 0, 0, length)
        count = -(-(length + len(golden.greedy_ids)) // BLOCK)
        grant = BlockGrant(SeqId(seq), GroupId(0), 0, tuple(BlockId(next(self._free)) for _ in range(count)))
        for start in range(0, length, ROWS_PER_CHUNK):
            tokens = golden.ids[start : start + ROWS_PER_CHUNK]
            # Scoring costs more than it gives here: rows are sampled to see their logits.
            outputs = Outputs(0, len(tokens), OutputKind.SAMPLE)
            chunk = Chunk(SeqId(seq), start, len(tokens), tokens, outputs=(outputs,))
            first = start == 0
            result = self._step((chunk,), (join,) if first else (), (grant,) if first else ())
            assert result.seqs[0].num_computed == len(tokens)
            yield start, self._seen.pop()

    def continuations(self, goldens: Mapping[str, Golden], first: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Greedy tokens of every prompt, all prompts in each step; `first` are those that their last rows gave."""
        found = {name: [token] for name, token in first.items()}
        for at in range(max(len(golden.greedy_ids) for golden in goldens.values()) - 1):
            chunks = [
                Chunk(SeqId(seq), len(golden.ids) + at, 1, FROM_DEVICE, outputs=(Outputs(0, 1, OutputKind.SAMPLE),))
                for seq, golden in enumerate(goldens.values())
            ]
            result = self._step(tuple(chunks))
            for name, one in zip(goldens, result.seqs, strict=True):
                found[name] += one.tokens
        return {name: tuple(tokens) for name, tokens in found.items()}

    def _step(
        self, chunks: tuple[Chunk, ...], joins: tuple[Join, ...] = (), grants: tuple[BlockGrant, ...] = ()
    ) -> StepResult:
        self._executor.submit(StepPlan(StepId(self._next_step), LaneId(0), joins, grants, (), chunks))
        self._next_step += 1
        self._clock.wait(self._executor)
        (result,) = self._executor.collect()
        return result


def run_all(run: GoldenRun, goldens: Mapping[str, Golden], sample: npt.NDArray[np.int32]) -> dict[str, Given]:
    parts: dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], Floats, dict[int, Floats]]] = {}
    for seq, (name, golden) in enumerate(goldens.items()):
        argmax, logsumexp, logits = [], [], []
        full: dict[int, Floats] = {}
        for start, rows in run.rows(seq, golden):
            argmax.append(rows.argmax(axis=1))
            top = rows.max(axis=1).astype(np.float64)
            logsumexp.append(top + np.log(np.exp(rows - top[:, None]).sum(axis=1)))
            inside = golden.positions[(golden.positions >= start) & (golden.positions < start + len(rows))] - start
            logits.append(rows[inside][:, sample])
            full |= {at: rows[at - start] for at in golden.full if start <= at < start + len(rows)}
        parts[name] = (np.concatenate(argmax), np.concatenate(logsumexp), np.concatenate(logits), full)
    greedy = run.continuations(goldens, {name: int(part[0][-1]) for name, part in parts.items()})
    run.close()
    return {name: Given(*part, greedy[name]) for name, part in parts.items()}


GOLDENS_BY_NAME, VOCAB_SAMPLE = read_goldens()


EXECUTORS: Mapping[str, MakeExecutor] = {"reference": reference} | (
    {"native": native} if presence.missing() is None else {}
)


@pytest.fixture(scope="module", params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def given(model_path: Path, executor: str) -> dict[str, Given]:
    return run_all(GoldenRun(model_path, GOLDENS_BY_NAME, EXECUTORS[executor]), GOLDENS_BY_NAME, VOCAB_SAMPLE)


each_prompt = pytest.mark.parametrize("name", GOLDENS_BY_NAME)


@pytest.mark.model
@each_prompt
def test_logits_are_those_of_the_original(given: dict[str, Given], name: str) -> None:
    golden = GOLDENS_BY_NAME[name]
    assert len(given[name].logits) == len(golden.positions)
    assert given[name].error(golden) <= ALLOWED_ERROR * golden.max_abs
    assert np.abs(given[name].logsumexp - golden.logsumexp).max() <= ALLOWED_ERROR * golden.max_abs


@pytest.mark.model
@each_prompt
def test_the_likeliest_token_is_the_originals_wherever_it_is_clear(given: dict[str, Given], name: str) -> None:
    golden = GOLDENS_BY_NAME[name]
    clear = golden.margin > CLEAR * given[name].error(golden)
    assert clear.mean() > 0.95
    assert np.array_equal(given[name].argmax[clear], golden.argmax[clear])


@pytest.mark.model
@each_prompt
def test_a_greedy_continuation_is_the_originals_as_long_as_it_is_clear(given: dict[str, Given], name: str) -> None:
    golden = GOLDENS_BY_NAME[name]
    narrow = np.flatnonzero(golden.greedy_margin <= CLEAR * given[name].error(golden))
    length = int(narrow[0]) if len(narrow) else len(golden.greedy_ids)
    assert length > 10
    assert given[name].greedy_ids[:length] == golden.greedy_ids[:length]


@dataclass(frozen=True, slots=True)
class Nearness:
    """How near the original all prompts together came."""

    worst: float
    """Of the largest logit."""
    typical: float
    """The root of the mean square, of the largest logit."""
    num_rows: int
    num_equal: int
    num_whole: int

    @classmethod
    def of(cls, given: Mapping[str, Given]) -> Nearness:
        pairs = [(given[name], golden) for name, golden in GOLDENS_BY_NAME.items()]
        return cls(
            worst=max(one.error(golden) / golden.max_abs for one, golden in pairs),
            typical=max(_root_mean_square(one.errors(golden)) / golden.max_abs for one, golden in pairs),
            num_rows=sum(len(golden.ids) for _, golden in pairs),
            num_equal=sum(int((one.argmax == golden.argmax).sum()) for one, golden in pairs),
            num_whole=sum(one.greedy_ids == golden.greedy_ids for one, golden in pairs),
        )

    def __str__(self) -> str:
        return (
            f"largest error {self.worst:.1e} of the largest logit, typically {self.typical:.1e}; {self.num_equal} of"
            f" {self.num_rows} rows have the same likeliest token, {self.num_whole} of {len(GOLDENS_BY_NAME)} greedy"
            " continuations are equal to the end"
        )


def _root_mean_square(errors: Floats) -> float:
    return float(np.sqrt(np.square(errors).mean(dtype=np.float64)))


@pytest.mark.model
def test_how_near_the_original_it_is(
    given: dict[str, Given], executor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Says it, so that a slow drift shows before it is an error."""
    near = Nearness.of(given)
    with capsys.disabled():
        print(f"\ngoldens, {executor}: {near}")
    assert near.worst <= ALLOWED_ERROR


needs_native = pytest.mark.skipif(
    presence.missing() is not None, reason="needs the native runtime, and that a C++ compiler"
)


@pytest.mark.model
@needs_native
@pytest.mark.parametrize(
    ("make", "bound"), [(native_as_stored, EIGHT_BITS), (native, HALF_CACHE)], ids=["file's formats", "floats"]
)
def test_what_rows_of_eight_bits_and_a_cache_of_halves_cost(
    model_path: Path, make: MakeExecutor, bound: Bound, capsys: pytest.CaptureFixture[str]
) -> None:
    run = GoldenRun(model_path, GOLDENS_BY_NAME, make, cache_type=CacheType.F16)
    near = Nearness.of(run_all(run, GOLDENS_BY_NAME, VOCAB_SAMPLE))
    with capsys.disabled():
        print(f"\ngoldens, {make.__name__} with a cache of halves: {near}")
    assert near.worst <= bound.single
    assert near.typical <= bound.typical
    assert near.num_equal >= bound.equal * near.num_rows


SHORT = {name: golden for name, golden in GOLDENS_BY_NAME.items() if len(golden.ids) < 300}


@pytest.mark.model
@needs_native
@pytest.mark.parametrize(
    "form",
    [
        *(formats.INT8, formats.IQ4_NL),
        *(
            pytest.param(form, marks=pytest.mark.slow)
            for form in (formats.Q8_0, formats.Q4_0, formats.MXFP4, formats.Q2_K, formats.Q3_K)
        ),
    ],
    ids=lambda one: one.name,
)
def test_the_other_formats_of_rows_of_eight_bits_stay_within_the_bound(model_path: Path, form: WeightFormat) -> None:
    """Weights rounded to another format, against these same weights in float32: what rounding rows adds."""
    as_stored = GoldenRun(model_path, SHORT, native_as_stored, cache_type=CacheType.F16, form=form)
    exact = GoldenRun(model_path, SHORT, native, form=form)
    bound = FEW_BITS if form in (formats.Q2_K, formats.Q3_K) else EIGHT_BITS
    num_rows = num_equal = 0
    with closing(as_stored), closing(exact):
        for seq, golden in enumerate(SHORT.values()):
            given = np.concatenate([rows for _, rows in as_stored.rows(seq, golden)])
            true = np.concatenate([rows for _, rows in exact.rows(seq, golden)])
            errors = np.abs(given - true) / np.abs(true).max()
            assert 0 < errors.max() <= bound.single
            assert _root_mean_square(errors) <= bound.typical
            num_rows += len(true)
            num_equal += int((given.argmax(axis=1) == true.argmax(axis=1)).sum())
    assert num_equal >= bound.equal * num_rows


@pytest.mark.torch
@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_committed_goldens_are_what_the_script_makes(model_path: Path) -> None:
    script = str(ROOT / "scripts" / "make_goldens.py")
    command = [sys.executable, script, "--gguf", str(model_path), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
