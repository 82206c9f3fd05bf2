"""The statement about memory at the start: what there is now, and what each of the later things adds."""

from __future__ import annotations

from tests.conformance.families import CASES
from tests.conformance.models import model_named

from plait.model.cache_layout import plan_layout
from plait.model.families import build_program
from plait.start_texts import memory_texts

MIB = 2**20
LAYOUT = model_named("causal").layout(128, tokens_per_block=64)


def test_it_says_what_is_resident_now_and_what_comes_later() -> None:
    now, later = memory_texts(200 * MIB, 92 * MIB, 21 * MIB, LAYOUT)
    assert now == "resident memory: 200 MiB now: 92 MiB of packed weights, 108 MiB of Python and what it holds"
    # Two layers: 2 KV heads of 8 numbers of 4 bytes, keys and values; blocks of 64 tokens.
    kept = "16 KiB of KV cache for every 64 tokens of a sequence, taken 2 MiB ahead, up to 2 MiB"
    assert later == f"later besides: up to 21 MiB of activations as steps grow, and {kept}"


def test_of_states_it_says_what_a_sequence_and_a_checkpoint_take() -> None:
    case = next(case for case in CASES if case.model_type == "bamba")
    program = build_program(case.model_config())
    later = memory_texts(None, 0, 0, plan_layout(program, memory_bytes=MIB))[1]
    state = sum(group.elements_per_state for group in program.cache_groups) * 4
    assert f"{state / 1024:,.0f} KiB of state for every sequence, and for every checkpoint of it" in later


def test_where_the_system_does_not_tell_it_says_what_is_known() -> None:
    assert memory_texts(None, 92 * MIB, 21 * MIB, LAYOUT)[0] == "resident memory: 92 MiB of packed weights"
