"""Inspect memory: `plait inspect memory MODEL`, where the memory of its caches goes under several layouts.

Owns the tables for people; `plait.inspect.memory` has the figures and their JSON. Needs no engine and no weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap

from plait.cli.inspect_server import SERVERS, Told, ask_server, live_lines
from plait.cli.streams import show, show_json
from plait.cli.units import bytes_text, count_text, percent, short_count
from plait.config.inspect_options import InspectMemoryOptions
from plait.config.machine import available_memory_bytes
from plait.config.option import OptionSources
from plait.core.errors import UsageError
from plait.inspect.layers import NumberType
from plait.inspect.layouts import parse_layouts
from plait.inspect.lengths import read_lengths
from plait.inspect.memory import (
    LayoutReport,
    LoadReport,
    MemoryQuestion,
    MemoryReport,
    answer,
    ratio,
)
from plait.inspect.sources import find_facts
from plait.kv.layouts.cuts import Cause, Cut
from plait.kv.layouts.geometry import MIX
from plait.kv.layouts.groups import Load, MemoryGroup, SequenceSize
from plait.kv.layouts.layout import Refused

WIDTH = 100
INDENT = " " * 8
SMALLEST = 0.0005
"""Causes of less than this part of what is reserved are left out of the table; the JSON has them all."""
WORDS = {
    Cause.OUT_OF_WINDOW: "out of window",
    Cause.OTHER_ROWS: "other rows",
    Cause.LAST_BLOCK: "last block",
    Cause.BLOCK_INFLATION: "block inflation",
    Cause.LAYER_PADDING: "layer padding",
    Cause.BLOCK_PADDING: "block padding",
    Cause.PAGE_ROUNDING: "page rounding",
}


def run_inspect_memory(sources: OptionSources) -> int:
    options = sources.read(InspectMemoryOptions)
    if options.model is not None and options.model.startswith(SERVERS):
        told = ask_server(options.model, options.api_key)
        if options.json:
            show_json(told)
        else:
            for line in live_lines(Told(told, options.model)):
                show(line)
        return 0
    report = answer(_question(options))
    if options.json:
        show_json(report.json_object())
    else:
        for line in memory_lines(report):
            show(line)
    return 0


def _question(options: InspectMemoryOptions) -> MemoryQuestion:
    if options.model is None:
        raise UsageError("no model was given; write plait inspect memory MODEL (plait inspect lists known names)")
    layouts = _layouts("--kv-layout", options.kv_layout)
    base = None
    if options.compare is not None:
        (base, *others) = _layouts("--compare", options.compare)
        if others:
            raise UsageError(f"--compare is {options.compare!r}; one layout is expected")
        layouts = tuple(dict.fromkeys((base, *layouts)))
    cache = NumberType.BF16 if options.kv_cache_dtype == "auto" else NumberType(options.kv_cache_dtype)
    return MemoryQuestion(
        model=find_facts(options.model),
        draft=None if options.draft_model is None else find_facts(options.draft_model),
        sizes=read_lengths(options.lengths),
        memory_bytes=available_memory_bytes() if options.memory is None else options.memory,
        cache=cache,
        tokens_per_block=options.block_size,
        ranks=options.tensor_parallel_size,
        layouts=layouts,
        base=base,
    )


def _layouts(flag: str, text: str) -> tuple[str, ...]:
    try:
        return parse_layouts(text)
    except ValueError as error:
        raise UsageError(f"{flag} is {text!r}; {error}") from None


def memory_lines(report: MemoryReport) -> list[str]:
    """The tables for people, at most 100 columns wide."""
    question = report.question
    lines = [*head_lines("model", question.model.name, question.model.family, question.model.source)]
    if question.draft is not None:
        lines += head_lines("draft", question.draft.name, question.draft.family, question.draft.source)
    ranks = f", one of {question.ranks} ranks" if question.ranks > 1 else ""
    lines += [
        f"memory  {bytes_text(question.memory_bytes)} for caches{ranks}; keys and values in {question.cache}, "
        f"{question.tokens_per_block} tokens a block",
        "",
        f"{'group':<28}{'layers':>7}  {'keeps':<22}{'bytes':>38}",
        *(_group_line(group) for group in report.groups),
    ]
    kinds = report.layouts[0].lengths or next((one.lengths for one in report.layouts if one.lengths), ())
    for place, one in enumerate(kinds):
        lines += ["", *_load_lines(report, size_text(one.load.sequences[0][1]), place)]
    if any(one.mix for one in report.layouts):
        lines += ["", *_load_lines(report, _mix_text(question.sizes), None)]
    return [*lines, "", *_context_lines(report), *_page_lines(report), *_refusal_lines(report)]


def head_lines(word: str, name: str, family: str, source: str) -> list[str]:
    text = wrap(f"read from {source}", WIDTH, initial_indent=INDENT, subsequent_indent=INDENT, break_long_words=False)
    return [f"{word:<8}{name} ({family})", *text]


def _group_line(group: MemoryGroup) -> str:
    if group.is_state:
        parts = " + ".join(f"{part.name} {bytes_text(part.num_bytes * group.num_layers)}" for part in group.state_parts)
        return f"{group.name:<28}{group.num_layers:>7}  {'one state':<22}{parts + ' a sequence':>38}"
    keeps = {"window": f"the last {group.window:,}", "chunked": f"a chunk of {group.window:,}"}.get(
        group.kind, {"cross": "rows of images", "embedding": "rows of images"}.get(group.kind, "every token")
    )
    return f"{group.name:<28}{group.num_layers:>7}  {keeps:<22}{f'{group.bytes_per_token:,} a token':>38}"


def size_text(size: SequenceSize) -> str:
    images = f" and {size.image_tokens:,} of images" if size.image_tokens else ""
    return f"a sequence of {size.tokens:,} tokens{images} takes"


def _mix_text(sizes: Mapping[tuple[int, int], int]) -> str:
    count = sum(sizes.values())
    tokens = sum((own + images) * many for (own, images), many in sizes.items())
    return f"mixed as these {count:,} sequences are, {tokens // count:,} tokens on average: each takes"


def _load_lines(report: MemoryReport, title: str, place: int | None) -> list[str]:
    """One table: a row for each layout. `place` is that of the length; None is the mix."""
    lines = [title, f"  {'layout':<10}{'reserved':>11}{'waste':>9}{'at once':>9}{'again':>9}  waste by cause"]
    base = None if report.base is None else _load_of(report.base, place)
    for one in report.layouts:
        found = _load_of(one, place)
        if found is None:
            continue
        usage, sequences = found.full, max(1, found.copies) * found.load.count
        compared = ""
        if base is not None and found is not base and (times := ratio(found.sequences, base.sequences)) is not None:
            compared = f"  {times:.2f} x {report.question.base}"
        waste = usage.waste_bytes / usage.reserved_bytes if usage.reserved_bytes else 0.0
        start = (
            f"  {one.name.partition(':')[0]:<10}{bytes_text(usage.reserved_bytes / sequences):>11}{percent(waste):>9}"
            f"{count_text(found.sequences):>9}{_again(found):>9}  "
        )
        causes = [
            f"{WORDS[cause]} {percent(size / usage.reserved_bytes)}"
            for cause, size in sorted(usage.waste.items(), key=lambda item: -item[1])
            if size / usage.reserved_bytes >= SMALLEST
        ]
        lines += _wrapped(start, causes, compared)
    return lines


def _again(found: LoadReport) -> str:
    """The part of a prompt that is found in the cache when it comes a second time."""
    tokens = found.load.sequences[0][1].tokens
    return percent(found.repeated_tokens / tokens) if found.load.count == 1 and tokens else "-"


def _wrapped(start: str, causes: Sequence[str], compared: str) -> list[str]:
    lines, indent = [start.rstrip() if not causes else start], " " * len(start)
    for number, cause in enumerate(causes):
        text = cause + ("" if number == len(causes) - 1 else ",")
        room = WIDTH - (len(compared) if len(lines) == 1 else 0)
        if len(lines[-1]) + len(text) + 1 > room:
            lines.append(indent)
        lines[-1] += text if lines[-1].endswith("  ") or lines[-1] == indent else f" {text}"
    if compared:
        lines[0] = f"{lines[0]:<{WIDTH - len(compared)}}{compared}"
    return lines


def _load_of(report: LayoutReport, place: int | None) -> LoadReport | None:
    if place is None:
        return report.mix
    return report.lengths[place] if place < len(report.lengths) else None


def _context_lines(report: MemoryReport) -> list[str]:
    limit = report.question.model.max_tokens
    lines = [f"  {'layout':<10}{'longest sequence':>18}  {'prefix found again':<26}notes"]
    for one in report.layouts:
        name = one.name.partition(":")[0]
        if isinstance(one.layout, Refused):
            start = f"  {name:<10}{'-':>18}  "
            lines += wrap(one.layout.reason, WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
            continue
        hits = one.layout.hit_tokens
        unit = "never" if hits is None else "any length" if hits == 1 else f"in steps of {hits:,} tokens"
        notes = []
        if limit is not None and (one.largest_context is None or one.largest_context > limit):
            notes.append(f"the model ends at {limit:,}")
        times = None if report.base is None else ratio(one.largest_context, report.base.largest_context)
        if times is not None and one is not report.base:
            notes.append(f"{times:.2f} x {report.question.base}")
        longest = short_count(one.largest_context)
        lines.append(f"  {name:<10}{longest:>18}  {unit:<26}{', '.join(notes)}".rstrip())
    return lines


def _page_lines(report: MemoryReport) -> Iterator[str]:
    """How this engine cuts memory for the model, where there is something to choose, and what else there was."""
    for one in report.layouts:
        if one.geometry is None or len(one.geometry.cuts) < 2:
            continue
        geometry = one.geometry
        text = f"a page of plait has {bytes_text(geometry.page_bytes)}: {_parts_text(geometry.cuts)}"
        yield ""
        yield from wrap(text, WIDTH - 2, initial_indent="  ", subsequent_indent="    ")
        yield f"  chosen among {geometry.num_candidates:,}; predicted waste of {' and of '.join(map(_load_text, MIX))}:"
        raw = None if geometry.is_raw else geometry.shown[-1]
        for place, found in enumerate(geometry.shown):
            mark = "chosen" if place == 0 else "raw" if found is raw else ""
            wastes = "".join(f"{percent(waste):>9}" for waste in found.wastes)
            tables = " + ".join(str(cut.num_tables) for cut in found.cuts)
            yield f"    {mark:<7}pages of {bytes_text(found.page_bytes):>10}, tables {tables:<12}{wastes}"


def _refusal_lines(report: MemoryReport) -> list[str]:
    """What `plait serve` would not run of this, so that nobody finds out at the start of a server."""
    lines = []
    for refusal in report.refusals:
        text = f"plait serve refuses {refusal}"
        lines += wrap(text, WIDTH - 2, initial_indent="  ", subsequent_indent="    ", break_long_words=False)
    return ["", *lines] if lines else []


def _load_text(load: Load) -> str:
    return ", ".join(f"{count} x {size.tokens:,}" for count, size in load.sequences)


def _parts_text(cuts: Sequence[Cut]) -> str:
    parts = []
    for cut in cuts:
        part = f"{cut.blocks_per_page} blocks of {cut.group.num_layers // cut.num_tables} layers of {cut.group.name}"
        if cut.num_tables > 1:
            part += f" ({cut.num_tables} tables)"
        if cut.block_padding_bytes:
            part += f", padded by {cut.block_padding_bytes / (cut.block_bytes * cut.num_tables):.2%}"
        parts.append(part)
    return ", or ".join(parts)
