"""Workload: the requests of each row, by size.

Owns prompts and order, drawn once from a seed, so that every layout gets the same. Knows no engine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

Prompt = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the documents and answers; `scaled` makes all of them shorter, the budget with them."""

    document: int = 6000
    output: int = 240
    """Behind each document, where capacity is measured."""
    short_prompt: int = 128
    long_output: int = 2000
    answers: int = 10
    documents: int = 6
    questions: int = 8
    question: int = 32
    reply: int = 16

    def scaled(self, by: float) -> Sizes:
        def smaller(number: int, least: int) -> int:
            return max(least, round(number * by))

        return Sizes(
            document=smaller(self.document, 256),
            output=smaller(self.output, 16),
            short_prompt=self.short_prompt,
            long_output=smaller(self.long_output, 32),
            answers=self.answers,
            documents=self.documents,
            questions=smaller(self.questions, 2),
            question=self.question,
            reply=self.reply,
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests in the order of their arrival, all of one output length."""

    prompts: tuple[Prompt, ...]
    output: int
    users: int
    """Open at once at most."""

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.prompts)) + self.output * len(self.prompts)


def capacity_batch(sizes: Sizes, count: int, vocab: int) -> Batch:
    """More documents than fit, each of its own tokens, all at once."""
    dice = random.Random(1)
    length = sizes.document - sizes.output
    return Batch(tuple(_tokens(dice, length, vocab) for _ in range(count)), sizes.output, count)


def answers_batch(sizes: Sizes, vocab: int) -> Batch:
    dice = random.Random(2)
    prompts = tuple(_tokens(dice, sizes.short_prompt, vocab) for _ in range(sizes.answers))
    return Batch(prompts, sizes.long_output, sizes.answers)


def documents_batch(sizes: Sizes, num_documents: int, vocab: int, users: int) -> Batch:
    """Questions about documents in random order."""
    dice = random.Random(3)
    texts = [_tokens(dice, sizes.document - sizes.question - sizes.reply, vocab) for _ in range(num_documents)]
    asked = [text + _tokens(dice, sizes.question, vocab) for text in texts for _ in range(sizes.questions)]
    dice.shuffle(asked)
    return Batch(tuple(asked), sizes.reply, users)


def _tokens(dice: random.Random, count: int, vocab: int) -> Prompt:
    # The first tokens of a vocabulary are control tokens and single bytes.
    return tuple(dice.randrange(min(1000, vocab // 2), vocab) for _ in range(count))
