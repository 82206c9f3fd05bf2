"""Figures of a running server: as many first tokens as sequences that gave one; nothing is left when all are gone."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.server_process import ServerProcess, serving
from tests.e2e.tiny_model import write_tiny_model


def figures(server: ServerProcess) -> dict[str, float]:
    """Values by name, those of several labels added up."""
    with server.client() as client:
        reply = client.get("/metrics")
    assert reply.status_code == 200
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
                for label in ("finished_reason",):
                    if label in sample.labels:
                        values[f"{sample.name}.{sample.labels[label]}"] = sample.value
    return values


def test_dashboards_see_every_sequence_once(tmp_path: Path) -> None:
    tiny = write_tiny_model(tmp_path / "tiny.gguf")
    with serving(tiny, "--max-num-seqs", "4") as server, server.client() as client:
        before = figures(server)
        assert before["vllm:time_to_first_token_seconds_count"] == 0
        body = {"prompt": "x", "temperature": 0, "ignore_eos": True}
        for max_tokens in [7] * 10 + [1] * 3:
            assert client.post("/v1/completions", json={**body, "max_tokens": max_tokens}).status_code == 200
        for refused in ({"prompt": "x" * 999}, {"prompt": "x", "max_tokens": -1}):
            assert client.post("/v1/completions", json=refused).status_code == 400
        for _ in range(4):
            leave_in_mid_stream(server)
        assert server.become_idle()
        now = figures(server)
    assert now["vllm:time_to_first_token_seconds_count"] == 17
    assert now["vllm:inter_token_latency_seconds_count"] == now["vllm:generation_tokens_total"] - 17
    # A busy machine may finish an answer before it hears that its client left.
    finished, aborted = (now.get(f"vllm:request_success_total.{reason}", 0) for reason in ("length", "abort"))
    assert finished >= 13
    assert finished + aborted == 17
    assert now["vllm:prompt_tokens_total"] == 17
    for gauge in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert now[gauge] == 0
    assert now["vllm:iteration_tokens_total_count"] == now["plait:steps_total"] > 0
    assert now["process_resident_memory_bytes"] > 0


def leave_in_mid_stream(server: ServerProcess) -> None:
    host, _, port = server.root.removeprefix("http://").partition(":")
    body = json.dumps({"prompt": "x", "max_tokens": 250, "ignore_eos": True, "stream": True, "temperature": 0}).encode()
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        received = b""
        while b"data:" not in received:
            received += connection.recv(1000)
