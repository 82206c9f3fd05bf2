"""Prompts: one or many, text or tokens; a faulty one is named by its place."""

from __future__ import annotations

import pytest
from tests.unit.api.byte_text import byte_text

from plait import InputError
from plait.llm.prompts import Prompt, read_prompts

TEXT = byte_text()


def of(text: str) -> Prompt:
    return Prompt(text, tuple(text.encode()))


@pytest.mark.parametrize("prompts", ["ab", {"prompt": "ab"}])
def test_a_string_and_a_dict_are_one_prompt(prompts: object) -> None:
    assert read_prompts(prompts, TEXT) == [of("ab")]  # type: ignore[arg-type]


def test_a_list_of_integers_is_one_prompt_in_tokens() -> None:
    assert read_prompts([1, 2, 3], TEXT) == [Prompt(None, (1, 2, 3))]


def test_forms_may_be_mixed_and_keep_their_order() -> None:
    prompts = ["ab", {"prompt_token_ids": [5, 6]}, {"prompt": "c", "cache_salt": "s"}, [7]]
    assert read_prompts(prompts, TEXT) == [  # type: ignore[arg-type]
        of("ab"),
        Prompt(None, (5, 6)),
        Prompt("c", (99,), "s"),
        Prompt(None, (7,)),
    ]


def test_tokens_win_over_text_and_keep_it() -> None:
    assert read_prompts({"prompt": "ab", "prompt_token_ids": [5]}, TEXT) == [Prompt("ab", (5,))]


def test_no_prompts_are_no_prompts() -> None:
    assert read_prompts([], TEXT) == []


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        (["ab", ""], "prompt 1 is empty"),
        (["ab", 3.5], "prompt 1 is of type float"),
        ([{"promt": "x"}], "prompt 0 has the key 'promt'; did you mean prompt"),
        ([{"multi_modal_data": {}}], "this model reads text only"),
        ([{}], "prompt 0 has neither text nor tokens"),
        ([{"prompt": 3}], "prompt 0 has under 'prompt' a value of type int"),
        ([{"prompt_token_ids": []}], "prompt 0 is an empty list of token ids"),
        ([{"prompt_token_ids": [1, True]}], "prompt 0 holds True among its token ids"),
        ([{"prompt_token_ids": "12"}], "prompt 0 has token ids of type str"),
        ([{"prompt": "x", "cache_salt": 1}], "prompt 0 has the cache_salt 1"),
        ([[1], [2, "x"]], "prompt 1 holds 'x' among its token ids"),
        (7, "prompts is of type int"),
    ],
)
def test_a_faulty_prompt_is_named(prompts: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_prompts(prompts, TEXT)  # type: ignore[arg-type]
