"""Soak: round after round on one native runtime, each with a model, a load and a seed of its own.

Owns which round comes next, and the readings between rounds.
Invariant: equal seeds give equal models, plans and requests; when a control verb meets a step is up to the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.conformance.models import VOCAB_SIZE
from tests.soak import engine_round, plan_round
from tests.soak.questions import answer_alone, draw_questions
from tests.soak.resources import MIB, Reading, growth, read
from tests.soak.subjects import Subject, draw_subject, open_subject
from tests.soak.tally import Tally

from plait import _native
from plait.core.errors import InvariantError, PlaitError

TEXTS, TEXT_LENGTH = 6, 400
REAL_EVERY = 8
"""One round in so many is the default model's; each takes as long as many of the others."""


@dataclass(frozen=True, slots=True)
class Report:
    differences: Sequence[str]
    leaks: Sequence[str]
    numbers: Mapping[str, float]

    @property
    def is_good(self) -> bool:
        return not self.differences and not self.leaks


class Soak:
    """`model_path`: a file to soak beside the made-up models, or None."""

    def __init__(self, seed: int, model_path: Path | None = None) -> None:
        self.tally = Tally()
        self.num_rounds = 0
        self._seed = seed
        self._real = None if model_path is None else open_subject(model_path)
        self._targets = tuple(_native.build_info()["targets"])
        self._readings: list[Reading] = []

    def round(self) -> None:
        seed = self._seed * 1_000_000 + self.num_rounds
        kind = self.num_rounds % REAL_EVERY
        is_real = self._real is not None and kind == REAL_EVERY - 1
        plays_plans = kind % 2 == 0 if not is_real else self.num_rounds // REAL_EVERY % 2 == 0
        before = len(self.tally.differences)
        try:
            if plays_plans:
                self._plans(self._real if is_real and self._real is not None else draw_subject(seed), seed, is_real)
            else:
                self._requests(self._real if is_real and self._real is not None else None, seed)
        except (AssertionError, InvariantError, PlaitError) as found:
            self.tally.differences.append(f"{type(found).__name__}: {found}")
        self.tally.differences[before:] = [f"round {self.num_rounds}: {one}" for one in self.tally.differences[before:]]
        self.num_rounds += 1
        self.tally.add("rounds")
        self._readings.append(read())

    def report(self) -> Report:
        grown = growth(self._readings)
        leaks = grown.leaks()
        numbers = {
            **self.tally.numbers(),
            "leaks": len(leaks),
            "memory_growth_mib": round(grown.memory / MIB, 1),
            "descriptors_growth": grown.descriptors,
            "threads_growth": grown.threads,
            "memory_mib": round(self._readings[-1].memory / MIB, 1),
        }
        return Report(self.tally.reports(), leaks, numbers)

    def _plans(self, subject: Subject, seed: int, is_real: bool) -> None:
        # The baseline target is there for machines without AVX2, and too slow for a real model.
        targets = [one for one in self._targets if one != "baseline"] if is_real else self._targets
        plan_round.compare(subject, plan_round.play(subject, seed, targets, self.tally), self.tally)

    def _requests(self, real: Subject | None, seed: int) -> None:
        subject = draw_subject(seed, causal=True) if real is None else real
        load = engine_round.TINY if real is None else engine_round.REAL
        random = np.random.default_rng(seed)
        # Two texts are made of few words, as real ones are; the others of all.
        sizes = [subject.program.vocab_size if at % 3 else min(VOCAB_SIZE, 20) for at in range(TEXTS)]
        texts = [[int(token) for token in random.integers(4, size, TEXT_LENGTH)] for size in sizes]
        questions = draw_questions(random, texts, load.questions, load.prompt_tokens, load.output_tokens)
        engine_round.play(subject, load, questions, answer_alone(subject, questions), seed, self.tally)
