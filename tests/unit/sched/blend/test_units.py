"""Units: everybody once, sorted by density, and little computed twice."""

from __future__ import annotations

import math

import pytest
from tests.unit.sched.blend.jobs import TOKEN_S, dense_of, mixed_job

from plait.sched.blend.units import DensityTree, Unit, cut

SEEDS = range(12)


def computed_tokens(dense: DensityTree, units: list[Unit], prompts: list[tuple[int, ...]]) -> int:
    """Prompt tokens computed if each unit runs by itself and what all share is computed once."""
    free = dense.tree.common_end()
    total = free
    for unit in units:
        inside = [prompts[request] for request in dense.requests(unit.items)]
        total += len({prompt[:end] for prompt in inside for end in range(free + 1, len(prompt) + 1)})
    return total


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lost_share", [0.0, 0.01, 0.2, 1.0])
def test_units_hold_everybody_once_and_lose_little(seed: int, lost_share: float) -> None:
    prompts, outputs = mixed_job(seed)
    dense = dense_of(prompts, outputs)
    for merges in (False, True):
        units = cut(dense, lost_share=lost_share, merges=merges)
        everybody = [request for unit in units for request in dense.requests(unit.items)]
        assert sorted(everybody) == list(range(len(prompts)))
        assert [unit.num_requests for unit in units] == [len(list(dense.requests(unit.items))) for unit in units]
        again = computed_tokens(dense, units, prompts) - dense.tree.num_distinct()
        assert 0 <= again <= lost_share * dense.num_shareable()
        if not merges:
            densities = [unit.density for unit in units]
            assert densities == sorted(densities, reverse=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_merged_units_are_sorted_and_no_more(seed: int) -> None:
    dense = dense_of(*mixed_job(seed))
    apart, together = cut(dense, lost_share=0.2, merges=False), cut(dense, lost_share=0.2)
    densities = [unit.density for unit in together]
    assert densities == sorted(densities, reverse=True)
    assert len(together) <= len(apart)
    assert math.fsum(unit.memory_s for unit in together) == pytest.approx(math.fsum(unit.memory_s for unit in apart))


def test_a_larger_budget_sorts_better() -> None:
    prompts, outputs = mixed_job(4, 800)
    dense = dense_of(prompts, outputs)

    def spread(lost_share: float) -> float:
        """Of densities within units, on a log scale."""
        total = 0.0
        for unit in cut(dense, lost_share=lost_share):
            inside = [dense.density(item) for item in unit.items]
            total += math.log(max(inside) / min(inside)) * unit.num_requests
        return total

    assert spread(1.0) < spread(0.05) <= spread(0.0)


def test_a_beginning_that_all_share_keeps_nothing_together() -> None:
    system = (9,) * 500
    prompts = [system + (index,) * 20 for index in range(8)]
    dense = dense_of(prompts, [1, 1, 1, 1, 3000, 3000, 3000, 3000])
    units = cut(dense)
    assert [sorted(dense.requests(unit.items)) for unit in units] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_requests_that_end_inside_the_tree_are_not_lost() -> None:
    # As printed, the algorithm hands out children alone.
    prompts = [(1, 2), (1, 2, 3), (1, 2, 3), (1,), ()]
    dense = dense_of(prompts, [5, 5, 5, 5, 5])
    assert sorted(request for unit in cut(dense, lost_share=1.0) for request in dense.requests(unit.items)) == [
        *range(5)
    ]


def test_density_counts_shared_tokens_once() -> None:
    prompts, outputs = [(1, 2, 3, 4), (1, 2, 3, 5)], [2, 6]
    dense = dense_of(prompts, outputs)
    root = dense.tree.root
    assert dense.compute_s(root) == pytest.approx((5 + 8) * TOKEN_S)
    assert dense.density(root) == pytest.approx((5 + 8) * TOKEN_S / dense.memory_s(root))
    assert dense.num_shareable() == 3


def test_an_empty_job_has_no_units() -> None:
    assert cut(dense_of([], [])) == []
