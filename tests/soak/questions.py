"""Questions: random requests that share beginnings, with every sampling rule, and what each is answered alone.

Owns how they are drawn, and the quiet engine that answers them one by one.
Invariant: a question says its seed, so its answer does not depend on the id under which it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from tests.conformance.native_rooms import Treatment
from tests.conformance.serving import Answer, Served, Serving, Setup
from tests.soak.subjects import Subject

from plait.core.ids import RequestId
from plait.core.request import Request, ServiceClass
from plait.core.sampling import SamplingParams

SAMPLINGS = (
    SamplingParams(temperature=0.0, logprobs=4),
    SamplingParams(temperature=0.0, logprobs=0, frequency_penalty=0.7, presence_penalty=0.3),
    SamplingParams(temperature=1.0, logprobs=2),
    SamplingParams(temperature=0.8, logprobs=0, top_k=12, top_p=0.9),
    SamplingParams(temperature=1.3, logprobs=1, min_p=0.02, repetition_penalty=1.4),
    SamplingParams(temperature=0.9, logprobs=0, logit_bias=((11, 3.0), (42, -5.0)), min_tokens=4),
    SamplingParams(temperature=1.1, logprobs=0, stop_token_ids=(5, 17, 60)),
)
QUIET = Treatment(threads=1)


def draw_questions(
    random: np.random.Generator, texts: Sequence[Sequence[int]], count: int, longest_prompt: int, most_tokens: int
) -> list[Request]:
    """`texts`: what prompts are cut from. Every third begins as an earlier one does."""
    questions: list[Request] = []
    for index in range(count):
        text = texts[int(random.integers(len(texts)))]
        length = min(int(random.integers(1, longest_prompt + 1) ** random.choice([0.6, 1.0])), len(text))
        first = int(random.integers(len(text) - length + 1))
        prompt = tuple(text[first : first + length])
        if questions and index % 3:
            donor = questions[int(random.integers(len(questions)))].prompt
            prompt = (donor[: int(random.integers(1, len(donor) + 1))] + prompt)[:longest_prompt]
        sampling = replace(
            SAMPLINGS[index % len(SAMPLINGS)],
            max_tokens=int(random.integers(5, most_tokens + 1)),
            ignore_eos=bool(random.random() < 0.5),
            seed=int(random.integers(-(1 << 62), 1 << 62)),
        )
        questions.append(Request(RequestId(f"question-{index}"), prompt, sampling, n=2 if random.random() < 0.1 else 1))
    return questions


def dressed(random: np.random.Generator, question: Request, name: str) -> Request:
    """The same question under another id, from somebody else, in another hurry."""
    return replace(
        question,
        id=RequestId(name),
        service_class=ServiceClass.BATCH if random.random() < 0.3 else ServiceClass.ONLINE,
        priority=int(random.random() < 0.2),
        tenant="red" if random.random() < 0.2 else "",
        cache_prefix=bool(random.random() < 0.9),
    )


def served(subject: Subject) -> Served:
    return Served(
        subject.program, subject.weights, subject.tokens_per_block, subject.max_positions, subject.eos_token_ids
    )


def answer_alone(subject: Subject, questions: Sequence[Request]) -> Mapping[tuple[RequestId, int], Answer]:
    """One engine, one worker, whole prompts in one chunk, one question at a time."""
    room = replace(QUIET, cache_type=subject.cache_type)
    serving = Serving(served(subject), Setup(max_step_tokens=512, cache_tokens=1024, make_room=room))
    found: dict[tuple[RequestId, int], Answer] = {}
    for question in questions:
        found |= serving.serve([question])
    serving.close()
    return found
