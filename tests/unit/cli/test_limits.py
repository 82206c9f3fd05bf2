"""`plait bench limits`: what is concluded from samples, and the whole command on a tiny model. No figure is judged."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.e2e.tiny_model import write_tiny_model

from plait.cli.limits import (
    ComputeRate,
    Effort,
    Limits,
    measure_limits,
    native_limits,
    serving_spread,
    thread_counts,
    wake_latency,
)
from plait.cli.main import main
from plait.config.engine_options import EngineOptions

Capture = pytest.CaptureFixture[str]
TINY = Effort(2, 0.001, 0.001, (1 << 20,), num_wakes=5, num_requests=2, prompt_tokens=4, output_tokens=2, num_pairs=1)


@pytest.mark.parametrize(
    ("cores", "counts"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_thread_counts_double_up_to_all_cores(cores: int, counts: list[int]) -> None:
    assert thread_counts(cores) == counts


def limits_with(*rates: ComputeRate) -> Limits:
    return Limits(2, rates, (), (), None, "no model")


def test_cores_are_separate_if_a_second_thread_nearly_doubles_the_best_rate() -> None:
    old = [ComputeRate("f32", "baseline", threads, rate, rate) for threads, rate in ((1, 1e9), (2, 1e9))]
    new = [ComputeRate("f32", "avx2", threads, rate, rate) for threads, rate in ((1, 10e9), (2, 19e9))]
    other = ComputeRate("int8", "avx2", 1, 99e9, 99e9)
    limits = limits_with(*old, *new, other)
    assert limits.core_ratio == pytest.approx(1.9)
    assert limits.has_separate_cores
    halves = limits_with(new[0], ComputeRate("f32", "avx2", 2, 12e9, 12e9))
    assert not halves.has_separate_cores
    assert any("1.20 times as much as one: NOT separate cores" in line for line in halves.lines())


def test_a_single_core_has_no_ratio_and_shares_with_nobody() -> None:
    limits = limits_with(ComputeRate("f32", "avx2", 1, 1e9, 1e9))
    assert limits.core_ratio is None
    assert limits.has_separate_cores


def test_wake_ups_are_told_by_percentiles() -> None:
    latency = wake_latency(2, [place * 1e-6 for place in range(101)])
    assert (latency.p50_s, latency.p90_s, latency.p99_s, latency.max_s) == pytest.approx((50e-6, 90e-6, 99e-6, 100e-6))


def test_the_spread_compares_each_run_b_with_the_run_a_before_it() -> None:
    spread = serving_spread("m", "reference", TINY, [1.0, 1.1, 2.0, 1.8, 1.0, 1.0])
    assert (spread.min_ratio, spread.median_ratio, spread.max_ratio) == pytest.approx((0.9, 1.0, 1.1))
    assert spread.spread_fraction == pytest.approx(1.0 / 1.05)


def test_without_the_native_module_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(sys.modules, "plait._native", None)
    monkeypatch.delattr("plait._native", raising=False)
    assert main(["bench", "limits", "--quick"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("plait: plait bench needs the native module, which cannot be imported")
    assert said.count("\n") == 1


def test_another_subject_is_a_usage_error(capsys: Capture) -> None:
    assert main(["bench", "limit"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("plait: 'limit' is none of plait bench's; choose one of ")
    assert said.endswith("; did you mean limits?\n")


# On the native module, where there is one


def test_everything_is_measured_and_told(tmp_path: Path) -> None:
    pytest.importorskip("plait._native")
    model = write_tiny_model(tmp_path / "tiny.gguf")
    options = EngineOptions(model=str(model), kv_cache_memory=1 << 20)
    limits = measure_limits(native_limits(), options, TINY, quiet=True)
    assert {rate.kind for rate in limits.compute} >= {"f32", "int8"}
    assert {rate.num_threads for rate in limits.compute} == set(thread_counts(limits.num_cores))
    assert [rate.num_bytes for rate in limits.read] == [1 << 20] * len(thread_counts(limits.num_cores))
    assert [one.num_workers for one in limits.wake] == [0, limits.num_cores]
    assert all(0 < one.p50_s <= one.p99_s <= one.max_s for one in limits.wake)
    assert limits.serving is not None
    assert (limits.serving.model, len(limits.serving.seconds)) == ("tiny", 2)
    assert json.loads(json.dumps(limits.json_object()))["serving"]["num_requests"] == 2
    assert limits.lines()[-1].startswith("serving A/A, 2 requests 4/2 on ")


def test_a_named_model_that_is_not_there_fails_before_anything_is_measured(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("plait._native")
    assert main(["bench", "limits", "--model", str(tmp_path / "none.gguf")]) == 1
    assert "none.gguf" in capsys.readouterr().err


def test_wrong_arguments_of_the_native_functions_name_value_and_limit() -> None:
    native = pytest.importorskip("plait._native")
    with pytest.raises(ValueError, match="num_threads is 0 but must be between 1 and 1024"):
        native.limits_read(1 << 20, 0, 1, 0.001)
    with pytest.raises(ValueError, match="this machine has no loop for f32 on mmx; limits_loops"):
        native.limits_compute("f32", "mmx", 1, 1, 0.001)
    with pytest.raises(ValueError, match="niceness is 20 but must be between 0 and 19"):
        native.limits_wake(1, 0, 20, 0.001)
