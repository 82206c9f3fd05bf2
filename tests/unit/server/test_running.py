"""Where a server listens: what cannot work is said before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.core.errors import UsageError
from plait.server.running import Listening


@pytest.mark.parametrize("content", [None, "this is no certificate"])
def test_a_certificate_that_cannot_be_used_is_refused_in_words(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "file.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=r"--ssl-certfile .* cannot be used: .*; give a certificate"):
        Listening("127.0.0.1", 0, None, path, path, "", 1.0).bound()


def test_an_address_that_is_nobodys_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match="cannot listen on"):
        Listening("192.0.2.1", 0, None, None, None, "", 1.0).bound()
