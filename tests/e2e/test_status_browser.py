"""/status in a real browser, while the server works: figures move, nobody else is asked for anything, nothing is wrong.

Needs playwright and a chromium; `STATUS_SHOTS=FOLDER` keeps pictures of what was seen.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.e2e.browsing import Watched, opened_browser
from tests.e2e.server_process import ServerProcess, serving
from tests.e2e.tiny_model import write_tiny_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", context=8192)


@contextmanager
def load(server: ServerProcess, key: str) -> Iterator[None]:
    """Chats that come and go, some of which leave early, faulty ones, and a batch."""
    over = threading.Event()
    headers = {"authorization": f"Bearer {key}"}

    def chat(number: int) -> None:
        with server.client(**headers) as client:
            while not over.is_set():
                body = {
                    "messages": [{"role": "user", "content": "x" * 50 * number}],
                    "ignore_eos": True,
                    "stream": True,
                }
                asked = {**body, "max_tokens": 100 * number, "temperature": 0}
                with client.stream("POST", "/v1/chat/completions", json=asked) as reply:
                    for place, _ in enumerate(reply.iter_bytes()):
                        if over.is_set() or (number % 4 == 0 and place > 30):
                            break
                client.post("/v1/completions", json={"prompt": "x", "max_tokens": -1})

    sdk = openai.OpenAI(base_url=server.url, api_key=key, max_retries=0)
    body = {"prompt": "batch", "max_tokens": 300, "ignore_eos": True}
    lines = [{"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": body} for n in range(3000)]
    file = sdk.files.create(file=("in.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
    batch = sdk.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    threads = [threading.Thread(target=chat, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
        sdk.batches.cancel(batch.id)


def test_figures_move_and_nothing_is_asked_of_anybody_else(browser: Any, tiny: Path, tmp_path: Path) -> None:
    targets = ("--ttft-slo", "online=500ms,batch=1m", "--tpot-slo", "1ms", "--max-num-seqs", "12")
    with serving(tiny, "--api-key", "secret", "--batch-dir", str(tmp_path), *targets) as server:
        seen = Watched(browser, f"{server.root}/status")
        seen.page.wait_for_selector("#ask:not([hidden])")
        assert "tiny" not in seen.text(), "nothing is told without a key"
        seen.shoot("asks-for-a-key")
        seen.page.fill("#key", "wrong")
        seen.page.click("#ask button")
        seen.page.wait_for_selector("text=does not open")
        # Each look without a key is a refusal, which browsers log.
        assert all("401" in one for one in seen.complaints)
        seen.complaints.clear()
        with load(server, "secret"):
            seen.page.fill("#key", "secret")
            seen.page.keyboard.press("Enter")
            seen.page.wait_for_selector(".tile")
            assert seen.page.is_hidden("#ask")
            first = seen.page.inner_text("#figures")
            seen.page.wait_for_timeout(9000)
            now = seen.text()
            assert now != first
            assert seen.number("running") > 0
            assert seen.number("output tokens / s") > 0
            assert 0 < seen.number("in steps") <= 100
            for word in ("online ttft", "batch ttft", "lane 0", "in progress", "of 3,000", "ended: length", "tiny"):
                assert word in now, word
            for scheme, width in (("light", 1200), ("dark", 1200), ("light", 420)):
                seen.page.emulate_media(color_scheme=scheme)
                seen.page.set_viewport_size({"width": width, "height": 900})
                seen.shoot(f"{scheme}-{width}")
                assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (scheme, width)
                assert "[object" not in seen.page.inner_text("body")
                is_cut = "[...document.querySelectorAll('section')].some((one) => one.scrollWidth > one.clientWidth)"
                assert width < 1200 or not seen.page.evaluate(is_cut), "a table does not fit a desktop"
        assert server_is_idle(server)
        seen.page.wait_for_timeout(5000)
        assert (seen.number("running"), seen.number("waiting")) == (0, 0)
        assert seen.complaints == []
        assert {url.removeprefix(server.root) for url in seen.asked} == {"/status", "/status.json"}
    seen.page.wait_for_selector("#figures.stale")
    assert "No figures" in seen.text()
    seen.shoot("server-gone")


def server_is_idle(server: ServerProcess) -> bool:
    with server.client(authorization="Bearer secret") as client:
        for _ in range(2000):
            load = client.get("/load").json()
            if not any(load[name] for name in ("server_load", "num_requests_running", "num_requests_waiting")):
                return True
    return False


def test_a_server_without_keys_shows_its_figures_at_once(browser: Any, tiny: Path, tmp_path: Path) -> None:
    with serving(tiny, "--batch-dir", str(tmp_path)) as server:
        seen = Watched(browser, f"{server.root}/status")
        seen.page.wait_for_selector(".tile")
        assert seen.page.is_hidden("#ask")
        seen.page.wait_for_timeout(2500)
        seen.shoot("nothing-yet")
        assert seen.complaints == []
        assert "none are set" in seen.text()
