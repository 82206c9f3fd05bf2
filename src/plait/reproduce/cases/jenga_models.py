"""Jenga's models and loads (figure 14), as they are simulated here.

Owns shapes, memory and requests of each row. What the paper does not print is chosen here, before anything runs, and
said in the case's notes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from plait.core.ids import GroupId, RequestId
from plait.core.request import Image, Request
from plait.core.sampling import SamplingParams
from plait.inspect.programs import find_model
from plait.kv.keeps import Keeps
from plait.model.keeping import keep_all_tokens
from plait.model.program import CacheGroup, GroupKind, Program
from plait.model.shard import shard
from plait.reproduce.models import llama_8b
from plait.reproduce.shapes import Mixer, Shape, StateShape, program_of
from plait.sim.arrivals import Arrival
from plait.sim.prompts import prompt_of

IMAGE_ROWS, IMAGE_TEXT = 6193, 43
"""Of a prompt of MMMU-pro, in the mean."""
SUBJECTS = 14
"""Of MMLU-pro: five worked examples of one go before each question."""
QUESTIONS, QUESTION_TOKENS = 4, 10
"""Of arXiv-QA: as many about each document, in the authors' released commands."""
NAMED_TOKENS = 64
"""Tokens of a named piece of a shared prefix."""
VOCAB = 20_000
"""Tokens that prompts are made of: one rank's part of Llama-4-Scout has 25,256."""
BOS = Image(b"", 0, 1)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that wait from the start."""

    arrivals: tuple[Arrival, ...]

    def __iter__(self) -> Iterator[Arrival]:
        return iter(self.arrivals)


@dataclass(frozen=True, slots=True)
class KeepsPart:
    """The last part of a sequence's tokens: as many blocks as a layer of PyramidKV keeps, whichever tokens it drops. A
    function of length alone, so prefixes cannot be shared.
    """

    tokens_per_block: int
    part: float
    least: int = 64
    """Tokens that are always kept."""

    @property
    def is_state(self) -> bool:
        return False

    @property
    def keeps_all(self) -> bool:
        return False

    def dead(self, num_tokens: int) -> range:
        kept = max(self.least, math.ceil(self.part * num_tokens))
        return range(max(0, num_tokens - kept) // self.tokens_per_block)

    def possible(self, has: Sequence[bool]) -> list[range]:
        return [range(1)]

    def priority(self, num_tokens: int) -> int:
        return num_tokens

    def most_blocks(self, num_tokens: int, num_ahead: int) -> int:
        kept = max(self.least, math.ceil(self.part * num_tokens)) + num_ahead
        return -(-min(num_tokens, kept) // self.tokens_per_block) + (kept < num_tokens)


@dataclass(frozen=True, slots=True)
class Modelled:
    """A model that keeps what its kinds of layers need, and as a memory without kinds has it."""

    typed: Program
    uniform: Program
    keeps: Mapping[GroupId, Keeps] = field(default_factory=dict)
    """Of `typed`."""
    weight_bytes: float = 2.0
    cache_bytes: float = 2.0


def _modelled(program: Program, **more: object) -> Modelled:
    return replace(Modelled(program, keep_all_tokens(program)), **more)  # type: ignore[arg-type]


def ranked(shape: Shape, ranks: int) -> Shape:
    """One rank's part."""
    state = shape.state and replace(shape.state, channels=shape.state.channels // ranks)
    return replace(
        shape,
        heads=shape.heads // ranks,
        kv_heads=shape.kv_heads // ranks,
        ffn=shape.ffn // ranks,
        vocab=shape.vocab // ranks,
        state=state,
    )


@cache
def mllama(weight_bytes: float) -> Modelled:
    layers = tuple(Mixer.CROSS if i in (3, 8, 13, 18, 23, 28, 33, 38) else Mixer.FULL for i in range(40))
    typed = program_of(Shape("mllama", layers, 4096, 32, 8, 128, 14336, 128256, rows=IMAGE_ROWS))
    everywhere = tuple(replace(group, num_layers=40) for group in typed.cache_groups)
    return Modelled(typed, replace(typed, cache_groups=everywhere), weight_bytes=weight_bytes)


@cache
def gemma_12b(weight_bytes: float, ranks: int = 1) -> Modelled:
    """Its ranks' sums over the link are priced; those of the shapes below are not."""
    return _modelled(shard(find_model("google/gemma-3-12b-it").program, ranks), weight_bytes=weight_bytes)


@cache
def ministral(weight_bytes: float) -> Modelled:
    layers = tuple(Mixer.WINDOW if i % 4 else Mixer.FULL for i in range(36))
    shape = Shape("ministral", layers, 4096, 32, 8, 128, 12288, 131072, size=32768)
    return _modelled(program_of(shape), weight_bytes=weight_bytes)


@cache
def scout(ranks: int) -> Modelled:
    """The shared expert is written as one more of the routed ones."""
    layers = tuple(Mixer.FULL if i % 4 == 3 else Mixer.CHUNKED for i in range(48))
    shape = Shape("scout", layers, 5120, 40, 8, 128, 8192, 202048, size=8192, experts=(17,) * 48, top_k=2)
    return _modelled(program_of(ranked(shape, ranks)))


@cache
def jamba(ranks: int) -> Modelled:
    layers = tuple(Mixer.FULL if i % 8 == 4 else Mixer.MAMBA for i in range(32))
    experts = tuple(16 if i % 2 else 0 for i in range(32))
    shape = Shape(
        "jamba", layers, 4096, 32, 8, 128, 14336, 65536, state=StateShape(8192, 16, 4, 256), experts=experts, top_k=2
    )
    return _modelled(program_of(ranked(shape, ranks)))


@cache
def character(ranks: int) -> Modelled:
    """Llama 70B's width; one layer of six is full, the others see 1,024 tokens, and two neighbours share keys. A memory
    without kinds has keys for each of the 80: the paper's vLLM (0.8.3) knows no sharing between layers.
    """
    layers = [Mixer.SAME if i % 2 else Mixer.FULL if i % 12 == 0 else Mixer.WINDOW for i in range(80)]
    shape = Shape("character", tuple(layers), 8192, 64, 8, 128, 28672, 128256, size=1024)
    program = program_of(ranked(shape, ranks))
    uniform = keep_all_tokens(program)
    everywhere = tuple(replace(group, num_layers=len(layers)) for group in uniform.cache_groups)
    return Modelled(program, replace(uniform, cache_groups=everywhere), weight_bytes=1.0)


PYRAMID_GROUPS = 8
PYRAMID_LEAST = 0.1


@cache
def pyramid(ranks: int) -> Modelled:
    """Llama 70B in groups of ten layers that keep less and less, as its cosine says (prefill to a tenth)."""
    shape = Shape("pyramid", (Mixer.FULL,) * 80, 8192, 64, 8, 128, 28672, 128256)
    uniform = program_of(ranked(shape, ranks))
    one = uniform.cache_groups[0]
    size = one.num_layers // PYRAMID_GROUPS
    groups = tuple(
        CacheGroup(GroupId(g), f"layers {g * size}", GroupKind.FULL, size, one.num_kv_heads, 128, 128)
        for g in range(PYRAMID_GROUPS)
    )
    keeps = {GroupId(g): KeepsPart(16, _cosine((g + 0.5) / PYRAMID_GROUPS)) for g in range(PYRAMID_GROUPS)}
    typed = _in_groups(uniform, groups)
    return Modelled(typed, uniform, keeps, weight_bytes=1.0)


def _cosine(depth: float) -> float:
    return (1 - PYRAMID_LEAST) * (math.cos(math.pi * depth) + 1) / 2 + PYRAMID_LEAST


def _in_groups(program: Program, groups: tuple[CacheGroup, ...]) -> Program:
    from plait.model.regrouping import regrouped

    size = groups[0].num_layers
    places = {(GroupId(0), slot): (GroupId(slot // size), slot % size) for slot in range(size * len(groups))}
    return regrouped(program, groups, places)


@cache
def llama(weight_bytes: float) -> Modelled:
    return _modelled(llama_8b(), weight_bytes=weight_bytes)


@cache
def images(count: int, num_output: int) -> Load:
    """MMMU-pro: every prompt has images of its own."""
    found = []
    for index in range(count):
        image = Image(f"image {index}".encode(), 0, 1, IMAGE_ROWS)
        found.append(_request(index, prompt_of(IMAGE_TEXT, (), 1, index, 1000), num_output, (image,)))
    return Load(tuple(found))


@cache
def articles(count: int, shortest: int, longest: int, num_output: int, seed: int = 0) -> Load:
    """arXiv-QA without anything shared: one question each."""
    dice = random.Random(seed)
    lengths = [dice.randint(shortest, longest) for _ in range(count)]
    return Load(tuple(_request(i, prompt_of(n, (), 1, i, 1000), num_output) for i, n in enumerate(lengths)))


@cache
def questioned(num_documents: int, shortest: int, longest: int, num_output: int, seed: int = 0) -> Load:
    """arXiv-QA: four questions about every document, all in random order."""
    dice = random.Random(seed)
    lengths = [dice.randint(shortest, longest) // NAMED_TOKENS * NAMED_TOKENS for _ in range(num_documents)]
    order = [document for document in range(num_documents) for _ in range(QUESTIONS)]
    dice.shuffle(order)
    most = longest // NAMED_TOKENS
    found = []
    for index, document in enumerate(order):
        names = tuple(range(document * most, document * most + lengths[document] // NAMED_TOKENS))
        prompt = prompt_of(lengths[document] + QUESTION_TOKENS, names, NAMED_TOKENS, index, VOCAB)
        found.append(_request(index, prompt, num_output))
    return Load(tuple(found))


def of_lengths(lengths: Sequence[tuple[int, int]], vocab: int = 1000) -> Load:
    """Requests of (prompt, answer) tokens that share nothing."""
    return Load(tuple(_request(i, prompt_of(n, (), 1, i, vocab), answer) for i, (n, answer) in enumerate(lengths)))


@cache
def questions(count: int, num_output: int, seed: int = 0) -> Load:
    """MMLU-pro: the examples of a subject, and a question of 100 to 300 tokens behind them."""
    dice = random.Random(seed)
    shared = [dice.randint(11, 33) for _ in range(SUBJECTS)]
    found = []
    for index in range(count):
        subject, own = dice.randrange(SUBJECTS), dice.randint(100, 300)
        names = tuple(range(subject * 100, subject * 100 + shared[subject]))
        num_tokens = shared[subject] * NAMED_TOKENS + own
        found.append(_request(index, prompt_of(num_tokens, names, NAMED_TOKENS, index, 1000), num_output))
    return Load(tuple(found))


@cache
def documents(num_documents: int, num_questions: int, length: int, num_output: int, seed: int = 0) -> Load:
    """So many documents with so many questions each, all in random order."""
    dice = random.Random(seed)
    order = [document for document in range(num_documents) for _ in range(num_questions)]
    dice.shuffle(order)
    named = length // NAMED_TOKENS
    found = []
    for index, document in enumerate(order):
        names = tuple(range(document * named, (document + 1) * named))
        found.append(_request(index, prompt_of(length + 50, names, NAMED_TOKENS, index, VOCAB), num_output))
    return Load(tuple(found))


def _request(index: int, prompt: tuple[int, ...], num_output: int, images: tuple[Image, ...] = ()) -> Arrival:
    sampling = SamplingParams(seed=index, max_tokens=num_output, ignore_eos=True)
    return Arrival(0.0, Request(RequestId(f"request {index}"), prompt, sampling, images=images))


LoadMaker = Callable[[], Load]
