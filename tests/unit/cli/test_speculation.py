"""`plait bench speculation`: the same answers on both sides, and figures that fit together. It times nothing here."""

from __future__ import annotations

import json

import pytest
from tests.e2e.tiny_model import write_tiny_model

from plait.cli.main import main
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
        assert one["lowest"] <= one["highest"]


def test_the_table_has_a_row_for_each_set_and_number_of_streams(tiny: str, capsys: Capture) -> None:
    asked = ["--quick", "--quiet", "--sets", "maths", "--streams", "1,2"]
    assert main(["bench", "speculation", tiny, *asked]) == 0
    head, titles, *rows = capsys.readouterr().out.splitlines()
    assert "--speculative ngram" in head
    assert titles.split()[:2] == ["set", "streams"]
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
