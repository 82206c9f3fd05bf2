"""Log lines and keys of `plait serve`: nothing of a client breaks a line, nothing opens by accident."""

from __future__ import annotations

import logging

import pytest

from plait.cli.api_keys import ApiKey, api_keys
from plait.cli.serve_logs import _TextLines
from plait.config.serve_options import ServeOptions
from plait.core.errors import UsageError


def test_what_clients_choose_neither_breaks_a_line_nor_adds_a_field() -> None:
    record = logging.makeLogRecord({"msg": "request", "levelno": logging.INFO, "levelname": "INFO"})
    record.fields = {"path": "/a\n12:00:00 info request", "request_id": "a status=200", "status": 404}
    line = _TextLines().format(record)
    assert "\n" not in line
    assert line.endswith(r'request path="/a\n12:00:00 info request" request_id="a status=200" status=404')


@pytest.mark.parametrize("given", ["", ",", " , "])
def test_a_key_that_is_none_does_not_open_the_server(given: str) -> None:
    with pytest.raises(UsageError, match="holds no key"):
        api_keys(ServeOptions(api_key=given))
    assert api_keys(ServeOptions(api_key=" a ,b")) == (ApiKey("a"), ApiKey("b"))
    assert api_keys(ServeOptions()) == ()
