"""Which models are served."""

from __future__ import annotations

import pytest

from plait.api.calls import check_model
from plait.core.errors import RequestError


def test_any_served_name_and_no_name_at_all_are_fine() -> None:
    check_model("a", ["a", "b"])
    check_model("b", ["a", "b"])
    check_model(None, ["a", "b"])


@pytest.mark.parametrize("name", ["c", "", "A"])
def test_an_unknown_model_is_not_found(name: str) -> None:
    with pytest.raises(RequestError, match="ask for 'a' or 'b'") as caught:
        check_model(name, ["a", "b"])
    assert (caught.value.status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")
