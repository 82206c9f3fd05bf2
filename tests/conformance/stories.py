"""Stories: the sequences of random traffic, as their scheduler sees them.

Owns what a sequence knows and holds, and what an executor said about it. Decides nothing: `traffic` does.
Invariant: `tokens` only grows, so every answer can be checked when the story has ended, against its whole text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from tests.conformance.models import VOCAB_SIZE

from plait.core.ids import BlockId, LaneId, SeqId, StepId
from plait.core.sampling import SamplingParams
from plait.core.step import Chunk, Join, OutputKind, SeqResult, TokenLogprob

EOS_TOKEN_IDS = (3, 4)
PARAMS: Sequence[SamplingParams] = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, logprobs=3),
    SamplingParams(temperature=0.9, logprobs=0),
    SamplingParams(temperature=1.2, top_k=20, top_p=0.9),
    SamplingParams(temperature=0.7, min_p=0.05, repetition_penalty=1.3),
    SamplingParams(temperature=0.0, frequency_penalty=0.6, presence_penalty=0.4),
    SamplingParams(temperature=1.0, presence_penalty=-0.5, logit_bias=((7, 4.0), (50, -8.0)), min_tokens=3),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What an executor said about one row. `row` is the row's slot in the sequence; `target` what was to be scored."""

    join: Join
    kind: OutputKind
    row: int
    token: int
    logprob: TokenLogprob | None
    allowed: bytes | None = None
    num_top: int = 0


@dataclass(frozen=True, slots=True)
class Flight:
    """A chunk in flight, under the join that it was planned with. `masks` are by row of the chunk."""

    step: StepId
    chunk: Chunk
    join: Join
    masks: Mapping[int, bytes]

    @property
    def samples_next(self) -> bool:
        """The token behind the chunk will be on the device."""
        sampled = [out for out in self.chunk.outputs if out.kind is OutputKind.SAMPLE]
        return bool(sampled) and sampled[-1].first + sampled[-1].num_rows == self.chunk.num_tokens

    def answers(self, result: SeqResult) -> list[Answer]:
        """The result, row by row."""
        tokens, logprobs, scored = iter(result.tokens), iter(result.logprobs), iter(result.prompt_logprobs)
        found = []
        for out in self.chunk.outputs:
            for row in range(out.first, out.first + out.num_rows):
                slot = self.chunk.start + row
                if out.kind is OutputKind.SAMPLE:
                    num_top = self.join.params.logprobs
                    logprob = None if num_top is None else next(logprobs)
                    allowed = self.masks.get(row)
                    found.append(Answer(self.join, out.kind, slot, next(tokens), logprob, allowed, num_top or 0))
                else:
                    given = next(scored)
                    assert given.token == out.targets[row - out.first]
                    found.append(Answer(self.join, out.kind, slot, given.token, given, num_top=out.top))
        assert not [*tokens, *logprobs, *scored], "more was given than asked for"
        return found


@dataclass(slots=True, eq=False)
class Story:
    """A sequence. It is joined while `join` is set; it ends with `target` tokens."""

    id: SeqId
    tokens: list[int]
    num_prompt: int
    target: int
    params: SamplingParams
    seed: int
    choice: int
    num_computed: int = 0
    tables: list[list[BlockId | None]] = field(default_factory=list)
    """Per group; None where an entry has left the window or was never needed."""
    join: Join | None = None
    lane: LaneId | None = None
    flights: list[Flight] = field(default_factory=list)
    broken: bool = False
    """A cancellation is on its way: nothing is planned behind it before all that is in flight has come back."""
    moves_from: StepId | None = None
    """It left a lane, keeping its memory, with this step; it may join another once the step was collected."""
    copied_by: StepId | None = None
    """The step that copies the beginning of its last block; others may begin with that once the step was collected."""
    answers: list[Answer] = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        return len(self.tokens) >= self.target

    @property
    def planned_end(self) -> int:
        return self.flights[-1].chunk.end if self.flights else self.num_computed

    def held(self) -> list[BlockId]:
        """Every block of its tables."""
        return [block for table in self.tables for block in table if block is not None]

    def common(self, other: Story) -> int:
        """Tokens of `other` that are computed and could be its own; one token is left to go on from."""
        limit = min(other.num_computed, len(self.tokens) - 1)
        differing = (at for at in range(limit) if self.tokens[at] != other.tokens[at])
        return next(differing, limit)


def write_stories(
    random: np.random.Generator, num_groups: int, vocab_size: int = VOCAB_SIZE, count: int = 12
) -> list[Story]:
    """Prompts of all lengths, some longer than a key tile, most of them beginning as an earlier one does."""
    stories: list[Story] = []
    for index in range(count):
        length = int(random.integers(250, 300)) if index in (1, 4) else int(random.integers(1, 60))
        prompt = [int(token) for token in random.integers(0, vocab_size, length)]
        if stories and index % 3 != 0:
            donor = stories[int(random.integers(len(stories)))]
            kept = int(random.integers(1, donor.num_prompt + 1))
            prompt = [*donor.tokens[:kept], *prompt[: max(20, len(prompt) - kept)]]
        stories.append(
            Story(
                id=SeqId(index),
                tokens=prompt,
                num_prompt=len(prompt),
                target=len(prompt) + int(random.integers(3, 12)),
                params=PARAMS[index % len(PARAMS)],
                seed=int(random.integers(1 << 62)),
                choice=int(random.integers(3)),
                tables=[[] for _ in range(num_groups)],
            )
        )
    return stories
