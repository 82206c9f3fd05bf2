"""Keys: what opens the server and what does not."""

from __future__ import annotations

from plait.server.identity import Keys


def test_keys_of_any_script_open_as_they_come_over_the_wire() -> None:
    keys = Keys(["clé-🔑", "plain"])
    as_header = "clé-🔑".encode().decode("latin-1")
    assert keys.tenant(as_header) == keys.tenant(as_header)
    assert keys.tenant(as_header) not in (None, keys.tenant("plain"))
    assert keys.tenant("plain") is not None
    assert keys.tenant("plai") is None
    assert keys.tenant("") is None
