"""The prefix tree holds every prompt once, with all that is shared."""

from __future__ import annotations

import random
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.sched.blend.jobs import mixed_job, tree_of

from plait.sched.blend.tree import common_tokens, packed

PROMPTS = st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=30)


def path_of(tree, prompts, node):  # type: ignore[no-untyped-def]
    return tuple(prompts[tree.order[tree.firsts[node]]][: tree.ends[node]])


@given(PROMPTS)
def test_every_request_ends_where_its_prompt_does(prompts: list[list[int]]) -> None:
    tree = tree_of(prompts)
    ended = []
    for node in range(len(tree.ends)):
        for request in tree.own(node):
            ended.append(request)
            assert tuple(prompts[request]) == path_of(tree, prompts, node)
        for child in tree.children[node]:
            assert child < node
            assert tree.begins[child] == tree.ends[node] < tree.ends[child]
            assert path_of(tree, prompts, child)[: tree.ends[node]] == path_of(tree, prompts, node)
    assert sorted(ended) == list(range(len(prompts)))


@given(PROMPTS)
def test_what_is_shared_is_in_one_node(prompts: list[list[int]]) -> None:
    tree = tree_of(prompts)
    every_beginning = {tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt) + 1)}
    assert tree.num_distinct() == len(every_beginning)
    for children in tree.children:
        firsts = [path_of(tree, prompts, child)[tree.begins[child]] for child in children]
        assert len(set(firsts)) == len(firsts)


@given(PROMPTS)
def test_a_subtree_is_a_row_of_the_order(prompts: list[list[int]]) -> None:
    tree = tree_of(prompts)
    for node in range(len(tree.ends)):
        path = path_of(tree, prompts, node) if tree.num_below(node) else ()
        below = {request for request, prompt in enumerate(prompts) if tuple(prompt[: len(path)]) == path}
        assert set(tree.order[tree.firsts[node] : tree.lasts[node]]) == below


def test_equal_prompts_keep_their_order() -> None:
    tree = tree_of([(1, 2), (3,), (1, 2), (1, 2)])
    assert tree.order == [0, 2, 3, 1]
    assert tree.num_distinct() == 3


def test_tokens_are_compared_as_numbers() -> None:
    assert tree_of([(256,), (1,), (70_000,), (65_535, 1)]).order == [1, 0, 3, 2]


def test_what_all_share_is_known() -> None:
    assert tree_of([(7, 7, 1), (7, 7, 2, 2), (7, 7, 2, 3)]).common_end() == 2
    assert tree_of([(7, 7), (7, 7, 2)]).common_end() == 2
    assert tree_of([(1,), (2,)]).common_end() == 0
    assert tree_of([]).common_end() == 0
    assert tree_of([(4, 5)]).common_end() == 2


@pytest.mark.parametrize("shared", [0, 1, 15, 16, 17, 63, 64, 1000, 4097])
def test_common_beginnings_of_any_length(shared: int) -> None:
    dice = random.Random(shared)
    stem = [dice.randrange(1 << 20) for _ in range(shared)]
    for one_more, other_more in (([], []), ([1], []), ([], [1, 2, 3]), ([1], [2]), ([1] * 3000, [2] * 9)):
        one, other = packed(stem + one_more), packed(stem + other_more)
        assert common_tokens(one, other) == common_tokens(other, one) == shared


def test_tokens_that_agree_in_some_bytes_are_not_shared() -> None:
    # 0x00000101 and 0x00000102 share three bytes.
    assert common_tokens(packed([5, 0x101]), packed([5, 0x102])) == 1


def test_a_long_chain_of_beginnings_needs_no_stack() -> None:
    chain = [tuple(range(length)) for length in range(1, 3000)]
    tree = tree_of(chain)
    assert tree.num_distinct() == 2999
    assert len(list(takewhile(lambda node: node != tree.root, range(len(tree.ends))))) == 2999


def test_a_job_of_all_kinds() -> None:
    prompts, _ = mixed_job(3)
    tree = tree_of(prompts)
    assert tree.num_requests == len(prompts)
    assert tree.num_distinct() < sum(map(len, prompts)) * 0.8
