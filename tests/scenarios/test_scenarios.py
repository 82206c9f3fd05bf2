"""Every Markdown file of this folder is a test suite: each section is played and must happen as its tables say."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.scenarios.markdown import Scenario, read_scenarios
from tests.scenarios.playing import check_scenario

HERE = Path(__file__).parent
FILES = sorted(path for path in HERE.glob("*.md") if path.name != "README.md")


def _cases() -> list[object]:
    return [
        pytest.param(scenario, id=f"{path.stem}: {scenario.title}")
        for path in FILES
        for scenario in read_scenarios(path)
    ]


@pytest.mark.parametrize("scenario", _cases())
def test_it_happens_as_written(scenario: Scenario) -> None:
    check_scenario(scenario)


def test_the_reader_finds_the_tables_and_leaves_the_prose(tmp_path: Path) -> None:
    file = tmp_path / "x.md"
    file.write_text(
        "# Title\nprose\n## One\n\nprose\n\n| a | b |\n|---|---|\n| 1 | x y |\n\n| c |\n| - |\n\n## Two\nprose\n"
    )
    one, two = read_scenarios(file)
    assert (one.title, two.title, two.tables) == ("One", "Two", ())
    assert [(table.columns, table.rows) for table in one.tables] == [(("a", "b"), (("1", "x y"),)), (("c",), ())]
    assert one.tables[0].text() == "| a | b   |\n| - | --- |\n| 1 | x y |"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("## A\n\n| a | b |\n", "no line of dashes below"),
        ("## A\n\n| a | b |\n| 1 | 2 |\n", "no line of dashes below"),
        ("## A\n\n| a | b |\n|---|---|\n| 1 |\n", "1 cells for 2 columns"),
        ("## A\n\n## A\n", "two scenarios with the same title"),
    ],
)
def test_a_table_that_is_none_is_not_passed_over(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "x.md"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_scenarios(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prose only", "a scenario needs arrivals"),
        ("| at | request | prompt |\n|-|-|-|\n| 0 | A | 3 |", "expects steps, answers or refusals"),
        ("| at | request | prompt |\n|-|-|-|\n| 0 | A | 3 |\n\n| answer | text |\n|-|-|\n| A | zzzz |", "zzzz"),
        ("| at | request | prompt | colour |\n|-|-|-|-|\n| 0 | A | 3 | red |\n\n| answer |\n|-|\n| A |", "colour"),
        (
            "| setting | value |\n|-|-|\n| colour | red |\n\n| at | request | prompt |\n|-|-|-|\n\n| answer |\n|-|",
            "colour",
        ),
    ],
)
def test_a_scenario_that_says_nothing_or_something_false_fails(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "x.md"
    file.write_text(f"## A\n\n{text}\n")
    with pytest.raises(AssertionError, match=message):
        check_scenario(read_scenarios(file)[0])


def test_there_are_scenarios() -> None:
    assert len(_cases()) >= 35
