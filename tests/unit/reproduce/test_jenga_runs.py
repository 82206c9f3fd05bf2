"""What the simulated cases of Jenga rest on: published sizes, needs that no layout changes, small loads."""

from __future__ import annotations

import pytest

from plait.core.errors import InvariantError
from plait.inspect.known import known_models
from plait.kv.layouts.serving import cut
from plait.model.cache_type import CacheType
from plait.model.program import Program
from plait.reproduce.cases import jenga_fragmentation, jenga_hits, jenga_throughput
from plait.reproduce.cases.jenga_models import (
    VOCAB,
    KeepsPart,
    articles,
    character,
    jamba,
    ministral,
    mllama,
    of_lengths,
    pyramid,
    questions,
    scout,
)
from plait.reproduce.catalogue import catalogue


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("ai21labs/ai21-jamba-1.5-mini", lambda: jamba(1).typed),
        ("meta-llama/llama-4-scout-17b-16e-instruct", lambda: scout(1).typed),
        ("mistralai/ministral-8b-instruct-2410", lambda: ministral(2.0).typed),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_shape_has_as_many_numbers_as_were_published(name: str, program: object) -> None:
    """But for norms and the like: a few in ten thousand."""
    published = known_models()[name].parameters
    assert published is not None
    built = program()  # type: ignore[operator]
    assert isinstance(built, Program)
    assert built.num_parameters == pytest.approx(published.total, rel=5e-4)


def test_uniform_memory_of_a_model_with_images_has_every_layer_twice() -> None:
    """Text in the layers that read images, and images in those that read text: 4.9 times what is needed."""
    model = mllama(2.0)
    typed, uniform = (
        sum(group.held_tokens(43) * group.bytes_per_token(2.0) for group in program.cache_groups)
        for program in (model.typed, model.uniform)
    )
    assert uniform / typed == pytest.approx(4.899, abs=1e-3)


def test_a_pyramid_keeps_less_and_less_and_is_no_larger_without_its_kinds() -> None:
    model = pyramid(1)
    kept = [keeps.most_blocks(4096, 0) for keeps in model.keeps.values()]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] > 5 * kept[-1]
    assert sum(group.num_layers for group in model.typed.cache_groups) == model.uniform.cache_groups[0].num_layers


@pytest.mark.parametrize("part", [0.1, 0.5, 1.0])
def test_what_a_part_keeps_never_exceeds_what_it_says(part: float) -> None:
    keeps = KeepsPart(16, part)
    for num_tokens in range(1, 2000, 7):
        held = -(-num_tokens // 16) - len(keeps.dead(max(0, num_tokens - 32)))
        assert held <= keeps.most_blocks(num_tokens, 32)


def test_what_sequences_need_is_the_same_whatever_memory_makes_of_them() -> None:
    """A uniform memory wastes what windows would give up; one by kinds only parts of blocks."""
    model, load = ministral(2.0), of_lengths([(50_000, 40), (40_000, 20)])
    uniform = jenga_fragmentation.measure(model.uniform, model.typed, "uniform", 20 * 10**9, load)
    typed = jenga_fragmentation.measure(model.typed, model.typed, "paged", 20 * 10**9, load)
    assert 0 < typed.mean < 0.001
    assert 0.1 < uniform.mean < 0.5625


def test_more_fits_at_once_with_memory_by_kinds() -> None:
    row = next(row for row in jenga_throughput.rows() if row.name == "Gemma-3-12B")
    load = articles(6, 43_600, 50_000, 100)
    ours, uniform = (jenga_throughput.requests_per_s(row, layout, load) for layout in ("paged", "uniform"))
    assert isinstance(ours, float)
    assert isinstance(uniform, float)
    assert ours > 1.05 * uniform


def test_a_layout_that_cannot_hold_a_model_gives_a_reason_and_no_number() -> None:
    row = next(row for row in jenga_throughput.rows() if row.device == "l4-24g" and row.name == "Ministral-8B")
    found = jenga_throughput.requests_per_s(row, "uniform", articles(1, 90_000, 90_000, 10))
    assert not isinstance(found, float)
    assert "do not hold" in found.reason


def test_a_request_that_is_refused_for_another_reason_is_no_matter_of_memory() -> None:
    """One rank of eight of Llama-4-Scout has 25,256 tokens."""
    row = next(row for row in jenga_throughput.rows() if row.name == "Llama-4-Scout")
    with pytest.raises(InvariantError, match="1 were refused"):
        jenga_throughput.requests_per_s(row, "uniform", of_lengths([(30_000, 10)], vocab=200_000))


def test_prompts_are_made_of_tokens_that_every_rank_has() -> None:
    """Of documents; exams have tokens below 1,000."""
    asked = [row for row in jenga_throughput.rows() if row.name in ("Gemma-3-12B", "Ministral-8B", "Llama-4-Scout")]
    assert min(row.model().typed.vocab_size for row in asked) >= VOCAB


def test_memory_without_kinds_has_keys_for_layers_that_share_them() -> None:
    model = character(1)
    assert sum(group.num_layers for group in model.typed.cache_groups) == 40
    assert sum(group.num_layers for group in model.uniform.cache_groups) == 80


def test_gemma_on_l4s_has_as_many_as_a_prompt_without_kinds_needs() -> None:
    row = next(row for row in jenga_throughput.rows() if row.device == "l4-24g" and row.name == "Gemma-3-12B")
    uniform = jenga_throughput._spec(row, "uniform")
    assert row.cache_bytes == pytest.approx(14.7e9, rel=0.01)
    (group,) = uniform.program.cache_groups
    assert group.num_layers * group.num_kv_heads * group.head_dim_k * 2 * 2 * 4 * 90_000 == pytest.approx(
        35.4e9, rel=1e-2
    )


def test_a_paper_s_name_runs_all_its_cases() -> None:
    found = catalogue().choose("jenga")
    assert [case.id for case in found] == [case.id for case in catalogue().cases if case.id.startswith("jenga-")]
    assert len(found) == 5
    assert catalogue().choose("jeng") == ()


def test_questions_of_a_subject_begin_alike_and_loads_are_the_same_each_time() -> None:
    prompts = [arrival.request.prompt for arrival in questions(60, 20)]
    assert len({prompt[:600] for prompt in prompts}) <= 14
    assert prompts == [arrival.request.prompt for arrival in questions(60, 20)]
    assert len(set(prompts)) == 60


def test_every_layout_of_the_cases_can_be_asked_for() -> None:
    for layout in (jenga_hits.OURS, jenga_hits.UNIFORM, jenga_hits.VLLM):
        assert cut(ministral(2.0).uniform, layout, 16, CacheType.F16).name == layout
