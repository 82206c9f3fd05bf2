"""Layouts under load: however memory is cut, and whatever habit of it is switched off, answers are the same bits."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

pytest.importorskip("plait._native")

from tests.conformance.native_rooms import Treatment
from tests.conformance.serving import Serving, Setup, alone, least_cache_tokens
from tests.properties.test_load_forms import BLOCK, LONGEST, QUIET, check_all, served, write_requests

from plait.kv.rules import ABLATIONS, MemoryRules, rules_without

SPLIT_BY_HAND = "manual:full=1:window=1"


@pytest.mark.parametrize("visibility", ["window beside causal", "windows in tables"])
def test_answers_are_the_same_under_every_layout_and_ablation(visibility: str) -> None:
    subject, requests = served(visibility), write_requests(9)
    quiet = Serving(subject, Setup(max_step_tokens=512, make_room=QUIET))
    expected = alone(quiet, requests)
    quiet.close()
    dice, found = random.Random(9), {}
    room = Treatment(threads=2, blocking_seed=1)
    ask = Setup(24, 3 * least_cache_tokens(subject, LONGEST), enable_prefix=True, make_room=room)
    setups = {layout: replace(ask, kv_layout=layout) for layout in ("paged", "uniform", "vllm", "max-page", "static")}
    setups[SPLIT_BY_HAND] = replace(ask, kv_layout=SPLIT_BY_HAND)
    setups |= {name: replace(ask, kv_layout="paged", rules=rules_without([name])) for name in ABLATIONS}
    setups["nothing"] = replace(ask, kv_layout="vllm", rules=MemoryRules(False, False, False, False))
    for name, setup in setups.items():
        serving = Serving(subject, setup)
        for _ in range(2):
            check_all(serving.serve(dice.sample(requests, len(requests)), ticks_between=dice.choice((0, 2))), expected)
        found[name] = sum(answer.num_cached for answer in serving.answers.values())
        serving.close()
    assert all(num_cached > 0 for num_cached in found.values()), found
    assert found["vllm"] % BLOCK == found["tails"] % BLOCK == 0, "without tails, hits are whole blocks"
