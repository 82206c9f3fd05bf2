"""/status: figures for people, and the page that shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.server_process import ServerProcess, serving
from tests.e2e.tiny_model import write_tiny_model

from plait.cli.main import main

KEY = {"authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("status")
    with serving(
        write_tiny_model(folder / "tiny.gguf"), "--api-key", "secret", "--batch-dir", str(folder / "batches")
    ) as running:
        yield running


def figures(server: ServerProcess) -> dict[str, Any]:
    with server.client(**KEY) as client:
        reply = client.get("/status.json")
    assert reply.status_code == 200
    told: dict[str, Any] = reply.json()
    return told


def test_figures_move_with_what_happens_and_memory_comes_back(server: ServerProcess) -> None:
    before = figures(server)
    assert before["state"] == "serving"
    assert before["latency_s"]["first_token"] == {"count": 0, "p50": None, "p99": None}
    with server.client(**KEY) as client:
        asked = {"prompt": "x" * 100, "max_tokens": 5, "ignore_eos": True}
        assert client.post("/v1/completions", json=asked).status_code == 200
        assert client.post("/v1/completions", json={**asked, "prompt": "x" * 999}).status_code == 400
    while (now := figures(server))["memory"]["used_bytes"] or now["requests"]["open"]:
        pass  # an answer is told before the step behind it has come back
    assert now["requests"]["finished"]["length"] == before["requests"]["finished"]["length"] + 1
    assert (now["requests"]["running"], now["requests"]["waiting"], now["requests"]["open"]) == (0, 0, 0)
    assert now["tokens"] == {"prompt": 100, "cached": 0, "generated": 5}
    assert set(now["drafts"]) == {"drafts", "proposed", "accepted", "depth", "saved_steps"}
    assert now["latency_s"]["first_token"]["count"] == 1
    assert now["latency_s"]["first_token"]["p50"] > 0
    memory = now["memory"]
    assert memory["used_bytes"] == 0 < memory["evictable_bytes"] < memory["total_bytes"]
    assert [group["used"] for group in memory["groups"]] == [0]
    assert memory["groups"][0]["evictable"] == 100 // memory["groups"][0]["tokens_per_block"]


def test_the_page_needs_no_key_and_tells_nothing_and_the_figures_need_one(server: ServerProcess) -> None:
    with server.client() as client:
        page, data = client.get("/status"), client.get("/status.json")
    assert page.status_code == 200
    assert data.status_code == 401
    assert "tiny" not in page.text
    assert page.headers["content-type"].startswith("text/html")


def test_where_memory_went_needs_a_key_and_the_command_line_shows_it(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    with server.client() as client:
        assert client.get("/debug/memory").status_code == 401
    with server.client(**KEY) as client:
        asked = {"prompt": "y" * 80, "max_tokens": 2, "ignore_eos": True}
        for _ in range(2):
            assert client.post("/v1/completions", json=asked).status_code == 200
        told, metrics = client.get("/debug/memory").json(), client.get("/metrics").text
    (group,) = told["groups"]
    assert told["layout"] == "paged"
    assert told["prefix"]["hit_tokens"] >= group["allowed_hit_tokens"] > 0 == group["lost_hit_tokens"]
    for name in ("kv_allowed_hit_tokens_total", "kv_lost_hit_tokens_total", "kv_evicted_blocks_total"):
        assert f"plait:{name}{{" in metrics
    assert f'cause="padding",engine="0",group="{group["name"]}"' in metrics
    assert main(["inspect", "memory", server.root, "--api-key", "secret"]) == 0
    shown = capsys.readouterr().out
    assert f"{told['pages']:,} of " in shown
    assert "lost hits" in shown
    assert main(["inspect", "memory", server.root]) != 0
    assert "give it with --api-key or in PLAIT_API_KEY" in capsys.readouterr().err


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids.add(values.get("id") or "")
        self.links += [value for name, value in attrs if name in ("src", "href", "action") and value]
        if tag not in ("meta", "input", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert tag == "html" or self.open.pop() == tag


def test_the_page_is_whole_and_takes_nothing_from_elsewhere(server: ServerProcess) -> None:
    with server.client() as client:
        reply = client.get("/status")
    page = _Page()
    page.feed(reply.text)
    assert page.links == ["data:,"], "an icon that is none, so that no browser asks for one"
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert set(re.findall(r'byId\("(\w+)"\)', reply.text)) <= page.ids
    assert "innerHTML" not in reply.text
    assert re.findall(r"https?://", reply.text) == []


def test_the_page_reads_figures_that_are_there(server: ServerProcess) -> None:
    with server.client() as client:
        script = client.get("/status").text
    now = figures(server)
    for first, second in re.findall(r"\b(?:now|one)\.(\w+)(?:\.(\w+))?", script):
        if first in ("count", "p50", "p99"):
            continue
        assert first in now, first
        if second and isinstance(now[first], dict):
            assert second in now[first], (first, second)
    for name in re.findall(r"\br\.(\w+)", script):
        assert name in now["requests"], name
    for name in re.findall(r"\bm\.(\w+)", script):
        assert name in now["memory"], name
    for name in re.findall(r"\bg\.(\w+)", script):
        assert name in now["memory"]["groups"][0], name
