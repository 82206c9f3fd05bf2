"""`plait bench speculation`: the same answers on both sides, and figures that fit together. It times nothing here."""

from __future__ import annotations

import json
import random
from math import inf
from statistics import stdev

import pytest
from tests.e2e.tiny_model import write_tiny_model

from plait.cli.main import main
from plait.cli.speculation_rounds import Ratio
from plait.config.bench_options import PROMPT_SETS

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf"))


def test_every_set_is_answered_with_and_without_drafts(tiny: str, capsys: Capture) -> None:
    assert main(["bench", "speculation", tiny, "--quick", "--json", "--quiet"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "plait.bench.speculation/1"
    assert [(one["set"], one["streams"]) for one in told["cells"]] == [(s, n) for s in PROMPT_SETS for n in (1, 8)]
    for one in told["cells"]:
        steps_off, steps_on = one["steps"]
        # Of one prompt, so every token that was right saved a step; figures are means of two rounds, cut to whole ones.
        assert abs(steps_off - steps_on - one["accepted"]) <= 2
        assert one["accepted"] <= one["proposed"]
        assert one["lowest"] <= one["ratio"] <= one["highest"]
        assert one["standard_error"] is None, "two rounds say nothing of how far rounds lie apart"


def test_the_table_has_a_row_for_each_set_and_number_of_streams(tiny: str, capsys: Capture) -> None:
    asked = ["--quick", "--quiet", "--sets", "maths", "--streams", "1,2"]
    assert main(["bench", "speculation", tiny, *asked]) == 0
    head, titles, *rows = capsys.readouterr().out.splitlines()
    assert "--speculative ngram" in head
    assert titles.split()[:5] == ["set", "streams", "tokens/s", "drafts", "+-"]
    assert [row.split()[:2] for row in rows] == [["maths", "1"], ["maths", "2"]]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--sets", "rag,poems"], "'poems' is no set of prompts; there are rag, edit"),
        (
            ["--scheduler", "plait"],
            "--scheduler is plait, under which drafts cannot be switched off and on; take --scheduler chunked",
        ),
        (["--streams", "0"], "--streams is '0'"),
    ],
)
def test_what_cannot_be_measured_is_said(tiny: str, asked: list[str], said: str, capsys: Capture) -> None:
    assert main(["bench", "speculation", tiny, "--quick", *asked]) == 2
    assert said in capsys.readouterr().err


def played(dice: random.Random, num_units: int, num_rounds: int, noise: float) -> Ratio:
    """Units of one to three seconds, a fifth faster behind; sometimes a spell in which both sides are slow."""
    before: list[list[float]] = [[] for _ in range(num_units)]
    after: list[list[float]] = [[] for _ in range(num_units)]
    for _ in range(num_rounds):
        for unit in range(num_units):
            slow, whole = dice.choice((1.0, 1.0, 1.0, 1.5)), 1.0 + unit % 3
            before[unit].append(whole * slow * (1.0 + dice.gauss(0.0, noise)))
            after[unit].append(whole / 1.2 * slow * (1.0 + dice.gauss(0.0, noise)))
    return Ratio.of(before, after)


@pytest.mark.parametrize(("num_units", "num_rounds"), [(1, 9), (1, 30), (3, 6), (24, 2)])
def test_the_error_is_how_far_ratios_of_such_measurements_lie_apart(num_units: int, num_rounds: int) -> None:
    dice = random.Random(7)
    ratios = [played(dice, num_units, num_rounds, 0.05) for _ in range(300)]
    apart = stdev([one.value for one in ratios]) / 1.2
    said = sum(one.error for one in ratios) / len(ratios)
    assert said == pytest.approx(apart, rel=0.25)
    assert sum(one.value for one in ratios) / len(ratios) == pytest.approx(1.2, rel=0.01)


def test_the_ratio_is_that_of_the_whole_and_each_unit_counts_by_its_time() -> None:
    ratio = Ratio.of([[9.0] * 9, [1.0] * 9], [[3.0] * 9, [1.0] * 9])
    assert ratio.value == pytest.approx(10.0 / 4.0)
    assert ratio.error == 0.0


def test_nothing_is_said_of_the_error_behind_few_rounds() -> None:
    assert Ratio.of([[1.0, 1.1]], [[1.0, 1.0]]).error == inf
    assert Ratio.of([[1.0] * 9], [[1.0] * 9]).error == 0.0
