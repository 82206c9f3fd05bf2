"""Validating: whether a whole file can be run, before any of it is.

Owns the faults of a file as a batch of the OpenAI API has them; a line's own faults are found by the parts that read
and prepare it.
"""

from __future__ import annotations

from contextlib import suppress

from plait.api.calls import Endpoint
from plait.batch.lines import BatchLine, LineFault, read_lines
from plait.batch.preparing import Preparer
from plait.batch.records import BatchFault
from plait.batch.source import Source
from plait.core.errors import RequestError

MAX_LINES = 50_000
MAX_FAULTS = 100
"""More are counted, and said in the last one."""


def faults_of(source: Source, preparer: Preparer, endpoint: Endpoint) -> list[BatchFault]:
    """What keeps the file from being run; none: every line can be asked of the engine."""
    if source.num_lines == 0:
        return [BatchFault("empty_file", "the input file has no lines")]
    if source.num_lines > MAX_LINES:
        message = f"the input file has {source.num_lines} lines; at most {MAX_LINES} make a batch"
        return [BatchFault("too_many_tasks", message)]
    faults: list[BatchFault] = []
    num_faults = 0
    for line in read_lines(source):
        fault = _fault(line, preparer, endpoint)
        if fault is None:
            continue
        num_faults += 1
        if len(faults) < MAX_FAULTS:
            faults.append(fault)
    if num_faults > len(faults):
        faults.append(BatchFault("too_many_faults", f"{num_faults - len(faults)} more lines are faulty"))
    return faults


def prompt_tokens_of(source: Source, preparer: Preparer) -> int:
    """Of all lines that can be served. Encodes every prompt: not for an event loop."""
    num_tokens = 0
    for line in read_lines(source):
        if isinstance(line, BatchLine):
            with suppress(RequestError):  # its own trouble, which whoever serves it tells
                num_tokens += sum(len(request.prompt) for request in preparer.prepare(line).requests)
    return num_tokens


def _fault(line: BatchLine | LineFault, preparer: Preparer, endpoint: Endpoint) -> BatchFault | None:
    if isinstance(line, LineFault):
        return BatchFault(line.code, line.message, line.number, line.param)
    if line.url is not endpoint:
        message = f"url is {line.url.value}, but the batch was created for {endpoint.value}"
        return BatchFault("url_mismatch", message, line.number, "url")
    try:
        preparer.check(line)
    except RequestError as error:
        # A model that is not served, or streaming, holds for every line alike; a prompt that is too long is one line's
        # own trouble, and the others need not wait for it.
        if error.code in ("model_not_found", "unsupported_parameter"):
            code = "model_mismatch" if error.code == "model_not_found" else error.code
            return BatchFault(code, error.message, line.number, error.param)
    return None
