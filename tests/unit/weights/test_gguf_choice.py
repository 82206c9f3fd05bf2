"""Names of GGUF files: which are models, which belong together, which quantisation they say."""

from __future__ import annotations

import pytest

from plait.core.errors import ModelError
from plait.weights.gguf_choice import choose_gguf, gguf_choices, parts_of, quantisation_of


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("Qwen3-0.6B-Q8_0.gguf", "Q8_0"),
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "q4_k_m"),
        ("Llama-3.2-1B-Instruct-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("model-IQ4_NL.gguf", "IQ4_NL"),
        ("gpt-oss-20b-mxfp4.gguf", "mxfp4"),
        ("Qwen3-4B-BF16-00001-of-00002.gguf", "BF16"),
        ("Q8_0/x-f16.gguf", "f16"),
        ("org_tiny_Q5_K_M.gguf", "Q5_K_M"),
        ("tinyllama-1.1b-chat.gguf", ""),
        ("Q4.gguf", "Q4"),
    ],
)
def test_a_name_says_its_quantisation(name: str, expected: str) -> None:
    assert quantisation_of(name) == expected


def test_parts_are_one_model_and_incomplete_ones_none() -> None:
    names = [f"F16/big-F16-0000{part}-of-00003.gguf" for part in (1, 2, 3)]
    (choice,) = gguf_choices([*names, "F16/other-00001-of-00002.gguf"])
    assert (choice.files, choice.quantisation, choice.first) == (tuple(names), "F16", names[0])
    assert parts_of(names[1]) == tuple(names)
    assert parts_of("x.gguf") == ("x.gguf",)


def test_what_is_no_model_is_left_out() -> None:
    names = [
        "mmproj-x.gguf",
        "x-mmproj-F16.gguf",
        "imatrix.gguf",
        "README.md",
        "../x.gguf",
        "a//x.gguf",
        ".x.gguf",
        "y.bin",
    ]
    assert gguf_choices(names) == []


def chosen(names: list[str], quantisation: str | None) -> str:
    return choose_gguf(names, quantisation, "place", lambda choice: choice.first).first


def test_the_only_one_or_the_named_one_is_chosen() -> None:
    assert chosen(["x-Q4_0.gguf", "mmproj-x.gguf"], None) == "x-Q4_0.gguf"
    names = ["x-Q4_0.gguf", "x-UD-Q4_0.gguf", "Q8_0/x.gguf", "x-iq4_nl.gguf"]
    assert chosen(names, "q4_0") == "x-Q4_0.gguf"
    assert chosen(names, "UD-Q4_0") == "x-UD-Q4_0.gguf"
    assert chosen(names, "Q8_0") == "Q8_0/x.gguf"
    assert chosen(names, "IQ4_NL") == "x-iq4_nl.gguf"


@pytest.mark.parametrize(
    ("names", "quantisation", "expected"),
    [
        ([], None, "place: no .gguf model in it"),
        (["x-Q4_0.gguf", "x-Q8_0.gguf"], None, "place: 2 models: Q4_0, Q8_0; say which, such as x-Q4_0.gguf"),
        (["a.gguf", "b.gguf"], None, "place: 2 models: a.gguf, b.gguf; say which, such as a.gguf"),
        (["a-Q4_0.gguf", "b-Q4_0.gguf"], "Q4_0", "place: 2 models in Q4_0: a-Q4_0.gguf, b-Q4_0.gguf; say which"),
        (["x-Q4_0.gguf"], "Q8_0", "place: no file in Q8_0; there are Q4_0"),
        ([f"{n:02}.gguf" for n in range(20)], None, "place: 20 models: 00.gguf"),
    ],
)
def test_otherwise_they_are_listed(names: list[str], quantisation: str | None, expected: str) -> None:
    with pytest.raises(ModelError) as caught:
        chosen(names, quantisation)
    assert str(caught.value).startswith(expected)
    assert len(str(caught.value)) < 200


def test_a_list_of_forged_parts_costs_no_more_than_its_length() -> None:
    names = [f"m{number}-00001-of-99999.gguf" for number in range(2000)]
    assert gguf_choices(names) == []
    assert parts_of("m-00001-of-00000.gguf") == ("m-00001-of-00000.gguf",)
