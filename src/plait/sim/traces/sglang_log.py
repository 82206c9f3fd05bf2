"""SGLang log: the lines that `--log-requests` makes, as text or as JSON (`--log-requests-format json`).

Owns both: "[2026-01-31 12:00:00] Receive: obj=GenerateReqInput(rid='...')" with "Finish: obj=..., out={...}", and
objects with `event` `request.received` and `request.finished`. Lengths are those of `meta_info`; a beginning in common
is seen where input ids were logged (`--log-requests-level 2` and more).
Invariant: all other lines are passed over; a request that never finished is left out and counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from plait.sim.traces.fields import date_s
from plait.sim.traces.fingerprints import Fingerprints
from plait.sim.traces.lines import Place, numbered
from plait.sim.traces.records import Record, Records, numbers_of
from plait.sim.traces.request import TraceRequest

TICK_S = 1.0
"""Of the text log's clock; see `spread`."""
MARKS = ("Receive: obj=", "Finish: obj=", '"request.received"', '"request.finished"')
_TEXT = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[^\]]*\].*?\b(Receive|Finish): obj=")
_RID = re.compile(r"\brid='([^']+)'")
_IDS = re.compile(r"\binput_ids=\[([\d, ]+)\](?! \.\.\.)")
_PROMPT_TOKENS = re.compile(r"'prompt_tokens': (\d{1,12})")
_COMPLETION_TOKENS = re.compile(r"'completion_tokens': (\d{1,12})")
_LATENCY = re.compile(r"'e2e_latency': (\d{1,9}(?:\.\d{1,18})?)")
_LONGEST_S = 1e7
"""Of an answer; a larger number is none."""
_WANTED = "start SGLang with --log-requests; its lines say Receive and Finish, or request.received and request.finished"


def is_sglang_log(head: str) -> bool:
    return any(mark in head for mark in MARKS)


def read_sglang_log(path: Path, notes: list[str]) -> Iterator[TraceRequest]:
    """Requests in order of arrival."""
    records, prints = Records(notes), Fingerprints()
    for place, text in numbered(path):
        if text.startswith("{"):
            _read_json(text, place, records, prints)
        elif found := _TEXT.match(text):
            at_s = date_s(found.group(1), "the time", place)
            _read_text(text, at_s, found.group(2) == "Finish", records, prints)
    yield from records.requests(path, _WANTED)


def _read_text(text: str, at_s: float, is_end: bool, records: Records, prints: Fingerprints) -> None:
    rid = _RID.search(text)
    if rid is None:
        records.skip("without a request id")
        return
    latency = _LATENCY.search(text) if is_end else None
    record = records.at(rid.group(1), at_s - (float(latency.group(1)) if latency else 0.0))
    ids = _IDS.search(text)
    if ids is not None and numbers_of(ids.group(1)):
        _say_prompt(record, numbers_of(ids.group(1)), prints)
    if is_end:
        prompt, output = _PROMPT_TOKENS.search(text), _COMPLETION_TOKENS.search(text)
        record.num_prompt = int(prompt.group(1)) if prompt else record.num_prompt
        record.num_output = int(output.group(1)) if output else record.num_output


def _read_json(text: str, place: Place, records: Records, prints: Fingerprints) -> None:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return
    event = values.get("event") if isinstance(values, dict) else None
    if event not in ("request.received", "request.finished"):
        return
    rid, at = values.get("rid"), values.get("timestamp")
    if not isinstance(rid, str) or not isinstance(at, str):
        raise place.error("rid and timestamp", (rid, at), "both must be there, as SGLang writes them")
    out = values.get("out")
    meta = out.get("meta_info") if isinstance(out, dict) else None
    facts: Mapping[str, object] = meta if isinstance(meta, dict) else {}
    latency = facts.get("e2e_latency")
    began_s = date_s(at, "timestamp", place) - (
        latency if isinstance(latency, int | float) and 0 <= latency < _LONGEST_S else 0.0
    )
    record = records.at(rid, began_s)
    obj = values.get("obj")
    ids = obj.get("input_ids") if isinstance(obj, dict) else None
    if isinstance(ids, list) and ids and all(type(one) is int for one in ids):
        _say_prompt(record, ids, prints)
    for name, count in (
        ("prompt_tokens", facts.get("prompt_tokens")),
        ("completion_tokens", facts.get("completion_tokens")),
    ):
        if type(count) is int and count >= 0:
            if name == "prompt_tokens":
                record.num_prompt = count
            else:
                record.num_output = count


def _say_prompt(record: Record, ids: list[int], prints: Fingerprints) -> None:
    record.num_prompt, record.blocks, record.block_tokens = len(ids), prints.blocks(ids), prints.block_tokens
