"""Small batch jobs for tests: input lines, ports, and a run in one call."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from tests.unit.api.byte_text import byte_text
from tests.unit.batch.scripted_client import ScriptedClient

from plait.api.bodies import JsonObject, JsonValue
from plait.batch.config import BatchConfig
from plait.batch.progress import BatchProgress
from plait.batch.runner import BatchPorts, run_batch
from plait.batch.summary import Summary
from plait.core.client import EngineClient
from plait.core.clock import SimClock


def chat_line(custom_id: JsonValue, words: str, **body: JsonValue) -> JsonObject:
    messages: JsonValue = [{"role": "user", "content": words}]
    full: JsonObject = {"model": "byte-model", "messages": messages, "temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": full}


def completion_line(custom_id: str, prompt: JsonValue, **body: JsonValue) -> JsonObject:
    full: JsonObject = {"model": "byte-model", "prompt": prompt, "temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": full}


def write_input(path: Path, lines: Iterable[JsonObject | str]) -> Path:
    """Objects as JSON, texts as they are."""
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def good_lines(count: int) -> list[JsonObject]:
    return [chat_line(f"id-{number}", f"say {number:04}") for number in range(1, count + 1)]


def config_of(folder: Path, lines: Iterable[JsonObject | str] | None = None) -> BatchConfig:
    """A job in `folder`; its input is (over)written if `lines` are given."""
    if lines is not None:
        write_input(folder / "in.jsonl", lines)
    return BatchConfig(input=str(folder / "in.jsonl"), output=folder / "out.jsonl")


def ports_of(
    client: EngineClient, *, adds_begin: bool = False, progress: Callable[[BatchProgress], None] = lambda progress: None
) -> BatchPorts:
    return BatchPorts(
        client, byte_text(adds_begin=adds_begin), SimClock(100.0), unix_offset_s=1_700_000_000.0, progress=progress
    )


def run(config: BatchConfig, client: EngineClient | None = None) -> Summary:
    return run_batch(config, ports_of(client or ScriptedClient()))


def restarted(config: BatchConfig) -> BatchConfig:
    return replace(config, restart=True)


def read_lines_of(path: Path) -> list[JsonObject]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def by_custom_id(path: Path) -> dict[JsonValue, JsonObject]:
    return {line["custom_id"]: line for line in read_lines_of(path)}
