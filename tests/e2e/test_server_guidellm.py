"""guidellm against the server: short profiles of made-up prompts on the three routes that answer, no failed request.

Its times mean nothing here. guidellm is not among what Plait needs, so this runs where it is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.server_process import ServerProcess, serving
from tests.e2e.tiny_checkpoint import write_tiny_checkpoint

pytestmark = pytest.mark.slow

REQUESTS, OUTPUT_TOKENS = 24, 16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A directory, as guidellm reads the tokenizer from the same place.
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[ServerProcess]:
    with serving(model) as running:
        yield running


def run_guidellm(server: ServerProcess, model: Path, work: Path, route: str, profile: str) -> list[dict[str, Any]]:
    """What it measured, one entry for each load that the profile consists of."""
    command = [sys.executable, "-m", "guidellm", "run", "--disable-console"]
    command += ["--backend", f"kind=openai_http,target={server.root},request_format={route}"]
    command += ["--profile", profile, "--constraint", f"kind=max_requests,count={REQUESTS}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens=48,output_tokens={OUTPUT_TOKENS}"]
    command += ["--tokenizer", f"kind=hf_auto,model={model}", "--output", f"kind=json,path={work / 'report.json'}"]
    offline = {"HF_HOME": str(work / "hf"), "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(command, env={**os.environ, **offline}, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:] + ended.stdout[-4000:]
    measured: list[dict[str, Any]] = json.loads((work / "report.json").read_text())["benchmarks"]
    return measured


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize(("profile", "loads"), [("kind=concurrent,streams=4", 1), ("kind=sweep,sweep_size=3", 3)])
def test_guidellm_reports_no_failed_request(
    server: ServerProcess, model: Path, tmp_path: Path, route: str, profile: str, loads: int
) -> None:
    pytest.importorskip("guidellm")
    measured = run_guidellm(server, model, tmp_path, route, profile)
    assert len(measured) == loads
    for load in measured:
        assert load["metrics"]["request_totals"] == {
            "successful": REQUESTS,
            "errored": 0,
            "incomplete": 0,
            "total": REQUESTS,
        }
        for request in load["requests"]["successful"]:
            assert request["output_tokens"] == OUTPUT_TOKENS
            assert request["prompt_tokens"] >= 48
            assert request["output"]
            assert 0 < request["time_to_first_token_ms"] <= request["request_latency"] * 1000
    assert server.become_idle()
