"""Every field is honoured, refused or known to be harmless, and the reference says which."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plait.api.calls import Endpoint
from plait.api.known import IGNORED, honoured, refuse_unknown, refused
from plait.core.errors import RequestError

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "http.md"
# Fields of the OpenAI API and of vLLM's, as their references list them.
CHAT_FIELDS = """
messages model audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens
max_tokens metadata modalities n parallel_tool_calls prediction presence_penalty prompt_cache_key reasoning_effort
response_format safety_identifier seed service_tier stop store stream stream_options temperature tool_choice tools
top_logprobs top_p user verbosity web_search_options top_k min_p repetition_penalty length_penalty stop_token_ids
include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
truncate_prompt_tokens truncation_side prompt_logprobs allowed_token_ids bad_words echo add_generation_prompt
continue_final_message add_special_tokens chat_template chat_template_kwargs structured_outputs priority request_id
return_token_ids return_tokens_as_token_ids cache_salt kv_transfer_params documents thinking_token_budget
include_reasoning watermarking logprob_token_ids media_io_kwargs mm_processor_kwargs session_id return_token_offsets
return_prompt_text ec_transfer_params vllm_xargs repetition_detection stream_interval
"""


@pytest.mark.parametrize("endpoint", Endpoint)
def test_no_field_is_of_two_kinds(endpoint: Endpoint) -> None:
    names = [*honoured(endpoint), *refused(endpoint)]
    assert sorted(names) == sorted(set(names))
    assert not set(IGNORED) & set(names)


def test_every_field_of_a_chat_is_known() -> None:
    refuse_unknown(Endpoint.CHAT, dict.fromkeys(CHAT_FIELDS.split()))


def test_a_field_that_nobody_knows_is_named() -> None:
    with pytest.raises(RequestError) as caught:
        refuse_unknown(Endpoint.EMBEDDINGS, {"input": "a", "dimensoins": 5})
    assert (caught.value.param, caught.value.code) == ("dimensoins", "unknown_parameter")


@pytest.mark.parametrize("endpoint", Endpoint)
def test_the_reference_lists_what_is_honoured_and_refused(endpoint: Endpoint) -> None:
    section = re.search(rf"^### `POST {re.escape(endpoint.value)}`\n(.*?)(?=^##)", REFERENCE.read_text(), re.M | re.S)
    assert section is not None
    for word, wanted in (("Honoured", honoured(endpoint)), ("Refused", refused(endpoint))):
        line = re.search(rf"^{word}: (.*?)\n\n", section[1], re.M | re.S)
        found = re.findall(r"`([\w.]+)`", line[1]) if line else []
        assert sorted(found) == wanted, word


def test_the_reference_lists_what_is_ignored() -> None:
    table = re.search(r"^## Ignored fields\n(.*?)(?=^## |\Z)", REFERENCE.read_text(), re.M | re.S)
    assert table is not None
    assert sorted(re.findall(r"^\| `(\w+)`", table[1], re.M)) == sorted(IGNORED)
