"""Batch: `plait batch`, one offline job on the local engine.

Owns what the user sees of a job: the report at the start, the bar, the summary. The job itself is `plait.batch`.
"""

from __future__ import annotations

import gc
import sys
import time
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from tqdm import tqdm

from plait.batch.config import BatchConfig
from plait.batch.finish_by import FinishBy, Outlook
from plait.batch.output import check_output
from plait.batch.progress import BatchProgress
from plait.batch.runner import BatchPorts, Cutting, run_batch
from plait.batch.shards import Shard, check_count
from plait.batch.source import check_input
from plait.batch.summary import duration_text
from plait.build import LocalEngine, check_scheduler, load_model, start_engine
from plait.cli.batch_plan import batch_plan
from plait.cli.offline import cutting_of, ordering_of
from plait.cli.streams import say, show, show_json
from plait.cli.terminal import download_progress, start_report, with_profile
from plait.config.batch_options import BatchOptions
from plait.config.engine_options import EngineOptions
from plait.config.option import OptionSources
from plait.core.errors import UsageError
from plait.core.moments import parse_moment
from plait.metrics.totals import Totals
from plait.sched.blend.choosing import AnyOrdering, Choice


class _Bar:
    """A bar over lines, with what has come out so far; `ProgressSink` of the run."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bars: list[tqdm[None]] = []

    def __call__(self, now: BatchProgress) -> None:
        if self._quiet:
            return
        if not self._bars:
            self._bars.append(_line_bar(now))
        bar = self._bars[0]
        bar.set_postfix_str(_speed(now), refresh=False)
        bar.n = now.lines_done + now.lines_failed
        bar.refresh()

    def chose(self, choice: Choice) -> None:
        self.say(f"order     {choice.order}: {choice.why}")

    def say(self, line: str) -> None:
        if not self._quiet:
            # A bar that stands on the line goes out of the way.
            with tqdm.external_write_mode(file=sys.stderr):
                say(line)

    def close(self) -> None:
        for bar in self._bars:
            bar.close()


def _line_bar(now: BatchProgress) -> tqdm[None]:
    form = "{l_bar}{bar}| {n}/{total}{postfix}"
    return tqdm(iter(()), total=now.lines_total, initial=now.lines_resumed, unit="line", bar_format=form)


def run_batch_command(sources: OptionSources) -> int:
    engine_options, options = sources.read(EngineOptions), sources.read(BatchOptions)
    config = _config(options, engine_options)
    if options.plan_only and (options.strict or options.restart):
        given = "--strict" if options.strict else "--restart"
        raise UsageError(f"{given} is for a run, and --plan-only runs nothing; leave one of them out")
    moment = _moment(options)
    # Before a model is fetched and loaded: what cannot work should fail at once.
    check_scheduler(engine_options)
    check_input(config.input)
    shard = None if options.shard is None else Shard(*options.shard)
    if shard is not None:
        check_count(config.input, shard)
    if not options.plan_only:
        check_output(config)
    with download_progress(engine_options.model, quiet=options.quiet) as progress:
        model = load_model(engine_options, progress, datetime.now)
    totals = Totals()
    engine = start_engine(engine_options, model, totals, say)
    try:
        if not options.quiet:
            for line in start_report(engine):
                say(line)
        cutting = None if shard is None else cutting_of(shard, engine_options, engine)
        if options.plan_only:
            plan = batch_plan(config, engine_options, engine, cutting)
            if options.json:
                show_json(plan.json_object())
            else:
                for line in plan.text():
                    show(line)
            return 0
        # A vocabulary is hundreds of thousands of objects that stay until the end. To look if they are garbage takes
        # some forty milliseconds, in which no other thread runs.
        gc.freeze()
        ordering = ordering_of(options.order, engine_options, engine, options.max_in_flight, say)
        return _run(config, options, engine, totals, ordering, cutting, moment)
    finally:
        engine.close()


def _run(
    config: BatchConfig,
    options: BatchOptions,
    engine: LocalEngine,
    totals: Totals,
    ordering: AnyOrdering | None,
    cutting: Cutting | None,
    moment: datetime | None,
) -> int:
    bar = _Bar(quiet=options.quiet)
    unix_offset_s = time.time() - engine.clock.now()
    finish_by = (
        None
        if moment is None
        else FinishBy(moment.timestamp() - unix_offset_s, engine.clock.now, partial(_say_outlook, bar, moment))
    )
    ports = BatchPorts(
        engine.client, engine.text, engine.clock, unix_offset_s, bar, ordering, cutting, bar.chose, finish_by
    )
    try:
        summary = run_batch(config, ports)
    finally:
        bar.close()
    drafts = totals.drafts if engine.is_drafting else None
    summary = replace(summary, limited_by=totals.limit(), drafts=drafts)
    if moment is not None and finish_by is not None:
        summary = replace(summary, finish_by=_shown(moment), early_s=finish_by.due_s - engine.clock.now())
    figures = engine.profile_figures()
    if options.json:
        show_json(with_profile(summary.json_object(), figures))
    else:
        show(summary.text())
    return summary.exit_code


def _moment(options: BatchOptions) -> datetime | None:
    """When the job should be done. Of a duration the command's start is the beginning."""
    if options.finish_by is None:
        return None
    try:
        return parse_moment(options.finish_by, datetime.now().astimezone())
    except ValueError as error:
        raise UsageError(f"--finish-by {options.finish_by}: {error}") from None


def _shown(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M")


def _say_outlook(bar: _Bar, moment: datetime, outlook: Outlook, left_s: float | None, to_go_s: float) -> None:
    if outlook is Outlook.IN_TIME:
        bar.say(f"finish by {_shown(moment)}: as it goes, in time")
        return
    if left_s is None or to_go_s <= 0:
        bar.say(f"finish by {_shown(moment)}: it has passed; the run goes on")
        return
    ends = _shown(moment + timedelta(seconds=left_s - to_go_s))
    times = f"about {duration_text(left_s)} of work is left and {duration_text(max(0.0, to_go_s))} to do it in"
    if outlook is Outlook.AT_RISK:
        bar.say(f"finish by {_shown(moment)}: not certain; {times}")
    else:
        bar.say(f"finish by {_shown(moment)}: cannot be met as it goes; {times}, so it ends about {ends}. It goes on")


def _config(options: BatchOptions, engine_options: EngineOptions) -> BatchConfig:
    if options.input is None:
        raise UsageError("no input was given; name a JSONL file with -i FILE, or - for standard input")
    output = Path("answers.jsonl") if options.plan_only and options.output is None else options.output
    if output is None:
        raise UsageError("no output was given; name the file for the answers with -o FILE")
    return BatchConfig(
        input=str(options.input),
        output=output,
        restart=options.restart,
        strict=options.strict,
        max_in_flight=options.max_in_flight,
        seed=engine_options.seed,
        served_names=("default",),
    )


def _speed(now: BatchProgress) -> str:
    left = "?" if now.left_s is None else tqdm.format_interval(now.left_s)
    return (
        f" {now.output_tokens_per_s:.1f} tokens/s, {now.output_tokens:,} tokens, {now.lines_failed} failed, {left} left"
    )
