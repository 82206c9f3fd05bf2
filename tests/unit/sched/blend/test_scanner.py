"""The dual scanner: every request once, both ends at once, and a mix of the job's density."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tests.unit.sched.blend.jobs import TOKEN_S, dense_of, mixed_job

from plait.sched.blend.orders import Order, fixed_order
from plait.sched.blend.scanner import DualScanner, End, Held
from plait.sched.blend.units import DensityTree, cut

BYTES_PER_TOKEN = 100.0
MEMORY = 3e6


def scanner_of(
    dense: DensityTree, prompts: Sequence[tuple[int, ...]], outputs: Sequence[int], *, lost_share: float = 0.01
) -> DualScanner:
    def held(request: int) -> Held:
        prompt, output = len(prompts[request]), outputs[request]
        return Held((prompt + output / 2) * BYTES_PER_TOKEN, prompt, output)

    return DualScanner(dense, cut(dense, lost_share=lost_share), held)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_taken_is_a_permutation_whatever_side_is_asked(seed: int) -> None:
    prompts, outputs = mixed_job(seed)
    dense = dense_of(prompts, outputs)
    scanner, dice = scanner_of(dense, prompts, outputs), random.Random(seed)
    root_density = scanner.root_density
    taken: list[list[int]] = [[], []]
    while any(scanner.peek(end) is not None for end in End):
        end = dice.choice(list(End))
        request = scanner.peek(end)
        if request is not None:
            assert scanner.take(end) == request
            taken[end].append(request)
        left, right = scanner.split(MEMORY)
        assert left + right == pytest.approx(MEMORY)
        assert 0 <= left <= MEMORY
        assert scanner.root_density == root_density
    assert sorted(taken[0] + taken[1]) == list(range(len(prompts)))
    with pytest.raises(LookupError, match="nothing is left on the left"):
        scanner.take(End.LEFT)


def test_each_side_walks_its_units_depth_first() -> None:
    prompts, outputs = mixed_job(5)
    dense = dense_of(prompts, outputs)
    units = cut(dense)
    scanner = scanner_of(dense, prompts, outputs)
    right = [scanner.take(End.RIGHT) for _ in range(40)]
    everybody = [request for unit in units for request in dense.requests(unit.items)]
    expected = [request for unit in reversed(units) for request in dense.requests(unit.items, backwards=True)]
    assert expected == everybody[::-1]
    assert right == expected[:40]
    left = [scanner.take(End.LEFT) for _ in range(40)]
    assert left == [request for unit in units for request in dense.requests(unit.items)][:40]


def test_ends_of_one_density_are_one_side() -> None:
    prompts = [(1,) * 100, (2,) * 100]
    dense = dense_of(prompts, [10, 10])
    scanner = scanner_of(dense, prompts, [10, 10])
    assert scanner.split(60.0) in ((60.0, 0.0), (0.0, 60.0))


def test_steady_steps_have_the_density_of_the_job() -> None:
    """Requests spread evenly over their lives, in the parts that the scanner gives them: what such a batch computes and
    reads has the ratio of the job (the paper's lifetime argument).
    """
    prompts = [(1, index) + (7,) * 200 for index in range(50)] + [(2, index) + (7,) * 100 for index in range(10)]
    outputs = [4] * 50 + [4000] * 10
    dense = dense_of(prompts, outputs)
    scanner = scanner_of(dense, prompts, outputs)
    parts = scanner.allowances(MEMORY)
    computed = read = 0.0
    for end, part in zip(End, parts, strict=True):
        unit = scanner.unit(end)
        assert unit is not None
        # Each sequence does its life's work in as many steps as it has output tokens.
        each = part.sequences / (outputs[0] if end is End.LEFT else outputs[-1]) / unit.num_requests
        computed += each * unit.compute_s
        read += each * unit.memory_s
    assert computed / read == pytest.approx(scanner.root_density, rel=0.03)
    assert parts[0].prefill_tokens == pytest.approx(parts[0].sequences * 202 / 4)
    assert TOKEN_S > 0


def test_the_idle_mix_moves_the_parts() -> None:
    prompts, outputs = mixed_job(1)
    scanner = scanner_of(dense_of(prompts, outputs), prompts, outputs)
    lefts = [scanner.split(MEMORY, density)[0] for density in (0.0, 0.5, 1.0, 2.0, 1e9)]
    assert lefts == sorted(lefts)
    assert lefts[0] == 0.0
    assert lefts[-1] == MEMORY
    assert scanner.split(MEMORY, scanner.root_density) == scanner.split(MEMORY)


@pytest.mark.parametrize("order", Order)
def test_every_order_is_a_permutation(order: Order) -> None:
    prompts, outputs = mixed_job(6)
    dense = dense_of(prompts, outputs)
    assert sorted(fixed_order(order, dense)) == list(range(len(prompts)))


def test_orders_are_what_they_say() -> None:
    prompts = [(2, 1), (1, 1), (2, 2), (1, 2, 3), (1, 2)]
    dense = dense_of(prompts, [1, 1, 9, 1, 1])
    assert fixed_order(Order.FCFS, dense) == [0, 1, 2, 3, 4]
    assert fixed_order(Order.DFS, dense) == [0, 2, 1, 4, 3]
    assert fixed_order(Order.BFS, dense) == [1, 4, 0, 2, 3]
    assert fixed_order(Order.DENSITY, dense)[-1] == 2
    assert fixed_order(Order.RANDOM, dense, 1) != fixed_order(Order.RANDOM, dense, 2)
