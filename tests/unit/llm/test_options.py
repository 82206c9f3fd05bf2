"""Options of `LLM`: vLLM's keywords where they mean the same, ours otherwise, never one without effect unsaid."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.core.errors import UsageError
from plait.llm.options import _KNOWN, in_python, read_options


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLAIT_MAX_MODEL_LEN", "PLAIT_SEED", "PLAIT_EXECUTOR"):
        monkeypatch.delenv(name, raising=False)


def test_keywords_are_read_like_the_options_of_commands() -> None:
    options = read_options(
        "m.gguf",
        {
            "max_model_len": 4096,
            "max_num_seqs": "8",
            "max_num_batched_tokens": 256,
            "kv_cache_memory": "1GiB",
            "enable_prefix_caching": False,
            "seed": None,
            "dtype": "float32",
            "kv_cache_dtype": "bfloat16",
            "quantization": "int8",
            "cache_dir": Path("somewhere"),
        },
    ).engine
    assert (options.model, options.max_model_len, options.max_num_seqs) == ("m.gguf", 4096, 8)
    assert (options.kv_cache_memory, options.enable_prefix_caching, options.seed) == (1 << 30, False, 0)
    assert (options.dtype, options.kv_cache_dtype, options.quantize) == ("f32", "bf16", "int8")
    assert options.cache_dir == Path("somewhere")


def test_a_keyword_wins_over_the_environment_and_that_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_SEED", "7")
    monkeypatch.setenv("PLAIT_MAX_MODEL_LEN", "512")
    options = read_options("m", {"seed": 3}).engine
    assert (options.seed, options.max_model_len) == (3, 512)


@pytest.mark.parametrize(
    ("keyword", "said"),
    [
        ("max_modle_len", "'max_modle_len' is not an option of LLM; did you mean max_model_len?"),
        ("tensor_paralel_size", "did you mean tensor_parallel_size?"),
        ("nonsense", "'nonsense' is not an option of LLM; see docs/guides/python.md"),
    ],
)
def test_an_unknown_keyword_is_answered_with_the_nearest(keyword: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("?", r"\?")):
        read_options("m", {keyword: 1})


def test_what_means_nothing_here_is_taken_with_a_note() -> None:
    options = read_options("m", {"gpu_memory_utilization": 0.8, "enforce_eager": True, "tensor_parallel_size": 1})
    assert options.notes == (
        "gpu_memory_utilization has no effect: Plait computes on processor cores; use kv_cache_memory, e.g. '1GiB'",
    )


def test_a_half_is_no_reason_to_refuse_and_none_to_change_weights() -> None:
    options = read_options("m", {"dtype": "bfloat16"})
    assert options.engine.dtype == "auto"
    assert options.notes == ("dtype bfloat16 has no effect: weights stay as they are in the file",)


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("tensor_parallel_size", 2),
        ("skip_tokenizer_init", True),
        ("enable_lora", True),
        ("revision", "main"),
        ("tokenizer", "another"),
        ("runner", "draft"),
        ("dtype", "float64"),
        ("quantization", "awq"),
        ("max_num_seqs", 0),
        ("max_num_seqs", "many"),
        ("kv_cache_memory", "a lot"),
        ("compilation_config_", {}),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(keyword: str, value: object) -> None:
    with pytest.raises(UsageError, match=keyword) as caught:
        read_options("m", {keyword: value})  # type: ignore[dict-item]
    assert "\n" not in str(caught.value)


def test_every_refusal_says_what_to_do() -> None:
    for name, known in _KNOWN.items():
        if known.harmless is None:
            continue
        with pytest.raises(UsageError, match=f"^{name} is 'odd'; ."):
            read_options("m", {name: "odd"})


def test_later_errors_name_keywords_too() -> None:
    error = in_python(UsageError("--max-model-len 9 needs more; raise --kv-cache-memory"))
    assert str(error) == "max_model_len 9 needs more; raise kv_cache_memory"
