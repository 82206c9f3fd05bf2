"""Fingerprints: equal beginnings have equal names; texts come to about as many pieces as tokens."""

from __future__ import annotations

from plait.sim.traces.fingerprints import Fingerprints, pieces_of


def test_blocks_have_equal_names_as_far_as_all_before_is_equal() -> None:
    prints = Fingerprints(4)
    first = prints.blocks(list(range(12)))
    assert prints.blocks(list(range(12))) == first == (0, 1, 2)
    assert prints.blocks([*range(4), 9, 5, 6, 7, *range(8, 12)]) == (0, 3, 4), "the last block is behind another one"
    assert prints.blocks([1, 2, 3]) == (), "no whole block"


def test_a_text_is_cut_into_all_its_pieces() -> None:
    text = "It's 12,345 times as unconstitutional, isn't it?\n\n  Yes_no \u00e9t\u00e9."
    assert "".join(pieces_of(text)) == text
    assert 15 <= len(pieces_of(text)) <= 30
