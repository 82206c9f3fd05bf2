"""Writing: trace requests as files of our own forms, CSV or JSON lines, which `table` and `objects` read back.

Owns both texts. Invariant: what was written is read back equal, times to the microsecond; a CSV file is refused to
requests that it cannot hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from plait.core.errors import UsageError
from plait.sim.traces.request import TraceRequest


def csv_lines(requests: Iterable[TraceRequest]) -> Iterator[str]:
    """With `arrival_s` if the first request has it, and `client` if it has one."""
    columns: list[str] = []
    for request in requests:
        if request.blocks or request.think_s is not None:
            raise UsageError(
                "the trace says which prompts begin alike or who waits for an answer, which CSV cannot hold; write to "
                "a file that ends in .jsonl"
            )
        if not columns:
            columns = ["arrival_s"] * (request.at_s is not None) + ["client"] * bool(request.client)
            columns += ["input_tokens", "output_tokens"]
            yield ",".join(columns)
        cells = [_seconds(request.at_s)] if "arrival_s" in columns else []
        cells += [_cell(request.client)] if "client" in columns else []
        yield ",".join([*cells, str(request.num_prompt), str(request.num_output)])


def json_lines(requests: Iterable[TraceRequest]) -> Iterator[str]:
    for request in requests:
        values: dict[str, object] = {}
        if request.at_s is not None:
            values["arrival_s"] = round(request.at_s, 6)
        values |= {"input_tokens": request.num_prompt, "output_tokens": request.num_output}
        if request.blocks:
            values |= {"block_tokens": request.block_tokens, "hash_ids": list(request.blocks)}
        values |= {name: text for name, text in (("client", request.client), ("session", request.session)) if text}
        if request.think_s is not None:
            values["think_s"] = round(request.think_s, 6)
        yield json.dumps(values, separators=(",", ":"))


def _seconds(at_s: float | None) -> str:
    return "" if at_s is None else f"{at_s:.6f}".rstrip("0").rstrip(".")


def _cell(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\r\n') else text
