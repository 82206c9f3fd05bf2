"""Whatever is asked for besides plain text does not depend on the load either: several choices, scores of prompts,
embeddings, and answers that must have a form.

Expected answers are those that every request gets alone, on one worker, in whole chunks; the loads are random.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

pytest.importorskip("plait._native", reason="needs the native runtime, and that a C++ compiler")

from tests.conformance.models import VISIBILITIES, VOCAB_SIZE, tiny_model, tiny_rwkv
from tests.conformance.native_rooms import Treatment
from tests.conformance.serving import Answer, AnswerKey, Served, Serving, Setup, alone, grows, least_cache_tokens
from tests.properties import test_load_tiny as tiny
from tests.properties.test_load_native import QUIET, check_bits

from plait import _native
from plait.core.ids import RequestId
from plait.core.request import Pooling, Request, Task
from plait.core.sampling import SamplingParams
from plait.model.pooling import with_pool
from plait.model.regrouping import in_tables
from plait.model.visibility import CAUSAL, window

BLOCK = 8
LONGEST = 128
CHOICES = 4


@dataclass(slots=True)
class Maze:
    """A made-up form: what may come next depends on all that came before, and it ends after some tokens."""

    length: int
    vocab: int
    taken: tuple[int, ...] = ()

    def mask(self) -> bytes:
        """About a third of all tokens, never the end."""
        way = random.Random(zlib.crc32(repr(self.taken).encode()))
        allowed = [token for token in range(4, self.vocab) if way.random() < 0.3] or [4]
        return sum(1 << token for token in allowed).to_bytes((self.vocab + 7) // 8, "little")

    def accept(self, token: int) -> None:
        assert self.mask()[token // 8] >> token % 8 & 1, f"{token} is no way on from {self.taken}"
        self.taken += (token,)

    def likely(self) -> tuple[int, ...]:
        """Now and then the first ways that it has."""
        if len(self.taken) % 3:
            return ()
        ahead = replace(self)
        for _ in range(3):
            allowed = int.from_bytes(ahead.mask(), "little")
            ahead.accept((allowed & -allowed).bit_length() - 1)
        return ahead.taken[len(self.taken) :]

    def masks_behind(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        ahead, masks = replace(self), []
        for token in tokens:
            if not ahead.mask()[token // 8] >> token % 8 & 1 or len(ahead.taken) + 1 >= self.length:
                break
            ahead.accept(token)
            masks.append(ahead.mask())
        return tuple(masks)

    @property
    def is_over(self) -> bool:
        return len(self.taken) >= self.length


@dataclass(frozen=True, slots=True)
class Mazes:
    length: int
    vocab: int = VOCAB_SIZE

    @property
    def says(self) -> str:
        return f"a maze of {self.length}"

    def begin(self) -> Maze:
        return Maze(self.length, self.vocab)


def write_requests(seed: int) -> list[Request]:
    """All kinds, on prompts that share beginnings of every length and end anywhere in a block."""
    dice = random.Random(seed)

    def text(length: int) -> tuple[int, ...]:
        return tuple(dice.randrange(4, VOCAB_SIZE) for _ in range(length))

    stem = text(60)
    requests = []
    for number in range(24):
        prompt = stem[: dice.randrange(1, 61)] + text(dice.randrange(0, 12))
        rules, max_tokens = dice.choice(tiny.SAMPLINGS), dice.choice((1, 5, 24, 56))
        sampling = replace(
            rules,
            max_tokens=max_tokens,
            min_tokens=min(rules.min_tokens, max_tokens),
            ignore_eos=dice.random() < 0.5,
            prompt_logprobs=dice.choice((None, None, 0, 3)),
            allowed_token_ids=tuple(sorted(dice.sample(range(3, VOCAB_SIZE), 50))) if dice.random() < 0.2 else (),
        )
        made = Request(RequestId(f"request-{seed}-{number}"), prompt, sampling, n=dice.choice((1, 1, 2, CHOICES)))
        if dice.random() < 0.25:
            made = replace(made, n=1, task=Task.EMBED, pooling=dice.choice(tuple(Pooling)), sampling=SamplingParams())
        elif dice.random() < 0.35:
            free = replace(sampling, allowed_token_ids=(), min_tokens=0)
            made = replace(made, constraint=Mazes(dice.randrange(1, 40)), sampling=free)
        requests.append(made)
    return requests


GROWING = [
    replace(one, id=RequestId(f"long-{one.id}"), sampling=replace(one.sampling, max_tokens=100, ignore_eos=True))
    for one in tiny.GROWING[:4]
]
"""Short prompts whose answers, any two of them, do not fit into the memory that one request of any kind needs."""

SEEN = {**VISIBILITIES, "windows in tables": (window(21), CAUSAL, window(21), CAUSAL, window(21), window(21))}


def served(visibility: str) -> Served:
    model = tiny_rwkv(seed=5) if visibility == "states only" else tiny_model(SEEN[visibility], seed=5)
    program = with_pool(model.program)
    if visibility == "windows in tables":
        # Every layer of the windows has blocks of its own, and full layers lie two in a block.
        program = in_tables(program, {group.id: group.num_layers for group in program.cache_groups if group.window})
        assert [group.num_layers for group in program.cache_groups] in ([1, 1, 1, 1, 2], [2, 1, 1, 1, 1])
    return Served(program, model.table(), BLOCK, LONGEST, eos_token_ids=(3,))


def check_all(answers: Mapping[AnswerKey, Answer], expected: Mapping[AnswerKey, Answer]) -> None:
    check_bits(dict(answers), dict(expected))
    for key, answer in answers.items():
        assert (key, answer.prompt_logprobs) == (key, expected[key].prompt_logprobs)
        assert (key, answer.pooled) == (key, expected[key].pooled)


@pytest.mark.parametrize(
    ("seed", "visibility"),
    [
        (4, "causal"),
        (3, "window beside causal"),
        (5, "chunked beside window"),
        (6, "windows in tables"),
        (7, "states only"),
    ],
)
def test_every_form_of_answer_is_the_same_under_every_load(seed: int, visibility: str) -> None:
    subject, requests = served(visibility), write_requests(seed)
    quiet = Serving(subject, Setup(max_step_tokens=512, make_room=QUIET))
    expected = alone(quiet, [*requests, *GROWING])
    quiet.close()
    assert sum(answer.pooled is not None for answer in expected.values()) >= 3
    assert sum(bool(answer.prompt_logprobs) for answer in expected.values()) >= 3
    dice, targets = random.Random(seed), _native.targets()
    # Enough for any request, not for the answers of many.
    small_memory = least_cache_tokens(subject, LONGEST) + BLOCK
    cached = 0
    for place, budget in enumerate((1, 2, 3, 5, 24, 512)):
        setup = Setup(
            budget,
            cache_tokens=4096 if place == 4 else small_memory,
            enable_prefix=place != 0,
            max_rows=dice.choice((4, 8, 16)),
            kv_layout="max-page" if place == 4 else None,
            make_room=Treatment(
                threads=1 + place % 2,
                target=targets[place % len(targets)],
                blocking_seed=place,
                meddling_seed=place if place % 3 == 2 else None,
            ),
        )
        serving = Serving(subject, setup)
        for _ in range(2):
            shuffled = dice.sample(requests, len(requests))
            check_all(serving.serve(shuffled, ticks_between=dice.choice((0, 1, 4))), expected)
            cached += sum(answer.num_cached > 0 for answer in serving.answers.values())
        if place == 3:
            check_all(serving.serve(GROWING), expected)
            assert serving.num_preemptions >= 1 or not grows(subject)
        serving.close()
    assert cached >= 50
