"""Sizes: every choice that a user left open, with its reason, and every contradiction with its numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plait.config.engine_options import EngineOptions
from plait.config.resolve import (
    ModelFacts,
    Processors,
    Sizes,
    Workers,
    resolve_instruction_set,
    resolve_sizes,
    resolve_workers,
)
from plait.core.errors import UsageError

FACTS = ModelFacts(max_positions=1024, cache_bytes_per_token=100)
OPTIONS = EngineOptions(max_num_seqs=32)
BLOCK_BYTES = 32 * 100
PLENTY = 10**9


def resolve(available: int = PLENTY, **options: int | str) -> Sizes:
    return resolve_sizes(replace(OPTIONS, **options), FACTS, available)  # type: ignore[arg-type]


def refusal(available: int = PLENTY, **options: int | str) -> str:
    with pytest.raises(UsageError) as caught:
        resolve(available, **options)
    return str(caught.value)


def test_with_plenty_of_memory_every_sequence_may_be_as_long_as_the_model_allows() -> None:
    sizes = resolve()
    assert sizes.max_model_tokens == 1024
    assert sizes.capacity_tokens == 32 * 1024
    assert sizes.memory_bytes == 32 * 1024 * 100
    assert sizes.reasons == ("KV cache memory: 32 sequences of full length cannot use more",)


def test_with_less_a_quarter_of_what_is_free_is_taken_in_whole_blocks() -> None:
    sizes = resolve(available=4 * (100 * BLOCK_BYTES + 1))
    assert sizes.memory_bytes == 100 * BLOCK_BYTES
    assert sizes.capacity_tokens == 3200
    assert sizes.reasons == ("KV cache memory: a quarter of what is free",)


def test_the_context_shrinks_to_what_the_memory_holds_and_says_so() -> None:
    sizes = resolve(available=4 * 10 * BLOCK_BYTES)
    assert (sizes.max_model_tokens, sizes.capacity_tokens) == (320, 320)
    assert sizes.reasons[1] == "context length 320 tokens: what the KV cache holds (the model: 1024)"


def test_memory_that_was_given_is_taken_as_given() -> None:
    sizes = resolve(kv_cache_memory=50 * BLOCK_BYTES + 17)
    assert (sizes.memory_bytes, sizes.capacity_tokens) == (50 * BLOCK_BYTES, 1600)
    assert sizes.reasons == ("KV cache memory: as given",)


def test_memory_that_was_given_may_be_all_there_is_and_not_more() -> None:
    assert resolve(available=50 * BLOCK_BYTES, kv_cache_memory=50 * BLOCK_BYTES).capacity_tokens == 1600
    message = refusal(available=1000, kv_cache_memory=1001)
    assert message == "--kv-cache-memory is 1001 bytes but only 1000 are free; give less"


def test_a_context_that_was_given_is_kept_or_refused_but_never_shrunk() -> None:
    assert resolve(max_model_len=100, kv_cache_memory=4 * BLOCK_BYTES).max_model_tokens == 100
    message = refusal(max_model_len=129, kv_cache_memory=4 * BLOCK_BYTES)
    assert message == (
        "--max-model-len 129 needs 16000 bytes of KV cache but there are 12800; lower it to 128 or raise "
        "--kv-cache-memory"
    )


def test_a_shorter_context_needs_less_memory() -> None:
    assert resolve(max_model_len=100).memory_bytes == 32 * 4 * BLOCK_BYTES


def test_a_context_beyond_the_model_is_refused() -> None:
    assert resolve(max_model_len=1024).max_model_tokens == 1024
    assert "--max-model-len is 1025 but the model was made for 1024 tokens" in refusal(max_model_len=1025)


def test_less_than_one_block_is_refused_whoever_chose_it() -> None:
    given = refusal(kv_cache_memory=BLOCK_BYTES - 1)
    assert given.startswith(f"--kv-cache-memory is {BLOCK_BYTES - 1} bytes but the smallest KV cache takes 3200")
    chosen = refusal(available=4 * BLOCK_BYTES - 1)
    assert chosen.startswith("the share of free memory is 3199 bytes but the smallest KV cache")
    assert "--kv-cache-memory" in chosen
    assert "0 bytes" in refusal(available=0)


def test_shares_that_leave_a_group_nothing_are_named_where_memory_is_too_small() -> None:
    message = refusal(kv_cache_memory=BLOCK_BYTES - 1, kv_layout="manual:full=1:states=999999999")
    assert message.endswith("with --kv-cache-memory, or less uneven shares than manual:full=1:states=999999999")


def test_a_context_of_one_token_serves_nothing_and_is_never_chosen() -> None:
    assert resolve(kv_cache_memory=200, block_size=1).max_model_tokens == 2
    message = refusal(kv_cache_memory=199, block_size=1)
    assert message.startswith("--kv-cache-memory is 199 bytes but the smallest KV cache takes 200; give at least that")


@pytest.mark.parametrize("size", [1, 2, 16, 32, 128, 256])
def test_blocks_divide_the_key_tile(size: int) -> None:
    sizes = resolve(block_size=size)
    assert sizes.capacity_tokens % size == 0


@pytest.mark.parametrize("size", [3, 48, 257, 512])
def test_other_blocks_are_refused(size: int) -> None:
    assert refusal(block_size=size) == f"--block-size is {size}; give a divisor of 256 (16, 32, 64, ...)"


@pytest.mark.parametrize("available", [4 * BLOCK_BYTES, 10**5, 10**6, 10**7, 10**8])
@pytest.mark.parametrize("max_num_seqs", [1, 3, 32])
def test_the_memory_always_holds_one_sequence_of_full_length(available: int, max_num_seqs: int) -> None:
    sizes = resolve(available, max_num_seqs=max_num_seqs)
    assert sizes.max_model_tokens <= sizes.capacity_tokens
    assert sizes.memory_bytes == sizes.capacity_tokens * 100 <= available


# Workers

FOUR_CORES = Processors(usable=(0, 1, 2, 3, 4, 5, 6, 7), separate=(0, 1, 2, 3), quota=None)


def test_every_core_gets_one_worker() -> None:
    assert resolve_workers(None, FOUR_CORES) == Workers((0, 1, 2, 3), "one on each core")


def test_workers_that_were_asked_for_share_cores_only_when_there_is_no_other() -> None:
    assert resolve_workers(3, FOUR_CORES) == Workers((0, 1, 2), "as given")
    assert resolve_workers(6, FOUR_CORES).cores == (0, 1, 2, 3, 4, 5)


def test_more_workers_than_processors_are_refused() -> None:
    with pytest.raises(UsageError, match="--threads is 9 but this process may use 8 processors; give at most that"):
        resolve_workers(9, FOUR_CORES)


@pytest.mark.parametrize(("quota", "count"), [(0.5, 1), (1.5, 2), (2.0, 2), (3.9, 4)])
def test_under_a_quota_there_are_as_many_as_it_feeds_and_none_is_bound(quota: float, count: int) -> None:
    workers = resolve_workers(None, replace(FOUR_CORES, quota=quota))
    assert workers.cores == (-1,) * count
    if count < 4:
        assert workers.reason == f"the control group allows {quota:g} processors"


def test_a_quota_of_the_whole_machine_is_none() -> None:
    assert resolve_workers(None, replace(FOUR_CORES, quota=8.0)) == Workers((0, 1, 2, 3), "one on each core")


def test_instructions_that_the_machine_lacks_are_refused_by_name() -> None:
    assert resolve_instruction_set("auto", ("baseline",)) is None
    assert resolve_instruction_set("avx2", ("baseline", "avx2")) == "avx2"
    with pytest.raises(UsageError, match="avx512 but this machine runs baseline, avx2; auto takes"):
        resolve_instruction_set("avx512", ("baseline", "avx2"))
