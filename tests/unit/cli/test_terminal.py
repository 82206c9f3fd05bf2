"""The terminal: a bar only for a model that is really fetched."""

from __future__ import annotations

import pytest

from plait.cli.terminal import download_progress

Capture = pytest.CaptureFixture[str]


def test_a_download_shows_its_bar_and_a_model_that_is_there_shows_none(capsys: Capture) -> None:
    with download_progress("smollm2", quiet=False) as progress:
        pass
    assert capsys.readouterr().err == ""
    with download_progress("smollm2", quiet=False) as progress:
        progress(50, 100)
        progress(100, 100)
    shown = capsys.readouterr().err
    assert "fetching smollm2" in shown
    assert "100%" in shown


def test_a_quiet_download_shows_nothing(capsys: Capture) -> None:
    with download_progress("smollm2", quiet=True) as progress:
        progress(50, 100)
    assert capsys.readouterr().err == ""


def test_a_bar_is_closed_when_the_download_fails(capsys: Capture) -> None:
    def fail() -> None:
        with download_progress("smollm2", quiet=False) as progress:
            progress(50, 100)
            raise OSError("no network")

    with pytest.raises(OSError, match="no network"):
        fail()
    assert capsys.readouterr().err.endswith("\n"), "what follows begins on a line of its own"
