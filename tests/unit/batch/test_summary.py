"""The closing summary, for people and for programs."""

from __future__ import annotations

import json
import signal
from dataclasses import replace

from plait.api.answers import Usage
from plait.api.bodies import write_line
from plait.batch.summary import Summary
from plait.metrics.drafts import DraftFigures

DONE = Summary(
    output="out.jsonl",
    lines_total=1200,
    lines_completed=1190,
    lines_failed=10,
    lines_resumed=200,
    job_usage=Usage(60_000, 40_000, 24_000),
    run_usage=Usage(50_000, 40_000, 20_000),
    duration_s=400.0,
    model="m",
    fingerprint="fp-1",
    seed_policy="from --seed 0",
    limited_by="compute",
)


def test_the_text_says_what_was_done_how_fast_and_what_limited_it() -> None:
    assert DONE.text().splitlines() == [
        "lines      1,200 of 1,200 finished, 10 of them failed (200 in earlier runs)",
        "prompt     50,000 tokens, 80% found in the prefix index",
        "output     20,000 tokens, 50.0 a second",
        "time       6 min 40 s",
        "limited by compute",
        "numerics   fp-1",
        "seeds      from --seed 0",
        "written    out.jsonl",
    ]


def test_an_interrupted_run_says_how_to_go_on() -> None:
    stopped = replace(DONE, lines_completed=700, interrupted_by=signal.SIGINT, warnings=("numerics changed",))
    assert stopped.text().splitlines()[-2:] == [
        "warning    numerics changed",
        "stopped    by SIGINT; run the same command again to go on",
    ]
    assert stopped.exit_code == 130
    assert replace(stopped, interrupted_by=signal.SIGTERM).exit_code == 143


def test_nothing_to_do_is_one_line() -> None:
    rerun = replace(DONE, lines_resumed=1200)
    assert rerun.text() == "nothing to do: all 1200 lines are in out.jsonl (10 failed)"
    assert rerun.exit_code == 0


def test_nothing_to_do_keeps_its_warnings_and_says_what_was_mended() -> None:
    rerun = replace(DONE, lines_resumed=1200, warnings=("another seed",), is_rewritten=True)
    assert rerun.text().splitlines() == [
        "nothing to run: all 1200 lines were finished (10 failed); out.jsonl was missing or changed and was written "
        "again from the ledger",
        "warning    another seed",
    ]
    assert rerun.json_object()["output_rewritten"] is True


def test_failed_lines_fail_the_job_only_if_strict() -> None:
    assert DONE.exit_code == 0
    assert replace(DONE, strict=True).exit_code == 1
    assert replace(DONE, strict=True, lines_failed=0).exit_code == 0


def test_it_says_how_early_or_late_it_was() -> None:
    wanted = replace(DONE, finish_by="2026-11-30 17:30", early_s=75.0)
    assert "finish by  2026-11-30 17:30: 1 min 15 s before it" in wanted.text().splitlines()
    assert "finish by  2026-11-30 17:30: 5.0 s after it" in replace(wanted, early_s=-5.0).text()
    stopped = replace(wanted, interrupted_by=signal.SIGINT)
    assert "finish by  2026-11-30 17:30: stopped before it was done" in stopped.text()
    assert wanted.json_object()["finish_by"] == {"moment": "2026-11-30 17:30", "early_s": 75.0}
    assert DONE.json_object()["finish_by"] is None


def test_durations_are_readable() -> None:
    assert "time       1.5 s" in replace(DONE, duration_s=1.5).text()
    assert "time       3 h 5 min" in replace(DONE, duration_s=3 * 3600 + 5 * 60 + 20).text()


def test_the_json_holds_every_number() -> None:
    summary = json.loads(write_line(DONE.json_object()))
    assert summary["lines"] == {"total": 1200, "completed": 1190, "failed": 10, "resumed": 200, "folded": 0}
    assert summary["run"] == {
        "prompt_tokens": 50_000,
        "cached_prompt_tokens": 40_000,
        "output_tokens": 20_000,
        "prefix_hit_fraction": 0.8,
        "duration_s": 400.0,
        "ordering_s": 0.0,
        "output_tokens_per_s": 50.0,
        "limited_by": "compute",
        "drafts": None,
    }
    assert summary["job"]["output_tokens"] == 24_000
    assert summary["interrupted_by"] is None


def test_where_somebody_guessed_it_says_what_came_of_it() -> None:
    drafted = replace(DONE, drafts=DraftFigures(200, 700, 350))
    assert "drafts     700 tokens in 200 drafts, 350 right (50%)" in drafted.text().splitlines()
    told = json.loads(write_line(drafted.json_object()))["run"]["drafts"]
    assert told == {"drafts": 200, "proposed": 700, "accepted": 350, "depth": 3.5, "saved_steps": 350}


def test_a_run_without_time_or_tokens_divides_by_nothing() -> None:
    empty = replace(DONE, run_usage=Usage(), duration_s=0.0)
    assert (empty.output_tokens_per_s, empty.prefix_hit_fraction) == (0.0, 0.0)
