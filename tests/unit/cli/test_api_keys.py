"""Keys and their limits, as options and files say them."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.cli.api_keys import ApiKey, api_keys
from plait.config.serve_options import ServeOptions
from plait.core.errors import UsageError
from plait.server.quotas import Quota


def of_file(folder: Path, text: str, api_key: str | None = None) -> tuple[ApiKey, ...]:
    (folder / "keys").write_text(text)
    return api_keys(ServeOptions(api_key=api_key, api_key_file=folder / "keys"))


def test_a_key_stands_alone_or_in_front_of_its_limits(tmp_path: Path) -> None:
    text = (
        "# who may do what\nfree\n\nsome  requests=8\ttokens/minute=100k\n all tokens=1 requests/minute=2 batches=3\n"
    )
    assert of_file(tmp_path, text, "first,second") == (
        ApiKey("first"),
        ApiKey("second"),
        ApiKey("free"),
        ApiKey("some", Quota(requests=8, tokens_per_minute=100_000)),
        ApiKey("all", Quota(tokens=1, requests_per_minute=2, batches=3)),
    )


def test_what_some_editors_put_in_front_of_a_text_is_no_part_of_a_key(tmp_path: Path) -> None:
    assert of_file(tmp_path, "\ufefffirst\nsecond\n") == (ApiKey("first"), ApiKey("second"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no keys"),
        ("# nothing\n", "holds no keys"),
        ("secret word\n", "line 1: words behind a key"),
        ("a\nsecret request=8\n", "line 2: 'request' is no further limit .*did you mean requests"),
        ("secret requests=8 requests=9\n", "write it once"),
        ("secret requests=0\n", "at least 1"),
        ("secret requests=1.5\n", "whole number"),
        ("secret requests=\n", "whole number"),
        ("secret requests=1\nsecret\n", "a key twice"),
    ],
)
def test_a_file_that_says_something_else_is_refused_without_a_word_of_its_keys(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        of_file(tmp_path, text)
    assert "secret" not in str(caught.value)
