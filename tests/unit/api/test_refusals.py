"""Fields that we know and cannot honour are refused by name; asking for nothing is always fine."""

from __future__ import annotations

import pytest

from plait.api.bodies import JsonObject
from plait.api.refusals import REFUSALS, Refusal, refuse_unsupported
from plait.core.errors import RequestError


def fault_of(body: JsonObject) -> RequestError:
    with pytest.raises(RequestError) as caught:
        refuse_unsupported(body)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.field)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(refusal: Refusal) -> None:
    fault = fault_of({refusal.field: "asked for"})
    assert fault.param == refusal.field
    assert fault.code == "unsupported_parameter"
    assert fault.message.startswith(f'{refusal.field} is "asked for"')


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.field)
def test_a_field_that_asks_for_nothing_is_accepted(refusal: Refusal) -> None:
    for value in (None, *refusal.harmless):
        refuse_unsupported({refusal.field: value})


def test_a_voice_and_a_search_are_refused_and_an_empty_voice_is_none() -> None:
    assert fault_of({"audio": {"voice": "alloy", "format": "wav"}}).param == "audio"
    assert fault_of({"web_search_options": {}}).param == "web_search_options", "there it asks for a search"
    refuse_unsupported({"audio": {}, "structured_outputs": {}, "function_call": "auto"})


def test_no_field_is_refused_twice() -> None:
    names = [refusal.field for refusal in REFUSALS]
    assert names == list(dict.fromkeys(names))


def test_zero_is_not_false() -> None:
    assert fault_of({"use_beam_search": 0}).param == "use_beam_search"


def test_only_the_text_modality_works() -> None:
    refuse_unsupported({"modalities": ["text"]})
    assert fault_of({"modalities": ["text", "audio"]}).param == "modalities.1"
    assert fault_of({"modalities": "audio"}).param == "modalities"
