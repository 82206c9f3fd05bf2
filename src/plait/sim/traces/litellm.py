"""LiteLLM: spend logs of its proxy, as `/spend/logs` gives them (an array, or a `data` array) or as one object a line.

Owns `startTime`, `prompt_tokens`, `completion_tokens` and `status`. Keys, users and texts are not read.
Invariant: calls without tokens or that failed are left out and counted; order in the file does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

from plait.core.errors import UsageError
from plait.sim.traces.documents import elements, read_document
from plait.sim.traces.fields import json_object, moment, tokens
from plait.sim.traces.lines import Place, head_of, numbered
from plait.sim.traces.records import Records
from plait.sim.traces.request import TraceRequest

_NEEDED = ("startTime", "prompt_tokens", "completion_tokens")


def is_litellm(head: str) -> bool:
    return all(f'"{name}"' in head for name in _NEEDED)


def read_litellm(path: Path, notes: list[str]) -> Iterator[TraceRequest]:
    """Requests in order of arrival, from second 0 on."""
    records = Records(notes)
    for number, (place, values) in enumerate(_calls(path)):
        for name in _NEEDED:
            if values.get(name) is None:
                raise UsageError(f"{place}: {name} is missing; a spend log has {', '.join(_NEEDED)}")
        if values.get("status") == "failure":
            records.skip("it failed")
            continue
        record = records.at(str(number), moment(values, "startTime", place))
        record.num_prompt = tokens(values, "prompt_tokens", place, least=0)
        record.num_output = tokens(values, "completion_tokens", place, least=0)
    yield from records.requests(path, "spend logs of completions are expected")


def _calls(path: Path) -> Iterator[tuple[Place, Mapping[str, object]]]:
    head = head_of(path).lstrip()
    if head.startswith("["):
        yield from elements(path)
        return
    first = head.split("\n", 1)[0].rstrip()
    if first.endswith("}") and '"data"' not in first.split(":", 1)[0]:
        for place, text in numbered(path):
            yield place, json_object(text, place)
        return
    data = read_document(path).get("data")
    if not isinstance(data, list):
        raise UsageError(f"{path} has no data array; spend logs are an array, such as /spend/logs gives")
    for number, values in zip(count(1), data):
        if not isinstance(values, dict):
            raise Place(path, number, "element").error("data", values, "it must be an object")
        yield Place(path, number, "element"), values
