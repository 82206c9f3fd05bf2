"""The cases themselves: formulas give what was published, and the page shows what the command prints."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from plait.core.errors import InvariantError
from plait.reproduce.case import Case, CaseReport, run_case
from plait.reproduce.catalogue import Catalogue, catalogue
from plait.reproduce.figure import Evidence, Verdict
from plait.reproduce.tables import list_lines, report_lines, summary_line

CASES = {case.id: case for case in catalogue().cases}
SLOW = (
    "bullet-chunk-size",
    "bullet-workloads",
    "bullet-splits",
    "bullet-ablation",
    "muxwise-guard",
    "muxwise-violations",
    "muxwise-goodput-8b",
    "muxwise-goodput-70b",
    "muxwise-latencies",
    "muxwise-preemption",
    "muxwise-shares",
    "muxwise-pool",
    "bullet-muxwise-controls",
    "depth-and-share",
    "estimator",
    "blendserve-orders",
    "blendserve-grid",
    "blendserve-splits",
    "colocation",
    "jenga-fragmentation",
    "jenga-hits",
    "jenga-throughput",
)
"""They simulate or fit for seconds."""
QUICK = tuple(name for name in CASES if name not in SLOW)
PAGE = Path(__file__).parents[3] / "docs" / "reproduce.md"
BLOCK = re.compile(r"```\n\$ plait (reproduce[^\n]*)\n(.*?)\n```", re.DOTALL)
OUTSIDE = {
    "bullet-waves": {"utilisation, last chunk of 1,024", "last over first chunk", "all chunks over the whole"},
    "bullet-workloads": {
        "ShareGPT, mean TTFT, chunks of 1,024",
        "ShareGPT, TTFT of chunks of 1,024 over ours",
        "ShareGPT, TPOT of chunks of 1,024 over ours",
        "ShareGPT without launches, requests within targets, over chunks of 1,024",
        "ShareGPT without launches, E2E of chunks of 1,024 over ours",
    },
    "bullet-ablation": {"ShareGPT and Azure-code, requests within targets, both over scheduler alone"},
    "muxwise-goodput-8b": {"no launches, over chunked"},
    "muxwise-goodput-70b": {"over no reuse", "no launches, over chunked"},
    "muxwise-latencies": {"Conversation, mean TBT of MuxWise", "Tool&Agent, mean TBT of MuxWise"},
    "muxwise-shares": {"partitions of a burst"},
    "bullet-muxwise-controls": {"requests within targets, Bullet over chunks of 2,048: a third of the SMs"},
    "bullet-chunk-size": {"tokens/s of a full queue, 2,048 over 1,024"},
    "depth-and-share": {
        "both together over depth alone, 15 ms a token",
        "both together over share alone, 30 ms a token",
    },
    "muxwise-guard": {"decode beside prefill, H100, 70B, 8 ranks"},
    "estimator": {"another law, two shares, over contention-blind"},
    "muxwise-anchors": {"step of 256 tokens"},
    "blendserve-orders": {
        "#1, over random",
        "#2, over random",
        "#2, density of a step",
        "#2, its variation over that of dfs",
        "#3, its variation over that of dfs",
        "#4, density of a step",
        "#4, its variation over that of dfs",
        "mean over dfs, parts",
    },
    "blendserve-grid": {
        "spread of means along sharing",
        "density 0.80",
        "density 0.85",
        "density 1.05",
        "density 1.15",
        "density 1.30",
    },
    "colocation": {"load 90%, over longest first", "load 90%, over blend constant"},
    "jenga-fragmentation": {"27B, owners", "27B, paged", "27B, without owners"},
    "jenga-throughput": {
        "geometric mean, H100, over uniform, long answers",
    },
}
"""What is known not to come out; docs/reproduce.md says why."""


@cache
def report(name: str) -> CaseReport:
    return run_case(CASES[name])


def outside(found: CaseReport) -> set[str]:
    return {outcome.figure.name for outcome in found.outcomes if outcome.verdict is Verdict.OUTSIDE}


@cache
def blocks() -> dict[str, str]:
    return dict(BLOCK.findall(PAGE.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", QUICK)
def test_all_figures_come_out_but_those_that_the_page_explains(name: str) -> None:
    assert outside(report(name)) == OUTSIDE.get(name, set())


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_all_simulated_figures_come_out_but_those_that_the_page_explains(name: str) -> None:
    assert outside(report(name)) == OUTSIDE.get(name, set())


def test_the_page_explains_what_lies_outside() -> None:
    text = PAGE.read_text(encoding="utf-8")
    explained = text[text.index("## Outside, and why") : text.index("## The cases")]
    assert sorted(re.findall(r"^\| `([^`]+)`", explained, re.MULTILINE)) == sorted(OUTSIDE)


def test_no_exact_figure_is_outside() -> None:
    found = [outcome for name in QUICK for outcome in report(name).outcomes if outcome.evidence is Evidence.EXACT]
    assert len(found) > 100
    assert not [outcome.figure.name for outcome in found if outcome.verdict is Verdict.OUTSIDE]


def test_a_number_that_sets_a_case_is_a_success_nowhere_in_it() -> None:
    for name in QUICK:
        used = {reference for figure in CASES[name].figures for reference in figure.calibrated_on}
        successes = [o.figure.reference for o in report(name).outcomes if o.verdict is Verdict.INSIDE]
        assert not used.intersection(successes)


def test_the_page_has_a_block_for_the_list_and_each_case() -> None:
    assert list(blocks()) == ["reproduce", *(f"reproduce {name}" for name in CASES)]


def test_the_page_lists_the_cases_as_printed() -> None:
    assert blocks()["reproduce"].splitlines() == list_lines(tuple(CASES.values())), "run: scripts/reproduce-page"


@pytest.mark.parametrize("name", QUICK)
def test_the_page_shows_what_a_quick_case_prints(name: str) -> None:
    lines = [*report_lines(report(name)), "", summary_line([report(name)])]
    assert blocks()[f"reproduce {name}"].splitlines() == lines, "run: scripts/reproduce-page"


@pytest.mark.parametrize("name", SLOW)
def test_the_page_shows_every_figure_of_a_slow_case(name: str) -> None:
    shown = blocks()[f"reproduce {name}"].splitlines()
    for figure in CASES[name].figures:
        rows = [line for line in shown if line.startswith(f"{figure.name}  ")]
        assert len(rows) == 1, f"{figure.name} is not on the page; run: scripts/reproduce-page"
        assert figure.printed(figure.published) in rows[0]


def test_a_name_stands_for_one_case_and_all_for_every_one() -> None:
    known = catalogue()
    assert known.choose("all") == known.cases
    assert [case.id for case in known.choose("estimator")] == ["estimator"]
    assert known.choose("estimators") == ()


def test_a_paper_s_name_stands_for_all_cases_with_a_figure_of_it() -> None:
    bullet, muxwise = ({case.id for case in catalogue().choose(name)} for name in ("bullet", "muxwise"))
    assert bullet & muxwise == {"estimator", "muxwise-anchors", "muxwise-guard", "bullet-muxwise-controls"}
    assert {"bullet-table-2", "bullet-workloads"} < bullet
    assert {"muxwise-n-pl", "muxwise-violations"} < muxwise


def test_two_cases_of_one_name_are_refused() -> None:
    one: Case = CASES["muxwise-n-pl"]
    with pytest.raises(InvariantError, match="two cases have one name"):
        Catalogue((one, one))
