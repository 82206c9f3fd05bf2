"""Sim page: which figures and charts the page of a simulation shows.

Owns that choice and the words around it. Charts and document are `plait.sim.page`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.cli.sim_setup import Setup, target_words
from plait.sim.goodput import Search
from plait.sim.page.charts import Chart, batch_chart, goodput_chart, lane_chart, latency_chart, memory_chart
from plait.sim.page.page import Figure, page
from plait.sim.page.svg import seconds
from plait.sim.samples import Distribution
from plait.sim.trial import Trial

SIMULATED = "Simulated, not calibrated: prices are bare rooflines, which no device reaches. Compare, do not promise."


def trial_page(setup: Setup, trial: Trial) -> str:
    """The page of one run."""
    return page(_title(setup), _evidence(setup), _figures(trial), charts(trial), _facts(setup))


def goodput_page(setup: Setup, search: Search, trial: Trial) -> str:
    """The page of a search: the sweep, then the run at its answer, or at the lowest rate if none holds."""
    answer = Figure("highest rate that holds", "none" if search.rate is None else f"{search.rate:.3g}", "requests/s")
    shown = [goodput_chart(search), *charts(trial)]
    return page(f"Goodput: {_title(setup)}", _evidence(setup), [answer, *_figures(trial)], shown, _facts(setup))


def charts(trial: Trial) -> list[Chart]:
    targets = [
        (name, at)
        for name, at in (("TTFT", trial.slo.ttft_s), ("TPOT", trial.slo.tpot_s), ("longest gap", trial.slo.itl_s))
        if at is not None
    ]
    engines = trial.cluster.engines
    found = (
        latency_chart(trial.latencies.curves(), targets),
        batch_chart(engines),
        memory_chart(engines),
        lane_chart(engines),
    )
    return [chart for chart in found if chart is not None]


def _figures(trial: Trial) -> list[Figure]:
    report = trial.cluster.whole
    found = [
        Figure("requests", f"{report.num_finished:,}", f"in {report.makespan_s:,.1f} s"),
        Figure("throughput", f"{report.requests_per_s:.3g}", "requests/s"),
        Figure("tokens", f"{report.output_tokens_per_s:,.0f}", "output/s"),
        _time("TTFT p99", report.ttft_s),
        _time("ITL p99", report.itl_s),
        Figure("prefix hits", f"{report.prefix_hit_fraction:.1%}", "of prompt tokens"),
        Figure("decode batch", f"{trial.cluster.decode_batch_mean:.1f}", "sequences"),
        Figure("of the optimum", f"{trial.optimum_fraction:.0%}"),
    ]
    if trial.attainment_fraction is not None:
        found.insert(0, Figure("targets met", f"{trial.attainment_fraction:.1%}", target_words(trial.slo)))
    if report.num_refused or report.num_failed:
        found.append(Figure("not answered", f"{report.num_refused + report.num_failed:,}", "requests"))
    return found


def _time(name: str, found: Distribution | None) -> Figure:
    return Figure(name, "-" if found is None else seconds(found.p99))


def _title(setup: Setup) -> str:
    what = setup.inputs.get("card", setup.inputs.get("trace"))
    return f"{setup.inputs['model']} on {setup.inputs['hardware']}: {what}"


def _evidence(setup: Setup) -> str:
    return SIMULATED if setup.calibrated_on is None else f"Simulated, calibrated on {setup.calibrated_on}."


def _facts(setup: Setup) -> Sequence[tuple[str, str]]:
    return [
        (name.replace("_", " "), "as recorded" if value is None else str(value)) for name, value in setup.inputs.items()
    ]
