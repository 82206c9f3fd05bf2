"""Figures of a running server: as many first tokens as sequences that gave one; nothing is left when all are gone."""

from __future__ import annotations

import json
import math
import socket
from pathlib import Path

import pytest
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
    # One lane with all workers, who were never told to work for another.
    assert now["plait:lane_share_units"] >= 1
    assert now["plait:lane_share_unit_seconds_total"] > before["plait:lane_share_unit_seconds_total"]
    assert now["plait:share_changes_total"] == now["plait:lane_change_delay_seconds_count"] == 0


def leave_in_mid_stream(server: ServerProcess) -> None:
    host, _, port = server.root.removeprefix("http://").partition(":")
    body = json.dumps({"prompt": "x", "max_tokens": 250, "ignore_eos": True, "stream": True, "temperature": 0}).encode()
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        received = b""
        while b"data:" not in received:
            received += connection.recv(1000)


def test_targets_are_judged_for_every_sequence_and_a_request_may_bring_its_own(tmp_path: Path) -> None:
    tiny = write_tiny_model(tmp_path / "tiny.gguf")
    with serving(tiny, "--ttft-slo", "online=10m,batch=20m", "--tpot-slo", "10m") as server, server.client() as client:
        body = {"prompt": "x", "temperature": 0, "ignore_eos": True, "max_tokens": 5}
        for more in ({"n": 2}, {"service_tier": "flex"}, {"slo": {"ttft_s": 0.0001, "itl_s": 600}}):
            assert client.post("/v1/completions", json={**body, **more}).status_code == 200
        for wrong, param in (({"ttft_s": 0}, "slo.ttft_s"), ({"itl_s": 1e9}, "slo.itl_s"), (5, "slo")):
            refused = client.post("/v1/completions", json={**body, "slo": wrong})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        page, told = client.get("/metrics").text, client.get("/status.json").json()
    samples = [one for family in text_string_to_metric_families(page) for one in family.samples]
    values = {
        (one.name, one.labels["class"], one.labels.get("kind")): one.value for one in samples if "class" in one.labels
    }
    met, missed = "plait:slo_attained_total", "plait:slo_missed_total"
    assert values["plait:slo_target_seconds", "online", "ttft"] == 600
    assert values["plait:slo_target_seconds", "batch", "ttft"] == 1200
    assert (values[met, "online", "ttft"], values[missed, "online", "ttft"]) == (2, 1)
    assert (values[met, "online", "tpot"], values[met, "online", "itl"]) == (3, 1)
    assert (values[met, "batch", "ttft"], values[met, "batch", "tpot"]) == (1, 0)
    assert values["plait:slo_attainment_ratio", "online", "ttft"] == pytest.approx(2 / 3)
    assert math.isnan(values["plait:slo_attainment_ratio", "batch", "tpot"])
    assert values["plait:goodput_requests_total", "online", None] == 2
    assert {(row["class"], row["kind"]): (row["target_s"], row["attained"], row["missed"]) for row in told["slo"]} == {
        ("online", "ttft"): (600, 2, 1),
        ("online", "itl"): (None, 1, 0),
        ("online", "tpot"): (600, 3, 0),
        ("batch", "ttft"): (1200, 1, 0),
    }
