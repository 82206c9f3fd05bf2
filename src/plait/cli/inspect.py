"""Inspect: `plait inspect MODEL`, what a model is and needs, and what fits here, from its configuration alone.

Owns the page for people and its JSON. Needs no engine, no weights and no network.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap

from plait.cli.inspect_memory import INDENT, WIDTH, head_lines
from plait.cli.streams import show, show_json
from plait.cli.units import big_number, bytes_text, count_text
from plait.config.inspect_options import InspectOptions
from plait.config.machine import available_memory_bytes
from plait.config.option import OptionSources
from plait.inspect.facts import ModelFacts
from plait.inspect.known import known_models
from plait.inspect.layers import KeysValues, NumberType, memory_groups
from plait.inspect.sources import find_facts
from plait.kv.layouts.capacity import largest_context, most_sequences
from plait.kv.layouts.groups import MemoryGroup, one
from plait.kv.layouts.jenga import jenga
from plait.kv.layouts.layout import Layout, Refused
from plait.kv.layouts.plait import plait

SCHEMA = "plait.inspect/1"
TOKENS_PER_BLOCK = 32
"""Plait's own, unless asked for another."""
USER_TOKENS = 4096
UNQUANTIZED_BYTES = 2
SPEED = "not claimed from a configuration; plait doctor MODEL measures what this machine reaches"


@dataclass(frozen=True, slots=True)
class Fit:
    """What this machine's free memory holds beside the weights."""

    memory_bytes: int
    weight_bytes: int | None
    """None: nobody says how large the weights are."""
    layout: str
    context: int | None
    """Tokens of one sequence; None: without end."""
    users: int | None
    """Sequences of `USER_TOKENS`."""

    @property
    def cache_bytes(self) -> int:
        return max(0, self.memory_bytes - (self.weight_bytes or 0))


def run_inspect(sources: OptionSources) -> int:
    options = sources.read(InspectOptions)
    if options.model is None:
        return _list_known(json=options.json)
    facts = find_facts(options.model)
    cache = NumberType.BF16 if options.kv_cache_dtype == "auto" else NumberType(options.kv_cache_dtype)
    groups = memory_groups(facts.layers, cache, facts.numbers)
    fit = fit_here(facts, groups, available_memory_bytes())
    if options.json:
        show_json(_json_object(facts, groups, cache, fit))
    else:
        for line in inspect_lines(facts, groups, cache, fit):
            show(line)
    return 0


def _list_known(*, json: bool) -> int:
    known = sorted(known_models().values(), key=lambda model: model.name.lower())
    if json:
        show_json({"known": [model.name for model in known]})
        return 0
    show("known names, for which no file is needed; for others give a config.json or a GGUF file:")
    for model in known:
        show(f"  {model.name}")
    return 0


def weight_bytes(facts: ModelFacts) -> int | None:
    """As stored, or two bytes for each number."""
    if facts.weight_bytes is not None:
        return facts.weight_bytes
    return None if facts.parameters is None else facts.parameters.total * UNQUANTIZED_BYTES


def fit_here(facts: ModelFacts, groups: list[MemoryGroup], memory_bytes: int) -> Fit:
    """Under Plait's own layout; under Jenga's for models that Plait cannot hold yet."""
    layout: Layout | Refused = plait(groups, TOKENS_PER_BLOCK)
    if isinstance(layout, Refused):
        layout = jenga(groups, TOKENS_PER_BLOCK)
    weights = weight_bytes(facts)
    left = max(0, memory_bytes - (weights or 0))
    context = largest_context(layout, left)
    return Fit(memory_bytes, weights, layout.name, context, most_sequences(layout, one(USER_TOKENS), left))


def flops_per_token(facts: ModelFacts) -> float | None:
    """Products with weights; a multiplication and an addition are two."""
    return None if facts.parameters is None else 2.0 * facts.parameters.active


def flops_per_key(facts: ModelFacts) -> int:
    """Of one token, for each token before it that layers without a window look at."""
    full = sum(isinstance(layer, KeysValues) and not layer.window for layer in facts.layers)
    return 4 * facts.attention_width * full


def inspect_lines(facts: ModelFacts, groups: list[MemoryGroup], cache: NumberType, fit: Fit) -> list[str]:
    longest = "" if facts.max_tokens is None else f", up to {facts.max_tokens:,} tokens"
    lines = [
        *head_lines("model", facts.name, facts.family, facts.source),
        f"layers  {facts.num_layers} of width {facts.hidden:,}{longest}",
    ]
    if facts.refusal is not None:
        text = "by Plait" if not facts.refusal else f"not by Plait yet: {facts.refusal}"
        lines += wrap(f"served  {text}", WIDTH, subsequent_indent=INDENT)
    lines += _weight_lines(facts)
    lines += [
        f"cache   {line}" if place == 0 else f"{INDENT}{line}"
        for place, line in enumerate(_cache_lines(groups, cache, facts.numbers))
    ]
    return [*lines, *_fit_lines(fit), f"speed   {SPEED}"]


def _weight_lines(facts: ModelFacts) -> list[str]:
    if facts.parameters is None:
        return ["numbers not known: a configuration alone does not say how many weights there are"]
    total, active = facts.parameters.total, facts.parameters.active
    lines = [f"numbers {big_number(total)} in the weights, {big_number(active)} of them for one token"]
    size = weight_bytes(facts)
    if facts.weight_bytes is None:
        lines.append(f"weights {bytes_text(size or 0)} in 16 bits")
    else:
        lines.append(
            f"weights {bytes_text(facts.weight_bytes)} as stored, {8 * facts.weight_bytes / total:.2f} bits each"
        )
    for title, rows in (("format", facts.formats), ("part", facts.parts)):
        lines += [
            f"{INDENT}{title} {name:<14}{big_number(numbers):>8}  {bytes_text(size):>10}"
            for name, numbers, size in rows
        ]
    work, more = flops_per_token(facts) or 0.0, flops_per_key(facts)
    grows = f", and {big_number(1000 * more)} for each 1,000 tokens before it" if more else ""
    return [*lines, f"work    {big_number(work)} operations a token{grows}"]


def _cache_lines(groups: list[MemoryGroup], cache: NumberType, numbers: NumberType) -> list[str]:
    full = sum(group.bytes_per_token for group in groups if not group.window)
    first = sum(group.bytes_per_token for group in groups)
    states = sum(group.num_layers * group.state_bytes for group in groups)
    lines = []
    if first:
        rest = "" if first == full else f", {full:,} behind the largest window"
        lines.append(f"{first:,} bytes a token in {cache}{rest}")
    if states:
        lines.append(f"{bytes_text(states)} of states a sequence, in {numbers} unless the file says otherwise")
    for group in groups:
        size = f"{bytes_text(group.num_layers * group.state_bytes)} a sequence"
        lines.append(
            f"  {group.name:<26}{group.num_layers:>4} layers  "
            f"{size if group.is_state else f'{group.bytes_per_token:,} bytes a token'}"
        )
    return lines


def _fit_lines(fit: Fit) -> list[str]:
    free = bytes_text(fit.memory_bytes)
    if fit.weight_bytes is None:
        start = f"{free} are free here; without the weights, whose size is not known, that is"
    elif fit.cache_bytes == 0:
        return [f"fits    not here: {free} are free, the weights take {bytes_text(fit.weight_bytes)}"]
    else:
        start = f"{free} are free here, {bytes_text(fit.cache_bytes)} beside the weights:"
    context = "a sequence of any length" if fit.context is None else f"one sequence of {count_text(fit.context)} tokens"
    users = "any number of users" if fit.users is None else f"{count_text(fit.users)} users"
    return [f"fits    {start}", f"{INDENT}{context}, or {users} at {USER_TOKENS:,} tokens (layout {fit.layout})"]


def _json_object(facts: ModelFacts, groups: list[MemoryGroup], cache: NumberType, fit: Fit) -> dict[str, object]:
    parameters = facts.parameters
    return {
        "schema": SCHEMA,
        "name": facts.name,
        "family": facts.family,
        "source": facts.source,
        "num_layers": facts.num_layers,
        "hidden_size": facts.hidden,
        "max_tokens": facts.max_tokens,
        "vocab_size": facts.vocab_size or None,
        "served": None if facts.refusal is None else not facts.refusal,
        "refusal": facts.refusal or None,
        "parameters": None if parameters is None else parameters.total,
        "active_parameters": None if parameters is None else parameters.active,
        "weight_bytes": fit.weight_bytes,
        "formats": [{"name": name, "numbers": numbers, "bytes": size} for name, numbers, size in facts.formats],
        "parts": [{"name": name, "numbers": numbers, "bytes": size} for name, numbers, size in facts.parts],
        "flops_per_token": flops_per_token(facts),
        "flops_per_token_and_key": flops_per_key(facts),
        "kv_cache_dtype": str(cache),
        "groups": [
            {
                "name": group.name,
                "kind": str(group.kind),
                "num_layers": group.num_layers,
                "window": group.window or None,
                "bytes_per_token": group.bytes_per_token,
                "bytes_per_state": group.num_layers * group.state_bytes,
            }
            for group in groups
        ],
        "fits_here": {
            "memory_bytes": fit.memory_bytes,
            "cache_bytes": fit.cache_bytes,
            "layout": fit.layout,
            "context_tokens": fit.context,
            "users_at_4096_tokens": fit.users,
        },
    }
